"""A minimal HTTP client for a server on the same loop.

`Client` sends one request per connection, `Connection` sends many. Both parse responses with `_answer`, a
generator that asks for bytes and does no I/O.
"""

import asyncio
import json
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Final

from rollbook.proto.ports import Address

DEADLINE_S = 30.0
_LINE: Final = b"\r\n"
_EMPTY_LINE: Final = b"\r\n\r\n"


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        assert self.headers["content-type"] == "application/problem+json", self.body
        problem = self.json
        assert problem["status"] == self.status
        assert problem["type"] == f"urn:rollbook:problem:{problem['reason']}"
        return str(problem["reason"])


@dataclass
class Client:
    address: Address
    headers: dict[str, str] = field(default_factory=dict)
    tls: Any = None

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.ask("GET", path, b"", **headers)

    async def put(self, path: str, body: Any = None, **headers: str) -> Answer:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        if body is None:
            return await self.ask("PUT", path, b"", **headers)
        headers.setdefault("content-type", "application/json")
        return await self.ask("PUT", path, content, **headers)

    async def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        sent = {
            "host": "127.0.0.1",
            "content-length": str(len(body)),
            "connection": "close",
            **self.headers,
            **headers,
        }
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {sent[name]}" for name in sent)]
        answer = await self.say("\r\n".join([*lines, "", ""]).encode() + body)
        return parse(answer)

    async def say(self, data: bytes) -> bytes:
        """Sends these bytes and returns everything received until the connection ends."""
        async with asyncio.timeout(DEADLINE_S):
            reader, writer = await asyncio.open_connection(
                self.address.host, self.address.port, ssl=self.tls
            )
            try:
                writer.write(data)
                return await reader.read()
            except ConnectionError:
                return b""
            finally:
                writer.close()


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, request: bytes, deadline_s: float = DEADLINE_S) -> Answer:
        async with asyncio.timeout(deadline_s):
            self.writer.write(request)
            return await self._take(_answer())

    async def head(self) -> Answer:
        """Returns the head of a response; the caller reads the body."""
        return await self._take(_head())

    async def _take(self, steps: "_Steps") -> Answer:
        wanted = next(steps)
        while True:
            if isinstance(wanted, bytes):
                found = await self.reader.readuntil(wanted)
            else:
                found = await self.reader.readexactly(wanted)
            try:
                wanted = steps.send(found)
            except StopIteration as stop:
                return _ended(stop)


def parse(said: bytes) -> Answer:
    """Returns the first response, or the part of it that was received before the connection ended."""
    steps, at = _answer(), 0
    wanted = next(steps)
    while True:
        if isinstance(wanted, bytes):
            found = said.find(wanted, at)
            end = found + len(wanted) if found >= 0 else len(said)
        else:
            end = at + wanted
        found_part, at = said[at:end], min(end, len(said))
        try:
            wanted = steps.send(found_part)
        except StopIteration as stop:
            return _ended(stop)


def _ended(stop: StopIteration) -> Answer:
    answer = stop.value
    assert isinstance(answer, Answer)
    return answer


_Steps = Generator[bytes | int, bytes, Answer]
"""Asks for bytes up to a separator, or for a number of bytes; gets fewer only at the end."""


def _answer() -> _Steps:
    answer = yield from _head()
    if answer.headers.get("transfer-encoding") == "chunked":
        parts = []
        while size := int((yield _LINE).partition(b";")[0] or b"0", 16):
            parts.append((yield size))
            yield len(_LINE)
        while (yield _LINE).strip():
            pass  # Trailers.
        answer.body = b"".join(parts)
    elif length := int(answer.headers.get("content-length", "0")):
        answer.body = yield length
    return answer


def _head() -> _Steps:
    first, *lines = (yield _EMPTY_LINE).decode().rstrip().split("\r\n")
    pairs = (line.partition(": ") for line in lines)
    return Answer(int(first.split()[1]), {name.lower(): value for name, _, value in pairs}, b"")
