"""A proxy between a client and a server that breaks connections at a chosen request.

    with CuttingProxy("127.0.0.1:2181", ZOOKEEPER) as proxy:
        ... a client connects to proxy.address ...
        proxy.lose_reply()      # The next request is served, and its reply is dropped.
        proxy.lose_request()    # The next request is dropped.
        proxy.cut()             # All connections break now.

Each of the first two takes effect once, and breaks the connection of its request. All are in force
when they return, and new connections are accepted unless `refuse` was called.

The proxy runs in its own thread, for clients in any loop or thread. Addresses are `host:port` or
the path of a Unix socket; it listens on the same kind as it connects to.
"""

import asyncio
import os
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Final, Self, TypeVar

T = TypeVar("T")

_CALL_TIMEOUT_S: Final = 60
_LENGTH_BYTES: Final = 4  # Both protocols: a frame is its length, big-endian, and that many bytes.


@dataclass(frozen=True, slots=True)
class Dialect:
    """Finds the id of a request or response; None for a handshake, a heartbeat or an event."""

    request_id: Callable[[bytes], int | None]
    answer_id: Callable[[bytes], int | None]


def _zookeeper_request(frame: bytes) -> int | None:
    xid, kind = int.from_bytes(frame[:4], signed=True), int.from_bytes(frame[4:8], signed=True)
    is_own_business = kind in (_ADD_WATCH, _REMOVE_WATCHES, _CLOSE_SESSION)
    return xid if xid > 0 and not is_own_business else None


def _zookeeper_answer(frame: bytes) -> int | None:
    xid = int.from_bytes(frame[:4], signed=True)
    return xid if xid > 0 else None


_ADD_WATCH, _REMOVE_WATCHES, _CLOSE_SESSION = 106, 18, -11
ZOOKEEPER: Final = Dialect(_zookeeper_request, _zookeeper_answer)


class Direction(Enum):
    TO_SERVER = "to server"
    TO_CLIENT = "to client"


class _Fault(Enum):
    LOSE_REQUEST = "lose request"
    LOSE_REPLY = "lose reply"


class CuttingProxy:
    def __init__(self, target: str, dialect: Dialect) -> None:
        self.address = ""
        self._target = target
        self._dialect = dialect
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cutting-proxy")
        self._server: asyncio.Server
        self._lines: dict[_ProxiedConnection, None] = {}
        self._fault: _Fault | None = None
        self._refuses = False
        self._held: tuple[Direction, ...] = ()

    def __enter__(self) -> Self:
        self._thread.start()
        future = asyncio.run_coroutine_threadsafe(self._listen(), self._loop)
        future.result(_CALL_TIMEOUT_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(_CALL_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self._directory is not None:
            self._directory.cleanup()

    # --- Faults, from any thread ---

    def cut(self) -> None:
        """Breaks every connection. Data in transit is lost."""
        self._call(self._cut)

    def refuse(self) -> None:
        """Refuses new connections until `accept`."""
        self._call(lambda: setattr(self, "_refuses", True))

    def accept(self) -> None:
        self._call(lambda: setattr(self, "_refuses", False))

    def lose_request(self) -> None:
        """Drops the next request and breaks its connection."""
        self._call(lambda: setattr(self, "_fault", _Fault.LOSE_REQUEST))

    def lose_reply(self) -> None:
        """Lets the server answer the next request, drops the reply and breaks the connection."""
        self._call(lambda: setattr(self, "_fault", _Fault.LOSE_REPLY))

    def forgive(self) -> None:
        """Cancels a `lose_…` that has not taken effect."""
        self._call(lambda: setattr(self, "_fault", None))

    def pause(self) -> None:
        """Keeps connections open but forwards nothing until `resume`."""
        self._call(lambda: self._hold(Direction.TO_SERVER, Direction.TO_CLIENT))

    def hold(self, direction: Direction) -> None:
        """Forwards nothing in this direction until `resume`; the other direction continues."""
        self._call(lambda: self._hold(direction))

    def resume(self) -> None:
        """Forwards the held bytes."""
        self._call(self._hold)

    def _call(self, action: Callable[[], object]) -> None:
        async def act() -> None:
            action()

        asyncio.run_coroutine_threadsafe(act(), self._loop).result(_CALL_TIMEOUT_S)

    # --- On the proxy's thread ---

    async def _listen(self) -> None:
        def accept() -> "_ClientSide":
            return _ClientSide(self)

        if self._target.startswith("/"):
            self._directory = tempfile.TemporaryDirectory(prefix="proxy-")
            self.address = os.path.join(self._directory.name, "socket")
            self._server = await self._loop.create_unix_server(accept, self.address)
        else:
            self._server = await self._loop.create_server(accept, "127.0.0.1", 0)
            host, port = self._server.sockets[0].getsockname()
            self.address = f"{host}:{port}"

    async def _connect(self, line: "_ProxiedConnection") -> None:
        def make() -> "_ServerSide":
            return _ServerSide(line)

        try:
            if self._target.startswith("/"):
                await self._loop.create_unix_connection(make, self._target)
            else:
                host, _, port = self._target.rpartition(":")
                await self._loop.create_connection(make, host, int(port))
        except OSError:
            line.cut()

    async def _end(self) -> None:
        self._server.close()
        connecting = [line.connecting for line in self._lines]
        self._cut()
        await asyncio.gather(*connecting, return_exceptions=True)

    def _cut(self) -> None:
        for line in list(self._lines):
            line.cut()

    def _hold(self, *directions: Direction) -> None:
        self._held = directions
        for line in list(self._lines):
            line.flush()

    def on_request(self, line: "_ProxiedConnection", request_id: int) -> None:
        fault, self._fault = self._fault, None
        if fault is _Fault.LOSE_REQUEST:
            line.cut()
        elif fault is _Fault.LOSE_REPLY:
            line.doomed = request_id


@dataclass(eq=False)
class _ProxiedConnection:
    """One connection from the client, and the proxy's connection to the server."""

    proxy: CuttingProxy
    client: asyncio.Transport
    connecting: asyncio.Task[None] = field(init=False)
    server: asyncio.Transport | None = None
    is_cut: bool = False
    doomed: int | None = None  # The request whose response will be dropped.
    to_server: list[bytes] = field(default_factory=list)
    to_client: list[bytes] = field(default_factory=list)

    def cut(self) -> None:
        self.is_cut = True
        self.proxy._lines.pop(self, None)
        self.client.abort()
        if self.server is not None:
            self.server.abort()
        else:
            self.connecting.cancel()

    def on_client_frame(self, frame: bytes) -> None:
        request_id = self.proxy._dialect.request_id(frame[_LENGTH_BYTES:])
        if request_id is not None:
            self.proxy.on_request(self, request_id)
        if not self.is_cut:
            self.to_server.append(frame)
            self.flush()

    def on_server_frame(self, frame: bytes) -> None:
        answer_id = self.proxy._dialect.answer_id(frame[_LENGTH_BYTES:])
        if answer_id is not None and answer_id == self.doomed:
            self.cut()
        elif not self.is_cut:
            self.to_client.append(frame)
            self.flush()

    def flush(self) -> None:
        held = self.proxy._held
        if Direction.TO_SERVER not in held and self.server is not None:
            self.server.writelines(self.to_server)
            self.to_server.clear()
        if Direction.TO_CLIENT not in held:
            self.client.writelines(self.to_client)
            self.to_client.clear()


class _Frames:
    """Cuts a stream into frames, each with its length in front."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        self._buffer += data
        frames = []
        while len(self._buffer) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._buffer[:_LENGTH_BYTES])
            if len(self._buffer) < end:
                break
            frames.append(bytes(self._buffer[:end]))
            del self._buffer[:end]
        return frames


class _ClientSide(asyncio.Protocol):
    def __init__(self, proxy: CuttingProxy) -> None:
        self._proxy = proxy
        self._frames = _Frames()
        self._line: _ProxiedConnection | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if self._proxy._refuses:
            transport.abort()
            return
        self._line = _ProxiedConnection(self._proxy, transport)
        self._proxy._lines[self._line] = None
        self._line.connecting = self._proxy._loop.create_task(self._proxy._connect(self._line))

    def data_received(self, data: bytes) -> None:
        for frame in self._frames.feed(data):
            if self._line is not None and not self._line.is_cut:
                self._line.on_client_frame(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._line is not None:
            self._line.cut()


class _ServerSide(asyncio.Protocol):
    def __init__(self, line: _ProxiedConnection) -> None:
        self._line = line
        self._frames = _Frames()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if self._line.is_cut:
            transport.abort()
            return
        self._line.server = transport
        self._line.flush()

    def data_received(self, data: bytes) -> None:
        for frame in self._frames.feed(data):
            if not self._line.is_cut:
                self._line.on_server_frame(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self._line.cut()
