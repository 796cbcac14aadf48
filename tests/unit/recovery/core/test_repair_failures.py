"""Records of failed repairs, and when the next attempt is due."""

import json

import pytest

from rollbook.ledger.core.copy_comparison import CopyState
from rollbook.proto.errors import BadMetadata, UnsupportedVersion
from rollbook.proto.ids import BookieId, EntryId
from rollbook.recovery.core.repair_failures import (
    Failure,
    LostEntries,
    after_failure,
    judge_missing,
    next_look_s,
    pack_failure,
    unpack_failure,
)

LOSS = LostEntries(EntryId(3), EntryId(5), (BookieId("b1:3181"), BookieId("b2:3181")))


def test_retry_pause_doubles_from_5_seconds_to_10_minutes() -> None:
    failure, pauses = None, []
    for _ in range(9):
        failure = after_failure(failure, 1000, "BOOKIE_UNREACHABLE", "b1 is away")
        assert failure.next_try_ms is not None
        pauses.append((failure.next_try_ms - 1000) // 1000)
    assert pauses == [5, 10, 20, 40, 80, 160, 320, 600, 600]
    assert failure is not None
    assert failure.attempts == 9


def test_lost_entries_are_unrecoverable_and_never_due() -> None:
    failure = after_failure(None, 1000, "DATA_LOST", "no good copy", [LOSS])
    assert failure.is_unrecoverable
    assert not failure.is_due(10**15)


def test_next_try_too_far_ahead_is_due_at_once() -> None:
    """A clock jump must not postpone a repair forever."""
    failure = after_failure(None, 10_000, "X", "x")
    assert [failure.is_due(now) for now in (10_000, 14_999, 15_000)] == [False, False, True]
    assert failure.is_due(-600_000)


def test_failure_survives_packing() -> None:
    for failure in (
        after_failure(None, 1700, "DATA_LOST", "kein Rückweg", [LOSS]),
        after_failure(Failure(4), 1700, "OVERLOADED", "busy", drains=("4e0c", "77")),
    ):
        assert unpack_failure(pack_failure(failure)) == failure


def test_new_drain_resets_the_attempts() -> None:
    """RP7: the end of a drain does not reset them."""
    attempts, failure = [], None
    for drains in ((), (), ("a",), ("a",), ("a", "b"), ("b", "a"), ("b",), ("c",), ()):
        failure = after_failure(failure, 1000, "X", "x", drains=drains)
        attempts.append(failure.attempts)
    assert attempts == [1, 2, 1, 2, 1, 2, 3, 1, 2]


def test_failure_without_drains_field_counts_for_no_drain() -> None:
    fields = json.loads(pack_failure(after_failure(None, 1, "X", "x")))
    del fields["drains"]
    failure = unpack_failure(json.dumps(fields).encode())
    assert failure.counts_for(())
    assert not failure.counts_for(("a",))


def test_attempts_in_a_row_have_the_same_code() -> None:
    in_a_row, failure = [], None
    for code in "AABAAA":
        failure = after_failure(failure, 1000, code, "")
        in_a_row.append(failure.in_a_row)
    assert in_a_row == [1, 2, 1, 1, 2, 3]
    assert failure is not None
    assert failure.attempts == 6


def test_failure_without_in_a_row_field_counts_all_attempts() -> None:
    """A drain can then still end while some workers run that version."""
    fields = json.loads(pack_failure(after_failure(Failure(2), 1, "X", "x")))
    del fields["in_a_row"]
    assert unpack_failure(json.dumps(fields).encode()).in_a_row == 3


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attempts", None),
        ("attempts", "1"),
        ("in_a_row", None),
        ("in_a_row", "1"),
        ("code", 1),
        ("failed_ms", None),
        ("next_try_ms", 1.5),
        ("losses", None),
        ("losses", [[1]]),
        ("losses", [[1, "2", []]]),
        ("losses", [[1, 2, [""]]]),
        ("losses", [[1, 2, 3]]),
        ("drains", None),
        ("drains", [1]),
    ],
)
def test_invalid_failure_field_is_rejected(field: str, value: object) -> None:
    fields = json.loads(pack_failure(after_failure(None, 1, "X", "x", [LOSS]))) | {field: value}
    with pytest.raises(BadMetadata):
        unpack_failure(json.dumps(fields).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000])
def test_unreadable_failure_is_rejected(data: bytes) -> None:
    with pytest.raises(BadMetadata):
        unpack_failure(data)


def test_newer_failure_version_is_rejected() -> None:
    with pytest.raises(UnsupportedVersion):
        unpack_failure(b'{"version": 2}')


# --- Lost entries -------------------------------------------------------------------------------

B = [BookieId(f"b{number}:3181") for number in range(3)]
MISSING, BAD = CopyState.MISSING, CopyState.BAD
UNKNOWN, AWAY = CopyState.UNKNOWN, CopyState.UNREACHABLE


@pytest.mark.parametrize(
    ("said", "lost", "uncertain"),
    [
        ({}, [], ""),
        ({3: [MISSING, MISSING]}, [(3, 3)], ""),
        ({3: [MISSING, BAD]}, [(3, 3)], ""),
        ({3: [MISSING, UNKNOWN]}, [], "entry 3 cannot be read now (b0:3181: "),
        ({3: [AWAY, BAD]}, [], "entry 3 cannot be read now (b0:3181: "),
        ({3: []}, [], "entry 3 cannot be read now ()"),  # No holder was asked.
        ({3: [BAD], 4: [BAD], 5: [AWAY], 6: [BAD]}, [(3, 4), (6, 6)], "entry 5 cannot"),
        ({3: [AWAY], 4: [AWAY]}, [], "entry 3 cannot be read now"),  # The first entry is named.
    ],
)
def test_entry_is_lost_only_if_all_copies_are_missing_or_bad(
    said: dict[int, list[CopyState]], lost: list[tuple[int, int]], uncertain: str
) -> None:
    """RP5."""
    found = judge_missing(
        {EntryId(entry_id): dict(zip(B, states, strict=False)) for entry_id, states in said.items()}
    )
    assert [(each.first_entry, each.last_entry) for each in found.losses] == lost
    assert found.unavailable.startswith(uncertain)
    assert bool(found.unavailable) == bool(uncertain)


def test_loss_names_holders_and_unavailability_their_replies() -> None:
    """RP5."""
    found = judge_missing(
        {EntryId(3): {B[0]: MISSING, B[1]: BAD}, EntryId(4): {B[1]: BAD, B[2]: UNKNOWN}}
    )
    assert found.losses == (LostEntries(EntryId(3), EntryId(3), (B[0], B[1])),)
    expected = f"entry 4 cannot be read now ({B[1]}: {BAD.value}, {B[2]}: {UNKNOWN.value})"
    assert found.unavailable == expected


# --- Pauses -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left_s", "shortest_s", "longest_s", "pause_s"),
    [
        ([], 0.1, 60, 60),  # No task is postponed.
        ([20, 5, 30], 0.1, 60, 5),
        ([100], 0.1, 60, 60),
        ([0.01], 0.1, 60, 0.1),
        ([-3, 7], 0.1, 60, 0.1),  # The first task is overdue.
        ([0.01], 2, 1, 1),
    ],
)
def test_next_look_is_when_the_first_task_is_due(
    left_s: list[float], shortest_s: float, longest_s: float, pause_s: float
) -> None:
    assert next_look_s(left_s, shortest_s=shortest_s, longest_s=longest_s) == pause_s


@pytest.mark.parametrize(
    ("next_try_ms", "pause_s"), [(None, 60), (8_000, 7), (61_000, 60), (90_000, 60)]
)
def test_failed_ledger_is_looked_at_within_the_given_pause(
    next_try_ms: int | None, pause_s: float
) -> None:
    """RP5."""
    assert Failure(next_try_ms=next_try_ms).pause_s(1_000, 60.0) == pause_s
