"""Relays calls to another server, for clients that cannot reach that server. The relaying server is called the entry.

    log-relay: HOST:PORT    from a client: the server that is to handle the call; it must be registered
    log-relayed: 1          from the entry: the call must not be relayed again (RY1)

The entry treats a relayed call like a call that it serves itself: it checks the caller's rights and quotas, and
the audit names the caller (RY2). To the other server, the entry authenticates itself as a server of the cluster.
The entry first tries to serve a call about one log itself; if another server owns the log, it sends the call to
the owner. Streams and calls about one server are sent to the server that the client names.

A relayed append stream is open once the owner's stream is open. If it breaks later, the error is
`ConnectionLost`, with an unknown outcome (RY3); the client sends all appends in flight again, under the same
numbers.
"""

import asyncio
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from rollbook.api.access.authenticator import AuthenticatedCaller
from rollbook.api.access.authorized_service import Elsewhere, Read
from rollbook.api.grpc.append_stream_codec import pack_appends, unpack_results
from rollbook.api.grpc.peer_channels import GrpcPeers
from rollbook.api.grpc.protobuf_conversion import message_of, pack, unpack, unpack_event
from rollbook.api.grpc.record_framing import EVENTS, Packed
from rollbook.api.grpc.relay_memory import RelayedBytes, RelayMemory
from rollbook.api.grpc.status import LISTENS_KEY, error_of_call, hung_up
from rollbook.api.rpc_methods import APPEND_STREAM, READ_STREAM, RELAY_KEY, RELAYED_KEY, Method
from rollbook.logservice import messages
from rollbook.proto.errors import (
    ConnectionLost,
    InvalidRequest,
    NotOwner,
    Overloaded,
    RollbookError,
    ServerUnreachable,
    Unauthorized,
)
from rollbook.proto.tasks import stop_tasks
from rollbook.proto.v1 import log_pb2

Metadata = Iterable[tuple[str, Any]] | None

OF_ONE_SERVER: Final = (messages.GetServerStats, messages.GetOutage)
# With 0, gRPC does not read any byte of an event before the event is requested. Larger: gRPC reads the first bytes of
# each stream's next event into a buffer of 64 KiB, which `RelayMemory` does not count; reads and appends are no faster.
RELAY_OPTIONS: Final = (("grpc.http2.lookahead_bytes", 0), ("grpc.http2.bdp_probe", 0))
_STREAMS_MAX: Final = 2000  # Streams to one server share a connection of at most 2,048 calls.
_GREETING_S: Final = 2.0  # Less than the 2.5 s that a client waits for the header.
_TEXT_MAX: Final = 200


def is_relayed(metadata: Metadata) -> bool:
    """Whether the call claims to have been relayed by another server."""
    return any(key == RELAYED_KEY for key, _ in metadata or ())


def wanted_server(metadata: Metadata) -> str:
    """The server that the client requests; empty: this one. A relayed call is never relayed again (RY1)."""
    wanted = next((str(value) for key, value in metadata or () if key == RELAY_KEY), "")
    return "" if is_relayed(metadata) else wanted


def trusted(caller: AuthenticatedCaller) -> AuthenticatedCaller:
    """Returns the caller, marked as a relay if it is an operator, such as a log server: others may not relay (RY2)."""
    return replace(caller, is_relay=True) if caller.principal.grants.is_operator else caller


class Relay:
    def __init__(self, peers: GrpcPeers, is_other_server: Callable[[str], bool | None]) -> None:
        """`is_other_server` returns whether another server has registered an address; None: this server's address."""
        self.memory: Final = RelayMemory()
        self._peers = peers
        self._is_other_server = is_other_server
        self._streams = 0

    def server_for(self, metadata: Metadata) -> str:
        """The server to which the call is relayed; empty: this server handles it. Raises `ServerUnreachable`."""
        wanted = wanted_server(metadata)
        if not wanted or (is_other := self._is_other_server(wanted)) is None:
            return ""
        if not is_other:
            raise _unreachable(wanted, "no log server is registered with that address")
        return wanted

    def asks_owner(self, due: float) -> Elsewhere:
        async def ask(error: NotOwner, request: Any) -> Any:
            if not (owner := str(error.ids.get("owner") or "")):
                raise error
            with _explained(owner):
                return await self._peers.ask(request, owner, due)

        return ask

    async def follow(
        self, server: str, method: Method, caller: AuthenticatedCaller, _: Read, request: Any
    ) -> AsyncGenerator[Any, None]:
        """Yields the events of a stream from `server`. Events for a reader without a quota stay packed, as
        they were received."""
        is_read = method is READ_STREAM
        stays_packed = is_read and not caller.account.reads.is_limited
        task = asyncio.current_task()
        assert task is not None
        relayed = RelayedBytes(task)
        async with self._stream_to(server) as channels:
            start = channels.to(server, waits=True).unary_stream(method.path)
            call = start(pack(request).SerializeToString(), metadata=channels.shown_to(server))
            try:
                while True:
                    await self.memory.reserve(relayed)
                    with _explained(server):
                        data = await _read(call)
                    self.memory.hold(relayed, len(data))
                    event = Packed(data) if stays_packed else _unpacked(data, method)
                    del data
                    if event is not None:
                        yield event
                    del event
                    self.memory.release(relayed)
            finally:
                self.memory.release(relayed)
                call.cancel()

    @asynccontextmanager
    async def append_stream(self, server: str) -> AsyncIterator["RelayedAppends"]:
        """Opens a stream to that server. Raises `ServerUnreachable`; then nothing was sent."""
        async with self._stream_to(server) as channels:
            start = channels.to(server).stream_stream(APPEND_STREAM.path)
            stream = RelayedAppends(start(metadata=channels.shown_to(server)), server)
            try:
                with _explained(server):
                    await stream.open()
                yield stream
            finally:
                await stream.close()

    @asynccontextmanager
    async def _stream_to(self, _: str) -> AsyncIterator[Any]:
        if self._streams >= _STREAMS_MAX:
            raise Overloaded(
                f"this server relays {_STREAMS_MAX} streams, the maximum", retry_after_ms=1000
            )
        self._streams += 1
        try:
            async with self._peers.channels() as channels:
                yield channels
        finally:
            self._streams -= 1


class RelayedAppends:
    """An append stream to another server. Submitted appends are sent before more appends are read (RY4)."""

    def __init__(self, call: Any, server: str) -> None:
        self._call, self._server = call, server
        self._unsent: deque[bytes] = deque()
        self._results: deque[messages.AppendResult] = deque()
        self._failure: RollbookError | None = None
        self._has_unsent, self._is_sent = asyncio.Event(), asyncio.Event()
        self._has_results, self._are_taken = asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Waits until the other server has accepted the stream. If this raises an error, no append was sent."""
        try:
            async with asyncio.timeout(_GREETING_S):
                if LISTENS_KEY not in (await self._call.initial_metadata() or ()):
                    raise await _end_of(self._call)
        except TimeoutError:
            why = f"it has not accepted the stream within {_GREETING_S:g} s"
            raise _unreachable(self._server, why) from None
        except asyncio.CancelledError:
            raise hung_up() from None
        sides = (self._send(), self._receive())
        self._tasks = [asyncio.ensure_future(self._until_it_breaks(side)) for side in sides]

    def submit(
        self, binds: Sequence[messages.Bind], appends: Sequence[messages.StreamAppend]
    ) -> None:
        if binds or appends:
            self._unsent.append(pack_appends(binds, appends))
            self._has_unsent.set()

    async def ready(self) -> None:
        while self._unsent and self._failure is None:
            self._is_sent.clear()
            await self._is_sent.wait()
        if self._failure is not None:
            raise self._failure

    async def results(self) -> Sequence[messages.AppendResult]:
        while not self._results:
            if self._failure is not None:
                raise self._failure
            self._has_results.clear()
            await self._has_results.wait()
        found = list(self._results)
        self._results.clear()
        self._are_taken.set()
        return found

    def tell(self, results: Sequence[messages.AppendResult]) -> None:
        self._results += results
        self._has_results.set()

    async def close(self) -> None:
        self._call.cancel()
        await stop_tasks(*self._tasks)

    async def _until_it_breaks(self, side: Awaitable[None]) -> None:
        """Runs one side of the open stream until it breaks. Then nobody knows which appends the owner has
        received, so the outcome of all appends in flight is unknown (RY3)."""
        try:
            await side
        except InvalidRequest as error:
            failure: RollbookError = error
        except RollbookError as error:
            failure = ConnectionLost(f"the relay to {self._server} broke: {error}"[:_TEXT_MAX])
        except (grpc.aio.BaseError, asyncio.InvalidStateError, DecodeError) as error:
            failure = ConnectionLost(f"the relay to {self._server} broke: {error!r}"[:_TEXT_MAX])
        self._failure = self._failure or failure
        for event in (self._is_sent, self._has_results):
            event.set()

    async def _send(self) -> None:
        while True:
            while not self._unsent:
                self._has_unsent.clear()
                await self._has_unsent.wait()
            try:
                await self._call.write(self._unsent[0])
            except (grpc.aio.BaseError, asyncio.InvalidStateError):
                raise await _end_of(self._call) from None
            self._unsent.popleft()
            self._is_sent.set()

    async def _receive(self) -> None:
        while True:
            self.tell(unpack_results(await _read(self._call)))
            while self._results:
                self._are_taken.clear()
                await self._are_taken.wait()


async def _read(call: Any) -> bytes:
    """Returns the next message. If the stream has ended, raises its error."""
    try:
        data = await call.read()
    except asyncio.CancelledError:
        raise hung_up() from None
    except grpc.aio.AioRpcError as error:
        trailers = error.trailing_metadata()
        raise error_of_call(error.code(), error.details() or "", trailers) from None
    if data is grpc.aio.EOF:
        raise await _end_of(call)
    return bytes(data)


async def _end_of(call: Any) -> RollbookError:
    status = await call.code()
    if status is grpc.StatusCode.OK:
        return ConnectionLost("the server ended the stream without an error")
    return error_of_call(status, await call.details() or "", await call.trailing_metadata())


def _unpacked(data: bytes, method: Method) -> Any:
    """Returns None for an event of a newer release."""
    try:
        if method is READ_STREAM:
            return unpack_event(log_pb2.ReadEvent.FromString(data), EVENTS)
        return unpack(message_of(method.answer).FromString(data), method.answer)
    except (DecodeError, InvalidRequest) as error:
        raise ConnectionLost(f"the server sent an invalid event: {error}") from None


@contextmanager
def _explained(server: str) -> Iterator[None]:
    """Raises `ServerUnreachable` if the other server refuses this server, since that is not the caller's fault."""
    try:
        yield
    except Unauthorized as error:
        raise _unreachable(
            server,
            f"it refuses this server: {error.message}",
            "give all log servers the same --token-file, or name their certificates in the access file",
        ) from error
    except ServerUnreachable as error:
        raise _unreachable(server, error.message) from error


def _unreachable(server: str, why: str, next_step: str = "") -> ServerUnreachable:
    return ServerUnreachable(
        f"the relaying server cannot reach log server {server[:_TEXT_MAX]}: {why}",
        server=server,
        next_step=next_step,
    )
