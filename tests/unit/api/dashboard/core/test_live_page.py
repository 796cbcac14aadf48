"""The events that an open page is sent."""

import pytest

from rollbook.api.dashboard.core.live_page import NewRows, PageState, event_for, live
from rollbook.api.dashboard.core.markup import element


@pytest.mark.parametrize("text", ["", "a1.b2", "a1;7", ";0", "a1.b2;9223372036854775807"])
def test_page_state_round_trips_through_its_id(text: str) -> None:
    assert str(PageState.parse(text)) == text


@pytest.mark.parametrize("text", ["x", "a1;", "a1;-1", "a" * 500, "a1\n", ";" + "9" * 20, "<b>"])
def test_hostile_page_state_is_ignored(text: str) -> None:
    """DB5."""
    assert PageState.parse(text) == PageState()


def test_only_changed_parts_are_sent() -> None:
    """DB5."""
    one, two = live("one", "1"), live("two", "2")
    seen = PageState.of([one, two], None)
    assert event_for(seen, [one, two], None) == (seen, b"")
    changed = live("two", "line\nline")
    now, event = event_for(seen, [one, changed], None)
    assert (
        event
        == (
            f'id: {now}\ndata: <hx-partial hx-target="#two" hx-swap="outerMorph"><div id="two">line\n'
            f"data: line</div></hx-partial>\n\n"
        ).encode()
    )
    assert event_for(now, [one, changed], None) == (now, b"")
    assert event_for(seen, [one, changed], None) == (now, event), (
        "a page that missed the event gets it"
    )
    assert b"#one" in event_for(PageState(), [one, changed], None)[1], (
        "a page of unknown state gets every part"
    )


def test_records_are_sent_from_the_offset_that_the_page_has() -> None:
    """DB5."""
    part = live("facts", "1")
    seen = PageState.of([part], NewRows(3))
    assert seen.next_offset == 3
    now, event = event_for(seen, [part], NewRows(5, [element("tr", "4"), element("tr", "3")]))
    assert (now.next_offset, event.count(b"<tr>"), b"#facts" in event) == (5, 2, False)
    assert event_for(now, [part], NewRows(5)) == (now, b"")
