"""Crash images: the storage breaks no promise, and storages with planted flaws do."""

import random
from collections.abc import Iterator

import pytest

from tests.crash.images.cuts import Crashes, crash_everywhere, images
from tests.crash.images.life import record, small_and_quiet
from tests.crash.images.run import find_flaw
from tests.simulation.kernel.filesystem import FileSystem, every_power_cut


@pytest.fixture(autouse=True)
def _small_and_quiet() -> Iterator[None]:
    with small_and_quiet():
        yield


def test_no_power_cut_breaks_a_promise() -> None:
    """B1, B3, B4, B5: power cuts at every disk operation of a store's lives, and during recovery."""
    crashes = Crashes()
    for seed in (0, 1):
        crashes.add(crash_everywhere(seed, sample=2))
    assert not crashes.failures
    assert crashes.images > crashes.moments > 50
    assert crashes.again > 10


def test_a_trace_is_a_function_of_its_seed() -> None:
    assert record(5).operations == record(5).operations


def torn() -> FileSystem:
    """Three sectors, one written twice, and a name: 2 · 2 · 3 · 2 combinations, some of them equal."""
    system = FileSystem()
    number = system.create("/a")
    system.sync_directory("/")
    system.write(number, 0, b"x" * 1536)
    system.write(number, 512, b"y" * 512)
    system.create("/b")
    return system


def test_small_sets_of_images_are_complete_without_duplicates() -> None:
    def tree(system: FileSystem) -> str:
        return repr(system._tree())

    found = [tree(image) for image in images(torn(), random.Random(1), 1000)]
    assert set(found) == {tree(image) for image in every_power_cut(torn())}
    assert len(found) <= sum(1 for _ in every_power_cut(torn()))


def test_large_sets_of_images_are_sampled() -> None:
    found = [repr(image._tree()) for image in images(torn(), random.Random(1), 8)]
    assert 4 < len(found) <= 9


@pytest.mark.parametrize(
    "name", ["the journal never syncs", "a record calls itself durable", "fences are forgotten"]
)
def test_a_planted_flaw_is_found(name: str) -> None:
    """`python -m tests mutants` tries the other flaws."""
    assert find_flaw((name, 0)).what is not None
