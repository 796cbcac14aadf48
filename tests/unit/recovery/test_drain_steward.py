"""The steward drains bookies and has formatted bookies checked."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from rollbook.proto.cluster.bookie_lifecycle_nodes import LifecycleNodes, StoredLifecycle
from rollbook.proto.cluster.bookie_watcher import BookieWatcher
from rollbook.proto.cluster.cookies import MemberNodes
from rollbook.proto.cluster.election import Election, Vote
from rollbook.proto.cluster.underreplication_marks import Marks
from rollbook.proto.formats.bookie_incarnation import BookieRecord, pack_bookie_record
from rollbook.proto.formats.lifecycle import Lifecycle, LifecycleState
from rollbook.proto.formats.service_info import describe_bookie, pack_service_info
from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.metastore.memory import MemoryService
from rollbook.proto.ports import Address, Create, CreateMode, Delete, MetadataStore
from rollbook.proto.runtime.clock import SystemClock
from rollbook.recovery import metastore_outage_retries
from rollbook.recovery.config import StewardConfig
from rollbook.recovery.core import bookie_drain_states
from rollbook.recovery.core.drain_steps import ATTEMPTS_WITHOUT_TARGET
from rollbook.recovery.core.repair_failures import Failure, LostEntries
from rollbook.recovery.drain_steward import Steward
from rollbook.recovery.drain_task_nodes import DrainTasks
from rollbook.recovery.known_incarnations import WholeNodes
from rollbook.recovery.ledger_index import LedgerIndex
from rollbook.recovery.repair_failure_nodes import Failures
from tests.unit.proto.cluster.faulty import Fate, FaultyStore
from tests.unit.recovery.test_auditor import ROOT, B, Site, until
from tests.unit.recovery.test_ledger_index import closed, moved

ACTIVE, DRAINING = LifecycleState.ACTIVE, LifecycleState.DRAINING
DRAINED, FAILED = LifecycleState.DRAINED, LifecycleState.DRAINING_FAILED


class CountingSteward(Steward):
    rounds = 0  # Started rounds; when one starts, the previous one has finished.

    async def _round(self, vote: Vote) -> None:
        self.rounds += 1
        await super()._round(vote)


async def finish_a_round(steward: CountingSteward) -> None:
    """Wait until a round that started after this call has ended."""
    rounds = steward.rounds

    async def is_so() -> bool:
        return steward.rounds >= rounds + 2

    await until(is_so)


class DrainSite(Site):
    """With an operator who changes lifecycles, and a worker that moves slots without copying."""

    async def start(self, bookies: int) -> None:
        await super().start(bookies)
        self.lifecycles = LifecycleNodes(self.people, self.cluster)
        self.tasks = DrainTasks(self.people, self.cluster)
        self.failures = Failures(self.people, self.cluster)
        await self.marks.prepare()
        await self.tasks.prepare()
        await self.failures.prepare()

    async def lifecycle_of(self, number: int) -> Lifecycle:
        return (await self.lifecycles.read(B[number])).lifecycle

    async def put(self, found: StoredLifecycle, changed: Lifecycle) -> None:
        await self.lifecycles.write(found, changed)

    async def drain(self, number: int) -> None:
        found = await self.lifecycles.read(B[number])
        await self.put(
            found, bookie_drain_states.drain(found.lifecycle, f"{number}a", 1, ledgers=1)
        )

    async def cancel(self, number: int) -> None:
        found = await self.lifecycles.read(B[number])
        await self.put(found, bookie_drain_states.cancel(found.lifecycle, f"{number}c", 1))

    async def obey(self, number: int) -> None:
        """Register as read-only."""
        data = pack_service_info(describe_bookie(Address(f"b{number}", 3181)))
        await self.people.transaction(
            [
                Create(f"{ROOT}/available/readonly/{B[number]}", data, CreateMode.EPHEMERAL),
                Delete(f"{ROOT}/available/{B[number]}"),
            ]
        )

    async def until_state(self, number: int, state: LifecycleState) -> Lifecycle:
        async def is_so() -> bool:
            return (await self.lifecycle_of(number)).state is state

        await until(is_so)
        return await self.lifecycle_of(number)

    async def published(self) -> dict[int, set[int]]:
        found = {}
        async for ledger_id in self.tasks.ids():
            task = await self.tasks.read(ledger_id)
            if task is not None:
                found[int(ledger_id)] = {B.index(each) for each in task.mark.missing}
        return found

    async def until_published(self, expected: dict[int, set[int]]) -> None:
        async def is_so() -> bool:
            return await self.published() == expected

        await until(is_so)

    async def work(self, *, target: int, at_most: int = 10**9) -> int:
        """Handle tasks of closed ledgers like one round of a worker."""
        done = 0
        async for ledger_id in self.tasks.ids():
            if done >= at_most:
                break
            lock = await self.marks.take(ledger_id, "worker")
            assert lock is not None
            task = await self.tasks.read(ledger_id)
            assert task is not None
            for bookie in task.mark.missing:
                names_it = (await self.nodes.read(ledger_id)).metadata.names(bookie)
                is_draining = (await self.lifecycles.read(bookie)).lifecycle.state is DRAINING
                if names_it and is_draining:  # Otherwise it was published twice, or cancelled.
                    await moved(self.nodes, ledger_id, bookie, B[target])
            await self.tasks.unmark(task, lock)
            await self.marks.release(lock)
            done += 1
        return done

    @contextlib.asynccontextmanager
    async def steward(
        self,
        store: MetadataStore | None = None,
        name: str = "steward:1",
        tasks_max: int = 1000,
        vote: Vote | None = None,
    ) -> AsyncIterator[CountingSteward]:
        """With `vote`, the steward leads by it without an election."""
        store = store or self.store
        watcher = BookieWatcher(store, ROOT)
        await watcher.start()
        index = LedgerIndex(store, self.cluster, SystemClock())
        steward = CountingSteward(
            store,
            self.cluster,
            SystemClock(),
            random.Random(3),
            watcher,
            index,
            Marks(store, ROOT),
            StewardConfig(tasks_max=tasks_max, look_again_s=0.02),
        )
        folder = f"{self.cluster.own_root}/steward"
        election = Election(store, folder, BookieId(name), above=self.cluster.own_root)
        loop = asyncio.get_running_loop()
        lead = steward.lead(vote) if vote else election.serve(steward.lead)
        tasks = [loop.create_task(index.run()), loop.create_task(lead)]
        try:
            yield steward
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await watcher.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metastore_outage_retries, "RETRY_PAUSE_S", 0.001)


@pytest.fixture
async def site(service: MemoryService, store: FaultyStore, rival: MetadataStore) -> DrainSite:
    site = DrainSite(service, store, rival)
    await site.start(4)
    return site


async def make_closed(site: DrainSite, ids: range, *members: int) -> None:
    for ledger_id in ids:
        await site.make(ledger_id, *members)
        await closed(site.nodes, ledger_id)


async def test_drain_starts_when_read_only_and_ends_unnamed(site: DrainSite) -> None:
    """LC4, BL6, BL11, BL17, BL19, BL20, BL21, BL23."""
    await make_closed(site, range(10), 0, 1)
    await make_closed(site, range(10, 12), 1, 2)
    async with site.steward() as steward:
        await site.drain(0)

        async def waits() -> bool:
            return steward.state.drains == {B[0]: ("wait", 10)}

        await until(waits)
        assert await site.published() == {}, "clients may still pick the bookie"
        await site.obey(0)
        await site.until_published({each: {0} for each in range(10)})
        assert await site.work(target=3) == 10
        found = await site.until_state(0, DRAINED)
    assert (found.ledgers, found.reason) == (1, "")
    assert await site.published() == {}


async def test_unregistered_bookie_is_drained_from_other_copies(site: DrainSite) -> None:
    """BL13: its state is set while it is down."""
    await make_closed(site, range(3), 0, 1)
    await site.lose(0)
    async with site.steward():
        await site.drain(0)
        await site.until_published({each: {0} for each in range(3)})
        await site.work(target=2)
        await site.until_state(0, DRAINED)


async def test_tasks_are_published_a_few_at_a_time(site: DrainSite) -> None:
    await make_closed(site, range(10), 0, 1)
    await site.lose(0)
    async with site.steward(tasks_max=4):
        await site.drain(0)
        for left in (10, 6, 2):

            async def is_full(size: int = min(left, 4)) -> bool:
                return len(await site.published()) == size

            await until(is_full)
            await site.work(target=3, at_most=4)
        await site.until_state(0, DRAINED)


async def test_two_bookies_drain_at_once_and_one_can_be_cancelled(site: DrainSite) -> None:
    """BL26: each ledger has one task with all of its draining bookies."""
    await site.register(4)
    await make_closed(site, range(4), 0, 1)
    async with site.steward():
        await site.lose(0)
        await site.lose(1)
        await site.drain(0)
        await site.drain(1)
        await site.until_published({each: {0, 1} for each in range(4)})
        await site.cancel(1)
        await site.work(target=2)
        await site.until_state(0, DRAINED)
    assert (await site.lifecycle_of(1)).state is ACTIVE


async def test_ledger_created_after_a_drain_restarts_it(site: DrainSite) -> None:
    """LC4: the client picked its ensemble before the drain."""
    await site.lose(0)
    async with site.steward():
        await site.drain(0)
        await site.until_state(0, DRAINED)
        await make_closed(site, range(7, 8), 0, 1)
        found = await site.until_state(0, DRAINING)
        assert "ledger 7" in found.reason
        await site.until_published({7: {0}})
        await site.work(target=2)
        await site.until_state(0, DRAINED)


async def test_cancelled_drain_leaves_no_tasks(site: DrainSite) -> None:
    """LC5."""
    await make_closed(site, range(5), 0, 1)
    await site.lose(0)
    async with site.steward():
        await site.drain(0)
        await site.until_published({each: {0} for each in range(5)})
        lock = await site.marks.take(LedgerId(3), "worker")
        assert lock is not None
        await site.cancel(0)
        await site.until_published({3: {0}})
        await site.marks.release(lock)
        await site.until_published({})


async def test_failure_is_deleted_once_no_repair_is_owed(site: DrainSite) -> None:
    """RP7: otherwise `recovery ls` would show failures of cancelled drains forever."""
    await make_closed(site, range(3), 0, 1)
    await site.lose(0)
    away = Failure(3, "BOOKIE_UNREACHABLE", "b1 is away")
    loss = LostEntries(EntryId(0), EntryId(9), (B[0], B[1]))
    async with site.steward() as steward:
        await site.drain(0)
        await site.until_published({each: {0} for each in range(3)})
        await site.failures.write(LedgerId(0), away)
        await site.failures.write(LedgerId(1), Failure(1, "DATA_LOST", "", losses=(loss,)))
        await site.cancel(0)

        async def are_the_rest() -> bool:
            return [each async for each in site.failures.ids()] == [1]

        await until(are_the_rest)
        assert await site.tasks.read(LedgerId(0)) is None
        await site.marks.mark(LedgerId(2), [B[0]], 1)
        await site.failures.write(LedgerId(2), away)
        await finish_a_round(steward)
        assert await site.failures.read(LedgerId(2)) == away, "the repair is still owed"


async def test_drain_fails_only_once_nothing_else_can_be_copied(site: DrainSite) -> None:
    """LC5, BL7, BL8, BL22, BL23: copyable ledgers are copied first; then copying stops."""
    await make_closed(site, range(3), 0, 1)
    await site.lose(0)
    loss = LostEntries(EntryId(0), EntryId(9), (B[0], B[1]))
    async with site.steward() as steward:
        await site.drain(0)
        await site.until_published({each: {0} for each in range(3)})
        await site.failures.write(
            LedgerId(0), Failure(1, "DATA_LOST", "", losses=(loss,), drains=("0a",))
        )
        await site.failures.write(LedgerId(1), Failure(3, "BOOKIE_UNREACHABLE", "b1 is away"))
        await finish_a_round(steward)
        assert (await site.lifecycle_of(0)).state is DRAINING
        for ledger_id in (1, 2):
            await site.failures.clear(LedgerId(ledger_id))
            await moved(site.nodes, ledger_id, B[0], B[2])
        found = await site.until_state(0, FAILED)
        assert "1 ledgers still name it" in found.reason
        await site.until_published({})
        stored = await site.lifecycles.read(B[0])
        await site.put(stored, bookie_drain_states.mark_drained(stored.lifecycle, "ee", 5))
        found = await site.until_state(0, DRAINING)
        assert "ledger 0" in found.reason, "the ledger still names the bookie"


async def test_retried_drain_clears_failures_and_restarts(site: DrainSite) -> None:
    """RP7, LC1: the failure that ended a drain is kept until an operator retries or cancels."""
    await make_closed(site, range(1), 0, 1)
    await site.lose(0)
    attempts = ATTEMPTS_WITHOUT_TARGET
    no_target = Failure(attempts, "QUORUM_UNAVAILABLE", "", drains=("0a",), in_a_row=attempts)
    async with site.steward() as steward:
        await site.drain(0)
        await site.until_published({0: {0}})
        await site.failures.write(LedgerId(0), no_target)
        await site.until_state(0, FAILED)
        await site.until_published({})
        await finish_a_round(steward)
        assert await site.failures.read(LedgerId(0)) == no_target
        stored = await site.lifecycles.read(B[0])
        await site.put(stored, bookie_drain_states.retry(stored.lifecycle, "ee", 5, ledgers=1))
        await site.until_published({0: {0}})
        assert await site.failures.read(LedgerId(0)) is None
        assert (await site.lifecycle_of(0)).state is DRAINING


async def test_retried_drain_ignores_failures_of_the_previous_drain(site: DrainSite) -> None:
    """RP7: the failure of a ledger that is also marked is kept, and ends no later drain."""
    await make_closed(site, range(1), 0, 1)
    await site.lose(0)
    await site.marks.mark(LedgerId(0), [B[1]], 1)
    attempts = ATTEMPTS_WITHOUT_TARGET
    no_target = Failure(attempts, "QUORUM_UNAVAILABLE", "", drains=("0a",), in_a_row=attempts)
    async with site.steward() as steward:
        await site.drain(0)
        await site.failures.write(LedgerId(0), no_target)
        await site.until_state(0, FAILED)
        stored = await site.lifecycles.read(B[0])
        await site.put(stored, bookie_drain_states.retry(stored.lifecycle, "ee", 5, ledgers=1))
        await site.until_published({0: {0}})
        assert await site.failures.read(LedgerId(0)) == no_target, (
            "the marked ledger still needs repair"
        )
        await finish_a_round(steward)
        assert (await site.lifecycle_of(0)).state is DRAINING
        await site.failures.write(LedgerId(0), replace(no_target, drains=("ee",)))
        await site.until_state(0, FAILED)


async def test_unreadable_metadata_fails_a_drain(site: DrainSite) -> None:
    """RI2: unreadable metadata may name the bookie."""
    await make_closed(site, range(1, 2), 1, 2)
    await site.people.set(site.nodes.path(LedgerId(1)), b"garbage")
    await site.lose(0)
    async with site.steward():
        await site.drain(0)
        found = await site.until_state(0, FAILED)
    assert "the metadata of 1 ledgers cannot be read" in found.reason


async def test_wrong_index_does_not_end_a_drain(
    site: DrainSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RI2: a full scan decides."""
    await make_closed(site, range(1), 0, 1)
    await site.lose(0)
    monkeypatch.setattr(LedgerIndex, "count", lambda *_: 0)
    async with site.steward() as steward:
        await site.drain(0)

        async def verifies() -> bool:
            return steward.state.drains == {B[0]: ("verify", 0)}

        await until(verifies)
        await finish_a_round(steward)
        assert (await site.lifecycle_of(0)).state is DRAINING


async def test_steward_without_a_valid_vote_changes_nothing(site: DrainSite) -> None:
    """LC2, EL2: the steward has not noticed that its vote is gone."""
    await site.lose(0)
    old = Vote(f"{site.cluster.own_root}/steward/V_0000000000", site.store.session)
    async with site.steward(vote=old) as steward:
        await site.drain(0)

        async def verifies() -> bool:
            return steward.state.drains == {B[0]: ("verify", 0)}

        await until(verifies)
        await finish_a_round(steward)
        assert (await site.lifecycle_of(0)).state is DRAINING


@pytest.mark.parametrize("seed", range(10))
async def test_drain_completes_although_stewards_die(
    site: DrainSite, service: MemoryService, seed: int
) -> None:
    """Stewards die at random times, and replies are lost."""
    chance = random.Random(seed)
    await make_closed(site, range(12), 0, 1)
    await site.lose(0)
    await site.drain(0)
    fates = [Fate.OK, Fate.OK, Fate.ANSWER_LOST, Fate.REQUEST_LOST, Fate.NOT_SENT]
    for life in range(6):
        async with (
            FaultyStore(await service.connect()) as store,
            site.steward(store=store, name=f"steward:{life}", tasks_max=5),
        ):
            store.fates.extend(chance.choices(fates, k=20))
            await asyncio.sleep(0.05 * chance.random())
            await site.work(target=chance.choice([2, 3]), at_most=chance.randrange(4))
    async with site.steward(tasks_max=5):

        async def is_drained() -> bool:
            await site.work(target=2)
            return (await site.lifecycle_of(0)).state is DRAINED

        await until(is_drained)
    assert await site.published() == {}


# --- Incarnations -----------------------------------------------------------------------------


async def incarnate(site: DrainSite, number: int, incarnation: str) -> None:
    path = f"{site.cluster.own_root}/bookies"
    data = pack_bookie_record(BookieRecord(incarnation * 32))
    with contextlib.suppress(Exception):
        await site.people.create(path)
    with contextlib.suppress(Exception):
        await site.people.create(f"{path}/{B[number]}", data)
        return
    await site.people.set(f"{path}/{B[number]}", data)


async def test_formatted_bookie_has_all_its_ledgers_checked(site: DrainSite) -> None:
    """LC6: a registered bookie is not whole if it was formatted within the delay."""
    await make_closed(site, range(6), 0, 1)
    whole = WholeNodes(site.people, site.cluster)
    await incarnate(site, 0, "a")
    async with site.steward(tasks_max=4) as steward:

        async def is_whole_as(incarnation: str) -> bool:
            return await whole.read(B[0]) == incarnation * 32

        await until(lambda: is_whole_as("a"))
        assert await site.published() == {}, "the first known incarnation is taken as whole"
        await incarnate(site, 0, "b")

        async def is_full() -> bool:
            return len(await site.published()) == 4

        await until(is_full)
        assert steward.state.suspects == {B[0]: 6}
        await site.work(target=3)
        assert not await is_whole_as("b")

        async def are_the_rest() -> bool:
            return len(await site.published()) == 2

        await until(are_the_rest)
        await site.work(target=3)
        await until(lambda: is_whole_as("b"))
    assert (await site.nodes.read(LedgerId(0))).metadata.names(B[0]), "nothing was moved"


async def test_next_steward_checks_a_formatted_bookie_again(
    site: DrainSite, service: MemoryService
) -> None:
    """LC6."""
    await make_closed(site, range(3), 0, 1)
    await WholeNodes(site.people, site.cluster).write(B[0], "a" * 32)
    await incarnate(site, 0, "b")
    async with await service.connect() as store, site.steward(store=store):
        await site.until_published({each: {0} for each in range(3)})
    async with site.steward():
        await site.work(target=3)

        async def is_whole() -> bool:
            await site.work(target=3)
            return await WholeNodes(site.people, site.cluster).read(B[0]) == "b" * 32

        await until(is_whole)


async def test_bookies_without_an_incarnation_are_never_suspects(site: DrainSite) -> None:
    assert (await MemberNodes(site.people, site.cluster).read(B[0])).record is None
    await make_closed(site, range(1), 0, 1)
    async with site.steward() as steward:
        await finish_a_round(steward)
        assert steward.state.suspects == {}
    assert await WholeNodes(site.people, site.cluster).read(B[0]) is None
