"""Messages of one size, and the two ends of a connection.

A question carries an id that its answer repeats. Every answer of a bookie carries its LAC, so to
ask for the LAC is to read the entry before the first.
"""

import asyncio
import struct
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, cast

from rollbook.proto.errors import Unavailable
from rollbook.proto.ids import BookieId
from rollbook.proto.ports import Address, Transport

ADD, RECOVERY_ADD, READ, FENCING_READ = range(1, 5)
HAVE, ABSENT, FENCED = range(11, 14)  # HAVE: stored, or found.
NAMES: Final = {
    ADD: "add",
    RECOVERY_ADD: "recovery add",
    READ: "read",
    FENCING_READ: "fencing read",
    HAVE: "have",
    ABSENT: "absent",
    FENCED: "fenced",
}

PORT: Final = 3181
CONNECTIONS: Final = 2
CONNECT_TIMEOUT_S: Final = 0.3
_FRAME: Final = struct.Struct(">IBiii")


class Message(NamedTuple):
    id: int
    kind: int
    entry: int
    lac: int
    body: int


class Stream(asyncio.Protocol):
    """Bytes to messages and back, at either end."""

    def __init__(
        self,
        on_message: Callable[["Stream", Message], None],
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        self._on_message, self._on_lost = on_message, on_lost
        self._transport: asyncio.Transport  # From connection_made() on.
        self._rest = b""

    @property
    def peer(self) -> str:
        return str(self._transport.get_extra_info("peername")[0])

    def send(self, message: Message) -> None:
        self._transport.write(_FRAME.pack(*message))

    def abort(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        whole = len(data) - len(data) % _FRAME.size
        self._rest = data[whole:]
        for fields in _FRAME.iter_unpack(data[:whole]):
            self._on_message(self, Message._make(fields))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._on_lost:
            self._on_lost()


OnAnswer = Callable[[Message | None], None]
"""Gets the answer, or None when the line breaks before it; perhaps neither, ever."""


class Link:
    """Asks one bookie, over a connection that is made when it is needed."""

    def __init__(self, transport: Transport, bookie: BookieId) -> None:
        self._transport, self._address = transport, Address(bookie, PORT)
        self._stream: Stream | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: dict[int, OnAnswer] = {}
        self._unsent: list[Message] = []
        self._next_id = 1

    def ask(self, kind: int, entry: int, lac: int, body: int, on_answer: OnAnswer) -> None:
        message = Message(self._next_id, kind, entry, lac, body)
        self._next_id += 1
        self._waiting[message.id] = on_answer
        if self._stream is not None:
            self._stream.send(message)
            return
        self._unsent.append(message)
        if self._connecting is None:
            self._connecting = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        try:
            _, stream = await self._transport.connect(
                lambda: Stream(self._on_message, self._on_lost), self._address, CONNECT_TIMEOUT_S
            )
        except Unavailable:
            self._on_lost()
            return
        finally:
            self._connecting = None
        self._stream = cast(Stream, stream)
        unsent, self._unsent = self._unsent, []
        for message in unsent:
            self._stream.send(message)

    def _on_message(self, _stream: Stream, answer: Message) -> None:
        if on_answer := self._waiting.pop(answer.id, None):
            on_answer(answer)

    def _on_lost(self) -> None:
        self._stream, self._unsent = None, []
        waiting, self._waiting = self._waiting, {}
        for on_answer in waiting.values():
            on_answer(None)

    def close(self) -> None:
        self._waiting.clear()
        if self._connecting is not None:
            self._connecting.cancel()
        if self._stream is not None:
            self._stream.abort()


class Links:
    """One client's connections: a small pool to each bookie, as clients under load have it.

    So not even questions to one bookie arrive in the order in which they were asked.
    """

    def __init__(self, transport: Transport, bookies: tuple[BookieId, ...]) -> None:
        self._pools = {
            bookie: [Link(transport, bookie) for _ in range(CONNECTIONS)] for bookie in bookies
        }

    def ask(
        self, bookie: BookieId, kind: int, entry: int, lac: int, body: int, on_answer: OnAnswer
    ) -> None:
        self._pools[bookie][entry % CONNECTIONS].ask(kind, entry, lac, body, on_answer)

    async def hear(
        self,
        bookies: tuple[BookieId, ...],
        question: tuple[int, int, int, int],
        enough: Callable[[dict[BookieId, Message]], bool],
        timeout_s: float,
    ) -> dict[BookieId, Message]:
        """Asks them all; ends when `enough`, when nobody is left to answer, or at the deadline."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        answers: dict[BookieId, Message] = {}
        silent = dict.fromkeys(bookies)

        def finish() -> None:
            if not done.done():
                done.set_result(None)

        def on_answer(bookie: BookieId, answer: Message | None) -> None:
            silent.pop(bookie, None)
            if answer is not None:
                answers[bookie] = answer
            if not silent or enough(answers):
                finish()

        deadline = loop.call_later(timeout_s, finish)
        for bookie in bookies:
            self.ask(bookie, *question, partial(on_answer, bookie))
        try:
            await done
        finally:
            deadline.cancel()
        return dict(answers)  # A copy: later answers must not change what was decided.

    def close(self) -> None:
        for pool in self._pools.values():
            for link in pool:
                link.close()
