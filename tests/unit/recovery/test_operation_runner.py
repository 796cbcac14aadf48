"""Long-running operations that survive the process running them."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from rollbook.proto.cluster.cluster_root import Cluster, initialise
from rollbook.proto.cluster.election import Election
from rollbook.proto.errors import DuplicateDiffers, InvalidRequest, OperationEnded, Overloaded
from rollbook.proto.ids import BookieId
from rollbook.proto.metastore.memory import MemoryService
from rollbook.proto.ports import MetadataStore
from rollbook.proto.runtime.clock import SystemClock
from rollbook.recovery import operation_nodes as module
from rollbook.recovery.core.operations import LastingOperation, OperationStatus, id_of_key
from rollbook.recovery.operation_nodes import RUNNER, OperationNodes
from rollbook.recovery.operation_runner import OperationKind, OperationProgress, OperationRunner
from tests.unit.proto.cluster.faulty import FaultyStore
from tests.unit.recovery.test_auditor import until

DEADLINE_S = 20.0
NOW_MS = SystemClock().wall_us() // 1000


class Desk:
    """Operations that wait for the test, and a record of their runs."""

    def __init__(self, store: MetadataStore, cluster: Cluster) -> None:
        self.cluster = cluster
        self.nodes = OperationNodes(store, cluster)
        self.may_finish = asyncio.Event()
        self.runs: list[str] = []
        self.undone: list[Mapping[str, Any]] = []
        self.kinds = {
            "wait": OperationKind(self.wait, self.undo),
            "refuse": OperationKind(self.refuse),
            "count": OperationKind(self.count),
        }

    async def wait(self, run: OperationProgress) -> Mapping[str, Any]:
        self.runs.append(run.about["name"])
        if not run.notes:
            await run.note({"first": True})
        await self.may_finish.wait()
        return {"name": run.about["name"]}

    async def count(self, run: OperationProgress) -> Mapping[str, Any]:
        run.on_progress(5, 5)
        return {}

    async def undo(self, run: OperationProgress) -> None:
        self.undone.append(run.notes)

    async def refuse(self, run: OperationProgress) -> Mapping[str, Any]:
        run.on_progress(2, 5)
        raise InvalidRequest("no")

    async def begin(self, name: str, kind: str = "wait", key: str = "") -> str:
        operation_id = id_of_key("ops", key or name)
        wanted = LastingOperation(operation_id, kind, {"name": name}, "ops", NOW_MS)
        return (await self.nodes.create(wanted, NOW_MS)).id

    async def read(self, operation_id: str) -> LastingOperation:
        found = await self.nodes.read(operation_id)
        assert found is not None
        return found.operation

    async def until(self, operation_id: str, state: OperationStatus) -> LastingOperation:
        async def is_so() -> bool:
            return (await self.read(operation_id)).state is state

        await until(is_so)
        return await self.read(operation_id)

    @contextlib.asynccontextmanager
    async def runner(self, store: MetadataStore) -> AsyncIterator[None]:
        clock = SystemClock()
        runner = OperationRunner(
            store, self.cluster, clock, self.kinds, lambda error: {"detail": error.message}
        )
        folder = f"{self.cluster.own_root}/{RUNNER}"
        election = Election(store, folder, BookieId("r:1"), above=self.cluster.own_root)
        task = asyncio.create_task(election.serve(runner.lead))
        try:
            yield
            if task.done():
                task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def desk(service: MemoryService, rival: MetadataStore) -> AsyncIterator[Desk]:
    async with asyncio.timeout(DEADLINE_S):
        yield Desk(rival, await initialise(rival, "/ledgers", random.Random(1)))


async def test_started_operation_is_completed_by_the_next_process(
    desk: Desk, store: FaultyStore, rival: MetadataStore
) -> None:
    """OP4: its notes and its start time are those of the first process."""
    begun = await desk.begin("a")
    async with desk.runner(store):

        async def has_notes() -> bool:
            return (await desk.read(begun)).notes == {"first": True}

        await until(has_notes)
    started_ms = (await desk.read(begun)).started_ms
    desk.may_finish.set()
    async with desk.runner(rival):
        ended = await desk.until(begun, OperationStatus.DONE)
    assert (ended.result, ended.started_ms, desk.runs) == ({"name": "a"}, started_ms, ["a", "a"])


async def test_running_operation_can_be_cancelled_and_is_undone(
    desk: Desk, store: FaultyStore
) -> None:
    async with desk.runner(store):
        begun = await desk.begin("a")
        await desk.until(begun, OperationStatus.RUNNING)
        await desk.nodes.change(begun, lambda each: each.cancel_asked(1))
        await desk.until(begun, OperationStatus.CANCELLED)
        assert len(desk.undone) == 1
        with pytest.raises(OperationEnded):
            await desk.nodes.change(begun, lambda each: each.cancel_asked(1))


async def test_next_runner_cancels_an_interrupted_operation(
    desk: Desk, store: FaultyStore, rival: MetadataStore
) -> None:
    begun = await desk.begin("a")
    async with desk.runner(store):
        await desk.until(begun, OperationStatus.RUNNING)
    await desk.nodes.change(begun, lambda each: each.cancel_asked(1))
    async with desk.runner(rival):
        await desk.until(begun, OperationStatus.CANCELLED)
    assert (desk.runs, len(desk.undone)) == (["a"], 1)


async def test_refused_and_unknown_operations_fail(desk: Desk, store: FaultyStore) -> None:
    async with desk.runner(store):
        refused, unknown = (
            await desk.begin("a", "refuse"),
            await desk.begin("b", "of a later release"),
        )
        assert (await desk.until(refused, OperationStatus.FAILED)).problem == {"detail": "no"}
        await desk.until(unknown, OperationStatus.FAILED)


async def test_last_progress_is_written_with_the_end(desk: Desk, store: FaultyStore) -> None:
    async with desk.runner(store):
        counted, refused = await desk.begin("a", "count"), await desk.begin("b", "refuse")
        done = await desk.until(counted, OperationStatus.DONE)
        failed = await desk.until(refused, OperationStatus.FAILED)
    assert ((done.done, done.total), (failed.done, failed.total)) == ((5, 5), (2, 5))


async def test_at_most_eight_operations_run_at_once(desk: Desk, store: FaultyStore) -> None:
    ids = [await desk.begin(f"{number:02}") for number in range(11)]
    async with desk.runner(store):

        async def are_eight() -> bool:
            return len(desk.runs) == 8

        await until(are_eight)
        desk.may_finish.set()
        for each in ids:
            await desk.until(each, OperationStatus.DONE)


async def test_idempotency_key_belongs_to_one_request(desk: Desk) -> None:
    """OP2."""
    assert await desk.begin("a", key="k") == await desk.begin("a", key="k")
    with pytest.raises(DuplicateDiffers):
        await desk.begin("b", key="k")


async def test_oldest_ended_operation_is_dropped_at_the_limit(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OP3: if no operation has ended, a new one is refused."""
    monkeypatch.setattr(module, "KEPT_MAX", 3)
    ids = [await desk.begin(f"{number}") for number in range(3)]
    with pytest.raises(Overloaded):
        await desk.begin("one more")
    await desk.nodes.change(ids[1], lambda each: each.cancelled(NOW_MS))
    await desk.begin("one more")
    assert await desk.nodes.read(ids[1]) is None
    assert len(await desk.nodes.list()) == 3
