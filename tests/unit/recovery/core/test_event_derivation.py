"""Which changes become events, and with which IDs."""

from dataclasses import replace

import pytest

from rollbook.proto.errors import BadMetadata
from rollbook.recovery.core.event_derivation import (
    Event,
    EventFilter,
    EventKind,
    EventMemory,
    ObservedState,
    Sight,
    Thing,
    Tracks,
    derive,
    first_fingerprints,
    unpack_event,
)

NOW_MS = 5_000
BK1 = Sight(
    Thing.REGISTRATION, "bk-1", "available/bk-1", 0x1F, 0, 1_000, state="a1", bookies=("bk-1",)
)
DRAINS = Sight(
    Thing.LIFECYCLE,
    "bk-1",
    "lifecycle/bk-1",
    0x20,
    0,
    2_000,
    state="draining",
    since_ms=2_000,
    bookies=("bk-1",),
)
OPERATION = Sight(
    Thing.OPERATION,
    "5f",
    "operations/5f",
    0x30,
    0,
    3_000,
    state="queued",
    text="drain",
    bookies=("bk-1",),
)


def tracks_of(*sights: Sight) -> dict[str, tuple[ObservedState, ...]]:
    """The tracks of a process that has just started."""
    tracks = Tracks()
    tracks.on_look({each.subject: each for each in sights}, NOW_MS)
    return tracks.states


def kinds_and_ids(marks: dict[str, str], *sights: Sight) -> list[tuple[str, str]]:
    events, after = derive(marks, tracks_of(*sights), NOW_MS)
    marks.clear()
    marks.update(after)
    return [(each.kind.value, each.id) for each in events]


def test_bookie_lost_and_back_events_follow_sessions() -> None:
    """EV1, EV2: a switch between writable and read-only in one session is no loss."""
    marks = first_fingerprints(tracks_of(BK1))
    assert kinds_and_ids(marks, BK1) == []
    read_only = replace(BK1, node="available/readonly/bk-1", life=0x21)
    assert kinds_and_ids(marks, read_only) == []
    assert kinds_and_ids(marks) == [("bookie-lost", "available/readonly/bk-1@21.lost")]
    assert kinds_and_ids(marks) == []
    back = replace(BK1, life=0x22, state="a2")
    assert kinds_and_ids(marks, back) == [("bookie-back", "available/bk-1@22")]
    again = replace(BK1, life=0x23, state="a3")
    expected = [("bookie-lost", "available/bk-1@22.lost"), ("bookie-back", "available/bk-1@23")]
    assert kinds_and_ids(marks, again) == expected, "the loss itself was not observed"


def test_each_lifecycle_change_is_one_event() -> None:
    """EV1: writing the same state again is no event."""
    marks: dict[str, str] = {}
    assert kinds_and_ids(marks, DRAINS) == [("lifecycle", "lifecycle/bk-1@20.0")]
    assert kinds_and_ids(marks, replace(DRAINS, version=1, text="again")) == []
    drained = replace(DRAINS, version=2, state="drained", since_ms=2_500)
    assert kinds_and_ids(marks, drained) == [("lifecycle", "lifecycle/bk-1@20.2")]
    assert kinds_and_ids(marks) == [("lifecycle", "lifecycle/bk-1@20.2.removed")]


def test_operation_seen_late_has_started_and_ended_events() -> None:
    """EV2."""
    marks: dict[str, str] = {}
    assert kinds_and_ids(marks, OPERATION) == []
    done = replace(OPERATION, state="done", started_ms=2_900)
    both = [("operation-started", "operations/5f@30.started")]
    both.append(("operation-ended", "operations/5f@30.ended"))
    assert kinds_and_ids(marks, done) == both
    assert kinds_and_ids(marks, done) == []
    assert kinds_and_ids({}, replace(OPERATION, state="cancelled")) == both[1:], (
        "the operation never ran"
    )
    running = replace(OPERATION, state="running", started_ms=2_900)
    marks = {}
    assert kinds_and_ids(marks, running) + kinds_and_ids(marks, done) == both
    assert kinds_and_ids(marks) == [], "deleting an old operation is no event"


def test_pause_auditor_and_overdue_events_are_derived() -> None:
    switch = Sight(Thing.SWITCH, "", "underreplication/disable", 0x40, 0, 1)
    vote = Sight(Thing.AUDITOR, "", "underreplication/auditorelection/V_1", 0x41, 0, 1, text="r:1")
    late = Sight(Thing.OVERDUE, "7", "underreplication/ledgers/urL7", 0x42, 0, 1, ledger_id=7)
    marks: dict[str, str] = {}
    found = [kind for kind, _ in kinds_and_ids(marks, switch, vote, late)]
    assert sorted(found) == ["auditor", "ledger-overdue", "recovery-paused"]
    next_vote = replace(vote, node="underreplication/auditorelection/V_2", life=0x43, text="r:2")
    assert [kind for kind, _ in kinds_and_ids(marks, next_vote)] == ["auditor", "recovery-resumed"]


def test_each_new_bad_copy_is_an_event() -> None:
    bad = Sight(Thing.BAD_COPIES, "7", "bad/urL7", 0x50, 0, 1, ledger_id=7, text="bad")
    marks: dict[str, str] = {}
    assert kinds_and_ids(marks, bad) == [("bad-ledger", "bad/urL7@50.0")]
    assert kinds_and_ids(marks, replace(bad, version=1)) == [("bad-ledger", "bad/urL7@50.1")]
    assert kinds_and_ids(marks) == [], "a repair is no event"


def test_registered_bookies_cause_no_events_at_start() -> None:
    """EV3: existing lifecycles do cause events."""
    marks = first_fingerprints(tracks_of(BK1, DRAINS))
    assert kinds_and_ids(marks, BK1, DRAINS) == [("lifecycle", "lifecycle/bk-1@20.0")]


def test_next_sender_derives_events_of_the_gap() -> None:
    """EV2: the fingerprints are those of a process that died before the drain started."""
    tracks, switch = Tracks(), Sight(Thing.SWITCH, "", "disable", 0x40, 0, 1)
    marks = first_fingerprints(tracks_of(BK1)) | {"switch/": "gone disable@3f"}
    drained = replace(DRAINS, version=1, state="drained", since_ms=2_500, at_ms=2_500)
    for now_ms, sights in enumerate(
        [(BK1,), (BK1, DRAINS), (BK1, DRAINS, switch), (drained, BK1), (drained,)]
    ):
        tracks.on_look({each.subject: each for each in sights}, 2_000 + now_ms)
    known = marks
    events, after = derive(marks, tracks.states, NOW_MS)
    assert [each.id for each in events] == [
        "disable@40",
        "lifecycle/bk-1@20.0",
        "disable@40.resumed",
        "available/bk-1@1f.lost",
        "lifecycle/bk-1@20.1",
    ]
    assert derive(after, tracks.states, NOW_MS) == ([], after)
    some: list[str] = []
    while True:
        events, known = derive(known, tracks.states, NOW_MS, things_max=1)
        if not events:
            break
        some += [each.id for each in events]
    assert len(some) == 5
    assert known == after


def test_all_changes_between_two_senders_become_events() -> None:
    """EV2: recovery was paused and resumed thirty times between two senders."""
    tracks = Tracks()
    marks: dict[str, str] = {"switch/": "gone disable@f"}
    for number in range(16, 46):
        switch = Sight(Thing.SWITCH, "", "disable", number, 0, number)
        tracks.on_look({switch.subject: switch}, number)
        tracks.on_look({}, number)
    events, after = derive(marks, tracks.states, NOW_MS)
    pairs = [(f"disable@{number:x}", f"disable@{number:x}.resumed") for number in range(16, 46)]
    assert [each.id for each in events] == [each for pair in pairs for each in pair]
    assert after == {"switch/": "gone disable@2d"}


def test_change_not_in_the_tracks_is_no_event() -> None:
    """The track no longer holds the state in between."""
    tracks = Tracks(earlier_max=0)
    switch = Sight(Thing.SWITCH, "", "disable", 0x40, 0, 1)
    tracks.on_look({switch.subject: switch}, 1)
    tracks.on_look({}, 2)
    assert derive({"switch/": "gone disable@3f"}, tracks.states, NOW_MS)[0] == []


def test_operation_event_names_kind_and_bookies() -> None:
    failed = replace(OPERATION, state="failed", started_ms=2_000)
    texts = [each.text for each in derive({}, tracks_of(failed), NOW_MS)[0]]
    assert texts == ["Operation drain (bk-1) has begun.", "Operation drain (bk-1) has failed."]


def test_tracks_are_bounded() -> None:
    tracks = Tracks(earlier_max=7)
    for number in range(20):
        tracks.on_look({BK1.subject: replace(BK1, life=number)}, number)
    assert len(tracks.states[BK1.subject]) == 8
    tracks.on_look({BK1.subject: BK1, DRAINS.subject: DRAINS}, 19)
    tracks.on_look({BK1.subject: BK1, DRAINS.subject: replace(DRAINS, version=1, state="x")}, 19)
    assert len(tracks.states[BK1.subject]) == 7, "all things share the bound"
    many = {each.subject: each for each in (replace(BK1, name=f"b{n}") for n in range(1_500))}
    marks: dict[str, str] = {}
    tracks.on_look(many, 20)
    _, marks = derive(marks, tracks.states, NOW_MS)
    tracks.on_look({}, 21)
    _, marks = derive(marks, tracks.states, NOW_MS)
    assert len(marks) == 1_000, "at most this many fingerprints of absent things are kept"


def event(number: int, **more: object) -> Event:
    return replace(Event(f"e{number}", EventKind.AUDITOR, number, "n"), **more)  # type: ignore[arg-type]  # Fields given by name.


def test_event_memory_is_bounded_and_paged() -> None:
    memory = EventMemory(kept=5)
    memory.add(event(number) for number in range(8))
    memory.add([event(7)])
    assert len(memory) == 5
    first = memory.page(EventFilter(), "", 2)
    assert first is not None
    assert ([each.id for each in first[0]], first[1]) == (["e7", "e6"], "e6")
    memory.add([event(8)])
    second = memory.page(EventFilter(), "e6", 2)
    assert second is not None
    assert ([each.id for each in second[0]], second[1]) == (["e5", "e4"], None)
    assert memory.page(EventFilter(), "e1", 2) is None, "the event was dropped"
    memory.add([event(9, bookies=("bk-1",), log="default/a", kind=EventKind.LIFECYCLE)])
    for wanted in (
        EventFilter(bookie="bk-1"),
        EventFilter(log="default/a"),
        EventFilter(kind=EventKind.LIFECYCLE),
    ):
        page = memory.page(wanted, "", 2)
        assert page is not None
        assert [each.id for each in page[0]] == ["e9"]
        assert memory.page(replace(wanted, bookie="bk-2"), "", 2) == ([], None)


def test_event_survives_json_and_invalid_json_is_rejected() -> None:
    known = event(1, bookies=("bk-1",), ledger_id=7, log="default/a", state="done")
    assert unpack_event(known.facts()) == known
    for wrong in ({}, {"kind": "nonsense"}, {"at_ms": "1"}, {"bookies": [1]}, {"text": 1}):
        fields = known.facts() | wrong if wrong else {}
        with pytest.raises(BadMetadata):
            unpack_event(fields)
