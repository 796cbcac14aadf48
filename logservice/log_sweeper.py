"""Looks after logs in the background: deletes expired records and abandoned ledgers.

Each server looks after the logs that it owns, and after ownerless logs for which it is the suggested
server. A log's list may still name a server that has lost the log, so each server first releases the logs
that it has lost. A sweep visits each log and does this:

    discarded ledgers        are deleted, if the server that discarded them has not deleted them
    lost segments            are counted and reported (`lost_segments.py`)
    cursors of idle logs     are read, and their lags reported (`cursor_lags.py`)
    a deleted log            is freed when its grace is over
    expired records          are truncated (`core/retention.py`). If only an owner can do that, the log is
                             opened, and is later released when it is idle

At longer intervals, one server of the cluster searches for ledgers that were never listed
(`orphan_ledgers.py`).

A sweep uses the server's own clock, but nothing expires while that clock differs from the metadata store's
by more than five minutes: a server whose clock is wrong must not empty its logs (RT1). Only time during
which servers were present counts (LT1), so nothing expires before servers have reported for long enough.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

import structlog

from rollbook.ledger.ledgers import Ledgers
from rollbook.logservice.core.age_without_downtime import NO_GAPS, LivedTime
from rollbook.logservice.core.ledger_list import LedgerList, ListedLogState, LogEvent
from rollbook.logservice.core.retention import find_expired, is_free
from rollbook.logservice.ids import LogName, Offset
from rollbook.logservice.log_deletion import free_log
from rollbook.logservice.log_metadata import LogMetadataStore, StoredLog
from rollbook.logservice.lost_segments import LostSegments
from rollbook.logservice.messages import TruncateAnswer
from rollbook.logservice.orphan_ledgers import OrphanRepair
from rollbook.logservice.truncation import delete_discarded, truncate
from rollbook.proto.errors import NoSuchLog, NotOwner, RollbookError
from rollbook.proto.ports import Clock, Randomness
from rollbook.proto.tasks import stop_tasks

logger = structlog.get_logger()

RETENTION: Final = "retention"
# The server that would be suggested for this name walks over all ledgers.
_ALL_LEDGERS: Final = LogName("system", "ledgers")
_CLOCKS_APART_US_MAX: Final = 300 * 1_000_000
_NAME_KEPT_US: Final = 60 * 1_000_000  # How long a deleted log without ledgers keeps its name.
_OPEN_DEADLINE_S: Final = 30.0
# The pause between ownerless logs, which limits a sweep to 2 % of a processor.
_PAUSE_S: Final = 0.05


class OwnedLog(Protocol):
    @property
    def list(self) -> LedgerList: ...

    async def truncate(self, before: Offset, *, reason: str = "") -> TruncateAnswer: ...

    async def prove(self) -> None: ...

    def lose(self, reason: str) -> None: ...


class LogKeeper(Protocol):
    """The parts of a log server that this file uses."""

    @property
    def owned_logs(self) -> Sequence[LogName]: ...

    def find(self, name: LogName) -> OwnedLog | None: ...

    def is_suggested(self, name: LogName) -> bool: ...

    def is_nobodys(self, name: LogName, listed: LedgerList) -> bool: ...

    async def release_lost(self) -> None: ...

    async def owner_of(
        self, name: LogName, due: float, *, heeds_preference: bool = True
    ) -> OwnedLog: ...


class Lags(Protocol):
    def on_sweep(self) -> None: ...

    def on_idle(self, log: LogName, listed: LedgerList) -> None: ...

    def on_unknown(self, log: LogName) -> None: ...

    def on_swept(self) -> None: ...


class Sweeper:
    def __init__(
        self,
        ledgers: Ledgers,
        nodes: LogMetadataStore,
        keeper: LogKeeper,
        lags: Lags,
        lost: LostSegments,
        clock: Clock,
        randomness: Randomness,
        *,
        sweep_interval_s: float,
        orphans_interval_s: float,
    ) -> None:
        self._ledgers, self._nodes, self._keeper, self._lags = ledgers, nodes, keeper, lags
        self._lost = lost
        self._clock, self._randomness = clock, randomness
        self._interval_s, self._orphans_interval_s = sweep_interval_s, orphans_interval_s
        # The time when the sweep began. It is kept, since the clock may be set after it was checked.
        self._now_us = 0
        self._lived: LivedTime = NO_GAPS  # The lived time when the sweep began.
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._sweep_on()), loop.create_task(self._repair_on())]

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, []
        await stop_tasks(*tasks)

    async def sweep(self) -> None:
        """Visit every log that this server looks after, once. A log that fails is left for the next sweep."""
        self._now_us = self._clock.wall_us()
        if not await self._clock_is_right():
            return
        witness = await self._nodes.read_witness()
        if witness is not None:
            if not witness.is_close(self._now_us):
                # The clocks were set, or all servers were away: a later sweep does the work.
                return
            self._lived = witness.lived
        self._lags.on_sweep()
        await self._keeper.release_lost()
        for name in list(self._keeper.owned_logs):
            await self._try(name)
        async for name in self._nodes.all_names():
            if self._keeper.find(name) is None and self._keeper.is_suggested(name):
                await self._try(name)
                await asyncio.sleep(_PAUSE_S)
        for stored in await self._nodes.all_displaced():
            if self._keeper.is_suggested(stored.name):
                await self._free(stored)
        self._lags.on_swept()

    # ------------------------------------------------------------------------------------------

    async def _sweep_on(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s * (0.5 + self._randomness.random()))
            try:
                await self.sweep()
            except RollbookError as error:
                logger.info("logs_not_swept", reason=error.code.reason)

    async def _repair_on(self) -> None:
        while True:
            await asyncio.sleep(self._orphans_interval_s * (0.5 + self._randomness.random()))
            if not self._keeper.is_suggested(_ALL_LEDGERS):
                continue
            now_ms = self._clock.wall_us() // 1000
            try:
                report = await OrphanRepair(self._ledgers, self._nodes, now_ms).run()
            except RollbookError as error:
                logger.info("orphans_not_looked_for", reason=error.code.reason)
            else:
                logger.info(
                    "orphans_looked_for",
                    ledgers=report.ledgers,
                    deleted=report.deleted,
                    left=report.left,
                )

    async def _clock_is_right(self) -> bool:
        """Return whether this server's clock agrees with the metadata store's, so that records may expire (RT1)."""
        apart_us = self._clock.wall_us() - await self._nodes.store_time_us()
        if abs(apart_us) <= _CLOCKS_APART_US_MAX:
            return True
        logger.error("clock_disagrees", with_="metadata store", apart_s=apart_us / 1e6)
        return False

    async def _try(self, name: LogName) -> None:
        try:
            await self._look_after(name)
        except (NoSuchLog, NotOwner):
            self._lost.forget(name)  # The log is gone, or owned elsewhere by now.
        except RollbookError as error:
            self._lags.on_unknown(name)
            logger.info("log_not_swept", log=str(name), reason=error.code.reason)

    async def _free(self, stored: StoredLog) -> None:
        """Free a deleted log whose name another log has."""
        try:
            if stored.list.discarded:
                stored = await delete_discarded(self._ledgers, self._nodes, stored)
            await free_log(self._ledgers, self._nodes, stored, self._now_us, self._lived)
        except RollbookError as error:
            logger.info("log_not_swept", log=str(stored.name), reason=error.code.reason)

    async def _look_after(self, name: LogName) -> None:
        owner = self._keeper.find(name)
        if (
            owner is not None
            and not owner.list.discarded
            and owner.list.state is ListedLogState.OPEN
        ):
            await owner.prove()  # Another server may have taken the log, or deleted it (SV6).
            await self._lost.on_sweep(name, owner.list)
            await self._expire(name, owner.list, None)
            return
        stored = await self._nodes.read(name)
        if owner is not None and stored.list.state is ListedLogState.DELETED:
            # Another server deleted this sealed log. The list does not name this owner, so that server could
            # not inform it.
            owner.lose("the log was deleted")
        if owner is None and not self._keeper.is_nobodys(name, stored.list):
            return
        if stored.list.discarded:
            stored = await delete_discarded(self._ledgers, self._nodes, stored)
            if owner is None and not self._keeper.is_nobodys(name, stored.list):
                return  # Another server has opened the log.
        if is_free(stored.list, self._now_us, self._lived):
            # A server that stood still may have read the list. If the name became free immediately, that
            # server could find the list of a later log with the same version.
            is_fresh = self._now_us - stored.list.free_at_us < _NAME_KEPT_US
            await free_log(
                self._ledgers,
                self._nodes,
                stored,
                self._now_us,
                self._lived,
                keeps_name=is_fresh,
            )
        elif stored.list.state is not ListedLogState.DELETED:
            if owner is None:
                await self._lost.on_sweep(name, stored.list)
            await self._expire(name, stored.list, stored if owner is None else None)
            self._lags.on_idle(name, stored.list)

    async def _expire(self, name: LogName, listed: LedgerList, stored: StoredLog | None) -> None:
        """Truncate expired records. `stored`: the list of an ownerless log, else None."""
        config = listed.config
        if config.retention_age_s is None and config.retention_bytes is None:
            return
        now_us = self._now_us
        if find_expired(listed, now_us, None, self._lived) is None:
            return  # Usually nothing is old enough, so the guards need not be read.
        lowest_guard = (await self._nodes.read_guards(name)).guards.lowest
        expiry = find_expired(listed, now_us, lowest_guard, self._lived)
        if expiry is None:
            return
        if stored is not None and _frees_without_owner(listed, expiry.head):
            # Do this first: while bookies are full, nothing else is possible, since an owner needs
            # bookies that take a new ledger.
            stored = await self._truncate(stored, expiry.head, now_us)
            await delete_discarded(self._ledgers, self._nodes, stored)
        if stored is None or expiry.needs_owner:
            due = asyncio.get_running_loop().time() + _OPEN_DEADLINE_S
            # This server opens the log even if the log prefers another server, since a preferred server looks
            # after the log only while it owns the log. The log returns to that server later.
            owner = await self._keeper.owner_of(name, due, heeds_preference=False)
            await owner.truncate(expiry.head, reason=RETENTION)

    async def _truncate(self, stored: StoredLog, head: Offset, now_us: int) -> StoredLog:
        event = LogEvent("log_truncated", now_us, stored.list.owner_epoch, None, RETENTION, head)
        stored, _ = await truncate(
            self._nodes, stored, head, confirmed=head, is_begun=False, event=event
        )
        return stored


def _frees_without_owner(listed: LedgerList, head: Offset) -> bool:
    return head > listed.head or bool(listed.first_kept(head, is_begun=False))
