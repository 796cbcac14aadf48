"""Crashes at every step of a compaction, and planted flaws that they must find."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import pytest

from rollbook.bookie.catalog_files import CatalogFiles
from rollbook.bookie.config import StorageConfig
from rollbook.bookie.core.catalog_records import COMPACTED, Change
from rollbook.bookie.sorted_log_writer import SortedLog
from rollbook.bookie.storage import Storage
from rollbook.proto.errors import NoSuchLedger, RollbookError
from tests.crash.images.cuts import after, images
from tests.crash.images.life import small_and_quiet
from tests.crash.images.step_disk import StepDisk, step
from tests.simulation.kernel import Node, World
from tests.simulation.kernel.filesystem import FileSystem, Operation
from tests.support.clocks import StandingClock
from tests.unit.bookie.test_compaction import compactor_of, delete
from tests.unit.bookie.test_storage import add, entry, open_storage, settle

CONFIG = StorageConfig(
    "/bookie/journal",
    ("/bookie/ledgers1", "/bookie/ledgers2"),
    journal_file_bytes=16 * 1024,
    cache_bytes=64 * 1024,
    idle_after_ms=5,
)
LEDGERS, ENTRIES, KEPT = range(6), range(12), (0, 3)


@pytest.fixture(autouse=True)
def _small_and_quiet() -> Iterator[None]:
    with small_and_quiet():
        yield


def record() -> tuple[list[Operation], int]:
    """Disk operations of a life that ends in a compaction, and the index at which that begins."""
    operations: list[Operation] = []
    began = 0
    world = World(11)
    node = world.node("b1")

    async def main(node: Node) -> None:
        nonlocal began
        node.disk.record = operations
        await Storage.make(node.disk, CONFIG, node.randomness)
        storage = await open_storage(node, CONFIG)
        storage.start()
        for entry_id in ENTRIES:
            await add(storage, *((each, entry_id) for each in LEDGERS), payload=bytes(600))
        await settle(storage)
        await delete(storage, *(each for each in LEDGERS if each not in KEPT))
        began = len(operations)
        await compactor_of(storage, node, storage_config=CONFIG).compact(major=True)
        assert max(storage.catalog.logs) > COMPACTED
        await storage.close()

    async def scenario() -> None:
        await node.start(main).result

    world.run(scenario())
    return operations, began


def crash_everywhere() -> list[str]:
    """Judges every crash image; returns the failures."""
    operations, began = record()
    system, chance, found = FileSystem(), random.Random(1), list[str]()
    count = 0
    for now, operation in enumerate(operations, 1):
        system = after(system, operation)
        if now < began:
            continue
        for image in images(system, chance, 24):
            count += 1
            try:
                judge(image)
            except (AssertionError, RollbookError, OSError) as error:
                found.append(f"{now}: {type(error).__name__}: {error}")
    assert count > 100
    return found


def judge(image: FileSystem) -> None:
    storage = step(Storage.open(StepDisk(image), CONFIG, StandingClock(), random.Random(1)))
    for ledger_id in LEDGERS:
        for entry_id in ENTRIES:
            if ledger_id in KEPT:
                expected = entry(ledger_id, entry_id, bytes(600))
                assert step(storage.read(ledger_id, entry_id)) == expected
            else:
                with pytest.raises(NoSuchLedger):
                    step(storage.read(ledger_id, entry_id))


def test_no_crash_during_a_compaction_loses_anything() -> None:
    """B5, B12."""
    assert crash_everywhere() == []


async def _unlink_first(self: Storage, numbers: Sequence[int], *more: Any) -> None:
    for number in numbers:
        await self._disk.unlink(self._path_of_log(number))
    await _replace_logs(self, numbers, *more)


_replace_logs = Storage.replace_logs


async def _unlog_first(self: CatalogFiles, changes: Sequence[bytes]) -> None:
    """Commits the removal of logs first, in a separate record."""
    gone = [change for change in changes if change[0] == Change.UNLOG]
    await self.commit_latest(lambda: gone)
    rest = [change for change in changes if change[0] != Change.UNLOG]
    await self.commit_latest(lambda: rest)


async def _finish_without_syncs(self: SortedLog, *arguments: Any) -> Any:
    disk, file = self._disk, self._file

    async def nothing(*_: Any) -> None: ...

    self._disk = mock.Mock(wraps=disk, sync_directory=nothing)
    self._file = mock.Mock(wraps=file, sync=nothing)
    new = await _finish(self, *arguments)
    new.records.file = file
    return new


_finish = SortedLog.finish


@pytest.mark.parametrize(
    ("owner", "name", "flaw"),
    [
        (Storage, "replace_logs", _unlink_first),
        (CatalogFiles, "commit", _unlog_first),
        (SortedLog, "finish", _finish_without_syncs),
    ],
)
def test_wrong_ways_to_replace_logs_are_found(
    owner: type, name: str, flaw: Callable[..., Any]
) -> None:
    with mock.patch.object(owner, name, flaw):
        assert crash_everywhere()
