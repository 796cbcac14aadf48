"""The checker of a bookie's answers: correct histories pass, and each rule can be broken."""

from collections.abc import Callable

import pytest

from rollbook.proto.errors import (
    EntryStateUnknown,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
    Overloaded,
    Unauthorized,
)
from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId
from rollbook.proto.wire.digest import DigestType, LedgerDigest
from tests.simulation.checkers.bookie import BookieChecker, Sent
from tests.support.entries import pack_entry

DIGEST = LedgerDigest(DigestType.CRC32C, b"secret", LedgerId(7))


def entry(entry_id: int, payload: bytes = b"payload") -> bytes:
    return pack_entry(DIGEST, EntryId(entry_id), EntryId(entry_id - 1), 0, payload)


class CheckedHistory:
    """A checker and the rules that were broken."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.checker = BookieChecker(lambda rule, _text: self.broken.append(rule))

    def send(self, entry_id: int, *, is_recovery: bool = False, is_deferred: bool = False) -> Sent:
        return self.checker.on_sent(
            "b1", 7, entry(entry_id), is_recovery=is_recovery, is_deferred=is_deferred
        )

    def ack(self, entry_id: int) -> None:
        self.checker.on_add_answer(self.send(entry_id), None)

    def fail(self, entry_id: int, error: type[Exception], *, is_fencing: bool = False) -> None:
        asked = self.checker.on_asked("b1", 7, is_fencing=is_fencing)
        self.checker.on_failure(asked, entry_id, error)


def absent_after_ack(told: CheckedHistory) -> None:
    told.ack(0)
    told.fail(0, NoSuchEntry)


def last_is_absent_after_ack(told: CheckedHistory) -> None:
    told.ack(0)
    told.fail(NO_ENTRY, NoSuchLedger)


def unknown_on_an_undamaged_disk(told: CheckedHistory) -> None:
    told.ack(0)
    told.fail(0, EntryStateUnknown)


def absent_on_a_damaged_disk(told: CheckedHistory) -> None:
    told.checker.on_damaged("b1")
    told.ack(0)
    told.fail(0, NoSuchEntry)


def older_last_entry(told: CheckedHistory) -> None:
    told.ack(0)
    told.ack(5)
    told.checker.on_entry(told.checker.on_asked("b1", 7), NO_ENTRY, entry(0))


def not_listed(told: CheckedHistory) -> None:
    told.ack(0)
    told.ack(1)
    told.checker.on_listed(told.checker.on_asked("b1", 7), [0])


def absent_after_force(told: CheckedHistory) -> None:
    add = told.send(0, is_deferred=True)
    told.checker.on_add_answer(add, None)
    told.checker.on_forced([add])
    told.fail(0, NoSuchEntry)


def other_bytes(told: CheckedHistory) -> None:
    told.ack(0)
    told.checker.on_entry(told.checker.on_asked("b1", 7), 0, entry(0, b"other"))


def another_entry(told: CheckedHistory) -> None:
    told.ack(0)
    told.ack(1)
    told.checker.on_entry(told.checker.on_asked("b1", 7), 0, entry(1))


def listed_but_never_added(told: CheckedHistory) -> None:
    told.checker.on_listed(told.checker.on_asked("b1", 7), [3])


def accepted_after_a_fence(told: CheckedHistory) -> None:
    told.fail(0, NoSuchEntry, is_fencing=True)
    told.ack(5)


def denied_and_accepted(told: CheckedHistory) -> None:
    add = told.send(0)
    told.fail(0, NoSuchEntry, is_fencing=True)
    told.checker.on_add_answer(add, None)


def refused_as_fenced_without_a_fence(told: CheckedHistory) -> None:
    told.checker.on_add_answer(told.send(0), LedgerFenced)


def lac_never_written(told: CheckedHistory) -> None:
    told.ack(3)
    told.checker.on_lac(told.checker.on_asked("b1", 7), 3)


def falling_lac(told: CheckedHistory) -> None:
    told.ack(3)
    told.checker.on_lac(told.checker.on_asked("b1", 7), 1)


def lost_packet(told: CheckedHistory) -> None:
    told.checker.on_lac_written(told.checker.on_lac_sent("b1", 7, 4), 4)
    told.checker.on_packet(told.checker.on_asked("b1", 7), None)


def lac_packet_never_written(told: CheckedHistory) -> None:
    told.checker.on_packet(told.checker.on_asked("b1", 7), 4)


def acked_after_deletion(told: CheckedHistory) -> None:
    told.ack(0)
    told.checker.on_doomed(7)
    told.fail(0, NoSuchLedger)
    told.ack(1)


def read_after_deletion(told: CheckedHistory) -> None:
    told.ack(0)
    told.checker.on_doomed(7)
    told.fail(0, NoSuchLedger)
    told.checker.on_entry(told.checker.on_asked("b1", 7), 0, entry(0))


def unexpected_error(told: CheckedHistory) -> None:
    told.checker.on_add_answer(told.send(0), Unauthorized)


BROKEN: tuple[tuple[Callable[[CheckedHistory], None], str], ...] = (
    (absent_after_ack, "acked"),
    (last_is_absent_after_ack, "acked"),
    (unknown_on_an_undamaged_disk, "acked"),
    (absent_on_a_damaged_disk, "acked"),
    (older_last_entry, "acked"),
    (not_listed, "acked"),
    (absent_after_force, "acked"),
    (other_bytes, "bytes"),
    (another_entry, "bytes"),
    (listed_but_never_added, "bytes"),
    (accepted_after_a_fence, "fence"),
    (denied_and_accepted, "fence"),
    (refused_as_fenced_without_a_fence, "fence"),
    (lac_never_written, "LAC"),
    (falling_lac, "LAC"),
    (lost_packet, "LAC"),
    (lac_packet_never_written, "LAC"),
    (acked_after_deletion, "deleted"),
    (read_after_deletion, "deleted"),
    (unexpected_error, "answers"),
)


@pytest.mark.parametrize(("play", "rule"), BROKEN, ids=lambda each: getattr(each, "__name__", each))
def test_each_violation_breaks_its_rule(play: Callable[[CheckedHistory], None], rule: str) -> None:
    told = CheckedHistory()
    play(told)
    assert told.broken[:1] == [rule]


def test_correct_history_has_no_violation() -> None:
    told = CheckedHistory()
    told.ack(0)
    early = told.send(1)
    asked_before = told.checker.on_asked("b1", 7)
    told.ack(2)
    told.checker.on_failure(asked_before, 2, NoSuchEntry)  # This read was sent before the ack.
    told.checker.on_add_answer(told.send(3), Overloaded)
    told.fail(3, NoSuchEntry)
    told.checker.on_entry(told.checker.on_asked("b1", 7, is_fencing=True), 2, entry(2))
    told.checker.on_add_answer(early, LedgerFenced)
    told.checker.on_add_answer(told.send(1, is_recovery=True), None)
    told.checker.on_add_answer(told.send(4), LedgerFenced)
    told.checker.on_lac(told.checker.on_asked("b1", 7), 1)
    told.checker.on_lac_written(told.checker.on_lac_sent("b1", 7, 2), 2)
    told.checker.on_packet(told.checker.on_asked("b1", 7), 2)
    told.checker.on_listed(told.checker.on_asked("b1", 7), [0, 1, 2])
    told.checker.on_damaged("b1")
    told.fail(2, EntryStateUnknown)
    told.checker.on_doomed(7)
    told.fail(2, NoSuchLedger)
    told.checker.on_add_answer(told.send(5, is_recovery=True), LedgerFenced)
    assert not told.broken
    assert told.checker.must_refuse("b1", 7)
