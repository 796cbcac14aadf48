"""A new generation of the catalog is written while changes are committed."""

import asyncio
import errno
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbook.bookie import catalog_files as catalog_module
from rollbook.bookie.catalog_files import CatalogFiles, _Generation
from rollbook.bookie.core import catalog_records as changes
from rollbook.bookie.core.catalog import Catalog
from rollbook.bookie.core.fencing import LedgerFacts
from rollbook.proto.runtime.system_disk import SystemDisk

LEDGERS = 5_000


@pytest.fixture
def disk() -> Iterator[SystemDisk]:
    disk = SystemDisk()
    yield disk
    disk.close()


def facts(lac: int) -> LedgerFacts:
    return LedgerFacts(b"key", lac_of_packet=lac)


def pack(ledger_ids: range, lac: int) -> list[bytes]:
    return [changes.pack_ledger(each, facts(lac)) for each in ledger_ids]


async def filled(disk: SystemDisk, folder: Path) -> CatalogFiles:
    for name in "ab":
        (folder / name).mkdir()
    files = await CatalogFiles.create(disk, directories(folder), random.Random(1))
    await files.commit(pack(range(LEDGERS), 0))
    assert files._writing is None
    return files


def directories(folder: Path) -> tuple[str, str]:
    return f"{folder}/a", f"{folder}/b"


async def found_in(disk: SystemDisk, folder: Path) -> Catalog:
    files = await CatalogFiles.load(disk, directories(folder), random.Random(2))
    assert files
    await files.close()
    return files.catalog


def generations(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("catalog-*"))


def test_commits_during_a_new_generation_do_not_wait_and_are_kept(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B5."""

    async def story() -> None:
        files = await filled(disk, tmp_path)
        monkeypatch.setattr(catalog_module, "_ANEW_BYTES", 1)
        monkeypatch.setattr(catalog_module, "_ANEW_GROWTH", 1)
        await files.commit(pack(range(1), 1))
        assert files._writing
        beside = 0
        while not files._writing.done():
            beside += 1
            # No further generation is wanted.
            monkeypatch.setattr(catalog_module, "_ANEW_BYTES", 10**9)
            await files.commit(pack(range(beside, LEDGERS, 7), beside))
        assert beside >= 3
        assert generations(tmp_path) == ["catalog-0000000002.a", "catalog-0000000002.b"]
        await files.commit(pack(range(3), 10**6))
        await files.close()
        assert (await found_in(disk, tmp_path)).facts == files.catalog.facts
        assert files.catalog.facts[2] == facts(10**6)

    asyncio.run(story())


@pytest.mark.parametrize("number", [1, 4, 9])
def test_generation_is_abandoned_when_the_disk_is_full(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    append, calls = _Generation.append_unsynced, 0

    async def full(self: _Generation, body: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls >= number:
            raise OSError(errno.ENOSPC, "no room")
        await append(self, body)

    async def story() -> None:
        files = await filled(disk, tmp_path)
        monkeypatch.setattr(catalog_module, "_ANEW_BYTES", 1)
        monkeypatch.setattr(catalog_module, "_ANEW_GROWTH", 1)
        monkeypatch.setattr(_Generation, "append_unsynced", full)
        await files.commit(pack(range(1), 1))
        assert files._writing
        monkeypatch.setattr(catalog_module, "_ANEW_BYTES", 10**9)
        for lac in range(5):
            await files.commit(pack(range(100), lac))
        await files._writing
        assert generations(tmp_path) == ["catalog-0000000001.a", "catalog-0000000001.b"]
        await files.commit(pack(range(3), 10**6))
        await files.close()
        assert (await found_in(disk, tmp_path)).facts == files.catalog.facts

    asyncio.run(story())


def test_close_during_a_new_generation_keeps_the_current_one(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        files = await filled(disk, tmp_path)
        monkeypatch.setattr(catalog_module, "_ANEW_BYTES", 1)
        monkeypatch.setattr(catalog_module, "_ANEW_GROWTH", 1)
        await files.commit(pack(range(1), 1))
        while len(generations(tmp_path)) < 4:
            await asyncio.sleep(0)
        await files.commit(pack(range(1), 2))
        await files.close()
        assert (await found_in(disk, tmp_path)).facts == files.catalog.facts
        assert len(generations(tmp_path)) == 2

    asyncio.run(story())
