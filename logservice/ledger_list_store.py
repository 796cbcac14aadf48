"""Reads and changes the ledger list of a log, for its owner. Every change is a compare-and-set.

Other servers change the list, too: the log's configuration, or the discarded ledgers. A writer that finds the
list changed reads it again, checks that it still names this owner, and repeats the change. An owner makes one
change at a time.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog

from rollbook.ledger.writer import LedgerWriter
from rollbook.logservice.core.ledger_list import LedgerList, Segment
from rollbook.logservice.core.segments_kept_at_takeover import pause_s
from rollbook.logservice.log_config import LogConfig
from rollbook.logservice.log_metadata import StoredLog
from rollbook.logservice.segment_ledgers import drop_ledger, make_ledger
from rollbook.logservice.server_context import OwnerContext
from rollbook.proto.errors import (
    Guarded,
    Invalid,
    MetadataConflict,
    NoSuchLog,
    OutcomeUnknown,
    RollbookError,
    Unavailable,
)

T = TypeVar("T")

Change = Callable[[LedgerList], LedgerList]

_PAUSE_S_MIN: Final = 0.02
_PAUSE_S_MAX: Final = 1.0
# A change fails after this many lost races in a row; the pauses between them add up to 2 to 7 s.
_RACES_MAX: Final = 12


class LedgerListStore:
    def __init__(
        self,
        context: OwnerContext,
        stored: StoredLog,
        log: structlog.typing.FilteringBoundLogger,
        on_configured: Callable[[LogConfig], None],
    ) -> None:
        """Begin with the list in `stored`. `on_configured` is called with each new configuration that a
        read or a write finds (SV7).
        """
        self.stored = stored  # The list as it was last written or read.
        self.owner_epoch = stored.list.owner_epoch
        self._on_configured = on_configured
        self._context, self._log = context, log
        self._changing = asyncio.Lock()

    @property
    def list(self) -> LedgerList:
        return self.stored.list

    async def refresh(self) -> None:
        """Read the list again, retrying while the store is unavailable. Raises `OwnerFenced`, `NoSuchLog`."""
        again_s = _PAUSE_S_MIN
        while True:
            try:
                return await self.look()
            except (Unavailable, OutcomeUnknown):
                await asyncio.sleep(again_s)
                again_s = min(2 * again_s, _PAUSE_S_MAX)

    async def look(self) -> None:
        """Read the list once. Raises `OwnerFenced`, `NoSuchLog`, `MetadataUnavailable`."""
        stored = await self._context.nodes.read(self.stored.name)
        if stored.list.uid != self.list.uid:
            raise NoSuchLog("the log was deleted and created again", log=str(stored.name))
        stored.list.check_owner(self.owner_epoch)
        self._keep(stored)

    def _keep(self, stored: StoredLog) -> None:
        # An older version is ignored, since a later write or read was processed first.
        if stored.version > self.stored.version:
            config = self.list.config
            self.stored = stored
            if self.list.config != config:
                self._on_configured(self.list.config)

    async def change(self, make: Change) -> None:
        """Change the list, retrying while the store is unavailable. `make` returns its argument if no
        change is needed.

        Raises `OwnerFenced`, `NoSuchLog`, and any error of `make`.
        """

        async def replace(stored: StoredLog) -> tuple[StoredLog, None]:
            return await self._context.nodes.replace(stored, make(stored.list)), None

        await self.attempt(replace, until_known=True)

    async def attempt(
        self, work: Callable[[StoredLog], Awaitable[tuple[StoredLog, T]]], *, until_known: bool
    ) -> T:
        """Call `work`, which changes the list that it gets. If another writer was quicker, the list is read
        again, and `work` is called again.

        With `until_known`, this also happens if the store is unavailable or the outcome is unknown. Raises
        `OwnerFenced`, `NoSuchLog`, any error of `work`, and `MetadataConflict` if every attempt met another change.
        """
        async with self._changing:
            races = 0
            while True:
                try:
                    stored, result = await work(self.stored)
                except Guarded:
                    raise
                except (MetadataConflict, Unavailable, OutcomeUnknown) as error:
                    if not until_known and not isinstance(error, MetadataConflict):
                        raise
                    self._log.info("log_list_not_written", reason=error.code.reason)
                    races = await self._after(error, races)
                else:
                    self._keep(stored)
                    return result
                await self.refresh()

    async def list_ledger(
        self,
        make: Callable[[LedgerList, LedgerWriter], LedgerList],
        *,
        bookies_min: int = 0,
    ) -> tuple[LedgerWriter, Segment]:
        """Make a ledger on at least `bookies_min` bookies, and add it to the end of the list (LS3).

        Raises `OwnerFenced`, `NoSuchLog`, `NotEnoughBookies`; then no ledger is listed. If the store
        stopped responding, a ledger may be listed, but it is never written.
        """
        async with self._changing:
            races = 0
            while True:
                made_for = self.stored.version
                writer = await make_ledger(self._context, self.stored, bookies_min=bookies_min)
                try:
                    wanted = make(self.list, writer)
                except RollbookError:
                    await drop_ledger(self._context, writer)
                    raise
                try:
                    self._keep(
                        await self._context.nodes.replace(self.stored, wanted, made_for=made_for)
                    )
                except (MetadataConflict, Unavailable, OutcomeUnknown) as error:
                    self._log.info("log_list_not_written", reason=error.code.reason)
                    await self._stopping_if_failed(writer, self.refresh())
                except Invalid:  # The list is too long for its node: nothing was written.
                    await drop_ledger(self._context, writer)
                    raise
                except BaseException:
                    await writer.stop()
                    raise
                if self.list.segments[-1].ledger_id == writer.ledger_id:
                    return writer, self.list.segments[-1]
                await drop_ledger(self._context, writer)
                races = await self._after(MetadataConflict("another change came first"), races)

    async def _after(self, error: RollbookError, races: int) -> int:
        """Pause after a lost race, and return the new number of lost races in a row. Raises the error after
        `_RACES_MAX` of them.

        After any other error the count returns to 0, without a pause.
        """
        if not isinstance(error, MetadataConflict):
            return 0
        if races == _RACES_MAX:
            raise error
        await asyncio.sleep(pause_s(races, self._context.randomness))
        return races + 1

    async def _stopping_if_failed(self, writer: LedgerWriter, work: Awaitable[None]) -> None:
        try:
            await work
        except BaseException:
            await writer.stop()
            raise
