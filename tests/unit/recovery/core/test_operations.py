"""Long-running operations: their states, their IDs, and when they are deleted."""

import json
from collections.abc import Callable

import pytest

from rollbook.proto.errors import (
    BadMetadata,
    DuplicateDiffers,
    OperationEnded,
    RollbookError,
    UnsupportedVersion,
)
from rollbook.recovery.core.operations import (
    KEPT_MS,
    OUTCOME_BYTES_MAX,
    LastingOperation,
    OperationStatus,
    id_of_key,
    is_operation_id,
    pack_operation,
    to_forget,
    unpack_operation,
)

NEW = LastingOperation("0" * 32, "drain", {"bookies": ["b1"], "at_most": 1}, "ops", 1_000)
RUNNING = NEW.begun(2_000)
ENDS: dict[str, Callable[[LastingOperation], LastingOperation]] = {
    "done": lambda each: each.finished(9_000, {"drained": ["b1"]}),
    "failed": lambda each: each.failed(9_000, {"detail": "no"}),
    "cancelled": lambda each: each.cancelled(9_000),
}


@pytest.mark.parametrize("end", ENDS)
def test_ended_operation_cannot_change(end: str) -> None:
    """OP1."""
    ended = ENDS[end](RUNNING)
    assert (ended.state.value, ended.ended_ms) == (end, 9_000)
    steps: tuple[Callable[[LastingOperation], LastingOperation], ...] = (
        *ENDS.values(),
        lambda each: each.begun(1),
        lambda each: each.with_progress(1, 2),
        lambda each: each.with_notes({}),
        lambda each: each.cancel_asked(1),
    )
    for step in steps:
        with pytest.raises(OperationEnded):
            step(ended)


def test_cancel_ends_at_once_only_an_unstarted_operation() -> None:
    assert NEW.cancel_asked(5).state is OperationStatus.CANCELLED
    asked = RUNNING.cancel_asked(5)
    assert (asked.state, asked.is_cancel_asked) == (OperationStatus.RUNNING, True)
    assert asked.begun(6).is_cancel_asked, "the next runner sees the request, too"


def test_eta_follows_the_pace_so_far() -> None:
    assert RUNNING.with_progress(25, 100).eta_s(12_000) == 30
    for unknown in (NEW, RUNNING, RUNNING.with_progress(5, None), RUNNING.with_progress(0, 9)):
        assert unknown.eta_s(12_000) is None
    assert RUNNING.with_progress(9, 5).eta_s(0) == 0, "a clock that jumped back"


def test_operation_id_derives_from_key_and_fits_one_request() -> None:
    """OP2."""
    assert id_of_key("ops", "k") == id_of_key("ops", "k")
    ids = [
        id_of_key(*each) for each in (("ops", "k"), ("op", "s k"), ("", "ops k"), ("ops", "\ud800"))
    ]
    assert len(set(ids)) == len(ids)
    assert all(map(is_operation_id, ids))
    NEW.require_same("drain", {"at_most": 1, "bookies": ["b1"]})
    for kind, about in (("drain", {"bookies": ["b2"], "at_most": 1}), ("verify", NEW.about)):
        with pytest.raises(DuplicateDiffers):
            NEW.require_same(kind, about)


def test_ended_operations_are_forgotten_after_a_week_or_beyond_the_limit() -> None:
    """OP3."""

    def one(number: int, *, ends: bool) -> LastingOperation:
        new = LastingOperation(f"{number:032x}", "verify", {}, "ops", number)
        return new.finished(number, {}) if ends else new

    known = [one(number, ends=number % 2 == 0) for number in range(10)]
    assert to_forget(known, 10, kept=10) == []
    assert to_forget(known, 10, kept=8) == [known[0].id, known[2].id]
    assert to_forget(known, 10, kept=0) == [each.id for each in known if each.state.has_ended]
    assert to_forget(known, KEPT_MS + 2, kept=10) == [known[0].id, known[2].id]


def test_operation_survives_packing() -> None:
    for operation in (
        NEW,
        RUNNING.with_notes({"began": {"b1": 3}}),
        *(end(RUNNING) for end in ENDS.values()),
    ):
        assert unpack_operation(pack_operation(operation)) == operation


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"version": 2}, UnsupportedVersion),
        ({"state": "lost"}, BadMetadata),
        ({"state": "done"}, BadMetadata),  # Lacks `ended_ms`.
        ({"created_ms": "x"}, BadMetadata),
        ({"done": True}, BadMetadata),
        ({"about": []}, BadMetadata),
        ({"problem": 1}, BadMetadata),
        ({"is_cancel_asked": 1}, BadMetadata),
        ({"id": None}, BadMetadata),
    ],
)
def test_invalid_operation_node_is_rejected(
    change: dict[str, object], error: type[RollbookError]
) -> None:
    fields = json.loads(pack_operation(RUNNING)) | change
    with pytest.raises(error):
        unpack_operation(json.dumps(fields).encode())
    for data in (b"", b"[]", b"{}", b"\xff", b"[" * 100_000):
        with pytest.raises(BadMetadata):
            unpack_operation(data)


def test_oversized_result_is_shortened() -> None:
    result = {"verdict": "lost", "flaws": [{"entry": each} for each in range(OUTCOME_BYTES_MAX)]}
    ended = RUNNING.finished(9, result)
    assert ended.result == {"verdict": "lost", "shortened": True}
