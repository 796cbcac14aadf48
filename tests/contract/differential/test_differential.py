"""The stores agree on random histories, and these find stores with a planted mistake."""

import random
from collections.abc import AsyncIterator, Iterator

import pytest

from rollbook.proto.errors import RollbookError
from rollbook.proto.metastore.memory import MemoryService
from rollbook.proto.ports import Create
from rollbook.proto.runtime.clock import SystemClock
from tests.contract.differential.broken import (
    BROKEN_TREES,
    REPEATED_CAUSES,
    BrokenStage,
    BrokenTree,
    DeletesAnyVersion,
    RepeatingStage,
)
from tests.contract.differential.plan import Apply, Plan, make_plan
from tests.contract.differential.run import _run, difference, explain, shrink, silence
from tests.contract.differential.stages import MemoryStage, Stage, memory_stage
from tests.support.zookeeper import ZooKeeperServer
from tests.tally import Tally

HISTORIES = 60
SEEDS_TO_FIND_A_MISTAKE_MAX = 100


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with silence():
        yield


@pytest.fixture
async def sound() -> AsyncIterator[MemoryStage]:
    async with memory_stage() as stage:
        yield stage


@pytest.fixture
async def service() -> AsyncIterator[MemoryService]:
    service = MemoryService(SystemClock(), random.Random(0))
    yield service
    await service.close()


@pytest.mark.timeout(600)  # Each play has its own time-out, for slow disks too.
async def test_stores_agree_on_random_histories(zookeeper_server: ZooKeeperServer) -> None:
    tally = Tally("histories")
    said: list[str] = []
    await _run(range(HISTORIES), zookeeper_server, tally, said.append)
    assert tally.failed == 0, "\n".join(said)
    assert tally.passed == HISTORIES


@pytest.mark.parametrize("tree", BROKEN_TREES)
async def test_wrong_operations_are_found(
    tree: type[BrokenTree], sound: MemoryStage, service: MemoryService
) -> None:
    await _first_difference([sound, BrokenStage(service, tree)])


@pytest.mark.parametrize("cause", REPEATED_CAUSES)
async def test_client_that_repeats_uncertain_calls_is_found(
    cause: type[RollbookError], sound: MemoryStage, service: MemoryService
) -> None:
    await _first_difference([sound, RepeatingStage(service, cause)])


async def test_history_is_shrunk_to_the_steps_that_matter(
    sound: MemoryStage, service: MemoryService
) -> None:
    stages: list[Stage] = [sound, BrokenStage(service, DeletesAnyVersion)]
    seed, plan = await _first_difference(stages)
    shrunk = await shrink(plan, stages)
    assert len(shrunk) <= 3  # Create a node, perhaps its parent too; delete another version of it.
    assert all(step.fault is None for step in shrunk)
    assert isinstance(shrunk[0].call, Apply)
    assert isinstance(shrunk[0].call.op, Create)
    text = await explain(seed, shrunk, stages)
    assert f"seed {seed} tells the stores apart" in text
    assert "MetadataConflict" in text


async def test_a_broken_tree_without_its_mistake_is_sound(
    sound: MemoryStage, service: MemoryService
) -> None:
    """The tests above find the mistake, not the machinery that plants it."""
    stages: list[Stage] = [sound, BrokenStage(service, BrokenTree)]
    for seed in range(SEEDS_TO_FIND_A_MISTAKE_MAX):
        assert await difference(make_plan(seed), stages) is None


def test_the_same_seed_makes_the_same_plan() -> None:
    assert make_plan(7) == make_plan(7)
    assert make_plan(7) != make_plan(8)


async def _first_difference(stages: list[Stage]) -> tuple[int, Plan]:
    for seed in range(SEEDS_TO_FIND_A_MISTAKE_MAX):
        plan = make_plan(seed)
        if await difference(plan, stages) is not None:
            return seed, plan
    pytest.fail(f"{SEEDS_TO_FIND_A_MISTAKE_MAX} histories did not tell them apart")
