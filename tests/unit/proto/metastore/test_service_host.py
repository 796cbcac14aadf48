"""Group commit of a host, and how a host closes."""

import asyncio
import random

import pytest

from rollbook.proto.metastore.core.metadata_service import CommitGroup, Kept
from rollbook.proto.metastore.core.tree import Tree
from rollbook.proto.metastore.memory import MemoryLine
from rollbook.proto.metastore.service_client import StoreClient
from rollbook.proto.metastore.service_host import Host
from rollbook.proto.runtime.clock import SystemClock


class Disk:
    """Keeps a batch while `go` is set."""

    def __init__(self) -> None:
        self.batches: list[CommitGroup] = []
        self.go = asyncio.Event()
        self.go.set()

    async def keep(self, batch: CommitGroup) -> None:
        await self.go.wait()
        self.batches.append(batch)


async def open_store(disk: Disk) -> tuple[Host, StoreClient]:
    host = Host(Kept("store", rows=list(Tree().rows())), SystemClock(), disk.keep)
    host.start()
    return host, await StoreClient(MemoryLine(host), random.Random(0)).open()


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_requests_during_a_commit_form_the_next_batch() -> None:
    disk = Disk()
    host, store = await open_store(disk)
    disk.batches.clear()
    disk.go.clear()
    calls = [asyncio.ensure_future(store.create("/first"))]
    await turns()
    calls += [asyncio.ensure_future(store.create(f"/{number}")) for number in range(50)]
    await turns()
    assert not any(call.done() for call in calls)
    disk.go.set()
    await asyncio.gather(*calls)
    assert [len(batch.rows) for batch in disk.batches] == [2, 51]  # With the parent's counter.
    await store.close()
    await host.close()


async def test_closing_host_keeps_earlier_requests_and_ignores_later_ones() -> None:
    disk = Disk()
    host, store = await open_store(disk)
    disk.go.clear()
    heard = asyncio.ensure_future(store.create("/heard"))
    await turns()
    closing = asyncio.ensure_future(host.close())
    await turns()
    late = asyncio.ensure_future(store.create("/late"))
    await turns()
    disk.go.set()
    await closing
    assert await heard == "/heard"
    late.cancel()
    await asyncio.gather(late, return_exceptions=True)
    assert host.service.tree.children("/") == ["heard"]
    await store.close()


async def test_failed_commit_stops_commits_and_answers() -> None:
    disk = Disk()
    host, store = await open_store(disk)

    async def fail(batch: CommitGroup) -> None:
        raise OSError("no space left")

    host._keep = fail
    call = asyncio.ensure_future(store.create("/a"))
    await turns()
    host._keep = disk.keep
    disk.batches.clear()
    read = asyncio.ensure_future(store.get("/a"))
    await turns()
    assert not call.done()
    assert not read.done()
    assert disk.batches == []
    await host.close()
    for waiting in (call, read):
        waiting.cancel()
    await asyncio.gather(call, read, return_exceptions=True)
    await store.close()


@pytest.mark.parametrize("closed_first", ["host", "store"])
async def test_host_and_store_close_in_any_order(closed_first: str) -> None:
    disk = Disk()
    host, store = await open_store(disk)
    for end in (host, store) if closed_first == "host" else (store, host):
        await end.close()
    assert host.connection_count == 0
