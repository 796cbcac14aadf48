"""When checks are due, what they read, and how they judge copies."""

import pytest

from rollbook.ledger.core.copy_comparison import Copy, CopyState
from rollbook.proto.errors import BadMetadata, UnsupportedVersion
from rollbook.proto.ids import BookieId, EntryId
from rollbook.proto.metadata import Fragment
from rollbook.proto.quorum import Quorum
from rollbook.proto.wire.entry_list import EntryList
from rollbook.recovery.core.entry_spans import EntrySpan
from rollbook.recovery.core.ledger_checks import (
    CheckKind,
    CopyReport,
    Requests,
    confirmed_by,
    is_judged,
    merged_bad,
    pack_bad,
    pick_sample,
    unpack_bad,
)
from rollbook.recovery.core.repair_plan import Action, SlotRepair, lacking

B = [BookieId(f"b{number}:3181") for number in range(6)]
COPIES = CheckKind.COPIES
Q332, Q532 = Quorum(3, 3, 2), Quorum(5, 3, 2)


def slot_repair(quorum: Quorum, first: int, last: int, slot: int = 0) -> SlotRepair:
    ensemble = tuple(B[: quorum.ensemble])
    return SlotRepair(Fragment(EntryId(first), ensemble), EntryId(last), slot, Action.RESTORE)


# --- Requests------------------------------------------------------------------------------------


def test_check_request_is_served_once() -> None:
    """AU8."""
    requests = Requests()
    requests.on_order(None)
    assert not requests.is_open(COPIES, None)
    requests.on_order(100)
    assert requests.is_open(COPIES, 500), (
        "an order during this auditor's lead counts, whatever its clock"
    )
    stamp = requests.stamp(COPIES)
    requests.on_order(200)
    requests.on_served(COPIES, stamp)
    assert requests.is_open(COPIES, 600), "the next request arrived during the check"
    requests.on_served(COPIES, requests.stamp(COPIES))
    assert not requests.is_open(COPIES, 600)
    requests.add(CheckKind.BOOKIES)
    assert requests.is_open(CheckKind.BOOKIES, 600)
    assert not requests.is_open(COPIES, 600), "only the other check was requested"


@pytest.mark.parametrize(("completed_ms", "is_open"), [(None, True), (99, True), (101, False)])
def test_older_request_is_open_unless_a_check_completed_since(
    completed_ms: int | None, is_open: bool
) -> None:
    """AU8: the auditor that received the request died."""
    requests = Requests()
    requests.on_order(100)
    assert requests.is_open(COPIES, completed_ms) is is_open


# --- Entry lists --------------------------------------------------------------------------------


@pytest.mark.parametrize("quorum", [Q332, Q532])
@pytest.mark.parametrize("slot", range(3))
def test_each_missing_entry_of_a_stripe_is_found(quorum: Quorum, slot: int) -> None:
    """Compared with the definition, also at window edges."""
    here = slot_repair(quorum, 7, 4300, slot)
    share = [EntryId(each) for each in range(7, 4301) if quorum.holds(slot, EntryId(each))]
    assert list(lacking(quorum, here, EntryList.of(share))) == []
    assert list(lacking(quorum, here, EntryList(b""))) == share
    for hole in (share[0], share[1366], share[len(share) // 2], share[-1]):
        listed = EntryList.of(each for each in share if each != hole)
        assert list(lacking(quorum, here, listed)) == [hole]


def test_listed_bad_copy_counts_as_lacking() -> None:
    here = slot_repair(Q332, 0, 9)
    listed = EntryList.of(map(EntryId, range(10)))
    assert list(lacking(Q332, here, listed, [EntrySpan(3, 4), EntrySpan(9, 20)])) == [3, 4, 9]


# --- Samples ------------------------------------------------------------------------------------


def test_sample_has_both_ends_and_its_share_of_entries() -> None:
    here = slot_repair(Q532, 100, 1099, 4)
    for start in (0.0, 0.5, 0.999):
        runs = pick_sample(Q532, here, 1.0, start)
        picked = [each for run in runs for each in run]
        held = [each for each in range(100, 1100) if Q532.holds(4, EntryId(each))]
        assert {held[0], held[-1]} <= set(picked) <= set(held)
        assert len(picked) == len(set(picked))
        assert 5 <= len(picked) <= 9, (
            "one per cent of a thousand entries, of which the slot holds 3/5"
        )


def test_sample_of_zero_percent_is_both_ends_of_100_everything() -> None:
    assert pick_sample(Q332, slot_repair(Q332, 5, 9), 0, 0.5) == [[5], [9]]
    assert pick_sample(Q332, slot_repair(Q332, 5, 5), 0, 0.5) == [[5]]
    assert pick_sample(Q332, slot_repair(Q332, 5, 9), 100, 0.5) == [[5, 6, 7, 8, 9]]


def judged(*copies: Copy) -> CopyReport:
    found = CopyReport()
    found.on_copies(EntryId(3), dict(zip(B, copies, strict=False)))
    return found


def test_only_missing_and_bad_copies_are_marked() -> None:
    assert judged(7, 7, 7).to_mark == []
    assert judged(7, CopyState.MISSING, 7).to_mark == [B[1]]
    bad = judged(7, 7, CopyState.BAD)
    assert (bad.to_mark, bad.bad) == ([B[2]], {B[2]: [3]})
    unheard = judged(7, CopyState.UNKNOWN, CopyState.UNREACHABLE)
    assert unheard.to_mark == []
    assert (list(unheard.unknown), list(unheard.silent)) == ([B[1]], [B[2]])


def test_copy_is_bad_only_if_a_majority_of_copies_differs_from_it() -> None:
    assert judged(7, 8, 7).bad == {B[1]: [3]}
    undecided = judged(7, 8)
    assert (undecided.to_mark, undecided.differing) == ([], [3])


# --- Two looks ----------------------------------------------------------------------------------


def report(
    *, short: str = "", bad: str = "", silent: str = "", away: str = "", entries: int = 1
) -> CopyReport:
    """Build a report; each digit is the number of a bookie."""
    found = CopyReport()
    found.short = {B[int(each)]: None for each in short}
    found.bad = {B[int(each)]: [EntryId(number) for number in range(entries)] for each in bad}
    found.silent = {B[int(each)]: None for each in silent}
    found.away = {B[int(each)]: None for each in away}
    return found


@pytest.mark.parametrize(
    ("first", "second", "registered", "to_mark", "bad"),
    [
        (report(short="1"), report(short="1"), "012", "1", ""),
        (
            report(short="1"),
            report(),
            "012",
            "",
            "",
        ),  # The writer's last copies arrived in between.
        (report(short="1"), report(short="2"), "012", "", ""),  # Bookie 2 is found next time.
        (report(short="12"), report(short="21"), "012", "12", ""),
        (report(short="12"), report(short="12"), "01", "1", ""),  # Bookie 2 left (AU6).
        (report(bad="1"), report(bad="1"), "012", "1", "1"),
        (report(bad="1"), report(short="1"), "012", "1", ""),  # The second look decides.
        (report(short="1"), report(bad="1"), "012", "1", "1"),
        (report(short="1", bad="2"), report(bad="12"), "02", "2", "2"),
    ],
)
def test_only_findings_of_both_looks_are_marked(
    first: CopyReport, second: CopyReport, registered: str, to_mark: str, bad: str
) -> None:
    """AU7."""
    present = {B[int(each)] for each in registered}
    confirmed = confirmed_by(first, second, present.__contains__)
    assert confirmed.to_mark == [B[int(each)] for each in to_mark]
    assert confirmed.bad == {B[int(each)]: [EntryId(0)] for each in bad}


def test_bad_entries_of_the_second_look_are_recorded() -> None:
    """AU7."""
    confirmed = confirmed_by(report(bad="1", entries=3), report(bad="1", entries=2), lambda _: True)
    assert confirmed.bad == {B[1]: [0, 1]}


@pytest.mark.parametrize(
    ("second", "registered", "is_decided"),
    [
        (report(), "012", True),  # The copies are complete at the second look.
        (report(short="1"), "012", True),
        (report(silent="1"), "012", False),
        (report(silent="2"), "012", True),  # The first look judged bookie 2.
        (report(), "02", False),
    ],
)
def test_ledger_with_a_silent_suspect_is_not_judged(
    second: CopyReport, registered: str, is_decided: bool
) -> None:
    """AU5."""
    present = {B[int(each)] for each in registered}
    confirmed = confirmed_by(report(short="1"), second, present.__contains__)
    assert confirmed.is_judged is is_decided


@pytest.mark.parametrize(
    ("first", "marked", "is_decided"),
    [
        (report(), (), True),
        (
            report(short="1", bad="2"),
            (),
            True,
        ),  # The second look decides about short and bad copies.
        (report(silent="1"), (), False),
        (report(away="1"), (), False),
        (report(away="1"), (B[2],), False),
        (report(away="1"), (B[1], B[2]), True),
        (report(away="12"), (B[1],), False),
        (report(away="1"), None, True),  # The mark is unreadable.
        (report(away="1", silent="2"), (B[1],), False),
        (report(away="1", silent="2"), None, False),
    ],
)
def test_ledger_is_judged_once_members_responded_or_are_marked(
    first: CopyReport, marked: tuple[BookieId, ...] | None, is_decided: bool
) -> None:
    """AU5, AU6."""
    assert is_judged(first, marked) is is_decided


# --- The list of bad copies ---------------------------------------------------------------------


def test_bad_copies_are_merged_and_survive_packing() -> None:
    once = merged_bad({}, {B[0]: [EntryId(3), EntryId(4)], B[1]: [EntryId(9)]})
    twice = merged_bad(once, {B[0]: [EntryId(4), EntryId(6)]})
    assert twice == {B[0]: (EntrySpan(3, 4), EntrySpan(6, 6)), B[1]: (EntrySpan(9, 9),)}
    assert unpack_bad(pack_bad(twice)) == twice
    assert pack_bad(once) == (b'{"bad": {"b0:3181": [[3, 4]], "b1:3181": [[9, 9]]}, "version": 1}')


@pytest.mark.parametrize("data", [b"", b"{}", b'{"version": 1, "bad": {"b0:3181": [[-1, 2]]}}'])
def test_invalid_list_of_bad_copies_is_rejected(data: bytes) -> None:
    with pytest.raises(BadMetadata):
        unpack_bad(data)


def test_newer_version_of_bad_copies_is_rejected() -> None:
    with pytest.raises(UnsupportedVersion):
        unpack_bad(b'{"version": 2}')
