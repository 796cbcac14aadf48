"""The crash images: no promise is broken by the storage as it is, and by each broken one some are."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rollbook.bookie import boot
from rollbook.bookie.boot import _Boot
from rollbook.bookie.catalog import CatalogFiles, _Generation
from rollbook.bookie.checkpoint import Checkpointer
from rollbook.bookie.core import records
from rollbook.bookie.core.fencing import LedgerFacts
from rollbook.bookie.journal import Journal, JournalFile
from rollbook.bookie.storage import Storage
from tests.support.crash_images import CrashImages, crash_everywhere, record, small_and_quiet


@pytest.fixture(autouse=True)
def _small_and_quiet() -> Iterator[None]:
    with small_and_quiet():
        yield


@pytest.mark.parametrize("seed", range(1, 4))
def test_no_power_cut_breaks_a_promise(seed: int) -> None:
    """B1, B3, B4, B5: at every disk operation of a store's lives, and again during recovery."""
    result = CrashImages("images")
    crash_everywhere(seed, result, sample=3, second_odds=0.05)
    assert not result.failures
    assert result.passed > 200
    assert result.second_crashes > 20


def test_a_trace_is_a_function_of_its_seed() -> None:
    assert record(5).operations == record(5).operations


# --- Proof that they can fail ---------------------------------------------------------------------


async def _write_without_sync(self: Journal, write: Any) -> None:
    await self.active.records.file.write_at(write.position, write.buffers)
    self.active.packer.on_synced(write)


async def _append_to_one_copy_unsynced(self: _Generation, body: bytes) -> None:
    await self.append_unsynced(body)


async def _sync_nothing(*_: Any) -> None:
    pass


def _forget_fence(self: LedgerFacts) -> LedgerFacts:
    return self


async def _unlink_before_the_catalog(self: Checkpointer, file: JournalFile, facts: Any) -> Any:
    await self._disk.unlink(file.path)
    await self._disk.sync_directory(self._config.journal_dir)
    return await _checkpoint(self, file, facts)


_checkpoint = Checkpointer.checkpoint


def _answer_before_the_sync(self: Storage, *arguments: Any, **_: Any) -> Any:
    return _append(self, *arguments, is_sync_deferred=True)  # type: ignore[arg-type]  # Of Journal.


_append = Journal.append

Break = Callable[[pytest.MonkeyPatch], None]
BREAKS: dict[str, Break] = {
    "journal never syncs": lambda m: m.setattr(Journal, "_write", _write_without_sync),
    "answers come before the sync": lambda m: m.setattr(Journal, "append", _answer_before_the_sync),
    "catalog never syncs": lambda m: m.setattr(_Generation, "append", _append_to_one_copy_unsynced),
    "boot builds on a journal that is not synced": lambda m: m.setattr(
        _Boot, "_settle", _sync_nothing
    ),
    "boot builds on a catalog that is not synced": lambda m: m.setattr(
        CatalogFiles, "_sync", _sync_nothing
    ),
    "fences are forgotten": lambda m: m.setattr(LedgerFacts, "with_fence", _forget_fence),
    "new names are not synced": lambda m: m.setattr(boot, "_sync_ancestors", _sync_nothing),
    "the journal goes before the catalog knows": lambda m: m.setattr(
        Checkpointer, "checkpoint", _unlink_before_the_catalog
    ),
    "torn tails are not told from rot": lambda m: m.setattr(
        boot,
        "scan",
        lambda reader, **known: records.scan(reader, **known | {"durable_through": 9**9}),
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_broken_storage_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BREAKS[name](monkeypatch)
    result = CrashImages("images")
    for seed in range(1, 60):
        crash_everywhere(seed, result, sample=4, second_odds=0.05)
        if result.failures:
            return
    pytest.fail(f"{result.passed} images, and nothing was noticed")
