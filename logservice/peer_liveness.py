"""Finds out whether another server is dead. A dead server's address refuses connections.

    dead      The address refused all attempts for half a second: its machine reports that nothing listens there.
    alive     The server accepted a connection, or did not respond. Silence proves nothing: then the server's
              session decides.

The caller waits for the result. Concurrent callers that ask about the same address share one series of
attempts.
"""

import asyncio
from typing import Final

import structlog

from rollbook.logservice.core.peer_failure_detector import Refusals
from rollbook.proto.addresses import parse_address
from rollbook.proto.errors import BadConfig, Unavailable
from rollbook.proto.ports import Clock, Transport
from rollbook.proto.tasks import stop_tasks

logger = structlog.get_logger()

_INTERVAL_S: Final = 0.1
_ATTEMPT_S: Final = 0.5
_FRESH_NS: Final = 100_000_000  # The age up to which a result serves further callers.


class _Peer:
    def __init__(self) -> None:
        self.refusals = Refusals()
        self.answered = False  # Whether the last attempt was accepted.
        self.asked_ns = 0  # When the last series of attempts ended.
        self.series: asyncio.Task[None] | None = None


class PeerLiveness:
    def __init__(self, transport: Transport, clock: Clock) -> None:
        self._transport, self._clock = transport, clock
        self._peers: dict[str, _Peer] = {}

    async def check_dead(self, address: str) -> bool:
        """Return whether the server refuses connections. Takes about half a second unless a recent result is known.

        If this is cancelled, the attempts continue for other callers.
        """
        return (await self._asked(address)).refusals.is_dead

    async def check_answering(self, address: str) -> bool:
        """Return whether the server accepts connections. A server that is not dead may still not accept
        connections.
        """
        return (await self._asked(address)).answered

    async def _asked(self, address: str) -> _Peer:
        peer = self._peers.setdefault(address, _Peer())
        if peer.series is None:
            if peer.asked_ns and peer.asked_ns + _FRESH_NS > self._clock.monotonic_ns():
                return peer
            peer.series = asyncio.get_running_loop().create_task(self._ask(address, peer))
        await asyncio.shield(peer.series)
        return peer

    async def close(self) -> None:
        for peer in list(self._peers.values()):
            await stop_tasks(peer.series)

    async def _ask(self, address: str, peer: _Peer) -> None:
        was_dead = peer.refusals.is_dead
        try:
            await self._attempt(address, peer)
            while peer.refusals.is_refusing and not peer.refusals.is_dead:
                await asyncio.sleep(_INTERVAL_S)
                await self._attempt(address, peer)
        finally:
            peer.asked_ns, peer.series = self._clock.monotonic_ns(), None
        if peer.refusals.is_dead and not was_dead:
            logger.warning("log_server_refuses", address=address)

    async def _attempt(self, address: str, peer: _Peer) -> None:
        peer.answered, refusals = False, peer.refusals
        try:
            where = parse_address(address, "the server's address")
            transport, _ = await self._transport.connect(asyncio.Protocol, where, _ATTEMPT_S)
        except Unavailable as error:
            if isinstance(error.__cause__, ConnectionRefusedError):
                refusals.on_refused(self._clock.monotonic_ns())
            else:
                refusals.on_other()
        except BadConfig:  # An invalid address does not prove that the server is dead.
            refusals.on_other()
        else:
            transport.abort()
            peer.answered = True
            refusals.on_other()
