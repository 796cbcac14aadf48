"""A client of a metadata store under test, which prints each response it gets.

    python -m tests.crash.load URL NAME SESSION_TIMEOUT_S

It prints the lines of `judge.py`, and `["ready"]` when it has begun. On the line `finish` it
completes its operations and prints `["finished"]`; then it answers each line `mirror` with
`["mirror", {…}]`, the nodes below `/watched` that it knows from events alone; at the end of its
input it closes its session and ends.

It checks promises about sessions and watches, since only a client can: while it sends heartbeats,
neither its session nor its ephemeral node may expire, and each change below a watched node must be
followed by its event or by RESYNC.
"""

import asyncio
import io
import itertools
import json
import os
import random
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from rollbook.proto.errors import NodeExists, Outcome, RollbookError
from rollbook.proto.ports import (
    Create,
    CreateMode,
    MetadataStore,
    Node,
    NodeStat,
    SessionState,
    Set,
    Watch,
    WatchEventKind,
)
from rollbook.proto.runtime.logging_setup import configure_logs
from rollbook.proto.runtime.metastore import open_metadata_store
from tests.crash.judge import COUNTERS, LOG, NUMBERS

PATHS: Final = "/paths"
WATCHED: Final = "/watched"
LIVE: Final = "/live"
FOLDERS: Final = (COUNTERS, LOG, NUMBERS, PATHS, WATCHED, LIVE)
COUNTER_NAMES: Final = ("a", "b", "c")

_LANES: Final = 3  # Concurrent lanes for each kind of work.
_WATCHED_MAX: Final = 10  # Nodes that a lane keeps below `/watched`.
_EVENT_TIMEOUT_S: Final = 15.0
_CALM_S: Final = 0.002  # Pause between operations of a lane: three clients must fit on two cores.
_READS_AT_ONCE: Final = 100
_CHECK_LIVE_S: Final = 0.1


async def prepare(store: MetadataStore) -> None:
    """Creates the nodes that every load expects, unless they exist."""
    nodes = dict.fromkeys(FOLDERS, b"")
    for name in COUNTER_NAMES:
        nodes |= {f"{COUNTERS}/{name}": b"0 -", f"{LOG}/{name}": b""}
    for path, value in nodes.items():
        try:
            await store.create(path, value)
        except NodeExists:
            pass


def say(*line: object) -> None:
    """Prints the line in one write, so that it is printed as a whole or not at all."""
    os.write(1, json.dumps(line).encode() + b"\n")


@dataclass(frozen=True, slots=True)
class Answer:
    outcome: Outcome
    result: Any = None

    @property
    def is_ok(self) -> bool:
        return self.outcome is Outcome.APPLIED


class Load:
    def __init__(self, store: MetadataStore, name: str) -> None:
        self._store = store
        self._name = name
        self._chance = random.Random(name)
        self._numbers = itertools.count(1)
        self._operations = itertools.count(1)
        self._running = True
        self._mirror = Mirror(store)
        self._live: NodeStat | None = None

    async def run(self, finish: Awaitable[None]) -> None:
        watch = await self._store.watch(WATCHED, recursive=True)
        background = (self._mirror.follow(watch), self._mirror.read(), self._watch_session())
        self._background = [asyncio.create_task(work) for work in background]
        await self._make_live()
        works = (self._step, self._live_a_path, self._take_a_number, self._change_watched)
        lanes = [asyncio.create_task(self._lane(work)) for work in works for _ in range(_LANES)]
        lanes.append(asyncio.create_task(self._lane(self._check_live)))
        say("ready")
        await finish
        self._running = False
        for task in lanes:
            await task
        say("finished")

    async def end(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._store.close()

    def mirror(self) -> dict[str, str]:
        return self._mirror.values

    async def _lane(self, work: Callable[[], Awaitable[None]]) -> None:
        while self._running:
            await work()
            await asyncio.sleep(_CALM_S)

    async def _attempt(self, call: Awaitable[Any], *attempt: object) -> Answer:
        operation = next(self._operations)
        say("try", operation, *attempt)
        try:
            result = await call
        except RollbookError as error:
            if error.outcome is Outcome.NOT_APPLIED:
                say("refused", operation, type(error).__name__)
            else:
                say("unknown", operation)
            return Answer(error.outcome)
        match result:
            case Node(value, stat):
                said: object = (value.decode(), stat.version)
            case NodeStat(version):
                said = version
            case list():
                said = None
            case _:
                said = result
        say("ok", operation, said)
        return Answer(Outcome.APPLIED, result)

    async def _get(self, path: str) -> Node | None:
        while True:
            answer = await self._attempt(self._store.get(path), "get", path)
            if answer.is_ok:
                node: Node | None = answer.result
                return node

    def _new_name(self) -> str:
        return f"{self._name}-{next(self._numbers)}"

    # --- Work -----------------------------------------------------------------------------------

    async def _step(self) -> None:
        """Makes one step of a shared counter, with its entry in the log."""
        counter, token = self._chance.choice(COUNTER_NAMES), self._new_name()
        path = f"{COUNTERS}/{counter}"
        try:
            node = await self._store.get(path)
        except RollbookError:
            return
        if node is None:
            say("bad", f"{path} is gone")
            return
        number, last_token = node.value.decode().split()
        n = int(number)
        if n:
            say("saw", counter, n, last_token)
        ops = (
            Set(path, f"{n + 1} {token}".encode(), node.stat.version),
            Create(f"{LOG}/{counter}/{n + 1:08}", token.encode()),
        )
        await self._attempt(self._store.transaction(ops), "step", counter, n + 1, token)

    async def _live_a_path(self) -> None:
        """Creates, changes, deletes and recreates a path of our own, with reads in between."""
        path = f"{PATHS}/{self._new_name()}"
        node: Node | None = None
        for _ in range(self._chance.randrange(1, 8)):
            value = self._new_name()
            if node is None:
                call: Awaitable[Any] = self._store.create(path, value.encode())
                answer = await self._attempt(call, "create", path, value)
            elif self._chance.random() < 0.3:
                version = node.stat.version
                answer = await self._attempt(
                    self._store.delete(path, version), "delete", path, version
                )
            else:
                version = node.stat.version
                call = self._store.set(path, value.encode(), version)
                answer = await self._attempt(call, "set", path, value, version)
            if answer.outcome is Outcome.NOT_APPLIED:
                continue
            node = await self._get(path)

    async def _take_a_number(self) -> None:
        value = self._new_name()
        call = self._store.create(f"{NUMBERS}/n-", value.encode(), CreateMode.PERSISTENT_SEQUENTIAL)
        answer = await self._attempt(call, "number", f"{NUMBERS}/n-", value)
        if answer.is_ok and self._chance.random() < 0.8:
            path: str = answer.result
            await self._attempt(self._store.delete(path, 0), "delete", path, 0)

    async def _change_watched(self) -> None:
        """Creates and later deletes nodes that all clients watch, and waits for its own events."""
        made: list[str] = []
        while self._running:
            path = f"{WATCHED}/{self._new_name()}"
            told = self._mirror.expect(path)
            answer = await self._attempt(self._store.create(path), "create", path, "")
            if answer.is_ok:
                made.append(path)
                try:
                    async with asyncio.timeout(_EVENT_TIMEOUT_S):
                        await told
                except TimeoutError:
                    say("bad", f"no event and no RESYNC {_EVENT_TIMEOUT_S} s after {path} was made")
            self._mirror.expect_no_more(path)
            if len(made) > _WATCHED_MAX:
                path = made.pop(0)
                await self._attempt(self._store.delete(path, 0), "delete", path, 0)
            await asyncio.sleep(_CALM_S)

    # --- Our session ----------------------------------------------------------------------------

    async def _watch_session(self) -> None:
        async for event in self._store.session_events():
            if event.state is SessionState.EXPIRED:
                say("bad", f"session {event.session} expired though its heartbeats came")

    async def _make_live(self) -> None:
        path = f"{LIVE}/{self._name}"
        while self._live is None:
            try:
                await self._store.create(path, mode=CreateMode.EPHEMERAL)
            except NodeExists:
                pass  # An earlier attempt with an unknown outcome created it.
            except RollbookError:
                continue
            try:
                node = await self._store.get(path)
            except RollbookError:
                continue
            assert node is not None
            assert node.stat.owner == self._store.session
            self._live = node.stat

    async def _check_live(self) -> None:
        await asyncio.sleep(_CHECK_LIVE_S)
        try:
            node = await self._store.get(f"{LIVE}/{self._name}")
        except RollbookError:
            return
        if node is None or node.stat != self._live:
            say("bad", f"our ephemeral node is {node}, not {self._live}")


class Mirror:
    """The nodes below `/watched`, known from the events of one watch.

    It takes events at once, and reads their nodes concurrently.
    """

    def __init__(self, store: MetadataStore) -> None:
        self.values: dict[str, str] = {}
        self._store = store
        self._expected: dict[str, asyncio.Future[None]] = {}
        self._unread: dict[str, None] = {WATCHED: None}  # This path stands for all nodes.
        self._is_unread = asyncio.Event()
        self._is_unread.set()

    async def follow(self, watch: Watch) -> None:
        async for event in watch:
            if event.kind is WatchEventKind.RESYNC:
                for future in self._expected.values():
                    _finish(future)
            elif event.path in self._expected:
                _finish(self._expected[event.path])
            self._unread[event.path] = None  # RESYNC has the path of the watched node.
            self._is_unread.set()

    def expect(self, path: str) -> asyncio.Future[None]:
        """Returns a future that is done after an event of this path, or RESYNC."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._expected[path] = future
        return future

    def expect_no_more(self, path: str) -> None:
        self._expected.pop(path).cancel()

    async def read(self) -> None:
        while True:
            await self._is_unread.wait()
            self._is_unread.clear()
            paths, self._unread = self._unread, {}
            try:
                if WATCHED in paths:
                    names = await self._store.children(WATCHED)
                    paths |= dict.fromkeys([*self.values, *(f"{WATCHED}/{name}" for name in names)])
                    del paths[WATCHED]
                waiting = list(paths)
                while waiting:
                    some, waiting = waiting[:_READS_AT_ONCE], waiting[_READS_AT_ONCE:]
                    nodes = await asyncio.gather(*map(self._store.get, some))
                    for path, node in zip(some, nodes, strict=True):
                        if node is None:
                            self.values.pop(path, None)
                        else:
                            self.values[path] = node.value.decode()
            except RollbookError:
                # Does not read everything: RESYNC has to come by itself.
                self._unread = {**paths, **self._unread}
                self._is_unread.set()
                await asyncio.sleep(_CALM_S)


def _finish(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


async def main(url: str, name: str, session_timeout_s: str) -> None:
    # A power cut removes the folder for a moment; surviving clients would log that.
    configure_logs(level="error", stream=io.StringIO())
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(commands), sys.stdin
    )
    store = await open_metadata_store(url, session_timeout_s=float(session_timeout_s))
    load = Load(store, name)

    async def finish() -> None:
        assert await commands.readline() == b"finish\n"

    await load.run(finish())
    while await commands.readline():
        say("mirror", load.mirror())
    await load.end()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
