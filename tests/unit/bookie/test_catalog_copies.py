"""The two copies of the catalog when they differ, are old, or are damaged."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

import pytest
import structlog

from rollbook.bookie.catalog_files import CatalogFiles
from rollbook.bookie.config import StorageConfig
from rollbook.bookie.core.suggested_commands import WRITE_OFF
from rollbook.bookie.storage import Storage
from rollbook.proto.errors import DataLost, EntryStateUnknown
from rollbook.proto.ports import OpenMode
from tests.messages import raises_message
from tests.simulation.kernel import Node, World
from tests.unit.bookie.serving import add_entries

CONFIG = StorageConfig("/j", ("/l1", "/l2", "/l3"), journal_file_bytes=16 * 1024, idle_after_ms=20)
DIRECTORIES = ("/l1", "/l3")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)


async def opened(node: Node, *, accepts_loss: bool = False) -> Storage:
    storage = await Storage.open(
        node.disk, CONFIG, node.clock, node.randomness, accepts_loss=accepts_loss
    )
    storage.start()
    return storage


async def filled(node: Node, ledger_id: int) -> Storage:
    """Opens the storage and adds entries until there are two entry logs."""
    storage = await opened(node)
    for start in range(0, 200, 20):
        await add_entries(storage, ledger_id, range(start, start + 20), bytes(300))
    async with asyncio.timeout(60):
        while len(storage.catalog.logs) < 2:
            await asyncio.sleep(0.01)
    return storage


async def catalogs(node: Node) -> list[str]:
    return [
        f"{directory}/{name}"
        for directory in DIRECTORIES
        for name in await node.disk.list_directory(directory)
        if name.startswith("catalog-")
    ]


async def put(node: Node, path: str, contents: bytes) -> None:
    if await node.disk.stat(path):
        await node.disk.unlink(path)
    file = await node.disk.open(path, OpenMode.CREATE)
    await file.write_and_sync(0, [contents])
    await file.close()
    await node.disk.sync_directory(path.rpartition("/")[0])


Story = Callable[[Node], Awaitable[None]]


def tell(story: Story) -> None:
    """Runs the story on a machine with an empty store."""
    world = World(1)

    async def main(node: Node) -> None:
        await Storage.make(node.disk, CONFIG, node.randomness)
        await story(node)

    async def scenario() -> None:
        await world.node("b1").start(main).result

    world.run(scenario())


def test_copies_differing_after_a_kill_are_repaired_on_a_full_disk() -> None:
    """B5: the change counts, and its repair needs no free space."""

    async def story(node: Node) -> None:
        storage = await opened(node)
        await add_entries(storage, 7, [0])
        await storage.close()
        first = (await catalogs(node))[0]
        before = node.disk.contents(first)
        storage = await opened(node)
        await storage.distrust([9])
        await storage.close()
        assert before
        await put(node, first, before)
        node.disk.capacity_bytes = node.disk.system.used_bytes
        storage = await opened(node)
        assert storage.is_fenced(9)
        await storage.close()
        found = await CatalogFiles.look(node.disk, DIRECTORIES, node.randomness)
        assert found
        assert not found.damaged
        one, other = [node.disk.contents(path) for path in await catalogs(node)]
        assert one
        assert other
        sizes = {len(contents.rstrip(b"\0")) for contents in (one, other)}
        assert len(sizes) == 1  # The copies differ in their ids, not in their records.

    tell(story)


def test_stale_catalogs_are_refused_and_no_log_is_deleted() -> None:
    """B1: they were restored from a backup, so logs unknown to them are not garbage."""

    async def story(node: Node) -> None:
        storage = await opened(node)
        await storage.close()
        old = {path: node.disk.contents(path) for path in await catalogs(node)}
        storage = await filled(node, 7)
        await storage.close()
        for path in await catalogs(node):
            await node.disk.unlink(path)
        for path, contents in old.items():
            assert contents
            await put(node, path, contents)
        names = {each: await node.disk.list_directory(each) for each in ("/j", *CONFIG.ledger_dirs)}
        with raises_message(DataLost) as refused:
            await opened(node)
        assert WRITE_OFF in refused.value.next_step
        for each, before in names.items():
            assert await node.disk.list_directory(each) == before
        storage = await opened(node, accepts_loss=True)
        with pytest.raises(EntryStateUnknown):
            await storage.read(7, 0)
        await storage.close()

    tell(story)


def test_store_without_a_sound_catalog_is_refused_as_damaged() -> None:
    """B1: it must not be taken for a new store."""

    async def story(node: Node) -> None:
        storage = await filled(node, 7)
        await storage.close()
        for path in await catalogs(node):
            contents = node.disk.contents(path)
            assert contents
            await put(node, path, bytes(8192) + contents[8192:])
        with raises_message(DataLost):
            await opened(node)

    tell(story)
