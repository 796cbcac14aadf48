"""Serves BookKeeper's protocols, versions 2 and 3, on any number of ports.

All work runs on the caller's event loop: connections are protocols, requests that need the disk run
in two lanes of tasks, and one timer checks for clients that miss their deadlines. After the storage
has failed, nothing is acknowledged any more and every connection is closed.
"""

import asyncio
from typing import Final

import structlog

from rollbook.bookie.config import ServerConfig
from rollbook.bookie.connection import Connection
from rollbook.bookie.core.connection_memory import CHUNK_BYTES_MAX, Pool
from rollbook.bookie.core.deadline_queue import Deadlines
from rollbook.bookie.core.partial_request_timeout import LEAST_NS, patience_ns
from rollbook.bookie.long_polls import LongPolls
from rollbook.bookie.loop_budget import LoopBudget, StepQueue
from rollbook.bookie.request_handlers import Answers
from rollbook.bookie.request_lanes import Lane
from rollbook.bookie.server_context import ServerContext
from rollbook.bookie.stats import Stats
from rollbook.bookie.storage import Storage
from rollbook.proto.ports import Address, Clock, Listener, Transport
from rollbook.proto.tasks import stop_tasks

logger = structlog.get_logger()

_LOOK_S: Final = 0.5  # A missed deadline is noticed at most this much later.
# Deadlines are postponed if the whole process paused for at least this long.
_STANDSTILL_NS: Final = 200_000_000
# When memory is short, clients that have read nothing for this long are closed first. The server
# notices reads late, because the kernel accepts more bytes only after a good part of its buffer,
# hundreds of KiB, has been read.
_SLOW_NS: Final = 5_000_000_000


class BookieServer:
    def __init__(
        self,
        storage: Storage,
        config: ServerConfig,
        transport: Transport,
        clock: Clock,
        stats: Stats,
        identity: bytes = b"",
    ) -> None:
        """`identity` answers requests for the bookie's identity."""
        self._transport = transport
        self._listeners: dict[Listener, None] = {}
        self._connections: dict[Connection, None] = {}
        # Set while `drain` waits for connections to close.
        self._all_gone: asyncio.Future[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._look_due_ns = 0  # When the timer should fire; 0 without a timer.
        self._is_resuming = False
        self._frame_timeout_ns = int(config.frame_timeout_s * 1e9)
        pool = Pool(
            bytes_max=config.held_bytes_max,
            floor=config.connection_bytes_floor,
            ceiling=config.connection_bytes_max,
        )
        loop_budget = LoopBudget(clock, lambda: storage.is_about_to_write)
        self._shared = ServerContext(
            storage=storage,
            config=config,
            clock=clock,
            stats=stats,
            answers=Answers(storage, loop_budget, config.frame_bytes_max, identity),
            polls=LongPolls(
                storage,
                clock,
                parked_max=config.long_polls_max,
                wait_s_max=config.long_poll_s_max,
            ),
            pool=pool,
            loop_budget=loop_budget,
            ordinary=Lane(config.reads_max, loop_budget, self._on_crash),
            urgent=Lane(config.reads_max, loop_budget, self._on_crash),
            writers=StepQueue(loop_budget),
            hurried=StepQueue(loop_budget),
            buffer=memoryview(bytearray(CHUNK_BYTES_MAX)),
            unfinished=Deadlines(self._frame_timeout_ns),
            kept_waiting=Deadlines(int(config.unread_timeout_s * 1e9)),
            clogged=Deadlines(int(config.unread_timeout_s * 1e9)),
            connections=self._connections,
            on_gone=self._on_gone,
            look_after=self._look_after,
        )
        stats.connections = lambda: len(self._connections)
        stats.buffered_bytes = lambda: pool.held

    async def listen(self, address: Address, transport: Transport | None = None) -> Listener:
        """Serves at this address from now on; `transport` may have other settings, such as TLS.

        Raises `BadConfig` if it cannot listen there.
        """
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch_storage())
        chosen = transport or self._transport
        listener = await chosen.listen(lambda: Connection(self._shared), address)
        self._listeners[listener] = None
        return listener

    async def drain(self, deadline_s: float) -> None:
        """Accepts no more requests, answers the earlier ones, and closes the connections, at the
        latest at the deadline."""
        await self._stop_listening()
        for connection in list(self._connections):
            connection.leave()
        try:
            async with asyncio.timeout(deadline_s):
                await self._until_all_are_gone()
        except TimeoutError:
            logger.warning("connections_cut_off", connections=len(self._connections))
        await self._close()

    # --- Closed connections -------------------------------------------------------------------

    async def _stop_listening(self) -> None:
        for listener in list(self._listeners):
            await listener.close()
        self._listeners.clear()

    async def _until_all_are_gone(self) -> None:
        while self._connections:
            self._all_gone = asyncio.get_running_loop().create_future()
            await self._all_gone

    def _on_gone(self) -> None:
        if not self._connections and self._all_gone and not self._all_gone.done():
            self._all_gone.set_result(None)

    async def _close(self) -> None:
        self._abort_all()
        self._shared.polls.close()
        await self._shared.urgent.close()
        await self._shared.ordinary.close()
        if self._timer is not None:
            self._timer.cancel()
        await stop_tasks(self._watching)

    def _abort_all(self) -> None:
        for connection in list(self._connections):
            connection.abort()

    async def _watch_storage(self) -> None:
        await self._shared.storage.failed()
        await self._stop_listening()
        self._abort_all()

    def _on_crash(self, error: BaseException) -> None:
        """Reports a bug in a lane: one request got no answer, so its connection was closed."""
        logger.error("request_crashed", exc_info=error)

    # --- Deadlines and memory -------------------------------------------------------------------

    def _look_after(self) -> None:
        loop, shared = asyncio.get_running_loop(), self._shared
        if shared.pool.has_news and not self._is_resuming:
            self._is_resuming = True
            loop.call_soon(self._resume)
        if self._timer is None and (shared.unfinished or shared.kept_waiting or shared.clogged):
            self._timer = loop.call_later(_LOOK_S, self._look)
            self._look_due_ns = shared.clock.monotonic_ns() + int(_LOOK_S * 1e9)

    def _resume(self) -> None:
        self._is_resuming = False
        for account in self._shared.pool.take_ready():
            account.on_room()

    def _look(self) -> None:
        shared = self._shared
        self._timer = None
        now_ns = shared.clock.monotonic_ns()
        late_ns = now_ns - self._look_due_ns
        if late_ns > _STANDSTILL_NS:  # The whole process paused, so clients are not late.
            for deadlines in (shared.unfinished, shared.kept_waiting, shared.clogged):
                deadlines.postpone(late_ns)
        self._cut_off_what_stands_still(now_ns)
        for connection in shared.kept_waiting.take_late(now_ns):
            connection.hang_up("no_room_for_request")
        for connection in shared.clogged.take_late(now_ns):
            if not connection.note_taken_answers():
                connection.hang_up("unread_answers")
        if shared.pool.is_overdrawn:
            self._cut_off_the_slowest(now_ns)
        self._look_after()

    def _cut_off_what_stands_still(self, now_ns: int) -> None:
        """Closes connections with stalled requests, those that have waited longest first, and only
        as many as necessary."""
        unfinished, overdue = self._shared.unfinished, self._shared.pool.overdue
        allowed_ns = self._frame_timeout_ns
        for connection in unfinished.waited_for(min(allowed_ns, LEAST_NS), now_ns):
            begun = connection.begun_bytes
            patience = patience_ns(allowed_ns, begun, is_short=overdue > 0)
            if unfinished.waited_ns(connection, now_ns) >= patience:
                overdue -= begun
                unfinished.stop(connection)
                connection.hang_up("unfinished_request")

    def _cut_off_the_slowest(self, now_ns: int) -> None:
        shared = self._shared
        excess = shared.pool.lent - shared.pool.bytes_max
        for connection in shared.clogged.waited_for(_SLOW_NS, now_ns):
            if excess <= 0:
                break
            if not connection.note_taken_answers():
                excess -= connection.held_bytes
                connection.hang_up("unread_answers")
