"""LS2, LS4, LS6, LS9: from one owner to the next, in virtual time."""

import asyncio
from contextlib import suppress
from itertools import pairwise

import pytest

from rollbook.ledger.writer import LedgerWriter
from rollbook.logservice import log_takeover
from rollbook.logservice.core.control_blocks import Barrier, Opened, unpack_control
from rollbook.logservice.core.ledger_list import LEDGER_OF_VERSION, ListedLogState
from rollbook.logservice.core.replayed_state import LogMemory, snapshot_in
from rollbook.logservice.ids import Offset, ProducerRef
from rollbook.logservice.log_config import LogConfig
from rollbook.logservice.log_metadata import StoredLog
from rollbook.logservice.messages import AcquireMode, AppendAck, Condition
from rollbook.logservice.owner import Owner, PendingAppend
from rollbook.logservice.segment_ledgers import make_ledger
from rollbook.logservice.server_context import OwnerContext
from rollbook.proto.errors import (
    DataLost,
    DuplicateDiffers,
    LogSealed,
    NotOwner,
    Outcome,
    OwnerChanging,
    OwnerLost,
    ProducerFenced,
    ProducerGap,
    RecoveryIncomplete,
    RollbookError,
)
from tests.simulation.kernel.metadata import Commit
from tests.unit.logservice.owner_scene import LEASE_S, LOG, ROOT, Held, Scene, play, refused


def ref(seq: int, epoch: int = 0) -> ProducerRef:
    return ProducerRef(b"p", epoch, seq)


async def outcome(scene: Scene, pending: PendingAppend) -> object:
    try:
        return await scene.within(pending.answer)
    except RollbookError as error:
        return error


# --- Takeover ------------------------------------------------------------------------------------


def test_retry_after_failover_gets_its_original_offsets() -> None:
    """LS6: also if the conditions of the retry no longer hold."""

    async def story(scene: Scene) -> None:
        first = await (await scene.server("s1")).open()
        condition = Condition(expected_offset=Offset(0))
        await first.append(b"a", b"b", producer=ref(0), condition=condition)
        await first.append(b"c", producer=ref(1))
        first.server.node.kill()
        log = await (await scene.server("s2")).open()
        again = await log.append(b"a", b"b", producer=ref(0), condition=condition)
        assert (again.first_offset, again.next_offset, again.is_duplicate) == (0, 2, True)
        await refused(log.append(b"e", producer=ref(3)), ProducerGap)
        assert (await log.append(b"d", producer=ref(2))).first_offset == 3
        await log.close()
        assert await scene.values() == [b"a", b"b", b"c", b"d"]

    play(story)


def test_another_batch_under_the_same_number_is_refused() -> None:
    """LS6: if it were acked as a duplicate, its records would be lost."""

    async def story(scene: Scene) -> None:
        first = await (await scene.server("s1")).open()
        await first.append(b"a", producer=ref(0))
        pending = first.begin(b"b", producer=ref(1))
        error = await refused(first.append(b"c", producer=ref(1)), DuplicateDiffers)
        assert (pending.answer.done(), error.ids["first_offset"]) == (True, 1)
        first.server.node.kill()
        log = await (await scene.server("s2")).open()
        await refused(log.append(b"c", producer=ref(1)), DuplicateDiffers)
        await refused(log.append(b"a", b"a", producer=ref(0)), DuplicateDiffers)
        assert (await log.append(b"b", producer=ref(1))).is_duplicate
        await log.close()
        assert await scene.values() == [b"a", b"b"]

    play(story)


def test_snapshots_bound_the_replay_of_a_takeover() -> None:
    """LS5: producers from before the replayed entries are known from a snapshot."""

    async def story(scene: Scene) -> None:
        first = await (await scene.server("s1")).open()
        await first.append(b"first", producer=ProducerRef(b"early", 0, 0))
        for number in range(3000):
            pending = first.begin(b"%d" % number, producer=ref(number))
            if number % 100 == 99:
                await scene.within(pending.answer)
        first.server.node.kill()
        log = await (await scene.server("s2")).open()
        early = await log.append(b"first", producer=ProducerRef(b"early", 0, 0))
        assert (early.first_offset, early.is_duplicate) == (0, True)
        assert (await log.append(b"2999", producer=ref(2999))).first_offset == 3000
        await log.close()
        snapshots = [
            index
            for index, block in enumerate(await scene.read_all())
            if snapshot_in(block) is not None
        ]
        assert max(after - before for before, after in pairwise(snapshots)) <= 1100

    play(story, config=LogConfig())


@pytest.mark.parametrize("deaf", range(5))
def test_takeover_settles_pending_appends(deaf: int) -> None:
    """LS4: the append is acked and in the log, or its outcome is unknown."""

    async def story(scene: Scene) -> None:
        first = await (await scene.server("s1")).open()
        await first.append(b"a")
        for bookie in scene.bookies.values():
            bookie.delay_s = 0.5
        for bookie in list(scene.bookies.values())[:deaf]:
            bookie.loses = lambda sender: sender.startswith("s1")
        pending = first.begin(b"b")
        log = await (await scene.server("s2")).open()
        error = await refused(first.append(b"c"), RollbookError)
        assert isinstance(error, OwnerLost | OwnerChanging)
        settled = await outcome(scene, pending)
        await log.append(b"d")
        scene.set_bookies(delay_s=0.0, loses=lambda _: False)
        await log.close()
        values = await scene.values()
        if isinstance(settled, AppendAck):
            assert (settled.first_offset, values) == (1, [b"a", b"b", b"d"])
        else:
            assert isinstance(settled, OwnerLost)
            assert settled.outcome is Outcome.UNKNOWN
            assert values in ([b"a", b"d"], [b"a", b"b", b"d"])
        await first.run(first.owner.ended())

    play(story)


def test_responses_that_depend_on_a_lost_append_are_withheld() -> None:
    """LS4: an owner must not report the tail 1 if its block was never confirmed."""

    async def story(scene: Scene) -> None:
        first = await (await scene.server("s1")).open()
        for bookie in scene.bookies.values():
            bookie.is_hung = True
        lost = first.begin(b"a", producer=ref(0))
        mismatch = first.begin(b"b", condition=Condition(expected_offset=Offset(0)))
        again = first.begin(b"a", producer=ref(0))
        gap = first.begin(b"c", producer=ref(2))
        await asyncio.sleep(0.1)
        assert not any(each.answer.done() for each in (lost, mismatch, again, gap))
        assert [each.is_refused for each in (lost, mismatch, again, gap)] == [
            False,
            True,
            False,
            True,
        ]
        for bookie in scene.bookies.values():
            bookie.is_hung = False
        log = await (await scene.server("s2")).open()
        assert (await log.append(b"z", condition=Condition(must_be_empty=True))).first_offset == 0
        for each in (lost, mismatch, again, gap):
            assert isinstance(await outcome(scene, each), OwnerLost)
        await log.close()
        assert await scene.values() == [b"z"]

    play(story)


def test_paused_owner_acks_nothing_after_its_lease() -> None:
    """LS9: even if responses wait in its sockets and nobody has taken the log over."""

    async def story(scene: Scene) -> None:
        first = await (await scene.server("s1")).open()
        await first.append(b"a")
        pending = first.begin(b"b")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        first.server.node.pause()
        await asyncio.sleep(LEASE_S + 1)
        first.server.node.resume()
        assert isinstance(await outcome(scene, pending), OwnerLost)
        await first.run(first.owner.ended())
        log = await first.server.open("again")
        assert log.owner.tail in (1, 2)
        await log.close()

    play(story)


def test_paused_owner_answers_no_retry_from_memory() -> None:
    async def story(scene: Scene) -> None:
        first = await (await scene.server("s1")).open()
        await first.append(b"a", producer=ref(0))
        first.server.node.pause()
        log = await (await scene.server("s2")).open()
        await log.append(b"b")
        await asyncio.sleep(LEASE_S + 1)
        first.server.node.resume()
        with pytest.raises(OwnerChanging):
            first.begin(b"a", producer=ref(0))
        await first.run(first.owner.ended())
        await log.close()
        assert await scene.values() == [b"a", b"b"]

    play(story)


def test_log_reopens_after_a_stranger_fences_its_ledger() -> None:
    """Java's autorecovery fences the ledgers of bookies that are down."""

    async def story(scene: Scene) -> None:
        server = await scene.server("s1")
        first = await server.open()
        ack = await first.append(b"a", producer=ref(0))
        async with await scene.ledgers.open_recover(ack.ledger_id):
            pass
        error = await refused(first.append(b"b", producer=ref(1)), RollbookError)
        assert isinstance(error, OwnerLost | OwnerChanging)
        assert first.owner.until_lost.done()
        await first.run(first.owner.ended())
        log = await server.open("again")
        assert log.owner.owner_epoch == 2
        assert (await log.append(b"b", producer=ref(1))).first_offset == 1
        await log.close()
        assert await scene.values() == [b"a", b"b"]

    play(story)


@pytest.mark.parametrize(("away_s", "held_s"), [(3, 7), (60, 5)])
def test_time_without_an_owner_counts_against_a_writer_that_died_with_it(
    away_s: float, held_s: float
) -> None:
    """At least half of the lease remains: a live holder could not renew it without an owner."""

    async def story(scene: Scene) -> None:
        first = await (await scene.server("s1")).open()
        await first.run(first.owner.acquire_writer("a", AcquireMode.FAIL, 10_000))
        first.server.node.kill()
        await asyncio.sleep(away_s)
        log = await (await scene.server("s2")).open()
        began = scene.world.now
        grant = await log.run(log.owner.acquire_writer("b", AcquireMode.WAIT))
        assert grant.writer_epoch == 2
        assert abs(scene.world.now - began - held_s) < 0.5
        await log.close()

    play(story)


def test_a_writer_that_outlived_the_owner_renews_with_the_next_one() -> None:
    async def story(scene: Scene) -> None:
        first = await (await scene.server("s1")).open()
        grant = await first.run(first.owner.acquire_writer("a", AcquireMode.FAIL, 10_000))
        first.server.node.kill()
        await asyncio.sleep(60)
        log = await (await scene.server("s2")).open()
        began = scene.world.now
        waiting = log.server.begin(log.owner.acquire_writer("b", AcquireMode.WAIT))
        await log.run(log.owner.renew_writer(grant.writer_epoch))
        await scene.within(waiting)
        assert 9.5 < scene.world.now - began < 11
        await log.close()

    play(story)


# --- Duels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_concurrent_openings_leave_one_working_owner(seed: int) -> None:
    """LS3: an opening that has fenced yields only to a newer owner, so one of them wins."""

    async def story(scene: Scene) -> None:
        servers = [await scene.server(f"s{number}") for number in range(4)]
        opening = [server.begin(server.open()) for server in servers]
        results = [
            await asyncio.gather(scene.within(each), return_exceptions=True) for each in opening
        ]
        held = [each for (each,) in results if isinstance(each, Held)]
        assert all(isinstance(each, Held | NotOwner | OwnerChanging) for (each,) in results)
        assert 1 <= len(held) < len(servers)  # The late openings have given up.
        newest = max(held, key=lambda each: each.owner.owner_epoch)
        assert (await newest.append(b"mine")).first_offset == 0
        for each in held:
            if each is not newest:
                error = await refused(each.append(b"not mine"), RollbookError)
                assert isinstance(error, OwnerLost | OwnerChanging)
                await each.run(each.owner.ended())
        await newest.close()
        assert await scene.values() == [b"mine"]

    play(story, seed=seed)


@pytest.mark.parametrize("seed", range(10))
def test_repeated_takeovers_lose_no_acked_append(seed: int) -> None:
    """Each owner takes the log over while the previous one appends and rolls."""

    async def story(scene: Scene) -> None:
        acked: dict[int, bytes] = {}
        unknown: list[bytes] = []
        held: list[Held] = []
        number = 0
        for turn in range(12):
            log = await (await scene.server(f"s{turn % 3}")).open()
            held.append(log)
            pending: list[tuple[bytes, PendingAppend]] = []
            for _ in range(20):
                value = b"%d" % number
                number += 1
                pending.append((value, log.begin(value)))
                if scene.world.nodes["operator"].randomness.random() < 0.3:
                    await asyncio.sleep(0.001)
            taking = (await scene.server(f"s{(turn + 1) % 3}")).open() if turn % 2 else None
            if taking is not None:
                held.append(await taking)
            for value, each in pending:
                answer = await outcome(scene, each)
                if isinstance(answer, RollbookError):
                    unknown.append(value)
                else:
                    acked[answer.first_offset] = value  # type: ignore[attr-defined]  # An ack.
        log = await (await scene.server("last")).open()
        await log.close()
        values = await scene.values()
        assert {offset: values[offset] for offset in acked} == acked
        assert len(set(values)) == len(values)
        assert set(values) <= set(acked.values()) | set(unknown)
        for owned in held:
            owned.server.do(owned.owner.lose, "the test is over")
            await owned.run(owned.owner.ended())
        blocks = await scene.read_all()
        epochs = [block.owner_epoch for block in blocks]
        assert epochs == sorted(epochs)
        opened = [unpack_control(block) for block in blocks if block.is_control]
        assert sum(isinstance(each, Opened) for each in opened) == len(set(epochs))

    play(story, seed=seed)


# --- Rolls that fail --------------------------------------------------------------------------


def test_successor_is_dropped_whole_if_its_predecessor_ends_elsewhere() -> None:
    """LS1, LS2: the last entries of N reach no bookie, all of N+1 do; none of them was acked."""

    async def story(scene: Scene) -> None:
        first = await (await scene.server("s1")).open()
        ack = await first.append(b"a", producer=ref(0))
        scene.set_bookies(ignored={ack.ledger_id})
        lost = [first.begin(b"b", producer=ref(1))]
        rolling = first.server.begin(first.owner.roll())
        await scene.until(lambda: len(first.owner.list.segments) == 2)
        lost += [first.begin(b"%d" % number, producer=ref(number)) for number in range(2, 6)]
        await asyncio.sleep(0.2)
        assert not any(each.answer.done() for each in lost)
        assert first.owner.tail == 1
        first.server.node.kill()
        rolling.cancel()
        log = await (await scene.server("s2")).open()
        stored = (await scene.stored()).list
        assert stored.segments[0].ledger_id == ack.ledger_id
        assert len(stored.segments) == 2
        assert len(stored.discarded) == 1
        acks = [await log.append(b"%d" % number, producer=ref(number)) for number in range(1, 6)]
        assert [each.first_offset for each in acks] == [1, 2, 3, 4, 5]
        assert not any(each.is_duplicate for each in acks)
        await log.close()
        assert await scene.values() == [b"a", b"1", b"2", b"3", b"4", b"5"]

    play(story)


def test_ledgers_after_an_unwritten_one_are_dropped_with_it() -> None:
    """LS2: no entry of N+1 has reached a bookie; N+2 is listed and written after it."""

    async def story(scene: Scene) -> None:
        first = await (await scene.server("s1")).open()
        ack = await first.append(b"a", producer=ref(0))
        scene.set_bookies(ignored={ack.ledger_id + 1})
        await first.run(first.owner.roll())
        first.begin(b"b", producer=ref(1))
        rolling = first.server.begin(first.owner.roll())
        await scene.until(lambda: len(first.owner.list.segments) == 3)
        first.begin(b"c", producer=ref(2))
        await asyncio.sleep(0.2)
        assert [each.is_closed for each in first.owner.list.segments] == [True, False, False]
        first.server.node.kill()
        rolling.cancel()
        log = await (await scene.server("s2")).open()
        assert len((await scene.stored()).list.segments) == 2
        assert (await log.append(b"b", producer=ref(1))).first_offset == 1
        await log.close()
        assert await scene.values() == [b"a", b"b"]

    play(story)


def test_a_successor_whose_predecessor_was_closed_is_kept() -> None:
    """LS2: the owner has acked in N+1 and died before it listed N as CLOSED."""

    async def story(scene: Scene) -> None:
        first = await (await scene.server("s1")).open()
        await first.append(b"a", producer=ref(0))

        def cut_when_closed(commit: Commit) -> None:
            for path, row in commit.rows.items():
                if path.startswith(f"{ROOT}/00/") and row is not None and row.version > 0:
                    scene.world.network.cut_one_way("s1", "metadata")

        scene.world.metadata.on_commit = cut_when_closed
        rolling = first.server.begin(first.owner.roll())
        await scene.until(lambda: len(first.owner.list.segments) == 2)
        pending = first.begin(b"b", producer=ref(1))
        assert (await scene.within(pending.answer)).first_offset == 1
        scene.world.metadata.on_commit = None
        first.server.node.kill()
        rolling.cancel()
        assert len((await scene.stored()).list.unclosed) == 2
        log = await (await scene.server("s2")).open()
        again = await log.append(b"b", producer=ref(1))
        assert (again.first_offset, again.is_duplicate) == (1, True)
        await log.close()
        assert await scene.values() == [b"a", b"b"]

    play(story)


def test_owner_acks_nothing_after_others_close_its_old_ledger_elsewhere() -> None:
    """LS1: the owner drops its memory of the log and opens it again."""

    async def story(scene: Scene) -> None:
        server = await scene.server("s1")
        first = await server.open()
        ack = await first.append(b"a", producer=ref(0))
        scene.set_bookies(ignored={ack.ledger_id})
        lost = first.begin(b"b", producer=ref(1))
        rolling = server.begin(first.owner.roll())
        await scene.until(lambda: len(first.owner.list.segments) == 2)
        behind = first.begin(b"c", producer=ref(2))
        scene.set_bookies(ignored=set())
        async with await scene.ledgers.open_recover(ack.ledger_id) as reader:
            assert reader.last_add_confirmed == ack.entry_id
        assert isinstance(await outcome(scene, lost), OwnerLost)
        assert isinstance(await outcome(scene, behind), OwnerLost)
        await asyncio.gather(rolling, return_exceptions=True)
        await first.run(first.owner.ended())
        log = await server.open("again")
        assert (await log.append(b"b", producer=ref(1))).first_offset == 1
        assert (await log.append(b"c", producer=ref(2))).first_offset == 2
        await log.close()
        assert await scene.values() == [b"a", b"b", b"c"]

    play(story)


def test_roll_fails_if_the_log_memory_does_not_fit_into_an_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LS2: a successor must begin with the log's memory; if that does not fit, the log is reopened."""

    async def story(scene: Scene) -> None:
        server = await scene.server("s1")
        first = await server.open()
        await first.append(b"a", producer=ref(0))
        with monkeypatch.context() as patch:
            patch.setattr(LogMemory, "pack", lambda _: bytes(6_000_000))
            rolling = server.begin(first.owner.roll())
            await refused(scene.within(rolling), OwnerChanging)
        with pytest.raises(OwnerChanging):
            first.begin(b"b")
        await first.run(first.owner.ended())
        log = await server.open("again")
        assert (await log.append(b"a", producer=ref(0))).is_duplicate
        await log.close()

    play(story)


def test_ledger_is_listed_by_the_list_change_it_was_made_for_or_never() -> None:
    """LS3: the list changes during a roll; the ledger made for it is deleted, another one is made."""

    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        await log.append(b"a")
        await scene.nodes.change(LOG, lambda listed: listed.with_preferred_server("s9"))
        assert await log.run(log.owner.roll()) == 1
        stored = await scene.stored()
        assert stored.list.preferred_server == "s9"
        kept = [each async for each in scene.ledgers.list()]
        assert kept == [segment.ledger_id for segment in stored.list.segments]
        for segment in stored.list.segments:
            metadata = (await scene.ledgers.metadata(segment.ledger_id)).metadata
            assert int(dict(metadata.custom)[LEDGER_OF_VERSION]) < stored.version
        await log.close()

    play(story)


def test_unused_ledger_of_an_opening_is_deleted() -> None:
    """LS3: the ledger is made while the old one is fenced. Fencing may fail, or the list may change."""

    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        await log.append(b"a")
        taker = await scene.server("s2")
        scene.set_bookies(is_hung=True)
        await refused(taker.open(), RecoveryIncomplete)
        listed = [segment.ledger_id for segment in (await scene.stored()).list.segments]
        assert [each async for each in scene.ledgers.list()] == listed
        scene.set_bookies(is_hung=False, delay_s=0.2)
        opening = taker.begin(taker.open())
        await asyncio.sleep(0.1)
        await scene.nodes.change(LOG, lambda listed: listed.with_preferred_server("s9"))
        taken = await scene.within(opening)
        stored = await scene.stored()
        assert stored.list.preferred_server == "s9"
        listed = [segment.ledger_id for segment in stored.list.segments]
        assert [each async for each in scene.ledgers.list()] == listed
        await taken.close()

    play(story)


def test_log_can_be_opened_after_a_cancelled_opening() -> None:
    """Its ledger is left to the orphan repair; the next opening succeeds."""

    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        await log.append(b"a")
        taker = await scene.server("s2")
        scene.set_bookies(delay_s=0.2)
        taking = taker.begin(Owner.open(LOG, taker.owner_context, reason="test"))
        await asyncio.sleep(0.3)
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        assert taking.cancelled()
        scene.set_bookies(delay_s=0.0)
        taken = await taker.open()
        assert (await taken.append(b"b")).first_offset == 1
        await taken.close()

    play(story)


def test_ledger_made_for_an_abandoned_opening_is_never_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cancellation came too late to prevent the ledger; the opening had failed by then."""
    made: list[LedgerWriter] = []

    async def make(context: OwnerContext, stored: StoredLog) -> LedgerWriter:
        made.append(await make_ledger(context, stored))
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(1)
        return made[-1]

    async def story(scene: Scene) -> None:
        first = await (await scene.server("s1")).open()
        ack = await first.append(b"a")
        first.server.node.kill()
        await scene.ledgers.delete(ack.ledger_id)
        monkeypatch.setattr(log_takeover, "make_ledger", make)
        taker = await scene.server("s2")
        taking = taker.begin(Owner.open(LOG, taker.owner_context, reason="test"))
        await scene.until(lambda: made)
        await asyncio.sleep(0.5)
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        assert [each.is_stopped for each in made] == [True]

    play(story)


# --- Before an owner serves ----------------------------------------------------------------------------


def test_opening_waits_for_a_confirmed_entry() -> None:
    """LS4: only a confirmed entry shows that no newer owner has fenced the log."""

    async def story(scene: Scene) -> None:
        server = await scene.server("s1")
        for bookie in scene.bookies.values():
            bookie.delay_s = 0.5
        opening = server.begin(server.open())
        await scene.until(lambda: scene.bookies["b1"].shelves)
        await asyncio.sleep(0.1)
        assert not opening.done()
        scene.set_bookies(delay_s=0.0)
        await (await scene.within(opening)).close()

    play(story)


@pytest.mark.parametrize("slow_at", ["bookies", "metadata"])
@pytest.mark.parametrize("ahead_s", [0.0, 0.2, 0.5, 1.0])
def test_only_one_of_two_overlapping_openings_serves(slow_at: str, ahead_s: float) -> None:
    """LS4: the owner in the log's list serves; the other one is refused when it opens or appends."""

    async def story(scene: Scene) -> None:
        slow = await scene.server("s1")
        quick = await scene.server("s2")
        for host in scene.bookies if slow_at == "bookies" else ("metadata",):
            scene.world.network.slow("s1", host, (0.2, 0.3))
        opening = slow.begin(slow.open())
        await asyncio.sleep(ahead_s)
        log = await quick.open()
        early = await outcome(scene, log.begin(b"a"))
        result = (await asyncio.gather(opening, return_exceptions=True))[0]
        listed = (await scene.stored()).list.owner
        assert listed is not None
        serving = result if isinstance(result, Held) else log
        assert listed.address == f"{serving.server.name}:7400"
        if serving is log:
            assert isinstance(result, NotOwner | OwnerChanging)
        else:
            error = await refused(log.append(b"c"), RollbookError)
            assert isinstance(error, OwnerLost | OwnerChanging)
        await serving.append(b"b")
        await serving.close()
        await log.close()
        is_acked = isinstance(early, AppendAck)
        assert is_acked or isinstance(early, OwnerLost)
        assert await scene.values() in ([[b"a", b"b"]] if is_acked else [[b"a", b"b"], [b"b"]])

    play(story)


def test_replaced_owner_answers_no_barrier() -> None:
    """LS10: its own entries are confirmed, but the new owner has appended since."""

    async def story(scene: Scene) -> None:
        first = await (await scene.server("s1")).open()
        await first.append(b"a")
        log = await (await scene.server("s2")).open()
        await log.append(b"b")
        assert first.owner.failure is None  # It was not notified.
        error = await refused(first.run(first.owner.barrier()), RollbookError)
        assert isinstance(error, OwnerLost)
        assert await log.run(log.owner.barrier()) == 2
        await first.run(first.owner.ended())
        await log.close()

    play(story)


def test_replaced_owner_answers_no_read_barrier() -> None:
    """LS14: the list names the new owner, which writes no entry for a read barrier."""

    async def story(scene: Scene) -> None:
        first = await (await scene.server("s1")).open()
        await first.append(b"a")
        assert await first.run(first.owner.read_barrier()) == 1
        log = await (await scene.server("s2")).open()
        await log.append(b"b")
        assert first.owner.failure is None  # It has not noticed the take-over.
        await refused(first.run(first.owner.read_barrier()), OwnerChanging)
        assert [await log.run(log.owner.read_barrier()) for _ in range(5)] == [2] * 5
        await first.run(first.owner.ended())
        await log.close()
        said = [unpack_control(block) for block in await scene.read_all() if block.is_control]
        assert not any(isinstance(each, Barrier) for each in said)

    play(story)


def test_replaced_owner_does_not_send_its_refusals() -> None:
    """LS4: the refusals would be wrong, since the new owner has appended the missing batch."""

    async def story(scene: Scene) -> None:
        first = await (await scene.server("s1")).open()
        await first.append(b"a", producer=ref(0))
        log = await (await scene.server("s2")).open()
        await log.append(b"b", producer=ref(1))
        mismatch = first.begin(b"c", condition=Condition(expected_offset=Offset(2)))
        gap = first.begin(b"c", producer=ref(2))
        assert mismatch.is_refused
        assert gap.is_refused
        assert isinstance(await outcome(scene, mismatch), OwnerLost)
        assert isinstance(await outcome(scene, gap), OwnerLost)
        await log.append(b"c", producer=ref(2), condition=Condition(expected_offset=Offset(2)))
        await first.run(first.owner.ended())
        await log.close()

    play(story)


def test_permanent_facts_are_answered_without_a_barrier() -> None:
    """LS4: for example that a batch is in the log, or that an epoch is fenced."""

    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        await log.append(b"a", producer=ref(0, epoch=1))
        scene.set_bookies(is_hung=True)
        assert (await log.append(b"a", producer=ref(0, epoch=1))).is_duplicate
        await refused(log.append(b"b", producer=ref(0)), ProducerFenced)
        passing = log.begin(b"c", condition=Condition(expected_offset=Offset(9)))
        await asyncio.sleep(0.1)
        assert not passing.answer.done()
        scene.set_bookies(is_hung=False)
        log.server.do(log.owner.lose, "the test is over")
        await log.run(log.owner.ended())
        assert isinstance(await outcome(scene, passing), OwnerLost)

    play(story)


def test_reported_seal_survives_the_death_of_the_owner() -> None:
    """LS4: the seal is in the log before it is in the list, and its owner dies in between."""

    async def story(scene: Scene) -> None:
        first = await (await scene.server("s1")).open()
        await first.append(b"a", producer=ref(0))
        scene.world.network.cut_one_way("s1", "metadata")
        sealing = first.server.begin(first.owner.seal())
        await asyncio.sleep(0.001)
        await refused(first.append(b"b", producer=ref(1)), LogSealed)
        first.server.node.kill()
        sealing.cancel()
        assert (await scene.stored()).list.state is ListedLogState.OPEN
        log = await (await scene.server("s2")).open()
        assert log.owner.is_sealed
        assert (await scene.stored()).list.state is ListedLogState.SEALED
        await refused(log.append(b"b", producer=ref(1)), LogSealed)
        assert (await log.append(b"a", producer=ref(0))).is_duplicate
        assert await log.run(log.owner.seal()) == 1
        assert await log.run(log.owner.barrier()) == 1
        await log.close()

    play(story)


def test_log_with_a_missing_ledger_fails_to_open() -> None:
    """LS2: a log never continues as if its lost records had not existed."""

    async def story(scene: Scene) -> None:
        first = await (await scene.server("s1")).open()
        ack = await first.append(b"a")
        first.server.node.kill()
        await scene.ledgers.delete(ack.ledger_id)
        error = await refused((await scene.server("s2")).open(), DataLost)
        assert error.ids["ledger_id"] == ack.ledger_id

    play(story)


def test_close_without_the_metadata_store_ends_within_30_seconds() -> None:
    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        await log.append(b"a")
        scene.world.metadata.down()
        began = scene.world.now
        await log.close()
        assert scene.world.now - began < 30
        scene.world.metadata.up()
        again = await (await scene.server("s2")).open()
        assert again.owner.tail == 1
        await again.close()

    play(story)
