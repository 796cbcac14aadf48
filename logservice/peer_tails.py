"""Asks log owners at other servers for their tails, on behalf of readers at this server.

Bookies learn that a log's last entry is confirmed from the next entry, or when the log's writer has been idle
for a while (30 s in a log server). The log's owner knows it immediately. A server that does not own the log
therefore asks the owner before it reports that nothing follows (RL6). While readers at this server follow the
log, one request for all of them waits at the owner until the log has grown.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from rollbook.logservice.ids import LogName, Offset
from rollbook.logservice.log_ownership import LogServer
from rollbook.logservice.messages import GetTail, LogTail
from rollbook.proto.errors import (
    NotOwner,
    OutcomeUnknown,
    OwnerChanging,
    QuorumTimeout,
    RollbookError,
    Unavailable,
)

AskPeer = Callable[[Any, str, float], Awaitable[Any]]
"""Sends a request to the server at an address, with a deadline in the loop's time. Raises the error that the
server returns, or the error that prevents a response."""

Listener = Callable[[LogTail], None]

# The most servers that are asked in turn: the log may be handed over while its owner is asked.
_HOPS_MAX: Final = 3
_WAIT_MS: Final = 5000  # How long a request waits at the owner for the log to grow.
_GRACE_S: Final = 1.0  # The additional time for the response to a waiting request.
# The pause between two requests. Longer: fewer calls; readers of a busy log get new records later.
_INTERVAL_S: Final = 0.01
_PAUSE_S_MIN: Final = 0.02  # The first pause after an owner has not answered.
_PAUSE_S_MAX: Final = 1.0  # The pauses double up to this.


class OwnerTails:
    def __init__(self, server: LogServer, ask_peer: AskPeer | None) -> None:
        """Use `ask_peer` to ask other servers. It is None if other servers cannot be asked."""
        self._server, self._ask_peer = server, ask_peer
        self._loop = asyncio.get_running_loop()
        self._watches: dict[LogName, _Watch] = {}

    async def ask(self, log: LogName, address: str, due: float) -> LogTail:
        """Return a tail that the owner reports after this call. `address` is the owner's address, or the
        address of a server that knows the owner.

        Raises `Unavailable`, `OutcomeUnknown`, or the error that the asked server returns.
        """
        return await self._ask(GetTail(log), address, due)

    async def _ask(self, asked: GetTail, address: str, due: float) -> LogTail:
        if self._ask_peer is None:
            raise NotOwner("this server cannot ask the owner", owner=address, owner_epoch=0)
        for hops_left in reversed(range(_HOPS_MAX)):
            try:
                async with asyncio.timeout_at(due):
                    answer: LogTail = await self._ask_peer(asked, address, due)
                    return answer
            except NotOwner as error:
                owner = str(error.ids.get("owner") or "")
                if not hops_left or owner in ("", address, self._server.address):
                    raise
                address = owner
            except TimeoutError:
                raise QuorumTimeout("the owner did not report the log's tail in time") from None
        raise AssertionError("the last hop returns or raises")

    # --- While readers follow a log -----------------------------------------------------------

    def listen(self, log: LogName, listener: Listener) -> None:
        """Call the listener with the owner's tail after each change of the tail, until `ignore` is called.
        While no other server owns the log, the listener is not called.
        """
        if self._ask_peer is None:
            return
        watch = self._watches.get(log)
        if watch is None or watch.is_over:
            watch = self._watches[log] = _Watch(partial(self._ask_to_wait, log), log, self._server)
        watch.listeners[listener] = None

    def ignore(self, log: LogName, listener: Listener) -> None:
        """Stop calling the listener. Idempotent."""
        watch = self._watches.get(log)
        if watch is not None:
            watch.listeners.pop(listener, None)
            if not watch.listeners:
                del self._watches[log]
                watch.stop()

    async def _ask_to_wait(self, log: LogName, address: str, beyond: Offset | None) -> LogTail:
        wait_ms = 0 if beyond is None else _WAIT_MS
        due = self._loop.time() + wait_ms / 1000 + _GRACE_S
        return await self._ask(GetTail(log, beyond=beyond, wait_ms=wait_ms), address, due)


class _Watch:
    """The watch of one log, for all its readers at this server."""

    def __init__(
        self,
        ask: Callable[[str, Offset | None], Awaitable[LogTail]],
        log: LogName,
        server: LogServer,
    ) -> None:
        self.listeners: dict[Listener, None] = {}
        self._ask, self._log, self._server = ask, log, server
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run())

    @property
    def is_over(self) -> bool:
        """Return whether the watch has ended. An ended watch calls no listener."""
        return self._task.done()

    def stop(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        address, newest, pause_s = "", None, _PAUSE_S_MIN
        while True:
            asked_s = self._loop.time()
            try:
                address = address or await self._find_owner()
                tail = await self._ask(address, None if newest is None else newest.tail)
            except (Unavailable, OutcomeUnknown):
                address = ""
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)
                continue
            except RollbookError:
                # The log is gone, or this server is not allowed to ask. Readers notice that themselves.
                return
            if tail.is_sealed:
                self._tell(tail)
                return
            has_news = (
                newest is None or tail.tail > newest.tail or tail.last_entry != newest.last_entry
            )
            if has_news:
                self._tell(tail)
            newest, pause_s = tail, _PAUSE_S_MIN
            waited_s = self._loop.time() - asked_s
            # A quick response without news is from an earlier release, which does not wait for growth.
            await asyncio.sleep(_INTERVAL_S if has_news or waited_s > 1 else _PAUSE_S_MAX)

    async def _find_owner(self) -> str:
        """Find the owner's address without opening the log. Raises `OwnerChanging` if no other server owns the
        log.
        """
        _, info, is_owner = await self._server.whom_to_ask(self._log)
        if info is None or not is_owner or info.server_id == self._server.server_id:
            raise OwnerChanging("no other server owns it", log=str(self._log))
        return info.address

    def _tell(self, tail: LogTail) -> None:
        for listener in list(self.listeners):
            listener(tail)
