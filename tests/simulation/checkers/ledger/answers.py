"""What bookies accept and say, judged as it leaves them.

- **fence** (B4): a bookie that answered a fence request has the fence on disk, accepts no ordinary add from
  then on, across restarts, and what it called absent then stays so unless a recovery brings it.
- **absence** (B1): "no such entry" is never said of what the disk had when the question came, nor under
  a fence of any ordinary add that the disk has, nor of what went with a disk that we destroyed while the
  ledger was not closed, unless nobody counts on it any more. A bookie that names its last entry to a fencing
  question says so of all that would lie behind that one.
- **bytes** (B1): an entry is answered under its ids, with a digest that holds, as somebody wrote it;
  several of them ascend, and none is passed over but by a batch that may.
- **unjudged**: no question is answered in a class of reply that is not known here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rollbook.proto.errors import (
    DigestMismatch,
    EntryStateUnknown,
    NoSuchEntry,
    NoSuchLedger,
)
from rollbook.proto.ids import NO_ENTRY, EntryId
from rollbook.proto.ports import Buffer
from rollbook.proto.wire.entry_batches import unpack_bodies
from rollbook.proto.wire.messages import (
    BatchRead,
    BatchReadReply,
    EntryRead,
    PackedBatch,
    ReadReply,
    Reply,
    Request,
)
from tests.simulation.checkers.ledger.facts import Facts, LedgerFacts, OnBroken
from tests.simulation.checkers.ledger.metadata import ABSENCE, MetadataRules

FENCE: Final = "fence"
BYTES: Final = "bytes"
UNJUDGED: Final = "unjudged"

_ABSENT: Final = (NoSuchEntry, NoSuchLedger)


@dataclass(frozen=True, slots=True)
class Asked:
    bookie: str
    asker: str
    heard_ns: int


class AnswerRules:
    def __init__(self, facts: Facts, metadata: MetadataRules, on_broken: OnBroken) -> None:
        self._facts = facts
        self._metadata = metadata
        self._break = on_broken

    def on_accepted(
        self, bookie: str, ledger_id: int, entries: Sequence[EntryId], mends: bool
    ) -> None:
        """Adds that the bookie is going to store; `mends`: of a recovery."""
        kept, ledger = self._facts.kept(bookie, ledger_id), self._facts.ledger(ledger_id)
        if mends:
            kept.mended.update(dict.fromkeys(entries))
        elif kept.fence_was_answered and not ledger.is_doomed:
            self._break(FENCE, f"{bookie} was fenced and accepts {ledger.name(entries[0])}")

    def on_durable(self, bookie: str, ledger_id: int, entry_id: int) -> None:
        kept = self._facts.kept(bookie, ledger_id)
        if kept.has_denied(entry_id) and entry_id not in kept.mended:
            name = self._facts.ledger(ledger_id).name(entry_id)
            self._break(FENCE, f"{bookie} denied {name} under a fence, and stores it")

    def on_answer(self, asked: Asked, request: Request, reply: Reply) -> None:
        match request, reply:
            case EntryRead(), ReadReply():
                self._on_read(asked, request, reply)
            case BatchRead(), PackedBatch():
                self._on_batch(asked, request, None, _bodies_of(reply))
            case BatchRead(), BatchReadReply():
                self._on_batch(asked, request, reply.error, reply.bodies)
            case EntryRead() | BatchRead(), _:
                what = f"a {type(request).__name__} with a {type(reply).__name__}"
                self._break(UNJUDGED, f"{asked.bookie} answers {what}")

    def _on_read(self, asked: Asked, read: EntryRead, reply: ReadReply) -> None:
        bookie, ledger = asked.bookie, self._facts.ledger(read.ledger_id)
        if read.fence:
            self._on_fence_answered(bookie, ledger, reply.error)
        if reply.error in _ABSENT and read.entry_id >= 0 and read.previous_lac is None:
            self._on_denied(asked, ledger, read.entry_id, is_fenced=read.fence)
        names_last = read.fence and read.entry_id == NO_ENTRY
        if reply.error in _ABSENT and names_last:
            self._on_last_named(asked, ledger, NO_ENTRY)
        if reply.error is None and reply.body is not None:
            entry_id = None if read.entry_id < 0 else read.entry_id
            found = self._on_body(bookie, ledger, reply.body, entry_id)
            if names_last:
                self._on_last_named(asked, ledger, found)
            for behind, body in enumerate(reply.following, found + 1):
                self._on_body(bookie, ledger, body, behind)

    def _on_batch(
        self,
        asked: Asked,
        batch: BatchRead,
        error: type[Exception] | None,
        bodies: Sequence[Buffer],
    ) -> None:
        bookie, ledger = asked.bookie, self._facts.ledger(batch.ledger_id)
        if batch.fence:
            self._on_fence_answered(bookie, ledger, error)
        if error in _ABSENT:
            count = batch.count_max if batch.is_sparse and batch.count_max > 0 else 1
            for entry_id in range(batch.first_entry, batch.first_entry + count):
                self._on_denied(asked, ledger, entry_id, is_fenced=batch.fence)
        expected = int(batch.first_entry)
        for body in bodies:
            entry_id = self._on_body(bookie, ledger, body, None if batch.is_sparse else expected)
            if entry_id < expected:
                name = ledger.name(entry_id)
                self._break(BYTES, f"{bookie} sends {name} where {expected} is next")
            for passed in range(expected, entry_id):  # Only a sparse one passes over anything.
                self._on_denied(asked, ledger, passed, is_fenced=batch.fence)
            expected = entry_id + 1

    def _on_fence_answered(
        self, bookie: str, ledger: LedgerFacts, error: type[Exception] | None
    ) -> None:
        if error is not None and error not in (*_ABSENT, EntryStateUnknown):
            return  # It failed, and promised nothing.
        kept = self._facts.kept(bookie, ledger.ledger_id)
        if ledger.metadata is None or ledger.is_doomed:
            return
        if not kept.has_fence:
            self._break(FENCE, f"{bookie} answers before ledger {ledger.ledger_id} is fenced there")
        kept.fence_was_answered = True

    def _on_denied(
        self, asked: Asked, ledger: LedgerFacts, entry_id: int, *, is_fenced: bool
    ) -> None:
        bookie = asked.bookie
        if is_fenced:
            self._metadata.on_denied(asked.asker, bookie, ledger.ledger_id, entry_id)
        if ledger.is_doomed or ledger.metadata is None:
            return
        kept = self._facts.kept(bookie, ledger.ledger_id)
        if kept.has_had(entry_id, asked.heard_ns, is_fenced=is_fenced):
            self._break(ABSENCE, f"{bookie} denies {ledger.name(entry_id)}, which it has")
        if entry_id in kept.lost and self._may_count(ledger, entry_id, bookie):
            self._break(ABSENCE, f"{bookie} denies {ledger.name(entry_id)}, which it had")
        if is_fenced:
            kept.denied[entry_id] = None

    def _on_last_named(self, asked: Asked, ledger: LedgerFacts, last: int) -> None:
        """Under a fence."""
        bookie = asked.bookie
        self._metadata.on_last_named(asked.asker, bookie, ledger.ledger_id, last)
        if ledger.is_doomed or ledger.metadata is None:
            return
        kept = self._facts.kept(bookie, ledger.ledger_id)
        named = f"{bookie} calls {ledger.name(last)} its last"
        later = (each for each in kept.durable if each > last)
        if behind := [e for e in later if kept.has_had(e, asked.heard_ns, is_fenced=True)]:
            self._break(ABSENCE, f"{named}, and has {behind}")
        behind = [each for each in kept.lost if each > last]
        if any(self._may_count(ledger, each, bookie) for each in behind):
            self._break(ABSENCE, f"{named}, and had {behind}")
        kept.denied_beyond = last if kept.denied_beyond is None else min(kept.denied_beyond, last)

    def _may_count(self, ledger: LedgerFacts, entry_id: int, bookie: str) -> bool:
        """Whether anybody may conclude anything from what the bookie says of the entry."""
        metadata = ledger.metadata
        if metadata is None or metadata.last_entry is None:
            return metadata is not None
        if entry_id > metadata.last_entry:
            return False
        ensemble = metadata.fragment_of(EntryId(entry_id)).ensemble
        return bookie in metadata.quorum.write_set(EntryId(entry_id), ensemble)

    def _on_body(self, bookie: str, ledger: LedgerFacts, body: Buffer, entry_id: int | None) -> int:
        """Which entry it is."""
        if ledger.digest is None:
            return -1 if entry_id is None else entry_id
        try:
            entry = ledger.digest.unpack_entry(
                body, None if entry_id is None else EntryId(entry_id)
            )
        except DigestMismatch as error:
            if (bookie, ledger.ledger_id) in self._facts.spoilt:
                return int.from_bytes(bytes(body[8:16]))
            self._break(BYTES, f"{bookie} answers for ledger {ledger.ledger_id}: {error}")
            raise
        if entry.payload != ledger.payload(entry.entry_id):
            self._break(BYTES, f"{bookie} answers {ledger.name(entry.entry_id)} as nobody wrote it")
        return entry.entry_id


def _bodies_of(batch: PackedBatch) -> tuple[Buffer, ...]:
    data = b"".join(batch.pieces)
    return tuple(unpack_bodies(data, 0, len(data)))
