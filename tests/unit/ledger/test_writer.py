"""The writer with well-behaved and misbehaving bookies, in virtual time."""

import asyncio
import re
from collections.abc import Callable

import pytest

import rollbook.ledger.core.add_pipeline
from rollbook.ledger.bookie_client import AddChannel
from rollbook.ledger.config import ClientConfig
from rollbook.proto.errors import (
    AppendUnsettled,
    BookieFailed,
    BookieReadOnly,
    ConnectionLost,
    LedgerClosed,
    LedgerFenced,
    MetadataUnavailable,
    NotEnoughBookies,
    Outcome,
    Overloaded,
    RollbookError,
    Unauthorized,
)
from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId
from rollbook.proto.metadata import LedgerState
from rollbook.proto.quorum import Quorum
from rollbook.proto.wire.add_columns import Adds
from rollbook.proto.wire.messages import ReceivedRequest
from tests.unit.ledger.scripted_bookie import Peer, acknowledge, ignore
from tests.unit.ledger.writer_scene import (
    B1,
    B2,
    B3,
    B4,
    B5,
    WriterScene,
    play_writer,
    refuse_with,
)

THREE = ("b1", "b2", "b3")
V2 = ClientConfig(protocol_version=2)
STRIPED = Quorum(ensemble=4, write=2, ack=2)
DEADLINE_S = ClientConfig().add_deadline_s


def now() -> float:
    return asyncio.get_running_loop().time()


def hang_up(peer: Peer, _adds: Adds) -> None:
    peer.transport.abort()


def kill(scene: WriterScene, *names: str) -> None:
    for name in names:
        scene.bookie(name).hangs_up = True
        scene.kept[name].answer_adds = hang_up
        for peer in scene.bookie(name).living_peers:
            peer.transport.abort()


def hang(scene: WriterScene, *names: str) -> None:
    for name in names:
        scene.kept[name].answer_adds = ignore


@pytest.mark.parametrize("writers", [1, 3])
def test_appends_of_several_writers_in_one_turn_form_one_chunk(writers: int) -> None:
    """Each chunk costs the bookie a sync, and one more loop turn would delay all appends."""

    async def story(scene: WriterScene) -> None:
        others = [scene.open(LedgerId(100 + number)) for number in range(writers - 1)]
        everybody = [scene.writer, *others]
        for _ in range(2):  # The first round opens the connections.
            for peer in scene.bookie("b1").peers:
                peer.adds.clear()
            pending = [writer.append(b"x") for writer in everybody]
            await asyncio.sleep(0)
            queued = [each.queued_bytes for each in scene.writer._channels]
            for each in pending:
                await each
            await scene.until(lambda: sum(adds.count for adds in peer_of(scene).adds) == writers)
        assert queued == [0, 0, 0]
        assert len(peer_of(scene).adds) == 1
        for other in others:
            await other.stop()

    def peer_of(scene: WriterScene) -> Peer:
        (peer,) = scene.bookie("b1").living_peers
        return peer

    play_writer(story)


@pytest.mark.parametrize("config", [ClientConfig(), V2], ids=["v3", "v2"])
def test_entries_confirm_in_order_and_close_records_the_last(
    config: ClientConfig,
) -> None:
    """WR1."""

    async def story(scene: WriterScene) -> None:
        assert await scene.append(100) == list(range(100))
        assert await scene.writer.append_many([b"x", b"y"]) == range(100, 102)
        await scene.writer.close()
        metadata = scene.nodes.stored.metadata
        assert metadata.state is LedgerState.CLOSED
        assert (metadata.last_entry, metadata.length) == (101, 192)
        for name in THREE:
            assert scene.kept[name].entries == list(range(102))
        with pytest.raises(LedgerClosed):
            scene.writer.append(b"late")

    play_writer(story, config=config)


def test_empty_ledger_is_closed_without_entries() -> None:
    async def story(scene: WriterScene) -> None:
        async with scene.writer:
            pass
        assert scene.nodes.stored.metadata.last_entry == NO_ENTRY
        assert scene.nodes.stored.metadata.length == 0
        await scene.writer.close()

    play_writer(story)


def test_entries_are_striped_over_the_ensemble() -> None:
    """Q1, WR1: slot `i` of four gets entries `i` and `i - 1` modulo four only."""

    async def story(scene: WriterScene) -> None:
        await scene.append(50)
        await scene.append(50)
        for slot, name in enumerate(("b1", "b2", "b3", "b4")):
            wanted = [each for each in range(100) if STRIPED.holds(slot, EntryId(each))]
            assert scene.kept[name].entries == wanted

    play_writer(story, quorum=STRIPED)


def test_appends_of_one_turn_are_sent_in_one_write() -> None:
    async def story(scene: WriterScene) -> None:
        await scene.append(100)
        sizes = [sum(adds.count for adds in peer.adds) for peer in scene.bookie("b1").peers]
        assert sizes == [100]
        assert len(scene.bookie("b1").peers[0].adds) == 1

    play_writer(story)


# --- A bookie fails -------------------------------------------------------------------------------


def test_replacement_of_a_dead_bookie_gets_the_unconfirmed_entries() -> None:
    """WR2, WR3: the other bookies get no entry twice."""

    async def story(scene: WriterScene) -> None:
        await scene.append(10)
        kill(scene, "b3")
        await scene.append(10)
        await scene.until(lambda: len(scene.nodes.updates) == 1)
        (start, old), (first, new) = scene.nodes.fragments
        assert (start, old) == (0, (B1, B2, B3))
        assert new[:2] == (B1, B2)
        assert new[2] in (B4, B5)
        successor = scene.kept[new[2]]
        await scene.append(1)
        await scene.until(lambda: successor.entries == list(range(first, 21)))
        assert scene.kept["b1"].entries == list(range(21))
        await scene.writer.close()
        assert scene.nodes.stored.metadata.last_entry == 20

    play_writer(story)


def test_bookie_failing_after_the_ack_quorum_is_replaced() -> None:
    """WR3: otherwise the ledger would have a copy too few from the start."""

    async def story(scene: WriterScene) -> None:
        hang(scene, "b3")
        await scene.append(1)
        kill(scene, "b3")
        await scene.until(lambda: len(scene.nodes.updates) == 1)
        (first, new) = scene.nodes.fragments[-1]
        await scene.append(1)
        await scene.until(lambda: scene.kept[new[2]].entries == list(range(first, 2)))

    play_writer(story)


def test_broken_connection_is_reopened_without_ensemble_change() -> None:
    """WR3: unacknowledged entries are resent, to this bookie only."""

    async def story(scene: WriterScene) -> None:
        await scene.append(3)
        await scene.until(lambda: scene.kept["b3"].entries == [0, 1, 2])
        await asyncio.sleep(0.1)
        hang(scene, "b3")
        await scene.append(2)
        await scene.until(lambda: scene.kept["b3"].entries == [0, 1, 2, 3, 4])
        scene.kept["b3"].answer_adds = acknowledge
        scene.bookie("b3").living_peers[0].transport.abort()
        await scene.until(lambda: scene.kept["b3"].entries == [0, 1, 2, 3, 4, 3, 4])
        await asyncio.sleep(2 * DEADLINE_S)
        assert scene.kept["b1"].entries == [0, 1, 2, 3, 4]
        assert not scene.nodes.updates

    play_writer(story)


def test_restart_of_an_idle_bookie_changes_no_ensemble() -> None:
    """WR3: idle ledgers are many, so a restart must not change their metadata."""

    async def story(scene: WriterScene) -> None:
        await scene.append(3)
        await asyncio.sleep(0.1)
        kill(scene, "b3")
        await asyncio.sleep(10)
        scene.bookie("b3").hangs_up = False
        scene.kept["b3"].answer_adds = acknowledge
        await asyncio.sleep(2)
        await scene.append(1)
        await scene.until(lambda: scene.kept["b3"].entries == [0, 1, 2, 3])
        assert not scene.nodes.updates

    play_writer(story)


def test_replaced_bookie_is_sent_nothing_when_it_returns() -> None:
    """WR2: its copies no longer count, so nothing is sent to it."""

    async def story(scene: WriterScene) -> None:
        async def slowly() -> None:
            await asyncio.sleep(2)

        await scene.append(1)
        await asyncio.sleep(0.1)
        scene.nodes.before_update = slowly
        kill(scene, "b3")
        await scene.append(1)
        await asyncio.sleep(0.5)
        had = list(scene.kept["b3"].entries)
        scene.bookie("b3").hangs_up = False
        scene.kept["b3"].answer_adds = acknowledge
        await asyncio.sleep(1.2)
        await scene.append(1)
        await scene.until(lambda: scene.nodes.updates)
        assert scene.kept["b3"].entries == had

    play_writer(story)


@pytest.mark.parametrize("ack", [2, 3])
def test_hung_bookie_is_replaced_within_one_deadline(ack: int) -> None:
    """WR6."""

    async def story(scene: WriterScene) -> None:
        await scene.append(1)
        hang(scene, "b2")
        started = now()
        await scene.append(1)
        assert now() - started <= (0.1 if ack == 2 else 1.2 * DEADLINE_S)
        await scene.until(lambda: scene.nodes.updates)
        assert B2 not in scene.writer.metadata.fragments[-1].ensemble
        assert now() - started <= 1.2 * DEADLINE_S
        await asyncio.sleep(1)
        assert scene.bookie("b2").peers[0].is_gone, "its connection was closed"
        started = now()
        await scene.append(100)
        assert now() - started < 0.1
        assert scene.health.is_quarantined(B2, scene.clock.monotonic_ns())

    play_writer(story, quorum=Quorum(3, 3, ack))


def test_stalled_writer_reads_its_responses_before_anything_expires() -> None:
    """WR6: deadlines count ticks, and a stalled process does not tick."""

    async def story(scene: WriterScene) -> None:
        await scene.append(1)
        node, world = scene.scene.client_node, scene.scene.world
        futures = [scene.writer.append(b"x") for _ in range(10)]
        world.at(world.now + 0.0001, node.pause)
        world.at(world.now + 100, node.resume)
        await asyncio.sleep(0.001)
        assert world.now > 99
        assert [await each for each in futures] == [*range(1, 11)]
        await asyncio.sleep(2 * DEADLINE_S)
        assert not scene.nodes.updates

    play_writer(story)


def test_ticks_keep_their_pace_after_failures() -> None:
    """WR6: a tick that finds a failure schedules one further tick, not two."""

    async def story(scene: WriterScene) -> None:
        hang(scene, "b1", "b2")
        await scene.append(1)
        await asyncio.sleep(1.5 * DEADLINE_S)
        assert 30 <= scene.writer._pipeline.tick <= 32

    play_writer(story, bookies=THREE, quorum=Quorum(3, 3, 1))


def test_hung_replica_stops_a_full_writer_only_briefly() -> None:
    """WR6: the window fills with entries that only the hung replica lacks."""

    async def story(scene: WriterScene) -> None:
        hang(scene, "b2")
        started = now()
        for _ in range(50):
            await scene.writer.ready()
            await scene.writer.append(b"x")
        assert now() - started < 0.35 * DEADLINE_S
        assert scene.writer.kept_bytes <= 16 * 1024 * 1024

    play_writer(story, config=ClientConfig(writer_window_entries=20))


@pytest.mark.parametrize("error", [BookieFailed, BookieReadOnly])
def test_slot_of_a_refusing_bookie_is_vacant_until_it_takes_an_entry(
    error: type[RollbookError],
) -> None:
    """WR12: also while the bookie has its slot again but is sent no entry."""

    async def story(scene: WriterScene) -> None:
        heard: list[int] = []
        scene.writer.watch_seats(lambda: heard.append(len(scene.writer.vacant_seats)))
        await scene.append(1)
        assert not scene.writer.vacant_seats
        scene.kept["b1"].answer_adds = refuse_with(error)
        await scene.append(1)
        await scene.until(lambda: "b1" in scene.writer.vacant_seats)
        assert heard[0] == 1
        await asyncio.sleep(2 * scene.config.add_deadline_s)
        assert set(scene.writer.vacant_seats) == {"b1"}
        scene.kept["b1"].answer_adds = scene.kept["b1"]._answer
        await scene.append(1)
        await scene.until(lambda: not scene.writer.vacant_seats)

    play_writer(story, bookies=("b1", "b2", "b3"))


@pytest.mark.parametrize("error", [BookieFailed, BookieReadOnly])
def test_refusing_bookie_is_replaced(error: type[RollbookError]) -> None:
    async def story(scene: WriterScene) -> None:
        scene.kept["b1"].answer_adds = refuse_with(error)
        await scene.append(10)
        await scene.until(lambda: scene.nodes.updates)
        ((first, ensemble),) = scene.nodes.fragments
        assert first == 0, "nothing was confirmed in the first fragment, so it was overwritten"
        assert ensemble[1:] == (B2, B3)
        is_blamed = scene.health.is_quarantined(B1, scene.clock.monotonic_ns())
        assert is_blamed == (error is BookieFailed)

    # With an ack quorum of 3 the other two bookies alone confirm nothing.
    play_writer(story, quorum=Quorum(3, 3, 3))


def test_overloaded_bookies_are_retried_without_ensemble_change() -> None:
    """WR8: no failure before the deadline, and no ensemble change."""

    async def story(scene: WriterScene) -> None:
        await scene.append(1)
        for name in THREE:
            scene.kept[name].answer_adds = refuse_with(Overloaded)
        futures = [scene.writer.append(b"x") for _ in range(5)]
        await asyncio.sleep(0.5 * DEADLINE_S)
        assert not any(future.done() for future in futures)
        assert len(scene.kept["b1"].entries) < 100, "pauses grow"
        for name in THREE:
            scene.kept[name].answer_adds = acknowledge
        assert [await each for each in futures] == [1, 2, 3, 4, 5]
        assert not scene.nodes.updates
        assert not scene.health.is_quarantined(B1, scene.clock.monotonic_ns())

    play_writer(story)


def test_only_refused_adds_of_a_batch_are_resent() -> None:
    """WR8: only what was refused is sent again."""

    async def story(scene: WriterScene) -> None:
        def every_other(peer: Peer, adds: Adds) -> None:
            (group,) = adds.groups
            for first, error in ((0, None), (1, Overloaded)):
                replies = group.pack_replies(error)
                size = len(replies) // len(group.entry_ids)
                for each in range(first, len(group.entry_ids), 2):
                    peer.send(replies[each * size : (each + 1) * size])
            scene.kept["b1"].answer_adds = acknowledge

        scene.kept["b1"].answer_adds = every_other
        hang(scene, "b3")
        assert await scene.append(6) == [0, 1, 2, 3, 4, 5]
        assert scene.kept["b1"].entries == [0, 1, 2, 3, 4, 5, 1, 3, 5]

    play_writer(story)


# --- Several fail ---------------------------------------------------------------------------------


def test_failure_during_an_ensemble_change_causes_another_change() -> None:
    """WR3."""

    async def story(scene: WriterScene) -> None:
        await scene.append(5)

        async def fail_b2() -> None:
            if not scene.nodes.updates:
                kill(scene, "b2")
                await asyncio.sleep(1)

        scene.nodes.before_update = fail_b2
        hang(scene, "b2")
        kill(scene, "b3")
        assert await scene.append(5) == [5, 6, 7, 8, 9]
        await scene.until(lambda: len(scene.nodes.updates) == 2)
        first, second = (each.fragments[-1] for each in scene.nodes.updates)
        assert first.ensemble[:2] == (B1, B2)
        assert sorted(second.ensemble) == [B1, B4, B5]
        assert second.ensemble[2] == first.ensemble[2]

    play_writer(story)


def test_writer_continues_on_an_ack_quorum_without_spares() -> None:
    """WR3: the third bookie gets all missed entries when it returns."""

    async def story(scene: WriterScene) -> None:
        await scene.append(5)
        kill(scene, "b3")
        assert await scene.append(5) == [5, 6, 7, 8, 9]
        await asyncio.sleep(3 * DEADLINE_S)
        assert scene.writer.failure is None
        assert not scene.nodes.updates
        scene.bookie("b3").hangs_up = False
        scene.kept["b3"].answer_adds = acknowledge
        await scene.until(lambda: set(range(10)) <= set(scene.kept["b3"].entries))
        await scene.writer.close()
        assert scene.nodes.fragments == [(0, (B1, B2, B3))]

    play_writer(story, bookies=THREE)


def test_partial_replacement_is_made_with_too_few_spares() -> None:
    """WR3."""

    async def story(scene: WriterScene) -> None:
        await scene.append(1)
        kill(scene, "b2", "b3")
        assert await scene.append(5) == [1, 2, 3, 4, 5]
        ensemble = scene.nodes.fragments[-1][1]
        assert ensemble in ((B1, B4, B3), (B1, B2, B4))

    play_writer(story, bookies=("b1", "b2", "b3", "b4"))


def test_watcher_is_notified_of_progress_and_once_of_failure() -> None:
    async def story(scene: WriterScene) -> None:
        told: list[int] = []
        ends: list[RollbookError] = []
        scene.writer.watch(told.append, ends.append)
        assert [scene.writer.put(b"x") for _ in range(5)] == [0, 1, 2, 3, 4]
        await scene.writer.flush()
        assert told == sorted(set(told))
        assert told[-1] == 4
        hang(scene, "b2", "b3")
        lost = scene.writer.append(b"with a future")
        scene.writer.put(b"without")
        kill(scene, "b2", "b3")
        with pytest.raises(AppendUnsettled):
            await lost
        (end,) = ends
        assert isinstance(end, AppendUnsettled)
        assert isinstance(end.__cause__, NotEnoughBookies)
        assert told[-1] == 4
        with pytest.raises(NotEnoughBookies):
            scene.writer.put(b"y")
        with pytest.raises(AppendUnsettled):
            await scene.writer.close()

    play_writer(story, bookies=THREE)


def test_writer_without_quorum_fails_within_the_deadline() -> None:
    """WR6: a sent append is unsettled; the ledger can be closed without it."""

    async def story(scene: WriterScene) -> None:
        await scene.append(5)
        hang(scene, "b2", "b3")
        started = now()
        lost = scene.writer.append(b"x")
        kill(scene, "b2", "b3")
        with pytest.raises(AppendUnsettled) as caught:
            await lost
        assert isinstance(caught.value.__cause__, NotEnoughBookies)
        assert re.search(r"needs 2 \(b2: .*reset.*, b3: .*reset.*\)", str(caught.value)), (
            "the message says why"
        )
        assert now() - started <= 1.2 * DEADLINE_S
        with pytest.raises(NotEnoughBookies):
            scene.writer.append(b"y")
        with pytest.raises(AppendUnsettled):
            await scene.writer.flush()
        with pytest.raises(AppendUnsettled):
            await scene.writer.close()
        metadata = scene.nodes.stored.metadata
        assert (metadata.state, metadata.last_entry) == (LedgerState.CLOSED, 4)
        assert metadata.length == 5

    play_writer(story, bookies=THREE)


def test_append_sent_to_no_bookie_is_not_applied() -> None:
    async def story(scene: WriterScene) -> None:
        for name in THREE:
            scene.bookie(name).node.kill()
        with pytest.raises(NotEnoughBookies) as caught:
            await scene.writer.append(b"x")
        assert caught.value.outcome is Outcome.NOT_APPLIED

    play_writer(story, bookies=THREE)


def test_quarantined_spare_is_used_once_it_answers() -> None:
    """WR3: a spare that hangs as well would not help, so it is probed first."""

    async def story(scene: WriterScene) -> None:
        await scene.append(1)
        scene.health.on_failure(B4, scene.clock.monotonic_ns())
        hang(scene, "b4")
        kill(scene, "b2")
        assert await scene.append(1) == [1]
        await asyncio.sleep(DEADLINE_S)
        assert not scene.nodes.updates, "two of three bookies suffice"
        scene.kept["b4"].answer_adds = acknowledge
        await asyncio.sleep(DEADLINE_S)
        assert scene.nodes.fragments[-1][1] == (B1, B4, B3)

    play_writer(story, bookies=("b1", "b2", "b3", "b4"))


def test_hung_bookie_keeps_its_slot_once_it_answers() -> None:
    """WR3."""

    async def story(scene: WriterScene) -> None:
        hang(scene, "b2")
        await scene.append(3)
        await asyncio.sleep(3 * DEADLINE_S)
        assert scene.health.is_quarantined(B2, scene.clock.monotonic_ns())
        scene.kept["b2"].answer_adds = acknowledge
        await scene.until(lambda: scene.kept["b2"].entries[-3:] == [0, 1, 2])
        assert not scene.nodes.updates

    play_writer(story, bookies=THREE)


def test_quarantined_spare_is_used_at_once_to_restore_quorum() -> None:
    async def story(scene: WriterScene) -> None:
        await scene.append(1)
        scene.health.on_failure(B4, scene.clock.monotonic_ns())
        scene.bookie("b4").on_call = ignore
        kill(scene, "b2")
        assert await scene.append(1) == [1]
        await asyncio.sleep(1)
        assert not scene.nodes.updates, "two of three bookies suffice"
        kill(scene, "b3")
        assert await scene.append(1) == [2]
        assert B4 in scene.nodes.fragments[-1][1]

    play_writer(story, bookies=("b1", "b2", "b3", "b4"))


# --- Metadata -------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_closed", [False, True], ids=["in recovery", "closed"])
def test_writer_never_changes_a_ledger_that_is_not_open(is_closed: bool) -> None:
    """WR4: otherwise a writer cut off from its bookies would continue on others after recovery."""

    async def story(scene: WriterScene) -> None:
        await scene.append(5)
        metadata = scene.nodes.stored.metadata.with_recovery_started()
        if is_closed:
            metadata = metadata.with_recovery_closed(EntryId(4), 5)
        scene.nodes.put(metadata)
        hang(scene, "b2", "b3")
        lost = scene.writer.append(b"x")
        await asyncio.sleep(0.1)
        kill(scene, "b2", "b3")
        with pytest.raises(AppendUnsettled) as caught:
            await lost
        assert isinstance(caught.value.__cause__, LedgerFenced)
        with pytest.raises(LedgerFenced):
            scene.writer.append(b"y")
        with pytest.raises(AppendUnsettled):
            await scene.writer.close()
        assert not scene.nodes.updates
        assert scene.nodes.stored.metadata == metadata

    play_writer(story)


@pytest.mark.parametrize("error", [LedgerFenced, Unauthorized])
def test_fence_stops_the_writer_permanently(error: type[RollbookError]) -> None:
    """WR4."""

    async def story(scene: WriterScene) -> None:
        await scene.append(5)
        scene.kept["b1"].answer_adds = refuse_with(error)
        hang(scene, "b2", "b3")
        lost = [scene.writer.append(b"x") for _ in range(3)]
        unlucky = asyncio.ensure_future(scene.writer.flush())
        for each in lost:
            with pytest.raises(AppendUnsettled):
                await each
        with pytest.raises(AppendUnsettled):
            await unlucky
        with pytest.raises(error):
            scene.writer.append(b"y")
        with pytest.raises(error):
            await scene.writer.ready()
        with pytest.raises(AppendUnsettled):
            await scene.writer.close()
        assert not scene.nodes.updates
        assert scene.writer.is_stopped

    play_writer(story)


def test_idle_writer_learns_of_a_fence_at_close() -> None:
    async def story(scene: WriterScene) -> None:
        await scene.append(5)
        scene.nodes.put(scene.nodes.stored.metadata.with_recovery_started())
        with pytest.raises(LedgerFenced):
            await scene.writer.close()

    play_writer(story)


@pytest.mark.parametrize("is_applied", [True, False])
def test_ensemble_change_with_a_lost_reply_is_made_once(is_applied: bool) -> None:
    """WR4: the ledger has one change, whether the update was applied or not."""

    async def story(scene: WriterScene) -> None:
        async def lose() -> None:
            scene.nodes.before_update = scene.nodes.after_update = nothing
            raise ConnectionLost

        async def nothing() -> None: ...

        await scene.append(5)
        if is_applied:
            scene.nodes.after_update = lose
        else:
            scene.nodes.before_update = lose
        kill(scene, "b3")
        assert await scene.append(5) == [5, 6, 7, 8, 9]
        await scene.until(lambda: B3 not in scene.writer.metadata.fragments[-1].ensemble)
        assert len(scene.nodes.updates) == 1
        await scene.writer.close()
        assert scene.nodes.stored.metadata.last_entry == 9

    play_writer(story)


def test_ensemble_change_applied_late_is_recognised() -> None:
    """WR4: the reply was lost, a read returned the old node, and then the write was applied. The
    next attempt starts at a later entry.
    """

    async def story(scene: WriterScene) -> None:
        await scene.append(5)
        late: list[Callable[[], None]] = []
        update = scene.nodes.update

        async def delayed(stored: object, metadata: object) -> object:
            if not late:
                late.append(lambda: scene.nodes.put(metadata))  # type: ignore[arg-type]  # Metadata.
                raise ConnectionLost
            late.pop()()
            scene.nodes.update = update  # type: ignore[method-assign]  # Restored.
            return await update(stored, metadata)  # type: ignore[arg-type]  # Handed through.

        async def confirm_some() -> None:
            await scene.append(1)

        scene.nodes.update = delayed  # type: ignore[assignment,method-assign]  # For this test.
        scene.nodes.before_read = confirm_some
        kill(scene, "b3")
        assert await scene.append(5) == [5, 6, 7, 8, 9]
        await scene.until(lambda: B3 not in scene.writer.metadata.fragments[-1].ensemble)
        assert scene.writer.failure is None
        first, ensemble = scene.nodes.fragments[-1]
        last = scene.writer.last_appended
        await scene.until(lambda: scene.kept[ensemble[2]].entries == [*range(first, last + 1)])

    play_writer(story)


def test_writer_stops_when_recovery_follows_its_lost_update() -> None:
    """WR4: the reply was lost, and the re-read node is in recovery."""

    async def story(scene: WriterScene) -> None:
        async def recover() -> None:
            scene.nodes.put(scene.nodes.stored.metadata.with_recovery_started())
            raise ConnectionLost

        await scene.append(5)
        scene.nodes.after_update = recover
        kill(scene, "b3")
        await scene.append(1)
        await scene.until(lambda: scene.writer.failure)
        assert isinstance(scene.writer.failure, LedgerFenced)

    play_writer(story)


def test_re_replication_of_old_fragments_does_not_stop_the_writer() -> None:
    """WR4."""

    async def story(scene: WriterScene) -> None:
        await scene.append(5)
        kill(scene, "b3")
        await scene.append(1)
        await scene.until(lambda: scene.nodes.updates)
        metadata = scene.nodes.stored.metadata
        spare = B4 if B4 not in metadata.fragments[-1].ensemble else B5
        scene.nodes.put(metadata.with_replacement(EntryId(0), B3, spare))
        await scene.append(1)
        kill(scene, "b2")
        assert await scene.append(5)
        await scene.until(lambda: B2 not in scene.writer.metadata.fragments[-1].ensemble)
        assert scene.nodes.stored.metadata.fragments[0].ensemble == (B1, B2, spare)

    play_writer(story)


def test_foreign_change_of_the_last_fragment_stops_the_writer() -> None:
    """WR4: another writer must have made the change."""

    async def story(scene: WriterScene) -> None:
        await scene.append(5)
        metadata = scene.nodes.stored.metadata
        scene.nodes.put(metadata.with_writer_ensemble(EntryId(5), (B1, B4, B3)))
        kill(scene, "b3")
        await scene.append(1)
        await scene.until(lambda: scene.writer.failure)
        assert isinstance(scene.writer.failure, LedgerFenced)
        assert not scene.nodes.updates

    play_writer(story)


def test_metadata_outage_does_not_stop_a_writer_with_a_quorum() -> None:
    """WR2: the remaining bookies confirm entries; the change is made when the store returns."""

    async def story(scene: WriterScene) -> None:
        async def fail() -> None:
            raise MetadataUnavailable

        async def nothing() -> None: ...

        await scene.append(5)
        scene.nodes.before_update = scene.nodes.before_read = fail
        kill(scene, "b3")
        for _ in range(30):
            await scene.append(2)
            await asyncio.sleep(DEADLINE_S / 5)
        assert scene.writer.last_add_confirmed == 64
        scene.nodes.before_update = scene.nodes.before_read = nothing
        await scene.until(lambda: scene.nodes.updates)
        first, ensemble = scene.nodes.fragments[-1]
        assert first == 65, "a new attempt starts after the entries confirmed by then"
        await scene.append(1)
        await scene.until(lambda: scene.kept[ensemble[2]].entries == [65])

    play_writer(story, config=ClientConfig(writer_window_entries=40))


def test_idle_writer_checks_metadata_after_a_day() -> None:
    """WR5: bookies remember the fences of deleted ledgers for a week only."""

    async def story(scene: WriterScene) -> None:
        await scene.append(1)
        scene.clock.ahead_s += 86_500
        assert await scene.append(1) == [1]
        scene.clock.ahead_s += 86_500
        scene.nodes.put(scene.nodes.stored.metadata.with_recovery_started())
        with pytest.raises(LedgerFenced) as caught:
            await scene.writer.append(b"x")
        assert caught.value.outcome is Outcome.NOT_APPLIED
        assert scene.kept["b1"].entries == [0, 1]

    play_writer(story)


def test_adds_are_not_resent_after_a_day_without_metadata_check() -> None:
    """WR5: a process stalled for that long has unanswered adds."""

    async def story(scene: WriterScene) -> None:
        await scene.append(1)
        hang(scene, *THREE)
        lost = scene.writer.append(b"x")
        await asyncio.sleep(0.1)
        scene.clock.ahead_s += 86_500
        scene.nodes.put(scene.nodes.stored.metadata.with_recovery_started())
        for name in THREE:
            scene.bookie(name).living_peers[0].transport.abort()
        with pytest.raises(AppendUnsettled):
            await lost
        assert scene.kept["b1"].entries == [0, 1]

    play_writer(story)


# --- The end --------------------------------------------------------------------------------------


def test_close_waits_for_pending_appends_and_ensemble_change() -> None:
    async def story(scene: WriterScene) -> None:
        async def slowly() -> None:
            await asyncio.sleep(1)

        await scene.append(5)
        scene.nodes.before_update = slowly
        kill(scene, "b3", "b2")
        futures = [scene.writer.append(b"x") for _ in range(5)]
        await scene.writer.close()
        assert all(each.done() for each in futures)
        metadata = scene.nodes.stored.metadata
        assert (metadata.last_entry, metadata.length) == (9, 10)
        assert len(metadata.fragments) == 2

    play_writer(story)


def test_close_still_sends_pending_third_copies() -> None:
    """A successor that is still connecting gets the last entries, too."""

    async def story(scene: WriterScene) -> None:
        async def slowly() -> None:
            await asyncio.sleep(1)

        hang(scene, "b3")
        await scene.append(5)
        scene.nodes.before_update = slowly
        kill(scene, "b3")
        await asyncio.sleep(0.5)
        await scene.append(3)
        await scene.writer.close()
        (_, (first, ensemble)) = scene.nodes.fragments
        assert (first, ensemble[:2]) == (5, (B1, B2))
        await asyncio.sleep(1)
        assert scene.kept[ensemble[2]].entries == [5, 6, 7]

    play_writer(story)


def test_close_succeeds_if_already_closed_at_the_same_entry() -> None:
    """Recovery may have closed the ledger first, or the reply to the close was lost."""

    async def story(scene: WriterScene) -> None:
        await scene.append(5)
        recovering = scene.nodes.stored.metadata.with_recovery_started()
        scene.nodes.put(recovering.with_recovery_closed(EntryId(4), 5))
        await scene.writer.close()

    play_writer(story)


def test_close_fails_if_closed_at_another_entry() -> None:
    async def story(scene: WriterScene) -> None:
        await scene.append(5)
        recovering = scene.nodes.stored.metadata.with_recovery_started()
        scene.nodes.put(recovering.with_recovery_closed(EntryId(5), 6))
        for _ in range(2):
            with pytest.raises(LedgerClosed):
                await scene.writer.close()

    play_writer(story)


def test_cancelled_close_still_closes_the_ledger() -> None:
    async def story(scene: WriterScene) -> None:
        async def slowly() -> None:
            await asyncio.sleep(1)

        scene.nodes.before_update = slowly
        scene.writer.append(b"x")
        closing = asyncio.ensure_future(scene.writer.close())
        await asyncio.sleep(0.5)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert scene.nodes.stored.metadata.is_closed

    play_writer(story)


def test_close_fails_when_the_metadata_store_stays_unavailable() -> None:
    async def story(scene: WriterScene) -> None:
        async def fail() -> None:
            raise MetadataUnavailable

        await scene.append(1)
        scene.nodes.before_update = scene.nodes.before_read = fail
        with pytest.raises(MetadataUnavailable):
            await scene.writer.close()

    play_writer(story)


def test_close_without_quorum_and_store_raises_unavailable() -> None:
    """The pending ensemble change ends with the writer, which must not look like a cancel."""

    async def story(scene: WriterScene) -> None:
        async def fail() -> None:
            raise MetadataUnavailable

        await scene.append(1)
        scene.nodes.before_update = scene.nodes.before_read = fail
        kill(scene, "b2", "b3")
        lost = scene.writer.append(b"x")
        with pytest.raises(MetadataUnavailable):
            await scene.writer.close()
        with pytest.raises(AppendUnsettled):
            await lost

    play_writer(story)


# --- The caller's view ----------------------------------------------------------------------------


def test_writer_stays_within_its_memory_window() -> None:
    """WR6: `append` raises when the window is full, and `ready` waits."""

    async def story(scene: WriterScene) -> None:
        hang(scene, *THREE)
        writer, taken = scene.writer, 0
        while writer.kept_bytes <= 98_900:
            writer.append(bytes(1000))
            taken += 1
        with pytest.raises(Overloaded):
            writer.append(bytes(1000))
        assert 80 < taken < 100
        assert writer.kept_bytes <= 100_000
        waiting = asyncio.ensure_future(writer.ready(payload_bytes=1000))
        await asyncio.sleep(1)
        assert not waiting.done()
        for name in THREE:
            scene.kept[name].answer_adds = acknowledge
            scene.bookie(name).living_peers[0].transport.abort()
        await waiting
        assert await writer.append(bytes(1000)) == taken

    play_writer(story, config=ClientConfig(writer_window_bytes=100_000))


def test_all_appends_waiting_for_room_succeed() -> None:
    async def story(scene: WriterScene) -> None:
        async def one() -> EntryId:
            await scene.writer.ready()
            return await scene.writer.append(b"x")

        found = await asyncio.gather(*(one() for _ in range(100)))
        assert sorted(found) == list(range(100))

    play_writer(story, config=ClientConfig(writer_window_entries=7))


def test_room_of_a_cancelled_waiter_is_passed_on() -> None:
    async def story(scene: WriterScene) -> None:
        writer = scene.writer
        hang(scene, *THREE)
        writer.append(b"x")
        writer.append(b"y")
        waiting = [asyncio.ensure_future(writer.ready()) for _ in range(6)]
        await asyncio.sleep(0.1)
        for each in waiting[:3]:
            each.add_done_callback(lambda _: waiting[3].cancel())
        waiting[0].cancel()
        for name in THREE:
            scene.kept[name].answer_adds = acknowledge
            scene.bookie(name).living_peers[0].transport.abort()
        for each in (*waiting[1:3], *waiting[4:]):
            await each

    play_writer(story, config=ClientConfig(writer_window_entries=2))


def test_cancelling_an_append_keeps_its_entry() -> None:
    async def story(scene: WriterScene) -> None:
        cancelled, kept = scene.writer.append(b"x"), scene.writer.append(b"y")
        cancelled.cancel()
        assert await kept == 1
        assert scene.writer.last_add_confirmed == 1

    play_writer(story)


def test_idle_writer_sends_the_explicit_lac_once() -> None:
    """WR7: within 50 ms, once, to the whole ensemble."""

    async def story(scene: WriterScene) -> None:
        await scene.append(3)
        await asyncio.sleep(0.05)
        for name in THREE:
            assert scene.kept[name].explicit_lacs == [2]
        await asyncio.sleep(5)
        await scene.append(1)
        await asyncio.sleep(0.05)
        for name in THREE:
            assert scene.kept[name].explicit_lacs == [2, 3]

    play_writer(story)


def test_sending_the_explicit_lac_starts_no_task() -> None:
    """WR7: a server with many quiet logs sends them all the time."""

    async def story(scene: WriterScene) -> None:
        scene.kept["b3"].answer_adds = ignore
        await scene.append(3)
        running = asyncio.all_tasks()
        await scene.until(lambda: scene.kept["b1"].explicit_lacs)
        assert asyncio.all_tasks() <= running
        await scene.writer.stop()

    play_writer(story)


def test_explicit_lac_is_retried_until_a_quorum_accepts() -> None:
    """WR7."""

    async def story(scene: WriterScene) -> None:
        def refuse(peer: Peer, call: ReceivedRequest) -> None:
            peer.send(call.refuse(BookieFailed))

        listening = [scene.bookie(name).on_call for name in THREE]
        for name in THREE[:2]:
            scene.bookie(name).on_call = refuse
        await scene.append(3)
        await asyncio.sleep(2)
        for name, listen in zip(THREE, listening, strict=True):
            scene.bookie(name).on_call = listen
        await scene.until(lambda: scene.kept["b1"].explicit_lacs)
        assert set(scene.kept["b3"].explicit_lacs) == {2}
        assert len(scene.kept["b3"].explicit_lacs) < 12
        await asyncio.sleep(10)
        assert len(scene.kept["b1"].explicit_lacs) == 1

    play_writer(story)


def test_busy_writer_sends_no_explicit_lac() -> None:
    """WR7: each entry carries the LAC."""

    async def story(scene: WriterScene) -> None:
        for _ in range(100):
            await scene.append(1)
            await asyncio.sleep(0.01)
        assert not scene.kept["b1"].explicit_lacs
        assert scene.kept["b1"].lacs[99] == 98

    play_writer(story)


def test_stopped_writer_leaves_the_ledger_open() -> None:
    async def story(scene: WriterScene) -> None:
        await scene.append(5)
        hang(scene, *THREE)
        lost = scene.writer.append(b"x")
        unsent = scene.writer.append(b"y")
        await scene.writer.stop()
        for each in (lost, unsent):
            with pytest.raises(LedgerClosed):
                await each
        await scene.writer.stop()
        assert scene.nodes.stored.metadata.state is LedgerState.OPEN

    play_writer(story)


def test_pending_close_fails_when_the_writer_is_stopped() -> None:
    """Otherwise the caller would end as if it had been cancelled."""

    async def story(scene: WriterScene) -> None:
        await scene.append(5)
        hang(scene, *THREE)
        lost = scene.writer.append(b"x")
        closing = asyncio.get_running_loop().create_task(scene.writer.close())
        await asyncio.sleep(0.1)
        await scene.writer.stop()
        for each in (lost, closing):
            with pytest.raises(AppendUnsettled):
                await each
        assert scene.nodes.stored.metadata.state is LedgerState.OPEN

    play_writer(story)


async def append_in_turns(scene: WriterScene, count: int) -> None:
    """Append one entry every other loop turn; return when all are confirmed."""
    futures = []
    for _ in range(count):
        futures.append(scene.writer.append(b"x"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await asyncio.gather(*futures)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """The add counts of each write to a bookie's channel."""
    counts: dict[str, list[int]] = {name: [] for name in THREE}
    write = AddChannel.write

    def noted(channel: AddChannel, frames: bytes | list[bytes], count: int) -> None:
        counts[channel.bookie].append(count)
        write(channel, frames, count)

    monkeypatch.setattr(AddChannel, "write", noted)
    return counts


def test_gathered_appends_are_sent_when_a_reply_arrives(
    written: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """WR10."""
    monkeypatch.setattr(rollbook.ledger.core.add_pipeline, "_GATHER_S", 3.0)

    async def story(scene: WriterScene) -> None:
        await scene.append(1)
        await asyncio.sleep(1)  # No replies are pending.
        since = now()
        await append_in_turns(scene, 6)
        assert now() - since < 1
        assert written["b1"] == written["b2"] == [1, 1, 1, 2, 2]

    play_writer(story)


def test_gathered_appends_are_sent_to_a_hung_bookie() -> None:
    """WR10."""

    async def story(scene: WriterScene) -> None:
        await scene.append(1)
        hang(scene, "b3")
        await append_in_turns(scene, 6)
        await asyncio.sleep(0.1)
        assert scene.kept["b3"].entries == [0, 1, 2, 3, 4, 5, 6]

    play_writer(story)


def test_large_burst_is_partly_sent_before_the_loop_turn_ends(
    written: dict[str, list[int]],
) -> None:
    async def story(scene: WriterScene) -> None:
        await scene.append(1)
        await asyncio.sleep(1)
        futures = [scene.writer.append(b"x" * 1_000) for _ in range(350)]
        early = {name: sum(counts) - 1 for name, counts in written.items()}
        assert len({*early.values()}) == 1
        assert 200 < early["b1"] < 300
        assert await asyncio.gather(*futures) == list(range(1, 351))
        assert [*map(sum, written.values())][:2] == [351, 351]

    play_writer(story)
