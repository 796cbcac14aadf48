"""The judge of bookies finds each kind of false response, and nothing else."""

import pytest

from rollbook.proto.errors import (
    BookieFailed,
    BookieReadOnly,
    EntryStateUnknown,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
    Overloaded,
)
from rollbook.proto.ids import NO_ENTRY, EntryId
from rollbook.proto.wire.entry_list import EntryList
from rollbook.proto.wire.messages import Failure
from tests.crash.bookie_judge import Judge, payload_of
from tests.support.entries import pack_entry

L = 7


@pytest.fixture
def judge() -> Judge:
    return Judge()


def add(judge: Judge, entry_id: int, error: Failure = None, *, lac: int = NO_ENTRY) -> None:
    judge.on_sent(L, entry_id, lac)
    judge.on_add_reply(L, entry_id, error)


def body(judge: Judge, entry_id: int, *, of: int = -1) -> bytes:
    payload = payload_of(L, entry_id if of < 0 else of)
    return pack_entry(judge.of(L).digest, EntryId(entry_id), EntryId(NO_ENTRY), 0, payload)


def read(judge: Judge, entry_id: int, error: Failure = None) -> None:
    found = body(judge, entry_id) if error is None else None
    judge.on_read(L, entry_id, judge.ask(L, entry_id), error, found)


def test_kept_promises_are_no_violation(judge: Judge) -> None:
    add(judge, 0)
    add(judge, 1)
    read(judge, 0)
    judge.on_crash()
    read(judge, 0)
    read(judge, 1)
    read(judge, 2, NoSuchEntry)
    judge.on_list(L, frozenset({0, 1}), None, EntryList.of([EntryId(0), EntryId(1)]))
    assert not judge.violations


def test_a_lost_entry_is_found(judge: Judge) -> None:
    add(judge, 0)
    read(judge, 0, NoSuchEntry)
    assert judge.violations


def test_a_lost_ledger_is_found(judge: Judge) -> None:
    add(judge, 0)
    judge.on_list(L, frozenset({0}), NoSuchLedger, None)
    assert judge.violations


@pytest.mark.parametrize("error", [EntryStateUnknown, BookieFailed])
def test_unknown_state_without_damage_is_found(judge: Judge, error: Failure) -> None:
    read(judge, 0, error)
    assert judge.violations


def test_entry_never_added_is_found(judge: Judge) -> None:
    read(judge, 0)
    assert judge.violations


def test_an_entry_with_other_bytes_is_found(judge: Judge) -> None:
    add(judge, 0)
    judge.on_read(L, 0, judge.ask(L, 0), None, body(judge, 0, of=1))
    assert len(judge.violations) == 1
    judge.on_read(L, 0, judge.ask(L, 0), None, body(judge, 1))
    assert len(judge.violations) == 2


def test_read_of_a_refused_add_is_found(judge: Judge) -> None:
    add(judge, 0, Overloaded)
    assert not judge.violations
    read(judge, 0)
    assert judge.violations


@pytest.mark.parametrize("first", [None, NoSuchEntry])
def test_an_unknown_outcome_is_settled_by_the_first_read(judge: Judge, first: Failure) -> None:
    judge.on_sent(L, 0, NO_ENTRY)
    judge.on_crash()
    read(judge, 0, first)
    read(judge, 0, first)
    assert not judge.violations
    read(judge, 0, NoSuchEntry if first is None else None)
    assert judge.violations


def test_read_concurrent_with_an_add_settles_nothing(judge: Judge) -> None:
    judge.on_sent(L, 0, NO_ENTRY)
    question = judge.ask(L, 0)
    judge.on_add_reply(L, 0, None)
    judge.on_read(L, 0, question, NoSuchEntry, None)
    read(judge, 0)
    assert not judge.violations


def test_deferred_adds_are_promised_by_the_force(judge: Judge) -> None:
    for entry_id in (0, 1):
        judge.on_sent(L, entry_id, NO_ENTRY, is_sync_deferred=True)
        judge.on_add_reply(L, entry_id, None)
        asked = judge.ask_force(L)
        if not entry_id:
            judge.on_forced(L, asked)
    judge.on_crash()
    read(judge, 1, NoSuchEntry)
    assert not judge.violations
    read(judge, 0, NoSuchEntry)
    assert judge.violations


def fence(judge: Judge) -> None:
    judge.ask_fence(L)
    judge.on_fenced(L)


def test_add_accepted_after_a_fence_is_found(judge: Judge) -> None:
    judge.on_sent(L, 0, NO_ENTRY)
    fence(judge)
    judge.on_add_reply(L, 0, None)  # This add was sent before the fence.
    add(judge, 1, LedgerFenced)
    judge.on_crash()
    assert not judge.violations
    add(judge, 1)
    assert judge.violations


def test_unrequested_fence_is_found(judge: Judge) -> None:
    add(judge, 0, LedgerFenced)
    assert judge.violations


def test_fence_that_refuses_a_recovery_is_found(judge: Judge) -> None:
    fence(judge)
    judge.on_sent(L, 0, NO_ENTRY, is_recovery=True)
    judge.on_add_reply(L, 0, LedgerFenced)
    assert judge.violations


def test_entry_absent_after_a_fence_stays_absent(judge: Judge) -> None:
    judge.on_sent(L, 0, NO_ENTRY)
    judge.on_sent(L, 1, NO_ENTRY)
    fence(judge)
    read(judge, 0, NoSuchEntry)
    read(judge, 1, NoSuchEntry)
    assert not judge.violations
    judge.on_add_reply(L, 0, None)
    assert len(judge.violations) == 1
    judge.on_crash()
    read(judge, 1)
    assert len(judge.violations) == 2


def test_recovery_may_add_an_entry_absent_after_a_fence(judge: Judge) -> None:
    fence(judge)
    read(judge, 0, NoSuchEntry)
    judge.on_sent(L, 0, NO_ENTRY, is_recovery=True)
    judge.on_add_reply(L, 0, None)
    read(judge, 0)
    assert not judge.violations


def lac(judge: Judge, last_add_confirmed: int) -> None:
    question = judge.ask(L, 5)
    judge.on_read(L, 5, question, None, body(judge, 5), last_add_confirmed)


def test_lac_below_floor_or_above_ceiling_is_found(judge: Judge) -> None:
    add(judge, 5, lac=4)
    lac(judge, 4)
    assert not judge.violations
    lac(judge, 3)
    assert len(judge.violations) == 1
    lac(judge, 5)
    assert len(judge.violations) == 2


def test_lost_or_invented_explicit_lac_is_found(judge: Judge) -> None:
    judge.ask_explicit_lac(L, 9)
    judge.on_explicit_lac(L, 9)
    digest = judge.of(L).digest
    judge.on_lac_packet(L, 9, digest.pack_lac(EntryId(9)))
    assert not judge.violations
    judge.on_lac_packet(L, 9, None)
    judge.on_lac_packet(L, 9, digest.pack_lac(EntryId(8)))
    judge.on_lac_packet(L, 9, digest.pack_lac(EntryId(10)))
    judge.on_lac_packet(L, 9, bytes(len(digest.pack_lac(EntryId(9)))))
    assert len(judge.violations) == 4


def test_deleted_ledger_that_returns_is_found(judge: Judge) -> None:
    add(judge, 0)
    judge.ask_deletion(L)
    read(judge, 0)  # The deletion is not yet acknowledged.
    judge.on_deleted(L)
    read(judge, 0, NoSuchLedger)
    assert not judge.violations
    read(judge, 0)
    judge.on_list(L, frozenset(), None, EntryList.of([EntryId(0)]))
    assert len(judge.violations) == 2
    add(judge, 1)
    assert len(judge.violations) == 3


def test_entry_list_with_missing_or_extra_ids_is_found(judge: Judge) -> None:
    add(judge, 0)
    judge.on_list(L, frozenset({0}), None, EntryList.of([]))
    assert len(judge.violations) == 1
    judge.on_list(L, frozenset({0}), None, EntryList.of([EntryId(0), EntryId(3)]))
    assert len(judge.violations) == 2


def test_read_only_refusal_without_a_full_disk_is_found(judge: Judge) -> None:
    judge.may_be_read_only = True
    add(judge, 0, BookieReadOnly)
    assert not judge.violations
    judge.may_be_read_only = False
    add(judge, 0, BookieReadOnly)
    assert judge.violations


def test_response_without_a_request_is_found(judge: Judge) -> None:
    judge.on_add_reply(L, 0, None)
    assert judge.violations
