"""The checker of ledgers: each planted history breaks its rule, and correct histories break none."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from rollbook.bookie.core.catalog_records import pack_ledger
from rollbook.bookie.core.control_records import Control, ControlOperation
from rollbook.bookie.core.fencing import LedgerFacts
from rollbook.proto.errors import EntryStateUnknown, NoSuchEntry
from rollbook.proto.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from rollbook.proto.metadata import Fragment, LedgerMetadata, LedgerState
from rollbook.proto.quorum import Quorum
from rollbook.proto.wire.digest import DigestType, LedgerDigest, ledger_key
from rollbook.proto.wire.entry_batches import join_bodies
from rollbook.proto.wire.messages import (
    AddReply,
    BatchRead,
    BatchReadReply,
    EntryRead,
    PackedBatch,
    ReadReply,
)
from tests.simulation.checkers.ledger import (
    RULES,
    LedgerChecker,
    answers,
    copies,
    metadata,
    payload_of,
)
from tests.support.entries import pack_entry

ID = LedgerId(7)
PASSWORD = b"secret"
WRITER, RECOVERER = "writer#1", "recoverer#1"
B1, B2, B3, B4 = map(BookieId, ("b1", "b2", "b3", "b4"))
SIZE = 30
DIGEST = LedgerDigest(DigestType.CRC32C, PASSWORD, ID)
FENCE = Control(ControlOperation.FENCE, ID, ledger_key(PASSWORD)).pack()
FENCE_OF_A_FORMAT = pack_ledger(ID, LedgerFacts(is_fenced=True))

OPEN = LedgerMetadata(
    ID,
    Quorum(3, 3, 2),
    (Fragment(EntryId(0), (B1, B2, B3)),),
    digest_type=DigestType.CRC32C,
    password=PASSWORD,
    created_ms=1,
    creation_token=1,
)


class Story:
    """A ledger of three entries on three bookies."""

    def __init__(self, *, entries: int = 3, on: tuple[BookieId, ...] = (B1, B2, B3)) -> None:
        self.broken: list[str] = []
        self.now_ns = 0
        self.checker = LedgerChecker(
            lambda rule, text: self.broken.append(rule), lambda: self.now_ns
        )
        self.version = -1
        self.now: LedgerMetadata | None = None
        self.commit(OPEN, WRITER)
        for number in range(entries):
            self.checker.on_written(ID, SIZE)
            for bookie in on:
                self.store(bookie, number, lac=number - 1)
            self.checker.on_confirmed(ID, number, number, is_late=False)

    def commit(self, metadata: LedgerMetadata | None, *authors: str) -> None:
        named = None if self.version < 0 else self.version
        self.version += 1
        self.now = metadata
        whose = [(author, named) for author in authors]
        self.checker.on_committed(ID, metadata, self.version, whose)

    def store(
        self, bookie: str, number: int, *, lac: int = NO_ENTRY, entry_id: int | None = None
    ) -> None:
        self.checker.on_durable(bookie, b"before" + body(number, lac, entry_id) + b"behind")
        self.now_ns += 1

    def fence(self, bookie: str, fence: bytes = FENCE) -> None:
        self.checker.on_durable(bookie, b"before" + fence + b"behind")

    def deny(
        self, bookie: str, entry_id: int, *, fences: bool = True, heard_ns: int | None = None
    ) -> None:
        heard_ns = self.now_ns if heard_ns is None else heard_ns
        read = EntryRead(
            ID, EntryId(entry_id), ledger_key(PASSWORD) if fences else None, fence=fences
        )
        reply = ReadReply(NoSuchEntry, ID, EntryId(entry_id))
        self.checker.on_answer(bookie, RECOVERER, heard_ns, read, reply)

    def name_last(self, bookie: str, entry_id: int) -> None:
        read = EntryRead(ID, NO_ENTRY, ledger_key(PASSWORD), fence=True)
        reply = ReadReply(None, ID, EntryId(entry_id), body(entry_id))
        self.checker.on_answer(bookie, RECOVERER, self.now_ns, read, reply)

    def doubt(self, bookie: str, entry_id: int) -> None:
        read = EntryRead(ID, EntryId(entry_id), ledger_key(PASSWORD), fence=True)
        reply = ReadReply(EntryStateUnknown, ID, EntryId(entry_id))
        self.checker.on_answer(bookie, RECOVERER, self.now_ns, read, reply)

    def answer_batch(
        self,
        bookie: str,
        *entries: bytes,
        first: int = 0,
        fences: bool = False,
        is_sparse: bool = False,
    ) -> None:
        """The reply is cut in two at byte 50, as a bookie may do."""
        data = join_bodies(entries)
        reply = PackedBatch(ID, EntryId(first), 0, (data[:50], data[50:]))
        batch = self.batch(first, fences=fences, is_sparse=is_sparse)
        self.checker.on_answer(bookie, RECOVERER, self.now_ns, batch, reply)

    def batch(self, first: int = 0, *, fences: bool = False, is_sparse: bool = False) -> BatchRead:
        key = ledger_key(PASSWORD) if fences else None
        return BatchRead(ID, EntryId(first), 0, 3, 9999, key, fences, is_sparse)

    def end_poll(self, bookie: str, entry_id: int, *following: bytes) -> None:
        """The reply has the entry and the confirmed entries after it."""
        poll = EntryRead(ID, NO_ENTRY, previous_lac=EntryId(entry_id - 1), piggyback=True)
        lac = EntryId(2)
        reply = ReadReply(None, ID, EntryId(entry_id), body(entry_id), lac, 0, following)
        self.checker.on_answer(bookie, "", self.now_ns, poll, reply)

    def mark(self) -> None:
        assert self.now is not None
        self.commit(self.now.with_recovery_started(), RECOVERER)
        for bookie in (B1, B2, B3):
            self.fence(bookie)

    def close(self, last: int, *new: Fragment, denied_by: tuple[str, ...] = (B1, B2)) -> None:
        assert self.now is not None
        for bookie in denied_by:
            self.deny(bookie, last + 1)
        closed = self.now.with_recovery_closed(EntryId(last), SIZE * (last + 1), new)
        self.commit(closed, RECOVERER)


def body(number: int, lac: int = NO_ENTRY, entry_id: int | None = None) -> bytes:
    at = EntryId(number if entry_id is None else entry_id)
    return pack_entry(DIGEST, at, EntryId(lac), 0, payload_of(ID, number, SIZE))


def test_ledger_written_recovered_and_read_breaks_no_rule() -> None:
    story = Story()
    story.mark()
    story.close(2)
    story.checker.on_read(ID, 2, payload_of(ID, 2, SIZE))
    for entry_id in range(3):
        for bookie in (B1, B2, B3):
            story.checker.on_copy(ID, entry_id, bookie)
    story.checker.check_copies()
    assert story.broken == []


def test_ensemble_change_and_close_by_writer_break_no_rule() -> None:
    story = Story()
    moved = OPEN.with_writer_ensemble(EntryId(3), (B1, B2, B4))
    story.commit(moved, WRITER)
    story.commit(moved.with_close(EntryId(2), 3 * SIZE), WRITER)
    assert story.broken == []


def confirmed_after_the_end(story: Story) -> None:
    story.mark()
    story.close(1, denied_by=())
    story.broken.clear()
    story.checker.on_confirmed(ID, 2, 2, is_late=False)


def closed_before_a_confirmed_entry(story: Story) -> None:
    story.mark()
    story.close(1, denied_by=())


def moved_to_bookies_without_copies(story: Story) -> None:
    other = replace(OPEN, fragments=(Fragment(EntryId(0), tuple(map(BookieId, "xyz"))),))
    story.commit(other, WRITER)


def closed_over_one_copy(story: Story) -> None:
    story.checker.on_written(ID, SIZE)
    story.store(B1, 3)
    story.mark()
    story.close(3)


def copied_to_one_bookie(story: Story) -> None:
    story.mark()
    story.close(2)
    story.checker.on_copy(ID, 0, B1)
    story.checker.check_copies()


def stored_under_another_id(story: Story) -> None:
    story.store(B1, 1, entry_id=2)


def confirmed_as_another_entry(story: Story) -> None:
    story.checker.on_confirmed(ID, 1, 2, is_late=False)


def read_as_another(story: Story) -> None:
    story.checker.on_read(ID, 1, payload_of(ID, 0, SIZE))


def fenced_in_memory(story: Story) -> None:
    story.deny(B1, 3)


def fenced_in_memory_by_a_batch(story: Story) -> None:
    story.answer_batch(B1, body(0), fences=True)


def fenced_on_a_wiped_disk(story: Story) -> None:
    story.fence(B1)
    story.checker.on_wiped(B1)
    story.checker.on_formatted(B1)
    story.doubt(B1, 3)


def accepted_after_a_fence(story: Story) -> None:
    story.fence(B1)
    story.deny(B1, 3)
    story.checker.on_accepted(B1, ID, [EntryId(3)], mends=False)


def stored_after_it_was_denied(story: Story) -> None:
    story.checker.on_written(ID, SIZE)
    story.fence(B1)
    story.deny(B1, 3)
    story.store(B1, 3)


def denied_though_stored(story: Story) -> None:
    story.deny(B1, 1, fences=False)


def denied_though_stored_before_the_fence(story: Story) -> None:
    """An ordinary add that arrives after the read and before the fence."""
    heard_ns = story.now_ns
    story.checker.on_written(ID, SIZE)
    story.checker.on_accepted(B1, ID, [EntryId(3)], mends=False)
    story.store(B1, 3)
    story.fence(B1)
    story.deny(B1, 3, heard_ns=heard_ns)


def denied_though_stored_before_recovery_wrote_it_back(story: Story) -> None:
    """An ordinary add is stored after the read arrives; then recovery writes the entry back."""
    story.mark()
    heard_ns = story.now_ns
    story.checker.on_written(ID, SIZE)
    story.store(B1, 3)
    story.checker.on_accepted(B1, ID, [EntryId(3)], mends=True)
    story.store(B1, 3)
    story.deny(B1, 3, heard_ns=heard_ns)


def skipped_by_a_sparse_batch_though_stored(story: Story) -> None:
    story.answer_batch(B1, body(0), body(2), is_sparse=True)


def denied_by_a_batch_though_stored(story: Story) -> None:
    reply = BatchReadReply(NoSuchEntry, ID, EntryId(0), 0)
    story.checker.on_answer(B1, RECOVERER, story.now_ns, story.batch(), reply)


def last_entry_before_an_entry_written_back(story: Story) -> None:
    story.mark()
    story.checker.on_written(ID, SIZE)
    story.checker.on_accepted(B1, ID, [EntryId(3)], mends=True)
    story.store(B1, 3)
    story.name_last(B1, 2)


def denied_after_its_disk_was_wiped(story: Story) -> None:
    story.checker.on_wiped(B1)
    story.deny(B1, 1)


def truncated_by_one_denial(story: Story) -> None:
    story.mark()
    story.close(2, denied_by=(B1,))


def truncated_by_denial_of_a_non_member(story: Story) -> None:
    story.mark()
    story.fence(B4)
    story.close(2, denied_by=(B1, B4))


def truncated_by_unknown_states(story: Story) -> None:
    story.mark()
    for bookie in (B1, B2, B3):
        story.doubt(bookie, 3)
    story.close(2, denied_by=())


def fragment_published_before_close(story: Story) -> None:
    story.mark()
    assert story.now is not None
    moved = (*OPEN.fragments, Fragment(EntryId(3), (B1, B2, B4)))
    story.commit(replace(story.now, fragments=moved), RECOVERER)


def members_twice(story: Story) -> None:
    story.commit(replace(OPEN, fragments=(Fragment(EntryId(0), (B1, B2, B2)),)), WRITER)


def reopened(story: Story) -> None:
    story.mark()
    story.close(2)
    story.commit(OPEN, RECOVERER)


def deleted_by_no_client(story: Story) -> None:
    story.checker.on_committed(ID, None, -1, ())


def dirty_lac(story: Story) -> None:
    story.checker.on_written(ID, SIZE)
    story.checker.on_written(ID, SIZE)
    story.store(B1, 3, lac=2)
    story.store(B1, 4, lac=3)


def dirty_explicit_lac(story: Story) -> None:
    story.checker.on_lac_written(B1, ID, 3)


def two_versions_at_once(story: Story) -> None:
    story.version += 1
    story.commit(OPEN.with_writer_ensemble(EntryId(3), (B1, B2, B4)), WRITER)


def blind_change(story: Story) -> None:
    story.version += 1
    moved = OPEN.with_writer_ensemble(EntryId(3), (B1, B2, B4))
    story.checker.on_committed(ID, moved, story.version, [(WRITER, None)])


def closed_by_its_writer_in_recovery(story: Story) -> None:
    story.mark()
    assert story.now is not None
    for bookie in (B1, B2):
        story.deny(bookie, 3)
    closed = story.now.with_recovery_closed(EntryId(2), 3 * SIZE)
    assert closed.state is LedgerState.CLOSED
    story.commit(closed, WRITER)


def confirmed_on_one_disk(story: Story) -> None:
    story.checker.on_written(ID, SIZE)
    story.store(B1, 3)
    story.checker.on_confirmed(ID, 3, 3, is_late=False)


def answered_with_a_bad_digest(story: Story) -> None:
    spoilt = bytearray(body(1))
    spoilt[-1] ^= 1
    reply = ReadReply(None, ID, EntryId(1), bytes(spoilt))
    with pytest.raises(Exception, match="digest"):
        story.checker.on_answer(B1, "", 0, EntryRead(ID, EntryId(1)), reply)


def bad_digest_in_a_batch(story: Story) -> None:
    spoilt = bytearray(body(1))
    spoilt[-1] ^= 1
    with pytest.raises(Exception, match="digest"):
        story.answer_batch(B1, body(0), bytes(spoilt), body(2))


def skipped_by_a_dense_batch(story: Story) -> None:
    with pytest.raises(Exception, match="entry 2"):
        story.answer_batch(B1, body(0), body(2))


def out_of_order_in_a_sparse_batch(story: Story) -> None:
    story.answer_batch(B1, body(0), body(2), body(1), is_sparse=True)


def repeated_in_a_sparse_batch(story: Story) -> None:
    story.answer_batch(B1, body(0), body(0), is_sparse=True)


def before_the_first_entry_of_a_sparse_batch(story: Story) -> None:
    story.answer_batch(B1, body(0), first=1, is_sparse=True)


def skipped_after_a_poll(story: Story) -> None:
    with pytest.raises(Exception, match="entry 2"):
        story.end_poll(B1, 0, body(2))


def repeated_after_a_poll(story: Story) -> None:
    with pytest.raises(Exception, match="entry 0"):
        story.end_poll(B1, 0, body(0))


def answered_with_another_entry(story: Story) -> None:
    with pytest.raises(Exception, match="entry 2"):
        story.checker.on_answer(
            B1, "", 0, EntryRead(ID, EntryId(1)), ReadReply(None, ID, EntryId(1), body(2))
        )


def read_answered_with_another_class(story: Story) -> None:
    reply = AddReply(None, ID, EntryId(0))
    story.checker.on_answer(B1, RECOVERER, story.now_ns, EntryRead(ID, EntryId(0)), reply)


def batch_answered_with_another_class(story: Story) -> None:
    """If bookies send batches in a class that the checker does not know, it reports them."""
    reply = ReadReply(None, ID, EntryId(0), body(0))
    story.checker.on_answer(B1, RECOVERER, story.now_ns, story.batch(), reply)


def truncated_after_it_was_read(story: Story) -> None:
    story.checker.on_written(ID, SIZE)
    story.checker.on_read(ID, 3, payload_of(ID, 3, SIZE))
    story.mark()
    story.close(2)


def closed_with_a_refused_entry(story: Story) -> None:
    story.checker.on_refused(ID, 2)
    story.mark()
    story.close(2)


def closed_with_wrong_length(story: Story) -> None:
    assert story.now is not None
    story.commit(story.now.with_close(EntryId(2), 2 * SIZE), WRITER)


def closed_without_starting_recovery(story: Story) -> None:
    assert story.now is not None
    story.commit(story.now.with_close(EntryId(2), 3 * SIZE), RECOVERER)


def confirmed_after_the_deletion(story: Story) -> None:
    story.checker.on_confirmed(ID, 2, 2, is_late=True)


PLANTED: tuple[tuple[Callable[[Story], None], str], ...] = (
    (confirmed_after_the_end, copies.TRUNCATED),
    (closed_before_a_confirmed_entry, copies.TRUNCATED),
    (moved_to_bookies_without_copies, copies.READABLE),
    (closed_over_one_copy, copies.COPIES),
    (copied_to_one_bookie, copies.COPIES),
    (stored_under_another_id, copies.ORDER),
    (confirmed_as_another_entry, copies.ORDER),
    (read_as_another, copies.ORDER),
    (fenced_in_memory, answers.FENCE),
    (fenced_in_memory_by_a_batch, answers.FENCE),
    (fenced_on_a_wiped_disk, answers.FENCE),
    (accepted_after_a_fence, answers.FENCE),
    (stored_after_it_was_denied, answers.FENCE),
    (denied_though_stored, metadata.ABSENCE),
    (denied_though_stored_before_the_fence, metadata.ABSENCE),
    (denied_though_stored_before_recovery_wrote_it_back, metadata.ABSENCE),
    (skipped_by_a_sparse_batch_though_stored, metadata.ABSENCE),
    (denied_by_a_batch_though_stored, metadata.ABSENCE),
    (last_entry_before_an_entry_written_back, metadata.ABSENCE),
    (denied_after_its_disk_was_wiped, metadata.ABSENCE),
    (truncated_by_one_denial, metadata.ABSENCE),
    (truncated_by_denial_of_a_non_member, metadata.ABSENCE),
    (truncated_by_unknown_states, metadata.ABSENCE),
    (fragment_published_before_close, metadata.FRAGMENTS),
    (members_twice, metadata.FRAGMENTS),
    (reopened, metadata.FRAGMENTS),
    (deleted_by_no_client, metadata.FRAGMENTS),
    (dirty_lac, copies.CLEAN_LAC),
    (dirty_explicit_lac, copies.CLEAN_LAC),
    (two_versions_at_once, metadata.VERSIONS),
    (blind_change, metadata.VERSIONS),
    (closed_by_its_writer_in_recovery, metadata.FROZEN),
    (confirmed_on_one_disk, copies.DURABLE_ACK),
    (answered_with_a_bad_digest, answers.BYTES),
    (answered_with_another_entry, answers.BYTES),
    (bad_digest_in_a_batch, answers.BYTES),
    (skipped_by_a_dense_batch, answers.BYTES),
    (out_of_order_in_a_sparse_batch, answers.BYTES),
    (repeated_in_a_sparse_batch, answers.BYTES),
    (before_the_first_entry_of_a_sparse_batch, answers.BYTES),
    (skipped_after_a_poll, answers.BYTES),
    (repeated_after_a_poll, answers.BYTES),
    (read_answered_with_another_class, answers.UNJUDGED),
    (batch_answered_with_another_class, answers.UNJUDGED),
    (truncated_after_it_was_read, copies.VANISHED),
    (closed_with_a_refused_entry, copies.REFUSED),
    (closed_with_wrong_length, metadata.LENGTH),
    (closed_without_starting_recovery, metadata.FRAGMENTS),
    (confirmed_after_the_deletion, copies.DELETED),
)


@pytest.mark.parametrize(("plant", "rule"), PLANTED, ids=lambda each: getattr(each, "__name__", ""))
def test_planted_violation_is_found(plant: Callable[[Story], None], rule: str) -> None:
    story = Story()
    assert story.broken == []
    plant(story)
    assert rule in story.broken


def test_every_rule_has_a_planted_violation() -> None:
    assert set(RULES) <= {rule for _, rule in PLANTED}


@pytest.mark.parametrize("is_sparse", [False, True])
def test_answers_with_stored_entries_break_no_rule(is_sparse: bool) -> None:
    story = Story()
    story.fence(B1)
    story.answer_batch(B1, body(0), body(1), body(2), fences=True, is_sparse=is_sparse)
    story.end_poll(B1, 0, body(1), body(2))
    assert story.broken == []


def test_copies_on_wiped_disk_are_excused() -> None:
    story = Story(on=(B1, B2))
    story.checker.on_wiped(B1)
    story.mark()
    story.close(2, denied_by=(B2, B3))
    for entry_id in range(3):
        story.checker.on_copy(ID, entry_id, B2)
    story.checker.check_copies()
    assert story.broken == []


def test_fence_of_a_formatted_disk_is_seen() -> None:
    """The format's first catalog has the fence, so a later fencing read writes nothing more."""
    story = Story()
    story.fence(B1)
    story.checker.on_wiped(B1)
    story.fence(B1, FENCE_OF_A_FORMAT)
    story.checker.on_formatted(B1)
    story.doubt(B1, 3)
    story.mark()
    story.close(2, denied_by=(B2, B3))
    for entry_id in range(3):
        story.store(B1, entry_id)
    story.checker.on_healed(B1)
    story.deny(B1, 3)
    assert story.broken == []


def test_recovery_may_store_an_entry_that_was_denied() -> None:
    story = Story()
    story.checker.on_written(ID, SIZE)
    story.store(B3, 3)
    story.mark()
    story.deny(B1, 3)
    story.checker.on_accepted(B1, ID, [EntryId(3)], mends=True)
    story.store(B1, 3)
    story.close(3)
    assert story.broken == []


@pytest.mark.parametrize("mends", [False, True])
def test_entry_stored_during_a_read_may_be_denied(mends: bool) -> None:
    story = Story()
    if mends:
        story.mark()
    heard_ns = story.now_ns
    story.checker.on_written(ID, SIZE)
    story.checker.on_accepted(B1, ID, [EntryId(3)], mends=mends)
    story.store(B1, 3)
    story.deny(B1, 3, fences=mends, heard_ns=heard_ns)
    assert story.broken == []
    story.deny(B1, 3, fences=mends)
    assert story.broken == ["absence"]
