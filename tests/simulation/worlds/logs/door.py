"""The door of a simulated log server: what gRPC is in production.

Questions and answers are the service's own words, carried by the kernel's connections: so whatever a
network does happens to them, and a server that dies takes what it has not answered with it. Nothing is
encoded, and nothing is decided here.

    Ask ──► Notice               one question, one answer
    Bound, Submit ──► Results    an append stream, one for each connection
    Listen ──► Event …           a reader, until the connection ends or its log does
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

from rollbook.logservice import messages
from rollbook.logservice.service import LogService
from rollbook.proto.errors import ConnectionLost, RollbookError, ServerUnreachable, Unavailable
from rollbook.proto.ports import Address, Transport
from tests.simulation.kernel.connection import Endpoint
from tests.simulation.kernel.metadata import Mail
from tests.simulation.worlds.logs.words import PORT

CONNECT_S: Final = 0.3


@dataclass(frozen=True, slots=True)
class Ask:
    number: int
    method: str  # Of the service.
    request: Any
    within_s: float


@dataclass(frozen=True, slots=True)
class Notice:
    number: int
    answer: Any  # Or the `RollbookError` that it raised.


@dataclass(frozen=True, slots=True)
class Submit:
    binds: tuple[messages.Bind, ...]
    appends: tuple[messages.StreamAppend, ...]


@dataclass(frozen=True, slots=True)
class Listen:
    number: int
    request: messages.ReadStream


class Door(asyncio.Protocol):
    """One connection, at the server."""

    def __init__(self, mail: Mail, service: LogService) -> None:
        self._mail, self._service = mail, service
        self._rest = bytearray()
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._stream: Any = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, Endpoint)
        transport.is_whole = True
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for message in self._mail.collect(self._rest, data):
            match message:
                case Ask():
                    self._spawn(self._answer(message))
                case Submit(binds, appends):
                    if self._stream is None:
                        self._stream = self._service.open_append_stream()
                        self._spawn(self._tell_results())
                    self._stream.submit(binds, appends)
                case Listen():
                    self._spawn(self._read(message))

    def connection_lost(self, exc: Exception | None) -> None:
        """Requests go on; their responses are dropped."""
        for task in list(self._tasks):
            task.cancel()
        if self._stream is not None:
            self._spawn(self._stream.close())

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        assert task.cancelling() or not task.cancelled(), f"nobody has cancelled {task!r}"

    def _write(self, message: Any) -> None:
        if not self._transport.is_closing():
            self._transport.write(self._mail.post([message]))

    async def _answer(self, ask: Ask) -> None:
        due = self._loop.time() + ask.within_s
        try:
            answer = await getattr(self._service, ask.method)(ask.request, due)
        except RollbookError as error:
            answer = error
        self._write(Notice(ask.number, answer))

    async def _tell_results(self) -> None:
        while True:
            for result in await self._stream.results():
                self._write(result)

    async def _read(self, listen: Listen) -> None:
        stream = self._service.read_stream(listen.request)
        try:
            async for event in stream:
                self._write(Notice(listen.number, event))
        except RollbookError as error:
            self._write(Notice(listen.number, error))
        finally:
            await stream.aclose()  # type: ignore[attr-defined]  # It is a generator.


@dataclass(eq=False)
class DoorConnection(asyncio.Protocol):
    """One connection, at a client."""

    mail: Mail
    is_lost: bool = False
    _last: int = 0
    _rest: bytearray = field(default_factory=bytearray)
    _waiting: dict[int, asyncio.Queue[Any]] = field(default_factory=dict)
    results: asyncio.Queue[messages.AppendResult | None] = field(default_factory=asyncio.Queue)
    _transport: Endpoint | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, Endpoint)
        transport.is_whole = True
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for message in self.mail.collect(self._rest, data):
            if isinstance(message, messages.AppendResult):
                self.results.put_nowait(message)
            elif (queue := self._waiting.get(message.number)) is not None:
                queue.put_nowait(message.answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self.results.put_nowait(None)
        for queue in self._waiting.values():
            queue.put_nowait(ConnectionLost("the connection broke"))

    def submit(self, submit: Submit) -> None:
        self._write(submit)

    async def ask(self, method: str, request: Any, within_s: float) -> Any:
        """Raises what the server raised, or `ConnectionLost`."""
        number, queue = self._new()
        self._write(Ask(number, method, request, within_s))
        try:
            async with asyncio.timeout(within_s):
                answer = await queue.get()
        except TimeoutError:
            raise ConnectionLost("no answer") from None
        finally:
            del self._waiting[number]
        if isinstance(answer, RollbookError):
            raise answer
        return answer

    async def listen(self, request: messages.ReadStream, silence_s: float) -> AsyncIterator[Any]:
        """Raises what the server raised, or `ConnectionLost`, also when it has been silent for so long."""
        number, queue = self._new()
        self._write(Listen(number, request))
        try:
            while True:
                try:
                    async with asyncio.timeout(silence_s):
                        event = await queue.get()
                except TimeoutError:
                    raise ConnectionLost("a reader hears nothing") from None
                if isinstance(event, RollbookError):
                    raise event
                yield event
        finally:
            del self._waiting[number]
            self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _new(self) -> tuple[int, asyncio.Queue[Any]]:
        self._last += 1
        queue = self._waiting[self._last] = asyncio.Queue()
        return self._last, queue

    def _write(self, message: Any) -> None:
        if self.is_lost or self._transport is None or self._transport.is_closing():
            raise ConnectionLost("the connection is gone")
        self._transport.write(self.mail.post([message]))


async def connect(mail: Mail, transport: Transport, server: str) -> DoorConnection:
    """`server`: its name, or its address. Raises `ServerUnreachable`: nothing was sent."""
    host, _, port = server.partition(":")
    try:
        _, line = await transport.connect(
            lambda: DoorConnection(mail), Address(host, int(port or PORT)), CONNECT_S
        )
    except Unavailable as error:
        raise ServerUnreachable(server=server) from error
    assert isinstance(line, DoorConnection)
    return line


class Peers:
    """A server's way to ask others for the tails of logs that they own."""

    def __init__(self, mail: Mail, transport: Transport) -> None:
        self._mail, self._transport = mail, transport
        self._lines: dict[str, DoorConnection] = {}

    async def ask(self, asked: messages.GetTail, address: str, due: float) -> messages.LogTail:
        """Raises what it answers, `ServerUnreachable`, `ConnectionLost`."""
        line = self._lines.get(address)
        if line is None or line.is_lost:
            line = self._lines[address] = await connect(self._mail, self._transport, address)
        within_s = max(due - asyncio.get_running_loop().time(), 0.001)
        told: messages.LogTail = await line.ask("get_tail", asked, within_s)
        return told

    def close(self) -> None:
        for line in self._lines.values():
            line.close()


__all__ = ("Door", "DoorConnection", "Notice", "Peers", "Submit", "connect")
