"""Hosts joined by links, and how connections between them are made and broken (`connection.py`)."""

import asyncio
import errno
import random
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from typing import Final, TypeAlias

from rollbook.proto.errors import BadConfig, Unavailable
from rollbook.proto.ports import Address, ProtocolFactory
from tests.simulation.kernel.connection import ACCEPT, RESET, Endpoint, FakeSocket, reset_error
from tests.simulation.kernel.loop import VirtualLoop

Span: TypeAlias = tuple[float, float]

LAN_S: Final[Span] = (0.000_05, 0.000_5)
LOOPBACK_S: Final[Span] = (0.000_01, 0.000_05)
SYN_RETRIES_S: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_LOCAL_NAMES: Final = frozenset(("", "localhost", "127.0.0.1", "::1", "0.0.0.0", "::"))


class Link:
    """One direction between two hosts."""

    __slots__ = (
        "bytes_per_s",
        "cut_at",
        "delay_s",
        "free_at",
        "is_cut",
        "is_stalled",
        "source",
        "tail_odds",
        "tail_s",
        "target",
    )

    def __init__(self, source: str, target: str) -> None:
        self.source, self.target = source, target
        self.clear()

    def clear(self) -> None:
        self.delay_s: Span = LOOPBACK_S if self.source == self.target else LAN_S
        self.tail_odds = 0.0
        self.tail_s: Span = (0.0, 0.0)
        self.bytes_per_s: float | None = None
        self.free_at = 0.0
        self.is_cut = False
        self.cut_at = 0.0
        self.is_stalled = False

    def draw_delay(self, chance: random.Random) -> float:
        least, most = self.delay_s
        delay = least + (most - least) * chance.random()
        if self.tail_odds and chance.random() < self.tail_odds:
            delay += chance.uniform(*self.tail_s)
        return delay

    def __str__(self) -> str:
        return f"{self.source} → {self.target}"


# --- Listening ----------------------------------------------------------------------------------


class SimulatedServer(asyncio.AbstractServer):
    """What `loop.create_server` gives, and the Listener port."""

    def __init__(
        self,
        network: "Network",
        host: str,
        address: Address,
        factory: ProtocolFactory,
        context: Context,
    ) -> None:
        self._network = network
        self._context = context
        self.host = host
        self.factory = factory
        self._address = address

    @property
    def address(self) -> Address:
        return self._address

    @property
    def key(self) -> tuple[str, str | int]:
        return (self.host, self._address.host if self._address.is_unix else self._address.port)

    @property
    def sockets(self) -> tuple[FakeSocket, ...]:
        name = (self._address.host, self._address.port)
        return (FakeSocket(name, ("", 0)),) if self.is_serving() else ()

    def context_of_connection(self) -> Context:
        return self._context.copy()

    def is_serving(self) -> bool:
        return self._network.listeners.get(self.key) is self

    def close(self) -> None:
        if self.is_serving():
            del self._network.listeners[self.key]

    async def wait_closed(self) -> None:
        pass

    async def start_serving(self) -> None:
        pass

    async def serve_forever(self) -> None:
        try:
            await self._network.loop.create_future()
        finally:
            self.close()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._network.loop


class SimulatedListener:
    """The `Listener` port."""

    def __init__(self, server: SimulatedServer) -> None:
        self._server = server

    @property
    def address(self) -> Address:
        return self._server.address

    async def close(self) -> None:
        self._server.close()


class SimulatedTransport:
    """The `Transport` port of one host."""

    def __init__(self, network: "Network", host: str) -> None:
        self._network = network
        self._host = host

    async def listen(self, factory: ProtocolFactory, address: Address) -> SimulatedListener:
        try:
            return SimulatedListener(self._network.listen(self._host, factory, address))
        except OSError as error:
            raise BadConfig(
                f"cannot listen on {address}: {error}",
                next_step="another process has this port: stop it or choose another",
            ) from error

    async def connect(
        self, factory: ProtocolFactory, address: Address, timeout_s: float
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._network.connect(self._host, factory, address)
        except (OSError, TimeoutError) as error:
            detail = str(error) or f"no answer within {timeout_s:g} s"
            raise Unavailable(f"cannot reach {address}: {detail}") from error


# --- The network --------------------------------------------------------------------------------


class Network:
    def __init__(
        self, loop: VirtualLoop, chance: random.Random, is_up: Callable[[str], bool]
    ) -> None:
        self.loop = loop
        self.chance = chance
        self.is_up = is_up
        self.listeners: dict[tuple[str, str | int], SimulatedServer] = {}
        # The mood of a run: how bytes are cut into pieces. Some bugs need many, some need few.
        self.split_odds = chance.choice((0.0, 0.02, 0.2, 0.9))
        self.merge_odds = chance.choice((0.0, 0.5, 1.0))
        self._links: dict[tuple[str, str], Link] = {}
        self._endpoints: dict[Endpoint, None] = {}  # Those that are not gone, in order of making.
        self._void: dict[Endpoint, None] = {}  # Gone, their peers not.
        self._refusing: dict[str, None] = {}
        self._isolated: dict[str, None] = {}
        self._next_port: dict[str, int] = {}

    # --- Faults -------------------------------------------------------------------------------

    def link(self, source: str, target: str) -> Link:
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = Link(source, target)
            if source != target and (source in self._isolated or target in self._isolated):
                link.is_cut, link.cut_at = True, self.loop.now
        return link

    def cut(self, a: str, b: str) -> None:
        self.cut_one_way(a, b)
        self.cut_one_way(b, a)

    def cut_one_way(self, source: str, target: str) -> None:
        link = self.link(source, target)
        if link.is_cut:
            return
        link.is_cut, link.cut_at = True, self.loop.now
        for endpoint in self._over(link):
            endpoint.hold()
            endpoint.watch_silence()
            endpoint.peer.watch_silence()

    def heal(self, a: str, b: str) -> None:
        for link in (self.link(a, b), self.link(b, a)):
            if link.is_cut:
                link.is_cut = False
                for endpoint in self._over(link):
                    endpoint.release()

    def isolate(self, host: str) -> None:
        """Cuts it off from every other host, until `rejoin`."""
        self._isolated[host] = None
        for other in self._hosts():
            if other != host:
                self.cut(host, other)

    def rejoin(self, host: str) -> None:
        """Heals its links, but for those to hosts that are isolated themselves."""
        self._isolated.pop(host, None)
        for other in self._hosts():
            if other != host and other not in self._isolated:
                self.heal(host, other)

    def heal_all(self) -> None:
        """Every link is as new, and every host takes connections."""
        self._refusing.clear()
        self._isolated.clear()
        for source, target in list(self._links):
            self.heal(source, target)
            self.unstall(source, target)
            self.link(source, target).clear()

    def stall(self, source: str, target: str) -> None:
        """Processes on `target` read nothing that comes from `source`: its window fills."""
        self.link(source, target).is_stalled = True

    def unstall(self, source: str, target: str) -> None:
        link = self.link(source, target)
        if link.is_stalled:
            link.is_stalled = False
            for endpoint in self._over(link):
                endpoint._soon(endpoint.on_arrival)

    def slow(
        self, a: str, b: str, delay_s: Span, tail_odds: float = 0.0, tail_s: Span = (0.0, 0.0)
    ) -> None:
        for link in (self.link(a, b), self.link(b, a)):
            link.delay_s, link.tail_odds, link.tail_s = delay_s, tail_odds, tail_s

    def refuse(self, host: str) -> None:
        self._refusing[host] = None

    def accept(self, host: str) -> None:
        self._refusing.pop(host, None)

    def reset(self, a: str, b: str) -> int:
        """Every connection between the two dies; how many ends had somebody to notice."""
        ends = [e for e in self._endpoints if (e.host, e.peer.host) in ((a, b), (b, a))]
        for end in ends:
            end.lose_everything()
        return len(ends)

    async def swizzle(self, hosts: Iterable[str], pause_s: Span) -> None:
        """Clogs a random subset of hosts one by one, then unclogs them in another order."""
        hosts = list(hosts)
        chosen = self.chance.sample(hosts, self.chance.randint(1, len(hosts)))
        for act in (self.isolate, self.rejoin):
            self.chance.shuffle(chosen)
            for host in chosen:
                act(host)
                await asyncio.sleep(self.chance.uniform(*pause_s))

    def _hosts(self) -> list[str]:
        return list(dict.fromkeys(host for pair in list(self._links) for host in pair))

    def _over(self, link: Link) -> list[Endpoint]:
        """The endpoints that the link leads to."""
        return [e for e in (*self._endpoints, *self._void) if e.back is link]

    # --- Machines and processes -------------------------------------------------------------------

    def on_process_dead(self, host: str) -> None:
        """Its machine closes its sockets."""
        self._forget_listeners(host)
        for endpoint in [e for e in self._endpoints if e.host == host]:
            endpoint.depart()

    def on_power_lost(self, host: str) -> None:
        self._forget_listeners(host)
        for endpoint in [e for e in self._endpoints if e.host == host]:
            endpoint.vanish()
            endpoint.peer.watch_silence()

    def on_power_back(self, host: str) -> None:
        """What was sent to it meanwhile is sent again, and finds nobody."""
        for endpoint in [e for e in self._void if e.host == host and e.incoming]:
            endpoint.release()
            endpoint.expect(self.loop.now + self.chance.uniform(0.0, 0.3))

    def _forget_listeners(self, host: str) -> None:
        for key in [key for key in self.listeners if key[0] == host]:
            del self.listeners[key]

    def on_departed(self, endpoint: Endpoint) -> None:
        del self._endpoints[endpoint]
        self._void.pop(endpoint.peer, None)
        if not endpoint.peer.is_gone:
            self._void[endpoint] = None

    def dismantle(self) -> None:
        """After the run. Streams complain when they are destroyed before they were closed."""
        for endpoint in (*self._endpoints, *self._void):
            endpoint._is_closing = endpoint.is_gone = True
            endpoint.incoming.clear()
        self._endpoints.clear()
        self._void.clear()
        self.listeners.clear()

    # --- Connections ------------------------------------------------------------------------------

    def listen(self, host: str, factory: ProtocolFactory, address: Address) -> SimulatedServer:
        if not address.is_unix:
            name = host if address.host in _LOCAL_NAMES else address.host
            if name != host:
                raise OSError(errno.EADDRNOTAVAIL, f"{host} has no address {name}")
            address = Address(host, address.port or self._pick_port(host))
        server = SimulatedServer(self, host, address, factory, copy_context())
        if server.key in self.listeners:
            raise OSError(errno.EADDRINUSE, "address already in use")
        self.listeners[server.key] = server
        return server

    async def connect(
        self, host: str, factory: ProtocolFactory, address: Address
    ) -> tuple[Endpoint, asyncio.BaseProtocol]:
        """Raises OSError. Its time-out is the one of TCP, two minutes: callers have their own."""
        local = address.is_unix or address.host in _LOCAL_NAMES
        target = host if local else address.host
        out, back = self.link(host, target), self.link(target, host)
        for retry_s in SYN_RETRIES_S:
            if not out.is_cut and self.is_up(target):
                await asyncio.sleep(out.draw_delay(self.chance))
                if self.is_up(target) and not out.is_cut:
                    return await self._shake_hands(host, factory, address, target, out, back)
            await asyncio.sleep(retry_s)
        raise TimeoutError(errno.ETIMEDOUT, "connection timed out")

    async def _shake_hands(
        self,
        host: str,
        factory: ProtocolFactory,
        address: Address,
        target: str,
        out: Link,
        back: Link,
    ) -> tuple[Endpoint, asyncio.BaseProtocol]:
        server = self.listeners.get((target, address.host if address.is_unix else address.port))
        if server is None or target in self._refusing:
            await self._answer(back)
            raise ConnectionRefusedError(errno.ECONNREFUSED, "connection refused")
        client_name = ("", 0) if address.is_unix else (host, self._pick_port(host))
        near = Endpoint(self, copy_context(), client_name, out, back)
        server_name = (server.address.host, server.address.port)
        far = Endpoint(self, server.context_of_connection(), server_name, back, out)
        near.peer, far.peer, far.server = far, near, server
        self._endpoints[near] = self._endpoints[far] = None
        try:
            await self._answer(back)
            if near.is_gone or near.has_arrived(RESET):
                raise reset_error()
            protocol = factory()
            near.send_mark(ACCEPT)
            near.attach(protocol)
        except BaseException:
            if not near.is_gone:
                near.depart()
            raise
        return near, protocol

    async def _answer(self, back: Link) -> None:
        """Comes when the way back is open."""
        await asyncio.sleep(back.draw_delay(self.chance))
        for retry_s in SYN_RETRIES_S:
            if not back.is_cut:
                return
            await asyncio.sleep(retry_s)
        raise TimeoutError(errno.ETIMEDOUT, "connection timed out")

    def _pick_port(self, host: str) -> int:
        port = self._next_port.get(host, 32_768)
        self._next_port[host] = port + 1
        return port
