"""Recovery: fence, find the last entry, write the tail back, close.

The reads fence, too. One valid copy proves an entry, `absence` explicit negatives of its write set
disprove it, silence does neither. What was read is written back to an ensemble whose changes stay
in memory until the close; it carries the LAC known when recovery began, since nothing that metadata
does not name yet may be called confirmed.
"""

import asyncio
import random
from dataclasses import replace
from typing import ClassVar, Final

from rollbook.proto.errors import EntryStateUnknown, MetadataConflict
from rollbook.proto.ids import NO_ENTRY, BookieId, EntryId
from rollbook.proto.quorum import Ensemble
from tests.simulation.worlds.toy.ledger import CLOSED, IN_RECOVERY, OPEN, QUORUM, Ledger, LedgerNode
from tests.simulation.worlds.toy.wire import (
    ABSENT,
    FENCING_READ,
    HAVE,
    RECOVERY_ADD,
    Links,
    Message,
)

ASK_TIMEOUT_S: Final = 0.4
READ_AHEAD: Final = 3
RETRY_S: Final = 0.2

Answers = dict[BookieId, Message]


class Recovery:
    read_kind: ClassVar[int] = FENCING_READ
    copies_needed: ClassVar[int] = QUORUM.ack
    negatives_needed: ClassVar[int] = QUORUM.absence

    def __init__(
        self,
        bookies: tuple[BookieId, ...],
        node: LedgerNode,
        links: Links,
        rng: random.Random,
    ) -> None:
        self._bookies, self._node, self._links, self._rng = bookies, node, links, rng

    async def recover(self) -> None:
        """Returns when the ledger is closed, by whomever."""
        while True:
            found = await self._mark()
            if found.state == CLOSED:
                return
            try:
                closed = await self._read_and_write_back(found)
                await self._node.change(closed)
            except (EntryStateUnknown, MetadataConflict):  # From the start, with fresh metadata.
                await asyncio.sleep(RETRY_S)

    async def _mark(self) -> Ledger:
        """From here on no change by the writer succeeds."""
        while (found := await self._node.read()).state == OPEN:
            try:
                await self._node.change(replace(found, state=IN_RECOVERY))
            except MetadataConflict:
                pass  # Look again.
        return found

    async def _read_and_write_back(self, found: Ledger) -> Ledger:
        lac = await self._fence(found)
        bodies = await self._read_tail(found.ensemble, lac)
        mended = found  # With the ensembles that are to be published by the close.
        for entry, body in enumerate(bodies, lac + 1):
            mended = await self._write_back(mended, EntryId(entry), body, lac)
        return mended.with_last(lac + len(bodies))

    async def _read_tail(self, ensemble: Ensemble, lac: EntryId) -> list[int]:
        """The bodies from LAC + 1 up to the first entry that is absent, some entries at a time."""
        bodies: list[int] = []
        while True:
            first = lac + len(bodies) + 1
            reads = [self._read(ensemble, EntryId(first + ahead)) for ahead in range(READ_AHEAD)]
            for found in await asyncio.gather(*reads, return_exceptions=True):
                if isinstance(found, BaseException):
                    raise found
                if found is None:  # What may be behind it does not matter.
                    return bodies
                bodies.append(found)

    async def _fence(self, found: Ledger) -> EntryId:
        """The LAC from which to go on."""
        answers = await self._links.hear(
            self._whom_to_fence(found.ensemble),
            (FENCING_READ, NO_ENTRY, NO_ENTRY, 0),
            lambda answers: self._is_covered(found.ensemble, answers),
            ASK_TIMEOUT_S,
        )
        if not self._is_covered(found.ensemble, answers):
            raise EntryStateUnknown("too few bookies could be fenced")
        return self._start(found, [answer.lac for answer in answers.values()])

    def _start(self, found: Ledger, lacs: list[int]) -> EntryId:
        """Entries of earlier fragments are all confirmed, and lie elsewhere."""
        first, _ = found.fragments[-1]
        return EntryId(max(first - 1, *lacs))

    def _whom_to_fence(self, ensemble: Ensemble) -> Ensemble:
        return ensemble

    def _is_covered(self, ensemble: Ensemble, answers: Answers) -> bool:
        return QUORUM.is_covered(
            sum(1 << slot for slot, bookie in enumerate(ensemble) if bookie not in answers)
        )

    async def _read(self, ensemble: Ensemble, entry: EntryId) -> int | None:
        """Its body, or None if it was never confirmed and never will be."""
        write_set = QUORUM.write_set(entry, ensemble)
        answers = await self._links.hear(
            write_set,
            (self.read_kind, entry, NO_ENTRY, 0),
            lambda answers: self._found(answers) is not None or self._is_absent(answers),
            ASK_TIMEOUT_S,
        )
        found = self._found(answers)
        if found is None and not self._is_absent(answers):
            raise EntryStateUnknown("neither found nor disproved", entry=entry)
        return found

    @staticmethod
    def _found(answers: Answers) -> int | None:
        return next((a.body for a in answers.values() if a.kind == HAVE), None)

    def _is_absent(self, answers: Answers) -> bool:
        negatives = sum(answer.kind == ABSENT for answer in answers.values())
        return negatives >= self.negatives_needed

    async def _write_back(self, mended: Ledger, entry: EntryId, body: int, lac: EntryId) -> Ledger:
        """Until enough bookies of one ensemble have it; those that do not answer are replaced."""
        while True:
            answers = await self._links.hear(
                QUORUM.write_set(entry, mended.ensemble),
                (RECOVERY_ADD, entry, self._lac_to_tell(lac, entry), body),
                lambda answers: len(answers) >= self.copies_needed,
                ASK_TIMEOUT_S,
            )
            if len(answers) >= self.copies_needed:
                return mended
            spare = [bookie for bookie in self._bookies if bookie not in mended.ensemble]
            self._rng.shuffle(spare)
            ensemble = tuple(
                spare.pop() if bookie not in answers and spare else bookie
                for bookie in mended.ensemble
            )
            mended = await self._mend(mended, entry, ensemble)

    async def _mend(self, mended: Ledger, entry: EntryId, ensemble: Ensemble) -> Ledger:
        """In memory only: a later recovery must look where the entries are now."""
        return mended.with_ensemble(entry, ensemble)

    def _lac_to_tell(self, lac: EntryId, entry: EntryId) -> EntryId:
        return lac
