"""The plainest HTTP client there is, for a server on the same loop."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from rollbook.proto.ports import Address

DEADLINE_S = 30.0


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
        """Everything that is answered until the connection ends."""
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


def parse(answer: bytes) -> Answer:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    pairs = (line.partition(": ") for line in lines)
    return Answer(int(first.split()[1]), {name.lower(): value for name, _, value in pairs}, body)
