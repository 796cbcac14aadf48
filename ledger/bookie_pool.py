"""The bookies of a cluster: connections are made when needed, shared, and made again when they
break.

A connection speaks one protocol version. Requests that version 2 lacks, or cannot distinguish, go
over a connection of version 3 beside it. Batch reads from bookies that do not announce them use a
version 2 connection of their own, because bookies without batches hang up. A second channel to one
ledger has a connection of its own, since replies to adds name only the ledger and the entry.

Addresses are reused by other bookies, whose missing entries prove nothing: a bookie that
announces `identity` is asked for its id before anything else (CN4).

A bookie that cannot be reached is not tried again before a pause that grows with each failure. The
pause is random, so that the bookie's clients do not return all at once.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from rollbook.ledger.bookie_client import RECEIVE_BYTES, AddChannel, AddSink, BookieClient
from rollbook.ledger.config import ClientConfig
from rollbook.ledger.core.add_pipeline import DEADLINE_TICKS
from rollbook.ledger.core.bookie_quarantine import Health
from rollbook.ledger.shared_writer_timer import SharedTimer
from rollbook.ledger.tick_flush import TickFlush
from rollbook.proto.cluster.bookie_watcher import BookieWatcher, LiveBookies
from rollbook.proto.errors import (
    BookieTimeout,
    BookieUnreachable,
    ConnectionLost,
    RollbookError,
    Unavailable,
)
from rollbook.proto.formats.service_info import BATCH_READ, IDENTITY, unpack_service_info
from rollbook.proto.ids import BookieId, LedgerId
from rollbook.proto.ports import Address, Clock, Randomness, Transport
from rollbook.proto.wire import v2_layout, v3
from rollbook.proto.wire.messages import BatchRead, EntryRead, Reply, Request

__all__ = ("AddChannel", "AddSink", "Bookies")

logger = structlog.get_logger()

_GOODBYE_S: Final = 5.0
_LAST_COPIES_S: Final = 1.0  # `close` waits this long for adds of closed channels.

_FORGET_BATCHES_S: Final = 600.0
# Writers that become idle in the same share of a tick report their LACs in the same turn.
_SHARES_OF_RESTS: Final = 32
_SHARE_OF_RESTS_S_MAX: Final = 0.032
_BATCHES: Final = -1  # The number of the connection for batches; its loss affects nothing else.

_LinkId = tuple[BookieId, int, int]  # Bookie, protocol version, and number of the connection.


class Bookies:
    """Owns all connections of one client."""

    def __init__(
        self,
        transport: Transport,
        watcher: BookieWatcher,
        clock: Clock,
        randomness: Randomness,
        config: ClientConfig,
        health: Health,
    ) -> None:
        self.protocol_version: Final = config.protocol_version
        self.txn_ids: Final[Iterator[int]] = itertools.count(1)
        """One counter for all requests of this client: adds in version 3 draw from it."""
        self.tick_s: Final = config.add_deadline_s / (DEADLINE_TICKS + 1)
        """An add gets its first tick after it was sent: dividing by one tick more makes the
        deadline an upper limit."""
        self.ticker: Final = SharedTimer(self.tick_s)
        rest_s = config.explicit_lac_idle_ms / 1000
        self.rests: Final = SharedTimer(rest_s, _SHARES_OF_RESTS, share_s_max=_SHARE_OF_RESTS_S_MAX)
        self.tick_flush: Final = TickFlush()
        self._watcher = watcher
        self._config = config
        self._health = health
        self._links: dict[_LinkId, Link] = {}
        self._hung_up_on_batches: dict[BookieId, float] = {}
        self._is_closed = False
        buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._shared = _Shared(
            transport,
            clock,
            randomness,
            config,
            health,
            self.txn_ids,
            self.tick_flush,
            buffer,
            address_of=self._address,
            names_itself=lambda bookie: self.has_extension(bookie, IDENTITY),
        )

    def live(self) -> LiveBookies:
        """Returns the registered bookies as last reported, without a request."""
        return self._watcher.current

    def has_extension(self, bookie: BookieId, name: str) -> bool:
        """Returns whether the bookie announces an extension of
        `rollbook.proto.formats.service_info`.

        The result is False for a bookie that is not registered now.
        """
        info = self._watcher.current.find(bookie)
        return info is not None and name in info.extensions

    async def call(
        self,
        bookie: BookieId,
        request: Request,
        *,
        deadline_s: float,
        is_high_priority: bool = False,
    ) -> Reply:
        """Sends one request and returns the reply to it.

        The caller checks the reply's `error`; "busy" is not retried here. The reply may be a
        `Refusal`. While too many calls to this bookie are outstanding, a new call waits for room.
        Calls of high priority have room of their own, and are sent first.

        Raises
            BookieUnreachable   nothing was sent: there is no connection, or no room in time. It is
                                raised at once while the bookie is known to be down; the next attempt
                                to connect is then at most `reconnect_pause_s_max` away.
            ConnectionLost      the request was sent, and then the connection broke.
            BookieTimeout       the request was sent, and the deadline passed. If the connection received
                                nothing in that time, it is closed, and all its calls raise.

        If the call is cancelled, the bookie may or may not have carried it out; its reply is
        dropped.
        """
        loop = asyncio.get_running_loop()
        due = loop.time() + deadline_s
        link = self._link(bookie, request)
        try:
            client = link.client or await link.connected(due)
            if not client.can_tell_apart(request):
                link = self._link_in(bookie, v3.VERSION, self._lane(request))
                client = link.client or await link.connected(due)
            return await client.call(request, due, is_high_priority=is_high_priority)
        except (BookieTimeout, ConnectionLost) as error:
            self._on_failed(bookie, link, deadline_s, error)
            raise

    def start(
        self, bookie: BookieId, request: Request, *, deadline_s: float, is_high_priority: bool
    ) -> asyncio.Future[Reply] | None:
        """Like `call`, but returns a future of the result, without a task that waits. Cancel the
        future to drop the answer.

        Returns None if the call would have to wait before it can be sent.
        """
        if self._is_closed:
            return None
        link = self._link(bookie, request)
        if (client := link.client) is None:
            return None
        due = asyncio.get_running_loop().time() + deadline_s
        reply = client.start(request, due, is_high_priority=is_high_priority)
        if reply is not None:
            reply.add_done_callback(partial(self._on_done, bookie, link, deadline_s))
        return reply

    def _on_done(
        self, bookie: BookieId, link: "Link", deadline_s: float, reply: asyncio.Future[Reply]
    ) -> None:
        if not reply.cancelled() and (error := reply.exception()) is not None:
            self._on_failed(bookie, link, deadline_s, error)

    def _on_failed(
        self, bookie: BookieId, link: "Link", deadline_s: float, error: BaseException
    ) -> None:
        if isinstance(error, BookieTimeout):
            if deadline_s >= self._config.silence_s_max:  # Less silence proves nothing.
                self._shared.note_failure(bookie)
        elif isinstance(error, ConnectionLost) and link.is_for_batches and not link.has_answered:
            until = asyncio.get_running_loop().time() + _FORGET_BATCHES_S
            self._hung_up_on_batches[bookie] = until

    def has_batches(self, bookie: BookieId) -> bool:
        """Returns whether to try a batch read. A bookie before 4.17 closes the connection when it
        receives a batch read. Batches are tried again after a while, because the bookie may have
        been upgraded. For striped ledgers a caller has to check `has_extension(bookie, BATCH_READ)`
        instead.
        """
        until = self._hung_up_on_batches.get(bookie)
        if until is None or self.has_extension(bookie, BATCH_READ):
            return True
        return asyncio.get_running_loop().time() >= until

    def add_channel(
        self,
        bookie: BookieId,
        ledger_id: LedgerId,
        sink: AddSink,
        *,
        is_high_priority: bool = False,
    ) -> AddChannel:
        """Returns a channel that is not yet open. It connects in the background and notifies the
        sink.

        With `is_high_priority`, its frames overtake others for the same socket.
        """
        assert not self._is_closed
        lane = ledger_id % self._config.connections_per_bookie
        while (link := self._link_in(bookie, self.protocol_version, lane)).serves(ledger_id):
            lane = max(lane + 1, self._config.connections_per_bookie)
        return link.add_channel(ledger_id, sink, is_high_priority)

    async def close(self) -> None:
        """Closes every connection: calls raise, and channels are lost. No connection or task is
        left when the call returns.

        A connection that only has adds of closed channels in flight gets up to a second to send
        them: they are the third copies of last entries, and a program that ends right after its
        writer would otherwise leave only two copies. If `close` is cancelled, it closes these
        connections at once, too.
        """
        self._is_closed = True
        links = list(self._links.values())
        last = [link for link in links if link.client and link.client.is_only_owed]
        for link in links:
            if link not in last:
                link.stop()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_COPIES_S):
                    for link in last:
                        if link.client:
                            await link.client.drained()
        finally:
            for link in last:
                link.stop()
            self._links.clear()
            self.ticker.close()
            self.rests.close()
            for link in links:
                await link.stopped()

    # ------------------------------------------------------------------------------------------

    def _link(self, bookie: BookieId, request: Request) -> "Link":
        version: int = v3.VERSION
        match request:
            case BatchRead() if not self.has_extension(bookie, BATCH_READ):
                return self._link_in(bookie, v2_layout.VERSION, _BATCHES)
            case BatchRead() | EntryRead(previous_lac=None):
                version = self.protocol_version
        return self._link_in(bookie, version, self._lane(request))

    def _lane(self, request: Request) -> int:
        ledger_id: int = getattr(request, "ledger_id", 0)
        return ledger_id % self._config.connections_per_bookie

    def _link_in(self, bookie: BookieId, version: int, lane: int) -> "Link":
        if self._is_closed:
            raise BookieUnreachable("the client was closed", bookie=bookie)
        link_id = (bookie, int(version), lane)
        link = self._links.get(link_id)
        if link is None:
            link = self._links[link_id] = Link(link_id, self._shared)
        return link

    def _address(self, bookie: BookieId) -> Address | None:
        """Returns the bookie's address, or None if it is not known."""
        info = self._watcher.current.find(bookie)
        if info is None:
            # An old registration is empty; the bookie's id may then be its address.
            info = unpack_service_info(bookie, b"")
        return info.address_for(tls=self._config.uses_tls)


@dataclass(frozen=True, slots=True)
class _Shared:
    """The state that all links of a client share."""

    transport: Transport
    clock: Clock
    randomness: Randomness
    config: ClientConfig
    health: Health
    txn_ids: Iterator[int]
    tick_flush: TickFlush
    buffer: memoryview
    address_of: Callable[[BookieId], Address | None]
    names_itself: Callable[[BookieId], bool]

    def note_failure(self, bookie: BookieId) -> None:
        self.health.on_failure(bookie, self.clock.monotonic_ns())


class Link:
    """A connection that is made again after a loss, as soon as a call needs it or while it has
    channels."""

    def __init__(self, link_id: _LinkId, shared: _Shared) -> None:
        # The present connection, if it is connected and has not ended.
        self.client: BookieClient | None = None
        self.has_answered = False  # Whether any connection of this link ever received a reply.
        self._bookie, self._version, lane = link_id
        self.is_for_batches = lane == _BATCHES
        self._shared = shared
        self._channels: dict[LedgerId, AddChannel] = {}
        self._loop = asyncio.get_running_loop()
        self._attempt: asyncio.Task[BookieClient] | None = None
        # The timer of the next attempt to connect; the channels wait for that attempt.
        self._timer: asyncio.TimerHandle | None = None
        self._failure: RollbookError | None = None  # The last failure; None while the link works.
        self._failed_address: Address | None = None
        self._pause_s = 0.0
        self._may_try_at = 0.0
        self._is_stopped = False
        self._last_client: BookieClient | None = None

    # --- Calls --------------------------------------------------------------------------------

    async def connected(self, due: float) -> BookieClient:
        """Returns the connection. Raises `BookieUnreachable`, at once while
        the bookie is known to be down."""
        if self._attempt is None:
            if (failure := self._known_failure()) is not None:
                raise failure
            self._begin()
        attempt = self._attempt
        assert attempt is not None
        try:
            async with asyncio.timeout_at(due):
                return await asyncio.shield(attempt)
        except TimeoutError:
            raise self._unreachable("no connection in time") from None
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if attempt.cancelled() and caller is not None and not caller.cancelling():
                raise self._unreachable("the client was closed") from None
            raise
        except Unavailable as error:
            raise self._unreachable(error.message) from None

    def _known_failure(self) -> BookieUnreachable | None:
        if self._is_stopped:
            return self._unreachable("the client was closed")
        if self._failure is None or self._loop.time() >= self._may_try_at:
            return None
        if self._shared.address_of(self._bookie) != self._failed_address:
            return None  # The bookie has a new address.
        return self._unreachable(self._failure.message)

    def _unreachable(self, detail: str) -> BookieUnreachable:
        return BookieUnreachable(detail, bookie=self._bookie)

    # --- Channels -----------------------------------------------------------------------------

    def serves(self, ledger_id: LedgerId) -> bool:
        """Returns whether another channel to the ledger needs another link."""
        return ledger_id in self._channels or (
            self.client is not None and self.client.serves(ledger_id)
        )

    def add_channel(self, ledger_id: LedgerId, sink: AddSink, is_high_priority: bool) -> AddChannel:
        channel = AddChannel(
            self._bookie,
            ledger_id,
            sink,
            self._on_channel_closed,
            is_high_priority=is_high_priority,
        )
        self._channels[ledger_id] = channel
        if self.client is not None:
            self._loop.call_soon(self._open, channel)
        elif self._attempt is None:
            if (failure := self._known_failure()) is not None:
                self._loop.call_soon(self._tell_lost, channel, failure)
                self._plan()
            else:
                self._begin()
        return channel

    def _open(self, channel: AddChannel) -> None:
        if self.client is not None and not channel.is_closed and not channel.is_open:
            self.client.attach(channel)
            channel.sink.on_channel_open(channel)

    def _tell_lost(self, channel: AddChannel, error: RollbookError) -> None:
        if not channel.is_closed and not channel.is_open:
            channel.sink.on_channel_lost(channel, error)

    def _on_channel_closed(self, channel: AddChannel) -> None:
        if self._channels.get(channel.ledger_id) is channel:
            del self._channels[channel.ledger_id]
        if self.client is not None:
            self.client.detach(channel)

    # --- The connection -----------------------------------------------------------------------

    def _plan(self) -> None:
        """Schedules an attempt to connect for the channels; calls start attempts themselves."""
        if self._timer is None and not self._is_stopped:
            pause_s = self._shared.config.reconnect_pause_s_min
            soon = self._loop.time() + pause_s * self._shared.randomness.random()
            self._timer = self._loop.call_at(max(soon, self._may_try_at), self._begin_again)

    def _begin_again(self) -> None:
        self._timer = None
        if self._channels and self.client is None and self._attempt is None:
            self._begin()

    def _begin(self) -> None:
        self._attempt = self._loop.create_task(self._connect())
        self._attempt.add_done_callback(self._on_attempted)

    async def _connect(self) -> BookieClient:
        shared = self._shared
        address = self._failed_address = shared.address_of(self._bookie)
        if address is None:
            raise self._unreachable("the bookie has published no address that this client can use")
        client = BookieClient(
            self._bookie,
            self._version,
            shared.config,
            shared.txn_ids,
            tick_flush=shared.tick_flush,
            buffer=shared.buffer,
            on_lost=self._on_lost,
        )
        due = self._loop.time() + shared.config.connect_timeout_s
        await shared.transport.connect(lambda: client, address, shared.config.connect_timeout_s)
        self._last_client = client
        if shared.names_itself(self._bookie) and not client.is_over:
            try:
                await client.identify(due)
            except BaseException:
                client.close()
                raise
        if client.is_over:
            raise self._unreachable("the bookie hung up at once")
        self.client = client
        self._failure = None
        return client

    def _on_attempted(self, attempt: "asyncio.Task[BookieClient]") -> None:
        self._attempt = None
        if attempt.cancelled():
            return
        error = attempt.exception()
        if error is None:
            for channel in list(self._channels.values()):
                self._open(channel)
        elif isinstance(error, RollbookError):
            self._on_failure(self._unreachable(error.message), has_worked=False)
        else:
            raise error  # This is a bug, which the loop's exception handler reports.

    def _on_lost(self, client: BookieClient, error: RollbookError) -> None:
        if client is self.client:  # Otherwise the attempt reports the error.
            self.client = None
            self.has_answered |= client.has_answered
            has_lasted = client.age_s >= self._shared.config.reconnect_pause_s_max
            self._on_failure(error, has_worked=client.has_answered and has_lasted)

    def _on_failure(self, error: RollbookError, *, has_worked: bool) -> None:
        shared, config = self._shared, self._shared.config
        if not self._is_stopped:
            if not self.is_for_batches:
                shared.note_failure(self._bookie)
            is_news = self._failure is None or has_worked
            say = logger.warning if is_news else logger.debug
            say(
                "bookie_connection_lost",
                bookie=self._bookie,
                reason=error.code.reason,
                detail=error.message,
            )
        self._failure = error
        longer_s = max(2 * self._pause_s, config.reconnect_pause_s_min)
        self._pause_s = 0.0 if has_worked else min(longer_s, config.reconnect_pause_s_max)
        jitter = 0.5 + shared.randomness.random() / 2
        self._may_try_at = self._loop.time() + self._pause_s * jitter
        channels = list(self._channels.values())
        for channel in channels:
            channel.on_lost()
        for channel in channels:
            self._tell_lost(channel, error)
        if self._channels:
            self._plan()

    # --- The end ------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ends the link. Idempotent."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._attempt is not None:
            self._attempt.cancel()
        if self.client is not None:
            self.client.close()
        else:
            for channel in list(self._channels.values()):
                self._tell_lost(channel, self._unreachable("the client was closed"))

    async def stopped(self) -> None:
        if self._attempt is not None:
            await asyncio.gather(self._attempt, return_exceptions=True)
        if self._last_client is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_GOODBYE_S):
                    await asyncio.shield(self._last_client.gone)
