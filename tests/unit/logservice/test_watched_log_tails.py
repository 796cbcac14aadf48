"""Tails of many logs from log servers over real bookies: all at first, then changes; none is opened."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import pytest

from rollbook.logservice import messages, watched_log_tails
from rollbook.logservice.core.record_block import pack_block
from rollbook.logservice.ids import LogName, Offset
from rollbook.logservice.log_config import LogConfig
from rollbook.logservice.log_metadata import LogMetadataStore
from rollbook.logservice.position_syntax import AtOffset
from rollbook.proto.errors import MetadataUnavailable
from tests.support.log_cluster import PATIENCE_S, LogCluster, RunningServer

COUNT: Final = 2000
_MADE_AT_ONCE: Final = 250


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LogCluster]:
    async with LogCluster(tmp_path) as cluster:
        yield cluster


class Watching:
    """The tails that a watcher of one server has received."""

    def __init__(self, server: RunningServer, *prefixes: str, logs: tuple[LogName, ...] = ()):
        self.known: dict[LogName, messages.TailOfLog] = {}
        self.messages = 0
        self.is_complete = False
        self._stream = server.service.watch_tails(messages.WatchTails(logs, prefixes))

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():
                message = await anext(self._stream)
                self.messages += 1
                self.known.update((tail.log, tail) for tail in message.tails)
                for log in message.gone:
                    self.known.pop(log, None)
                self.is_complete = message.is_complete

    async def until_complete(self) -> dict[LogName, messages.TailOfLog]:
        await self.until(lambda: self.is_complete)
        return self.known

    async def until_tail(self, log: LogName, tail: int) -> messages.TailOfLog:
        await self.until(lambda: log in self.known and self.known[log].tail == tail)
        return self.known[log]

    async def close(self) -> None:
        await self._stream.aclose()  # type: ignore[attr-defined]  # It is a generator.


def due() -> float:
    return asyncio.get_running_loop().time() + PATIENCE_S


async def make(server: RunningServer, *names: LogName) -> None:
    for start in range(0, len(names), _MADE_AT_ONCE):
        part = names[start : start + _MADE_AT_ONCE]
        await asyncio.gather(*(server.server.nodes.create(each, LogConfig()) for each in part))


async def append(server: RunningServer, log: LogName, *values: bytes) -> messages.AppendAck:
    return await server.service.append(messages.Append(log, pack_block(values)), due())


async def test_watching_thousands_of_logs_opens_none(cluster: LogCluster) -> None:
    """TW1."""
    a = await cluster.start_server("a")
    names = [LogName("big", f"log-{number}") for number in range(COUNT)]
    await make(a, *names, LogName("small", "log"))
    await append(a, names[0], b"x", b"y")
    opened = a.server.opened
    watching = Watching(a, "big/")
    known = await watching.until_complete()
    assert sorted(known) == sorted(names)
    assert all(tail.is_exact and tail.uid for tail in known.values())
    assert (known[names[0]].tail, known[names[0]].owner) == (2, a.address)
    assert (known[names[1]].tail, known[names[1]].owner) == (0, "")
    assert watching.messages < COUNT / 10  # Each message carries many logs.
    assert a.server.opened == opened
    await append(a, names[0], b"z")
    assert (await watching.until_tail(names[0], 3)).timestamp_us > 0
    await watching.close()


async def test_watcher_receives_log_changes(cluster: LogCluster) -> None:
    a = await cluster.start_server("a")
    one, two = LogName("ns", "one"), LogName("ns", "two")
    await make(a, one)
    watching = Watching(a, "ns/")
    await watching.until_complete()
    await make(a, two, LogName("other", "log"))
    await watching.until(lambda: two in watching.known)
    await append(a, one, b"a", b"b", b"c")
    await watching.until_tail(one, 3)
    await a.service.truncate(messages.Truncate(one, AtOffset(Offset(2))), due())
    await watching.until(lambda: watching.known[one].head == 2)
    await a.service.seal(messages.Seal(one), due())
    await watching.until(lambda: watching.known[one].is_sealed)
    uid = watching.known[two].uid
    await a.service.delete_log(messages.DeleteLog(two, grace_ms=0), due())
    await watching.until(lambda: two not in watching.known)
    assert set(watching.known) == {one}
    assert uid
    await watching.close()


async def test_each_log_is_reported_by_its_owner_or_suggested_server(
    cluster: LogCluster,
) -> None:
    a, b = [await cluster.start_server(name) for name in "ab"]
    async with asyncio.timeout(PATIENCE_S):
        while len(a.server.membership.servers) < 2:
            await asyncio.sleep(0.01)
    names = [LogName("ns", f"log-{number}") for number in range(40)]
    await make(a, *names)
    of_a, of_b = Watching(a, ""), Watching(b, "")
    parts = [set(await each.until_complete()) for each in (of_a, of_b)]
    assert parts[0] | parts[1] == set(names)
    assert not parts[0] & parts[1]
    log = min(parts[0])
    await append(a, log, b"x")
    await of_a.until_tail(log, 1)
    await a.service.transfer_log(messages.TransferLog(log, "b"), due())
    await append(b, log, b"y")
    moved = await of_b.until_tail(log, 2)
    assert (moved.is_exact, moved.owner) == (True, b.address)
    await of_a.until(lambda: of_a.known[log].owner == b.address)
    assert not of_a.known[log].is_exact  # Only the owner's tail is exact.
    for each in (of_a, of_b):
        await each.close()


async def test_tail_of_a_dead_owners_log_is_not_exact(
    cluster: LogCluster,
) -> None:
    """TW1: watching does not change the stored list, even if the owner has died."""
    a = await cluster.start_server("a")
    log = LogName("ns", "log")
    await make(a, log)
    await append(a, log, b"x", b"y")
    await append(a, log, b"z")
    a.server._owners[log].lose("it died")  # Leaves the list as a kill would.
    stored = await a.server.nodes.read(log)
    watching = Watching(a, logs=(log,))
    tail = (await watching.until_complete())[log]
    assert not tail.is_exact
    await watching.until(lambda: watching.known[log].tail >= 2)  # As bookies report.
    assert not watching.known[log].is_exact
    assert await a.server.nodes.read(log) == stored
    assert (await append(a, log, b"w")).first_offset == 3
    await watching.until(lambda: watching.known[log].is_exact and watching.known[log].tail == 4)
    await watching.close()


async def test_failed_scan_is_retried(cluster: LogCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata store timed out during the scan. No event follows, so the scan must be retried."""
    a = await cluster.start_server("a")
    log = LogName("ns", "log")
    await make(a, log)
    names, failures = LogMetadataStore.names, [MetadataUnavailable() for _ in range(10)]
    monkeypatch.setattr(watched_log_tails, "_PAUSE_S", 0.01)

    async def names_at_last(
        nodes: LogMetadataStore, namespace: str, prefix: str = ""
    ) -> list[LogName]:
        if failures:
            raise failures.pop()
        return await names(nodes, namespace, prefix)

    monkeypatch.setattr(LogMetadataStore, "names", names_at_last)
    watching = Watching(a, "ns/")
    assert [*await watching.until_complete()] == [log]
    assert not failures
    await watching.close()


async def test_no_tasks_run_without_watchers(cluster: LogCluster) -> None:
    a = await cluster.start_server("a")
    log = LogName("ns", "log")
    await make(a, log)
    await append(a, log, b"x")
    assert not tasks_of_directories()
    watching = Watching(a, "")
    await watching.until_complete()
    owner = a.server.find(log)
    assert owner is not None
    assert owner.tail_cache.on_grown is not None
    assert tasks_of_directories()
    await watching.close()
    assert owner.tail_cache.on_grown is None
    assert not tasks_of_directories()


def tasks_of_directories() -> list[str]:
    """Only tasks of tail directories: tasks of a bookie's journal start and end at any time."""
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    return [name for name in names if "TailDirectory." in name]
