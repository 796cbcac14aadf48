"""Changes the open end of a ledger in its metadata. The ledger's only writer moves and closes the
end by compare-and-set.

The rules for the metadata that was read are in `core/ensemble_change.py`.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Final

import structlog

from rollbook.ledger.core.ensemble_change import OpenEnsemble
from rollbook.proto.cluster.ledger_nodes import LedgerNodes, StoredLedger
from rollbook.proto.errors import MetadataConflict, OutcomeUnknown, Unavailable
from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.metadata import Fragment
from rollbook.proto.ports import Clock

_PAUSE_S_MIN: Final = 0.02
_PAUSE_S_MAX: Final = 1.0
_TRUSTED_S: Final = 86_400.0


class MetadataWriter:
    def __init__(
        self,
        stored: StoredLedger,
        open_ensemble: OpenEnsemble,
        nodes: LedgerNodes,
        clock: Clock,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self.stored = stored  # The metadata as it was last written or read.
        self._open_ensemble, self._nodes, self._clock, self._log = open_ensemble, nodes, clock, log
        self._loop = asyncio.get_running_loop()
        self._note_looked()

    @property
    def ledger_id(self) -> LedgerId:
        return self.stored.metadata.ledger_id

    @property
    def is_stale(self) -> bool:
        """Whether the writer has not seen the ledger OPEN for a day (WR5).

        The longer of two clocks' times counts, because one of the clocks stops while the machine
        sleeps.
        """
        unseen_s = max(
            (self._clock.monotonic_ns() - self._looked_ns) / 1e9,
            (self._clock.wall_us() - self._looked_us) / 1e6,
        )
        return unseen_s >= _TRUSTED_S

    async def verify(self) -> None:
        """Reads the metadata. Raises `LedgerFenced` unless the ledger is OPEN, with the end that we
        wrote (WR4)."""
        self.stored = await self._read()
        self._open_ensemble.verify(self.stored.metadata)
        self._note_looked()

    async def move(
        self, picks: dict[int, BookieId], next_unconfirmed: Callable[[], EntryId]
    ) -> Fragment:
        """Writes the ledger's new last fragment, with these bookies in these slots. Waits while
        the metadata store does not respond.

        In each attempt the fragment starts at the first entry that is unconfirmed at that time
        (WR2). Raises the error that ends the writer.
        """
        attempts: list[Fragment] = []
        while True:
            wanted = self._open_ensemble.plan(next_unconfirmed(), picks)
            attempts.append(wanted)
            metadata = self.stored.metadata
            changed = metadata.with_writer_ensemble(wanted.first_entry, wanted.ensemble)
            try:
                self.stored = await self._nodes.update(self.stored, changed)
            except MetadataConflict:
                pass  # Others re-replicated earlier fragments, or recover the ledger.
            except (Unavailable, OutcomeUnknown) as error:
                self._log.warning("ledger_metadata_not_written", reason=error.code.reason)
                await asyncio.sleep(_PAUSE_S_MIN)
            else:
                self._note_looked()
                return wanted
            self.stored = await self._read()
            made = self._open_ensemble.find_made(self.stored.metadata, attempts)
            self._note_looked()
            if made is not None:
                return made

    async def close(self, last_entry: EntryId, length: int, patience_s: float) -> None:
        """Closes the ledger. Raises `LedgerFenced`, `LedgerClosed`, or the store's error if the store
        does not respond in time."""
        due = self._loop.time() + patience_s
        while True:
            changed = self.stored.metadata.with_close(last_entry, length)
            try:
                self.stored = await self._nodes.update(self.stored, changed)
                return
            except MetadataConflict:
                pass
            except (Unavailable, OutcomeUnknown):
                if self._loop.time() >= due:
                    raise
                await asyncio.sleep(_PAUSE_S_MIN)
            self.stored = await self._read(due)

    async def _read(self, due: float = math.inf) -> StoredLedger:
        pause_s = _PAUSE_S_MIN
        while True:
            try:
                return await self._nodes.read(self.stored.metadata.ledger_id, fresh=True)
            except (Unavailable, OutcomeUnknown):
                if self._loop.time() >= due:
                    raise
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def _note_looked(self) -> None:
        self._looked_ns, self._looked_us = self._clock.monotonic_ns(), self._clock.wall_us()
