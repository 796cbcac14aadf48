"""Keeps a table of many logs' tails, for clients that watch them (`core/watched_tails.py`).

    logs that this server owns         The owner reports each growth of the log, without requests or polling.
    logs whose names suggest this      The log's list has the tail. If the last segment is not closed and the log
    server                             has no living owner, bookies report a tail, which may lack the last
                                       acknowledged block: the tail is not exact (`is_exact`).
    all other logs                     Other servers report them.

The directory writes nothing and opens no log (TW1). One watch of the metadata store reports each list that
changes, and the directory reads that list again. It reads the lists of all watched logs when a watcher comes,
when the set of servers changes, and when the watch may have missed changes. Without watchers it has no tasks
and no table.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final

import structlog

from rollbook.ledger.ledgers import Ledgers
from rollbook.logservice.core.ledger_list import LedgerList
from rollbook.logservice.core.watched_tails import (
    ReportSource,
    Scope,
    TailTable,
    owner_elsewhere,
    source_of_report,
    tail_of_list,
)
from rollbook.logservice.ids import LogName, Offset, OwnerEpoch
from rollbook.logservice.log_metadata import LogMetadataStore
from rollbook.logservice.log_ownership import LogServer, nobody_listens
from rollbook.logservice.messages import TailOfLog, Tails, WatchTails
from rollbook.logservice.offset_lookup import find_tail
from rollbook.logservice.owner import Owner
from rollbook.proto.errors import (
    InvalidRequest,
    NoSuchLog,
    OutcomeUnknown,
    RollbookError,
    SessionExpired,
    Unavailable,
)
from rollbook.proto.ports import WatchEventKind
from rollbook.proto.tasks import stop_tasks

logger = structlog.get_logger()

_LOGS_MAX: Final = 200_000  # The most logs in the table, for all watchers: about 100 MB.
_LOGS_PER_MESSAGE: Final = 1000  # The most logs in one message: about 150 KB.
# The most lists read concurrently. More: the table is complete sooner; appends are slower until then.
_READS_MAX: Final = 32
_PAUSE_S: Final = 0.5  # The pause before a failed read is retried.
_LOOK_S: Final = 2.0  # The time limit for finding a log's tail from bookies.
_MEMBERS_S: Final = 30.0

_Members = tuple[int, tuple[str, ...]]
_State = tuple[bool, _Members]


class _Watcher:
    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.number = 0  # The number of the latest change that was sent to this watcher.
        self.failure: RollbookError | None = None


class TailDirectory:
    def __init__(self, server: LogServer, nodes: LogMetadataStore, ledgers: Ledgers) -> None:
        self._server, self._nodes, self._ledgers = server, nodes, ledgers
        self._loop = asyncio.get_running_loop()
        self._table = TailTable()
        self._watchers: dict[_Watcher, None] = {}
        # One future for each watcher that has been sent all changes and waits for the next.
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._grown: dict[LogName, None] = {}  # Owned logs whose growth is not in the table yet.
        self._unread: dict[LogName, None] = {}  # Logs whose lists are to be read, in order.
        self._listed: dict[LogName, None] = {}  # Unread logs that the last scan found.
        # Logs for which bookies may report a later tail than the list.
        self._doubtful: dict[LogName, LedgerList] = {}
        self._work = asyncio.Event()
        self._needs_scan = False
        self._is_scanned = False  # Whether a scan ended and all lists that it found were read.
        self._members: _Members = (-1, ())

    @property
    def watchers(self) -> int:
        return len(self._watchers)

    async def watch(self, request: WatchTails) -> AsyncGenerator[Tails]:
        """Yield the tails of the requested logs, and then their changes. Raises `InvalidRequest`, also if too
        many logs are watched.
        """
        watcher = _Watcher(Scope.of(request))
        interval_s = max(request.interval_ms, 10) / 1000
        heartbeat_s = max(request.heartbeat_ms / 1000, interval_s)
        sent: _State | None = None
        silent_until_s = 0.0
        self._watchers[watcher] = None
        self._begin()
        try:
            while True:
                if watcher.failure is not None:
                    raise watcher.failure
                self._look_at_members()
                self._take_grown()
                state, began_s = self._state, self._loop.time()
                logs = self._news_of(watcher)
                if logs or state != sent or began_s >= silent_until_s:
                    for start in range(0, max(len(logs), 1), _LOGS_PER_MESSAGE):
                        part = logs[start : start + _LOGS_PER_MESSAGE]
                        is_last = start + _LOGS_PER_MESSAGE >= len(logs)
                        yield self._message(part, is_complete=state[0] and is_last)
                    sent, silent_until_s = state, began_s + heartbeat_s
                self._table.forget_gone(min(each.number for each in self._watchers))
                await self._until_news(watcher, state, silent_until_s)
                await asyncio.sleep(max(began_s + interval_s - self._loop.time(), 0.0))
        finally:
            del self._watchers[watcher]
            await self._on_left()

    # --- Watchers -----------------------------------------------------------------------------

    @property
    def _state(self) -> _State:
        """Whether the table is complete, and the servers that are known at present."""
        return self._is_scanned and not self._needs_scan, self._members

    def _news_of(self, watcher: _Watcher) -> list[LogName]:
        since, watcher.number = watcher.number, self._table.number
        return [log for log in self._table.changed_since(since) if watcher.scope.covers(log)]

    def _message(self, logs: Sequence[LogName], *, is_complete: bool) -> Tails:
        """A message with the present tails of these logs. A log that changes later is in the next message, too."""
        tails = [(log, self._table.get(log)) for log in logs]
        return Tails(
            tuple(tail for _, tail in tails if tail is not None),
            tuple(log for log, tail in tails if tail is None),
            is_complete,
            self._members[1],
        )

    async def _until_news(self, watcher: _Watcher, sent: _State, until_s: float) -> None:
        has_news = self._grown or self._table.number > watcher.number or self._state != sent
        if has_news or watcher.failure is not None or until_s <= self._loop.time():
            return
        turn: asyncio.Future[None] = self._loop.create_future()
        timer = self._loop.call_at(until_s, _wake, turn)
        self._waiting[turn] = None
        try:
            await turn
        finally:
            timer.cancel()
            self._waiting.pop(turn, None)

    def _tell(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            for turn in waiting:
                _wake(turn)

    def _covers(self, log: LogName) -> bool:
        return any(each.scope.covers(log) for each in self._watchers)

    def _begin(self) -> None:
        self._ask_for_scan()
        if not self._tasks:
            self._server.on_owner_changed = self._on_owner_changed
            works = (self._follow_lists(), self._follow_members(), self._read_lists())
            self._tasks = [self._loop.create_task(each) for each in works]

    async def _on_left(self) -> None:
        if self._watchers:
            self._table.keep(self._covers)
            return
        tasks, self._tasks = self._tasks, []
        self._server.on_owner_changed = nobody_listens
        for log in self._server.owned_logs:
            if (owner := self._server.find(log)) is not None:
                owner.tail_cache.on_grown = None
        self._table = TailTable()
        for names in (self._grown, self._unread, self._listed, self._doubtful):
            names.clear()
        self._is_scanned = False
        await stop_tasks(*tasks)

    # --- Logs that are owned here -------------------------------------------------------------

    def _on_grown(self, log: LogName) -> None:
        self._grown[log] = None
        self._tell()

    def _on_owner_changed(self, log: LogName) -> None:
        self._ask_for(log)

    def _take_grown(self) -> None:
        grown, self._grown = self._grown, {}
        for log in grown:
            if (owner := self._server.find(log)) is not None and log in self._table:
                self._put_owned(owner)

    def _put_owned(self, owner: Owner) -> None:
        known = self._table.get(owner.name)
        if known is not None and known.owner_epoch > owner.owner_epoch:
            return  # A later owner is known. This owner does not know yet that it was replaced.
        listed = tail_of_list(owner.name, owner.list, self._server.address)
        self._table.put(
            TailOfLog(
                owner.name,
                owner.head,
                owner.tail,
                owner.is_sealed,
                owner.record_us or listed.timestamp_us,
                owner.uid,
                True,
                self._server.address,
                owner.owner_epoch,
            )
        )

    # --- Lists --------------------------------------------------------------------------------

    def _ask_for(self, log: LogName) -> None:
        self._unread[log] = None
        self._work.set()

    def _ask_for_scan(self) -> None:
        self._needs_scan = True
        self._work.set()

    async def _follow_lists(self) -> None:
        while True:
            try:
                watch = await self._nodes.watch_all()
                try:
                    self._ask_for_scan()
                    async for event in watch:
                        if event.kind is WatchEventKind.RESYNC:
                            self._ask_for_scan()
                        elif (log := self._nodes.log_of(event.path)) and self._covers(log):
                            self._ask_for(log)
                    return
                finally:
                    await watch.close()
            except (Unavailable, OutcomeUnknown, SessionExpired) as error:
                logger.info("tails_not_watched", reason=error.code.reason)
                await asyncio.sleep(_PAUSE_S)

    async def _follow_members(self) -> None:
        while True:
            await self._server.membership.changed(self._members[0], _MEMBERS_S)
            self._look_at_members()

    def _look_at_members(self) -> None:
        membership = self._server.membership
        addresses = tuple(sorted(each.info.address for each in membership.servers))
        if (members := (membership.generation, addresses)) != self._members:
            self._members = members
            self._ask_for_scan()

    async def _read_lists(self) -> None:
        """The task that scans for logs, reads their lists and asks bookies, one of these at a time."""
        while True:
            self._work.clear()
            try:
                if self._needs_scan:
                    # Reset before the scan: a later request needs another scan.
                    self._needs_scan = False
                    try:
                        await self._scan()
                    except RollbookError:
                        self._needs_scan = True
                        raise
                elif self._unread:
                    part = list(islice(self._unread, _READS_MAX))
                    await asyncio.gather(*map(self._read, part))
                    self._on_read()
                elif self._doubtful:
                    await self._ask_bookies()
                else:
                    await self._work.wait()
            except (Unavailable, OutcomeUnknown, SessionExpired) as error:
                logger.info("tails_not_read", reason=error.code.reason)
                await asyncio.sleep(_PAUSE_S)

    async def _scan(self) -> None:
        """Find the names of all logs that watchers want, and request that their lists are read."""
        self._is_scanned = False
        found: dict[LogName, None] = {}
        for watcher in list(self._watchers):
            for namespace, prefix in watcher.scope.prefixes:
                namespaces = [namespace] if namespace else await self._nodes.namespaces()
                for each in namespaces:
                    found.update(dict.fromkeys(await self._nodes.names(each, prefix)))
            found.update(dict.fromkeys(watcher.scope.logs))
            if len(found) > _LOGS_MAX:
                watcher.failure = InvalidRequest(
                    f"more than {_LOGS_MAX} logs are watched at this server",
                    next_step="name a longer prefix",
                )
                self._tell()
                return
        # Also read the lists of logs that are in the table, since some of these logs may be gone.
        found.update(dict.fromkeys(self._table))
        self._listed = found
        self._unread.update(found)
        self._on_read()

    def _on_read(self) -> None:
        if not self._listed and not self._is_scanned:
            self._is_scanned = True
            self._tell()

    async def _read(self, log: LogName) -> None:
        """Read one list. Raises `MetadataUnavailable`, `ConnectionLost`, `SessionExpired`. After an error the
        list is read again.
        """
        is_named_here = self._server.is_suggested(log)
        if not self._covers(log) or not (is_named_here or self._server.find(log) is not None):
            self._table.drop(log)
        else:
            try:
                listed = (await self._nodes.read(log, fresh=False)).list
            except NoSuchLog:
                self._table.drop(log)
            else:
                self._on_list(log, listed, is_named_here=is_named_here)
        self._unread.pop(log, None)
        self._listed.pop(log, None)
        self._tell()

    def _on_list(self, log: LogName, listed: LedgerList, *, is_named_here: bool) -> None:
        server = self._server
        owner = server.find(log)
        owned = None if owner is None else (owner.owner_epoch, owner.uid)
        source = source_of_report(listed, owned, is_suggested=is_named_here)
        if source is ReportSource.NOTHING:
            self._table.drop(log)
        elif owner is not None and source is ReportSource.OWNER:
            owner.tail_cache.on_grown = partial(self._on_grown, log)
            self._put_owned(owner)
        else:
            elsewhere = owner_elsewhere(listed, server.server_id, server.is_alive)
            tail = tail_of_list(log, listed, "" if elsewhere is None else elsewhere.address)
            self._table.put(tail)
            if elsewhere is None and not tail.is_exact:
                self._doubtful[log] = listed

    # --- Logs whose owner died ----------------------------------------------------------------

    async def _ask_bookies(self) -> None:
        log = next(iter(self._doubtful))
        listed = self._doubtful.pop(log)
        with suppress(RollbookError, TimeoutError):  # After a failure the table keeps its tail.
            async with asyncio.timeout(_LOOK_S):
                tail, timestamp_us = await find_tail(listed, self._ledgers)
            self._on_bookies(log, listed.owner_epoch, tail, timestamp_us)

    def _on_bookies(self, log: LogName, epoch: OwnerEpoch, tail: Offset, timestamp_us: int) -> None:
        known = self._table.get(log)
        if known is None or known.owner_epoch != epoch or known.is_exact:
            return  # The log was dropped, or has a new owner, or its tail is exact by now.
        self._table.put(replace(known, tail=tail, timestamp_us=timestamp_us or known.timestamp_us))
        self._tell()


def _wake(turn: "asyncio.Future[None]") -> None:
    if not turn.done():
        turn.set_result(None)
