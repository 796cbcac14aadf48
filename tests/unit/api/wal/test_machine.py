"""Replicas of one state that follow one log."""

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
    """Proposes the commands and waits until the log has them; results may still be held."""
    tail = the_log(site).tail
    tasks = [asyncio.create_task(term.propose(each)) for each in commands]
    await until(lambda: the_log(site).tail == tail + len(commands))
    return tasks


def steal(site: Site) -> None:
    """Fences the writer as another replica would: the old epoch appends nothing more."""
    log = the_log(site)
    log.writer_epoch = WriterEpoch(log.writer_epoch + 1)
    log.holder, log.fence = "thief", log.tail


def expire(term: Term) -> None:
    """Lets the deadline of the oldest proposal pass."""
    pipeline = term._writer._writer._pipeline
    pipeline._flight[0].due = 0.0
    pipeline._look()


async def test_propose_returns_the_result_of_the_command(site: Site) -> None:
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


async def test_waiting_standby_leads_after_the_leader_leaves(site: Site) -> None:
    """WK3: its state includes all commands that were acked before."""
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


async def test_fenced_leader_stays_deposed(site: Site) -> None:
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


async def test_idle_leader_notices_its_fencing(site: Site) -> None:
    """WK4: the leader cannot renew its lease."""
    async with (
        replica(site, Counter(), "a", lease_s=0.05) as machine,
        machine.lead() as term,
    ):
        steal(site)
        assert isinstance(await asyncio.wait_for(term.over(), PATIENCE_S), StaleEpoch)
        assert term.is_over


async def test_failed_lease_renewals_do_not_end_the_term(site: Site) -> None:
    core = site.cores["a"]
    async with (
        replica(site, Counter(), "a", lease_s=0.05) as machine,
        machine.lead() as term,
    ):
        with hurried(site.clients[-1], timeout_s=0.2):
            core.failures["renew_writer"].extend(ConnectionLost() for _ in range(20))
            await until(lambda: len(core.failures["renew_writer"]) < 10)
        assert await term.propose(b"1") == 1


async def test_fenced_leader_resolves_unknown_proposals(site: Site) -> None:
    """WK5: some unanswered proposals are in the log, and the rest never will be."""
    core, mine = site.cores["a"], Counter()
    async with replica(site, mine, "a") as machine, machine.lead() as term:
        await term.propose(b"1")
        core.holds.add("append_stream")
        tasks = await proposed(site, term, b"2", b"3")
        steal(site)
        more = [asyncio.create_task(term.propose(b"4"))]
        await asyncio.sleep(0)
        address = site.doors["a"].address
        await site.stop("a")  # The responses are lost.
        core.release()
        core.failures["append_stream"].append(the_log(site).stale())  # The retry is refused.
        await site.start("a", address)
        assert [await asyncio.wait_for(task, PATIENCE_S) for task in tasks] == [3, 6]
        with pytest.raises(StaleEpoch) as refused:
            await more[0]
        assert refused.value.outcome is Outcome.NOT_APPLIED
        assert mine.all == [b"1", b"2", b"3"]


async def test_truncated_proposal_has_unknown_outcome(site: Site) -> None:
    """WK5: the records were truncated, so the leader cannot read them."""
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


async def test_propose_succeeds_after_a_lost_response(site: Site) -> None:
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


async def test_proposal_past_its_deadline_ends_the_term(site: Site) -> None:
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
        await until(lambda: mine.all == [b"2"])  # The replica follows the log again.
        async with machine.lead() as term:
            assert await term.propose(b"3") == 5


async def test_propose_to_a_sealed_log_is_refused(site: Site) -> None:
    async with replica(site, Counter(), "a") as machine, machine.lead() as term:
        await term.propose(b"1")
        the_log(site).is_sealed = True
        with pytest.raises(LogSealed):
            await term.propose(b"2")


async def test_snapshots_truncate_the_log(site: Site) -> None:
    """WK6: up to the second newest snapshot; a new replica restores the newest."""
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


async def test_replica_behind_the_head_restores_a_snapshot(site: Site) -> None:
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


async def test_one_of_two_concurrent_snapshots_counts(site: Site) -> None:
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


async def test_truncation_without_a_snapshot_fails_the_replica(site: Site) -> None:
    async with replica(site, Counter(), "a") as machine:
        await machine.stop_following()
        log = the_log(site)
        log.head = log.tail = Offset(5)
        machine.follow()
        with raises_message(RollbookError):
            await machine.barrier()


async def test_exception_in_apply_ends_the_replica(site: Site) -> None:
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


async def test_new_log_has_the_servers_default_quorum(site: Site) -> None:
    """With a larger quorum nobody could lead in a cluster of one bookie."""
    alone = Quorum(ensemble=1, write=1, ack=1)
    site.cluster.default = LogConfig(quorum=alone)
    async with replica(site, Counter(), "a"), replica(site, Counter(), "b"):
        config = the_log(site).config
        assert (config.quorum, config.writer_mode) == (alone, WriterMode.EXCLUSIVE)


async def test_log_without_exclusive_writer_is_refused(site: Site) -> None:
    site.cluster.make("counter", LogConfig())
    with raises_message(BadConfig):
        await replica(site, Counter(), "a").__aenter__()


async def test_exclusive_writer_appends_until_it_is_fenced(site: Site) -> None:
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


async def test_cancelled_term_exit_reports_unknown_outcomes(site: Site) -> None:
    """WK4"""
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


async def test_replica_cannot_lead_twice_at_once(site: Site) -> None:
    async with replica(site, Counter(), "a") as machine:
        async with machine.lead() as term:
            with raises_message(InvalidRequest):
                await machine.lead("steal").__aenter__()
            assert await term.propose(b"1") == 1
        async with machine.lead() as term:
            assert await term.propose(b"1") == 2


def fail_to_acquire(monkeypatch: pytest.MonkeyPatch, failures: list[RollbookError]) -> None:
    """Makes `acquire_writer` raise all failures, the last one first, before it succeeds."""
    acquire = Log.acquire_writer

    async def acquire_at_last(*arguments: Any, **more: Any) -> WriterGrant:
        if failures:
            raise failures.pop()
        return await acquire(*arguments, **more)

    monkeypatch.setattr(Log, "acquire_writer", acquire_at_last)


async def test_wait_for_bookies_is_logged_once(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without this message, a program would wait in `lead()` and not say why."""
    failures: list[RollbookError] = [ConnectionLost(), OwnerChanging()]  # As when an owner stops.
    failures[:0] = [NotEnoughBookies("2 bookies, and 3 are wanted") for _ in range(3)]
    fail_to_acquire(monkeypatch, failures)
    async with replica(site, Counter(), "a") as machine, machine.lead() as term:
        assert await term.propose(b"1") == 1
    assert not failures
    told = [each.getMessage() for each in caplog.records if each.name == "rollbook.wal"]
    assert told == ["a waits for default/counter: 2 bookies, and 3 are wanted"]


async def test_repeated_failures_to_lead_are_logged_once(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[RollbookError] = [OwnerChanging("it is opened") for _ in range(4)]
    fail_to_acquire(monkeypatch, failures)
    async with replica(site, Counter(), "a") as machine, machine.lead() as term:
        assert await term.propose(b"1") == 1
    told = [each.getMessage() for each in caplog.records if each.name == "rollbook.wal"]
    assert told == ["a waits for default/counter: it is opened"]


class LostGrants:
    """Grants the writer epoch, but loses the response while `is_lost`."""

    def __init__(self, site: Site) -> None:
        self.core, self.is_lost = site.cores["a"], True
        self.epochs: list[WriterEpoch] = []
        self.core.acquire_writer = self.acquire_writer  # type: ignore[method-assign]  # Loses responses.

    async def acquire_writer(self, request: AcquireWriter, due: float) -> WriterGrant:
        grant = await FakeCore.acquire_writer(self.core, request, due)
        self.epochs.append(grant.writer_epoch)
        if self.is_lost:
            raise ConnectionLost
        return grant


async def test_retry_after_a_lost_grant_gets_the_same_epoch(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The retry names the same holder, so the replica does not wait for its own lease."""
    grants, failures = LostGrants(site), list[RollbookError]()
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
        grants.is_lost = False
        term = await asyncio.wait_for(turn, PATIENCE_S)
        assert (term.epoch, set(grants.epochs)) == (1, {1})
        await term.__aexit__(None, None, None)


async def test_replica_released_before_its_grant_arrives_leads(site: Site) -> None:
    """An operator releases the writer while the response to the grant is lost."""
    grants = LostGrants(site)
    async with replica(site, Counter(), "a") as machine:
        turn = asyncio.create_task(machine.lead().__aenter__())
        await until(lambda: grants.epochs)
        the_log(site).holder = ""
        grants.is_lost = False
        term = await asyncio.wait_for(turn, PATIENCE_S)
        assert (term.epoch, await term.propose(b"1")) == (2, 1)
        await term.__aexit__(None, None, None)


async def test_wait_for_leadership_can_be_cancelled(site: Site) -> None:
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


async def test_owner_change_after_a_lost_response_is_retried(site: Site) -> None:
    """While a log changes owners, the last error is not an owner's and ends nothing."""
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


async def test_snapshot_read_waits_for_an_owner_change(site: Site) -> None:
    """The log may be changing owners while a replica restores its snapshot."""
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
