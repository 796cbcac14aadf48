"""Clients of the key-value store: they call any node, follow redirects, and record each response.

Keys live for a second or two, so that operations without a known outcome soon stop to matter.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import replace

from tests.chaos.kv.history import Op

KEYS = 3  # Keys in use at a time.
_KEY_LIFE_S = 1.5
_PATIENCE_S = 1.0  # Time-out of a change.
_READ_PATIENCE_S = (
    0.4  # Time-out of a read: short, so that frozen nodes get reads just before they continue.
)
_HOPS_MAX = 3
READS = ("get",)
CHANGES = ("get", "put", "put", "cas", "delete")
_PAUSE_S = 0.04  # The longest pause between two operations.


class NotDone(Exception):
    """The operation had no effect, for certain."""


class InDoubt(Exception):
    """The outcome is unknown."""


class Door:
    """A connection to one node, made when it is needed."""

    def __init__(self, address: str) -> None:
        self._host, _, self._port = address.partition(":")
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: str) -> tuple[int, str, str]:
        """Returns status, body and `Location`. Raises `NotDone` and `InDoubt`."""
        try:
            if self._streams is None:
                async with asyncio.timeout(_PATIENCE_S):
                    self._streams = await asyncio.open_connection(self._host, int(self._port))
        except (OSError, TimeoutError):
            raise NotDone from None
        try:
            async with asyncio.timeout(_READ_PATIENCE_S if method == "GET" else _PATIENCE_S):
                return await self._exchange(method, path, body.encode())
        except (OSError, TimeoutError, EOFError, ValueError):
            self.close()
            raise InDoubt from None

    async def _exchange(self, method: str, path: str, body: bytes) -> tuple[int, str, str]:
        assert self._streams is not None
        reader, writer = self._streams
        head = f"{method} {path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = {
            name.lower(): value for name, _, value in (each.partition(": ") for each in lines)
        }
        found = await reader.readexactly(int(fields["content-length"]))
        return int(lines[0].split()[1]), found.decode(), fields.get("location", "")

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Client:
    def __init__(
        self, name: str, nodes: Sequence[str], chance: random.Random, kinds: Sequence[str]
    ) -> None:
        self.name = name
        self._kinds = kinds
        self.history: list[Op] = []
        self.refused = 0
        self.changed_ns: list[int] = []  # Times at which a change was acknowledged.
        self._nodes = nodes
        self._chance = chance
        self._doors = {node: Door(node) for node in nodes}
        self._last: dict[str, str | None] = {}  # The last known value of each key.
        self._leader = nodes[0]
        self._values = 0

    async def work(self, is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            op = self._pick()
            if await self.do(op) and op.do != "get":  # Another node must see the change at once.
                await self.do(Op(self.name, "get", op.key, 0))
            await asyncio.sleep(self._chance.uniform(0, _PAUSE_S))
        self.close()

    async def audit(self, keys: Sequence[str]) -> None:
        """Reads the keys from every node, retrying until each answers."""
        for node in self._nodes:
            for key in keys:
                while not await self.do(Op(self.name, "get", key, 0), node):
                    await asyncio.sleep(_PAUSE_S)
        self.close()

    def close(self) -> None:
        for door in self._doors.values():
            door.close()

    def _pick(self) -> Op:
        generation = int(time.monotonic() / _KEY_LIFE_S)
        key = f"{generation}.{self._chance.randrange(KEYS)}"
        do = self._chance.choice(self._kinds)
        expect = self._last.get(key)
        if do == "cas" and expect is None:
            do = "put"
        if do in ("put", "cas"):
            self._values += 1
            return Op(self.name, do, key, 0, value=f"{self.name}-{self._values}", expect=expect)
        return Op(self.name, do, key, 0)

    async def do(self, op: Op, node: str | None = None) -> bool:
        """Does the operation; returns whether its outcome is known."""
        op = replace(op, called_ns=time.monotonic_ns())
        try:
            status, text = await self._ask(op, node)
        except NotDone:
            self.refused += 1
            await asyncio.sleep(_PAUSE_S)
            return False
        except InDoubt:
            if op.do != "get":
                self.history.append(op)
            return False
        found = text if text and status != 404 else None
        told = replace(op, returned_ns=time.monotonic_ns(), is_done=status != 409, found=found)
        self.history.append(told)
        self._last[op.key] = told.after(found)
        if op.do != "get":
            self.changed_ns.append(told.returned_ns)
        return True

    async def _ask(self, op: Op, node: str | None) -> tuple[int, str]:
        method = {"get": "GET", "delete": "DELETE"}.get(op.do, "PUT")
        path = f"/{op.key}" + (f"?expect={op.expect}" if op.do == "cas" else "")
        if node is None:  # Changes are mostly sent to the last known leader.
            is_change = op.do != "get" and self._chance.random() < 0.9
            node = self._leader if is_change else self._chance.choice(self._nodes)
        for _ in range(_HOPS_MAX):
            try:
                status, text, location = await self._doors[node].ask(method, path, op.value or "")
            except (NotDone, InDoubt):
                self._leader = self._chance.choice(self._nodes)
                raise
            if status == 307:
                node = self._leader = location.removeprefix("http://").partition("/")[0]
            elif status == 503:
                self._leader = self._chance.choice(self._nodes)
                raise NotDone
            elif status in (200, 404, 409):
                return status, text
            else:
                raise InDoubt
        raise NotDone
