from rollbook.logservice.core.journal import journal_of, segment_views
from rollbook.logservice.core.ledger_list import LogEvent
from rollbook.logservice.ids import Offset, OwnerEpoch, ServerId
from tests.unit.logservice.lists import rolled


def test_a_journal_tells_of_rolls_and_of_the_rest_newest_first() -> None:
    listed = rolled(10).with_event(
        LogEvent(
            "log_opened", 500, OwnerEpoch(1), ServerId("anna~1"), "nobody owned it", Offset(10)
        )
    )
    told = [(event.time_us, event.kind, event.server, event.reason) for event in journal_of(listed)]
    assert told == [
        (1000, "segment_begun", "", "size"),
        (999, "segment_closed", "", ""),
        (500, "log_opened", "anna~1", "nobody owned it"),
        (0, "segment_begun", "", "size"),
    ]
    assert journal_of(listed)[2].details == {"offset": "10"}
    assert journal_of(listed)[1].details["next_offset"] == "10"


def test_segments_are_shown_as_far_as_they_are_known() -> None:
    closed, open_ = segment_views(rolled(10))
    assert (closed.base_offset, closed.next_offset, closed.records, closed.bytes) == (
        0,
        10,
        10,
        1000,
    )
    assert (open_.base_offset, open_.next_offset, open_.records) == (10, None, 0)
