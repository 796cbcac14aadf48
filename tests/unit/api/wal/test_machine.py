"""A state that a log keeps alike on several machines."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from rollbook.api.client.log import Log
from rollbook.api.wal.aio import ExclusiveWriter, Term
from rollbook.logservice.ids import Offset, WriterEpoch
from rollbook.logservice.log_config import LogConfig, WriterMode
from rollbook.logservice.messages import AcquireWriter, WriterGrant
from rollbook.proto.errors import (
    BadConfig,
    ClientClosed,
    ConnectionLost,
    DataLost,
    InvalidRequest,
    LogSealed,
    NotEnoughBookies,
    Outcome,
    OwnerChanging,
    QuorumTimeout,
    RollbookError,
    StaleEpoch,
    WriterHeld,
)
from rollbook.proto.quorum import Quorum
from tests.messages import raises_message
from tests.unit.api.client.conftest import Site, hurried
from tests.unit.api.grpc.fake_core import FakeCore
from tests.unit.api.wal.conftest import Counter, replica, the_log

PATIENCE_S = 30.0


async def until(fact: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not fact():
            await asyncio.sleep(0.005)


async def proposed(site: Site, term: Term, *commands: bytes) -> list["asyncio.Task[int]"]:
    """On their way, and with the log; nobody has heard of it if answers are held."""
    tail = the_log(site).tail
    tasks = [asyncio.create_task(term.propose(each)) for each in commands]
    await until(lambda: the_log(site).tail == tail + len(commands))
    return tasks


def steal(site: Site) -> None:
    """As another one does it: nothing more is placed under the old epoch."""
    log = the_log(site)
    log.writer_epoch = WriterEpoch(log.writer_epoch + 1)
    log.holder, log.fence = "thief", log.tail


def expire(term: Term) -> None:
    """The deadline of its oldest proposal has come."""
    pipeline = term._writer._writer._pipeline
    pipeline._flight[0].due = 0.0
    pipeline._look()


async def test_what_is_proposed_is_told_what_became_of_it(site: Site) -> None:
    mine, yours = Counter(), Counter()
    async with replica(site, mine, "a") as machine, replica(site, yours, "b") as standby:
        assert the_log(site).config.writer_mode is WriterMode.EXCLUSIVE
        async with machine.lead() as term:
            assert await term.propose(b"5") == 5
            results = await asyncio.gather(*(term.propose(b"1") for _ in range(100)))
            assert results == list(range(6, 106))
            assert await machine.leader() == "a"
            assert await standby.read(lambda: yours.total) == 105
        assert yours.all == mine.all
        assert (standby.applied, standby.epoch) == (101, 1)
        assert not await machine.leader()


async def test_a_standby_leads_as_soon_as_it_may(site: Site) -> None:
    """WK3: with all that was acked before in its state."""
    mine, yours = Counter(), Counter()
    async with replica(site, mine, "a") as machine, replica(site, yours, "b") as standby:
        async with machine.lead() as term:
            await term.propose(b"1")
            with pytest.raises(WriterHeld):
                await standby.lead("fail").__aenter__()
            turn = asyncio.create_task(standby.lead().__aenter__())
            await term.propose(b"2")
        next_term = await asyncio.wait_for(turn, PATIENCE_S)
        assert yours.total == 3
        assert await next_term.propose(b"3") == 6
        assert await machine.read(lambda: mine.total) == 6
        await next_term.__aexit__(None, None, None)
        with pytest.raises(ClientClosed):
            await term.propose(b"4")


async def test_a_fenced_leader_steps_down_for_good(site: Site) -> None:
    """WK4"""
    mine = Counter()
    async with replica(site, mine, "a") as machine, machine.lead() as term:
        await term.propose(b"1")
        steal(site)
        with pytest.raises(StaleEpoch) as refused:
            await term.propose(b"2")
        assert refused.value.outcome is Outcome.NOT_APPLIED
        assert isinstance(await term.over(), StaleEpoch)
        with pytest.raises(StaleEpoch):
            await term.propose(b"3")
        assert (mine.total, the_log(site).tail) == (1, 1)


async def test_an_idle_leader_hears_that_it_was_fenced(site: Site) -> None:
    """WK4: by its lease, which it cannot renew."""
    async with (
        replica(site, Counter(), "a", lease_s=0.05) as machine,
        machine.lead() as term,
    ):
        steal(site)
        assert isinstance(await asyncio.wait_for(term.over(), PATIENCE_S), StaleEpoch)
        assert term.is_over


async def test_a_lease_that_cannot_be_renewed_ends_nothing(site: Site) -> None:
    core = site.cores["a"]
    async with (
        replica(site, Counter(), "a", lease_s=0.05) as machine,
        machine.lead() as term,
    ):
        with hurried(site.clients[-1], timeout_s=0.2):
            core.failures["renew_writer"].extend(ConnectionLost() for _ in range(20))
            await until(lambda: len(core.failures["renew_writer"]) < 10)
        assert await term.propose(b"1") == 1


async def test_fenced_in_doubt_it_finds_out(site: Site) -> None:
    """WK5: of what nobody heard of, some is in the log, and the rest never will be."""
    core, mine = site.cores["a"], Counter()
    async with replica(site, mine, "a") as machine, machine.lead() as term:
        await term.propose(b"1")
        core.holds.add("append_stream")
        tasks = await proposed(site, term, b"2", b"3")
        steal(site)
        more = [asyncio.create_task(term.propose(b"4"))]
        await asyncio.sleep(0)
        address = site.doors["a"].address
        await site.stop("a")  # Their answers are lost.
        core.release()
        core.failures["append_stream"].append(the_log(site).stale())  # Whatever they were.
        await site.start("a", address)
        assert [await asyncio.wait_for(task, PATIENCE_S) for task in tasks] == [3, 6]
        with pytest.raises(StaleEpoch) as refused:
            await more[0]
        assert refused.value.outcome is Outcome.NOT_APPLIED
        assert mine.all == [b"1", b"2", b"3"]


async def test_what_nobody_can_know_is_told_as_unknown(site: Site) -> None:
    """WK5: of the records only a snapshot is left."""
    core, mine = site.cores["a"], Counter()
    async with replica(site, mine, "a") as machine, machine.lead() as term:
        core.holds.add("append_stream")
        (task,) = await proposed(site, term, b"2")
        steal(site)
        address = site.doors["a"].address
        await site.stop("a")
        core.release()
        core.failures["append_stream"].append(the_log(site).stale())
        the_log(site).head = the_log(site).tail
        await site.start("a", address)
        with pytest.raises(StaleEpoch) as refused:
            await asyncio.wait_for(task, PATIENCE_S)
        assert refused.value.outcome is Outcome.UNKNOWN
        assert mine.all == []


async def test_a_lost_answer_is_found_by_asking_again(site: Site) -> None:
    core, mine = site.cores["a"], Counter()
    async with replica(site, mine, "a") as machine, machine.lead() as term:
        core.holds.add("append_stream")
        (task,) = await proposed(site, term, b"2")
        address = site.doors["a"].address
        await site.stop("a")
        core.release()
        await site.start("a", address)
        assert await asyncio.wait_for(task, PATIENCE_S) == 2
        assert the_log(site).tail == 1


async def test_a_deadline_ends_the_term(site: Site) -> None:
    core, mine = site.cores["a"], Counter()
    async with replica(site, mine, "a") as machine:
        async with machine.lead() as term:
            core.holds.add("append_stream")
            (task,) = await proposed(site, term, b"2")
            expire(term)
            with pytest.raises(QuorumTimeout) as late:
                await task
            assert late.value.outcome is Outcome.UNKNOWN
            assert isinstance(await term.over(), QuorumTimeout)
            assert mine.all == []
            core.release()
        await until(lambda: mine.all == [b"2"])  # It follows again.
        async with machine.lead() as term:
            assert await term.propose(b"3") == 5


async def test_a_sealed_log_ends_the_term(site: Site) -> None:
    async with replica(site, Counter(), "a") as machine, machine.lead() as term:
        await term.propose(b"1")
        the_log(site).is_sealed = True
        with pytest.raises(LogSealed):
            await term.propose(b"2")


async def test_snapshots_truncate(site: Site) -> None:
    """WK6: up to the one before the newest; who starts later begins with the newest."""
    mine, late = Counter(), Counter()

    def is_marked_at(offset: int) -> bool:
        mark = the_log(site).cursors.get("snapshot")
        return mark is not None and mark.offset == offset

    async with replica(site, mine, "a", snapshot_every=10) as machine, machine.lead() as term:
        for number in range(4):
            for _ in range(10):
                await term.propose(b"1")
            await until(partial(is_marked_at, 10 * (number + 1)))
        await until(lambda: the_log(site).head == 30)
        pieces = the_log(site, "counter.snapshots")
        await until(lambda: pieces.head == 2)
        assert pieces.tail == 4
        await term.propose(b"2")
        async with replica(site, late, "b") as standby:
            assert late.restored == 1
            assert await standby.read(lambda: late.all) == mine.all


async def test_a_replica_that_was_left_behind_restores(site: Site) -> None:
    mine, slow = Counter(), Counter()
    machine, standby = replica(site, mine, "a"), replica(site, slow, "b")
    async with machine, standby, machine.lead() as term:
        await term.propose(b"1")
        await standby.barrier()
        await standby.stop_following()
        for _ in range(3):
            await term.propose(b"1")
            assert await machine.checkpoint()
        assert not await machine.checkpoint()
        assert the_log(site).head == 3
        standby.follow()
        assert await standby.read(lambda: slow.total) == 4
        assert slow.restored == 1


async def test_of_two_snapshots_at_once_one_counts(site: Site) -> None:
    """WK6"""
    mine, yours = Counter(), Counter()
    machine, standby = replica(site, mine, "a"), replica(site, yours, "b")
    async with machine, standby, machine.lead() as term:
        await term.propose(b"1")
        await standby.barrier()
        counted = await asyncio.gather(machine.checkpoint(), standby.checkpoint())
        assert sorted(counted) == [False, True]
    async with replica(site, late := Counter(), "c"):
        assert (late.total, late.restored) == (1, 1)


async def test_truncated_without_a_snapshot_is_the_end(site: Site) -> None:
    async with replica(site, Counter(), "a") as machine:
        await machine.stop_following()
        log = the_log(site)
        log.head = log.tail = Offset(5)
        machine.follow()
        with raises_message(RollbookError):
            await machine.barrier()


async def test_a_state_that_raises_ends_its_replica(site: Site) -> None:
    async with replica(site, Counter(), "a") as machine, machine.lead() as term:
        with raises_message(InvalidRequest) as caught:
            await term.propose(b"x")
        assert caught.value.outcome is Outcome.APPLIED
        with pytest.raises(InvalidRequest):
            await term.propose(b"1")
        with pytest.raises(InvalidRequest):
            await machine.barrier()
        with pytest.raises(InvalidRequest):
            await machine.lead().__aenter__()


async def test_lost_records_end_a_replica(site: Site) -> None:
    async with replica(site, Counter(), "a") as machine:
        site.cores["a"].failures["read_stream"].append(DataLost())
        await machine.stop_following()
        machine.follow()
        await until(lambda: machine.failure)
        assert isinstance(machine.failure, DataLost)


async def test_it_has_as_many_copies_as_the_server_gives(site: Site) -> None:
    """Where there is one bookie, nobody could ever lead with more."""
    alone = Quorum(ensemble=1, write=1, ack=1)
    site.cluster.default = LogConfig(quorum=alone)
    async with replica(site, Counter(), "a"), replica(site, Counter(), "b"):
        config = the_log(site).config
        assert (config.quorum, config.writer_mode) == (alone, WriterMode.EXCLUSIVE)


async def test_a_log_for_everybody_holds_no_commands(site: Site) -> None:
    site.cluster.make("counter", LogConfig())
    with raises_message(BadConfig):
        await replica(site, Counter(), "a").__aenter__()


async def test_an_exclusive_writer_alone(site: Site) -> None:
    log = await site.client("a").open("plain", create=LogConfig(writer_mode=WriterMode.EXCLUSIVE))
    async with ExclusiveWriter(log, "a") as writer:
        assert (writer.epoch, writer.fence) == (1, 0)
        assert [await writer.submit(b"%d" % n) for n in range(3)] == [0, 1, 2]
    async with ExclusiveWriter(log, "b") as writer:
        assert (writer.epoch, writer.fence) == (2, 3)
        async with ExclusiveWriter(log, "c", mode="steal"):
            with pytest.raises(StaleEpoch):
                await writer.submit(b"late")
    with pytest.raises(BadConfig):
        ExclusiveWriter(log, "a", lease_s=0)


async def test_a_term_that_is_not_waited_for_tells_everybody(site: Site) -> None:
    """WK4: cancelled on its way out."""
    core, mine = site.cores["a"], Counter()
    async with replica(site, mine, "a") as machine:
        term = await machine.lead().__aenter__()
        core.holds.add("append_stream")
        (task,) = await proposed(site, term, b"2")
        leaving = asyncio.create_task(term.__aexit__(None, None, None))
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(ClientClosed) as caught:
            await asyncio.wait_for(task, PATIENCE_S)
        assert caught.value.outcome is Outcome.UNKNOWN
        core.release()
        await until(lambda: mine.all == [b"2"])
        assert isinstance(await term.over(), ClientClosed)


async def test_a_machine_leads_once_at_a_time(site: Site) -> None:
    async with replica(site, Counter(), "a") as machine:
        async with machine.lead() as term:
            with raises_message(InvalidRequest):
                await machine.lead("steal").__aenter__()
            assert await term.propose(b"1") == 1
        async with machine.lead() as term:
            assert await term.propose(b"1") == 2


def fail_to_acquire(monkeypatch: pytest.MonkeyPatch, failures: list[RollbookError]) -> None:
    """The last of them first, until none is left."""
    acquire = Log.acquire_writer

    async def acquire_at_last(*arguments: Any, **more: Any) -> WriterGrant:
        if failures:
            raise failures.pop()
        return await acquire(*arguments, **more)

    monkeypatch.setattr(Log, "acquire_writer", acquire_at_last)


async def test_who_waits_for_bookies_says_so_once(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A program hung in `lead()`, and its failure was not reported."""
    failures: list[RollbookError] = [ConnectionLost(), OwnerChanging()]  # As when any owner goes.
    failures[:0] = [NotEnoughBookies("2 bookies, and 3 are wanted") for _ in range(3)]
    fail_to_acquire(monkeypatch, failures)
    async with replica(site, Counter(), "a") as machine, machine.lead() as term:
        assert await term.propose(b"1") == 1
    assert not failures
    told = [each.getMessage() for each in caplog.records if each.name == "rollbook.wal"]
    assert told == ["a waits for default/counter: 2 bookies, and 3 are wanted"]


async def test_who_waits_through_many_failures_says_so_once(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[RollbookError] = [OwnerChanging("it is opened") for _ in range(4)]
    fail_to_acquire(monkeypatch, failures)
    async with replica(site, Counter(), "a") as machine, machine.lead() as term:
        assert await term.propose(b"1") == 1
    told = [each.getMessage() for each in caplog.records if each.name == "rollbook.wal"]
    assert told == ["a waits for default/counter: it is opened"]


class Unheard:
    """Grants the writer epoch, and nobody hears of it as long as `is_lost`."""

    def __init__(self, site: Site) -> None:
        self.core, self.is_lost = site.cores["a"], True
        self.epochs: list[WriterEpoch] = []
        self.core.acquire_writer = self.acquire_writer  # type: ignore[method-assign]  # The line breaks behind it.

    async def acquire_writer(self, request: AcquireWriter, due: float) -> WriterGrant:
        grant = await FakeCore.acquire_writer(self.core, request, due)
        self.epochs.append(grant.writer_epoch)
        if self.is_lost:
            raise ConnectionLost
        return grant


async def test_who_never_heard_that_he_leads_does_not_wait_for_himself(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gave up, and asked again as a different holder; a lease without end never ran out."""
    unheard, failures = Unheard(site), list[RollbookError]()
    acquire = Log.acquire_writer

    async def acquire_writer(*arguments: Any, **more: Any) -> WriterGrant:
        try:
            return await acquire(*arguments, **more)
        except RollbookError as error:
            failures.append(error)
            raise

    monkeypatch.setattr(Log, "acquire_writer", acquire_writer)
    async with replica(site, Counter(), "a") as machine:
        with hurried(site.clients[-1], timeout_s=0.1, retry_pause_s_max=0.02):
            turn = asyncio.create_task(machine.lead().__aenter__())
            await until(lambda: failures)
        assert failures[0].outcome is Outcome.UNKNOWN
        unheard.is_lost = False
        term = await asyncio.wait_for(turn, PATIENCE_S)
        assert (term.epoch, set(unheard.epochs)) == (1, {1})
        await term.__aexit__(None, None, None)


async def test_who_was_freed_before_he_heard_that_he_leads_waits_on(site: Site) -> None:
    """An operator released what nobody seemed to use: the replica ended, though the log was free."""
    unheard = Unheard(site)
    async with replica(site, Counter(), "a") as machine:
        turn = asyncio.create_task(machine.lead().__aenter__())
        await until(lambda: unheard.epochs)
        the_log(site).holder = ""
        unheard.is_lost = False
        term = await asyncio.wait_for(turn, PATIENCE_S)
        assert (term.epoch, await term.propose(b"1")) == (2, 1)
        await term.__aexit__(None, None, None)


async def test_waiting_for_a_turn_can_be_given_up(site: Site) -> None:
    mine, yours = Counter(), Counter()
    machine, standby = replica(site, mine, "a"), replica(site, yours, "b")
    async with machine, standby, machine.lead() as term:
        asked = site.cores["a"].asked
        asked.clear()
        waiting = asyncio.create_task(standby.lead().__aenter__())
        await until(lambda: any(isinstance(each, AcquireWriter) for each in asked))
        assert not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await term.propose(b"1")
        assert await standby.read(lambda: yours.total) == 1
        async with standby.lead("steal") as next_term:
            assert next_term.epoch == 2


async def test_a_refusal_behind_an_attempt_in_doubt_ends_nothing(site: Site) -> None:
    """A log that is between two owners: the last word is no owner's, and is not to be repeated."""
    core, changing = site.cores["a"], OwnerChanging()
    machine = replica(site, Counter(), "a", lease_s=0.05)
    standby = replica(site, Counter(), "b")
    leading, following = site.clients
    settings = {"timeout_s": 0.1, "retry_pause_s_max": 0.02}
    async with machine, standby:
        async with machine.lead() as term:
            with hurried(leading, **settings):
                core.failures["renew_writer"].extend([ConnectionLost(), *[changing] * 100])
                await until(lambda: len(core.failures["renew_writer"]) < 50)
            assert not term.is_over
            with hurried(following, **settings):
                core.failures["acquire_writer"].extend([ConnectionLost(), *[changing] * 50])
                turn = asyncio.create_task(standby.lead().__aenter__())
                await until(lambda: not core.failures["acquire_writer"])
        next_term = await asyncio.wait_for(turn, PATIENCE_S)
        await next_term.__aexit__(None, None, None)


async def test_a_snapshot_is_waited_for(site: Site) -> None:
    """Its log may be between two owners just now; nobody would ask for one."""
    core = site.cores["a"]
    async with replica(site, Counter(), "a") as machine, machine.lead() as term:
        await term.propose(b"7")
        assert await machine.checkpoint()
        core.failures["get_tail"].extend(OwnerChanging() for _ in range(5))
        core.failures["read_stream"].append(DataLost())
        with pytest.raises(DataLost):
            await replica(site, Counter(), "b").__aenter__()
        assert not core.failures["get_tail"]
        core.failures["get_cursor"].extend(OwnerChanging() for _ in range(5))
        async with replica(site, late := Counter(), "b"):
            assert (late.total, late.restored) == (7, 1)
