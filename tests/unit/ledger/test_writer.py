"""The writer among bookies that behave and bookies that do not, in virtual time."""

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
from rollbook.proto.wire.adds import Adds
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
def test_what_is_appended_in_one_turn_leaves_at_its_end_as_one_chunk(writers: int) -> None:
    """A chunk costs a bookie a sync, and one more round of the loop is time that all of them wait."""

    async def story(scene: WriterScene) -> None:
        others = [scene.open(LedgerId(100 + number)) for number in range(writers - 1)]
        everybody = [scene.writer, *others]
        for _ in range(2):  # The first time connections are opened.
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
def test_entries_are_confirmed_in_order_and_close_names_the_last_one(
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


def test_an_empty_ledger_is_closed_before_its_first_entry() -> None:
    async def story(scene: WriterScene) -> None:
        async with scene.writer:
            pass
        assert scene.nodes.stored.metadata.last_entry == NO_ENTRY
        assert scene.nodes.stored.metadata.length == 0
        await scene.writer.close()

    play_writer(story)


def test_entries_are_striped() -> None:
    """Q1 and WR1: member `i` of four gets entries `i` and `i - 1` modulo four, and no others."""

    async def story(scene: WriterScene) -> None:
        await scene.append(50)
        await scene.append(50)
        for slot, name in enumerate(("b1", "b2", "b3", "b4")):
            wanted = [each for each in range(100) if STRIPED.holds(slot, EntryId(each))]
            assert scene.kept[name].entries == wanted

    play_writer(story, quorum=STRIPED)


def test_appends_of_one_turn_leave_in_one_write() -> None:
    async def story(scene: WriterScene) -> None:
        await scene.append(100)
        sizes = [sum(adds.count for adds in peer.adds) for peer in scene.bookie("b1").peers]
        assert sizes == [100]
        assert len(scene.bookie("b1").peers[0].adds) == 1

    play_writer(story)


# --- A bookie fails -------------------------------------------------------------------------------


def test_replacement_of_a_dead_bookie_gets_the_unconfirmed_entries() -> None:
    """WR2, WR3: and nobody else gets anything twice."""

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


def test_a_failure_after_the_quorum_answered_still_brings_a_third_copy() -> None:
    """WR3: else the ledger would be born with a copy too few."""

    async def story(scene: WriterScene) -> None:
        hang(scene, "b3")
        await scene.append(1)
        kill(scene, "b3")
        await scene.until(lambda: len(scene.nodes.updates) == 1)
        (first, new) = scene.nodes.fragments[-1]
        await scene.append(1)
        await scene.until(lambda: scene.kept[new[2]].entries == list(range(first, 2)))

    play_writer(story)


def test_a_connection_that_breaks_is_made_again_and_nothing_changes() -> None:
    """WR3: what it has not acknowledged is sent again, to it alone."""

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


def test_a_restart_of_a_bookie_that_owes_nothing_moves_no_ledger() -> None:
    """WR3: idle ledgers are many."""

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


def test_there_is_no_way_back_for_a_bookie_whose_successor_is_picked() -> None:
    """WR2: its copies do not count any more, so nothing is sent to it either."""

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
def test_a_bookie_that_hangs_costs_one_deadline_at_most_and_then_nothing(ack: int) -> None:
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
        assert scene.bookie("b2").peers[0].is_gone, "its connection was given up"
        started = now()
        await scene.append(100)
        assert now() - started < 0.1
        assert scene.health.is_quarantined(B2, scene.clock.monotonic_ns())

    play_writer(story, quorum=Quorum(3, 3, ack))


def test_stalled_writer_reads_its_responses_before_anything_expires() -> None:
    """WR6: time is counted in ticks, and it has not ticked."""

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


def test_time_goes_on_at_one_pace_whatever_fails() -> None:
    """WR6: a tick that finds a failure is followed by one tick, not by two."""

    async def story(scene: WriterScene) -> None:
        hang(scene, "b1", "b2")
        await scene.append(1)
        await asyncio.sleep(1.5 * DEADLINE_S)
        assert 30 <= scene.writer._pipeline.tick <= 32

    play_writer(story, bookies=THREE, quorum=Quorum(3, 3, 1))


def test_a_hung_third_replica_stops_a_fast_writer_for_a_second_or_so() -> None:
    """WR6: the window fills with what only it lacks."""

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
def test_seat_of_a_refusing_bookie_is_vacant_until_it_takes_an_entry(
    error: type[RollbookError],
) -> None:
    """WR12: also while it sits again and is sent nothing."""

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
def test_a_bookie_that_refuses_is_replaced(error: type[RollbookError]) -> None:
    async def story(scene: WriterScene) -> None:
        scene.kept["b1"].answer_adds = refuse_with(error)
        await scene.append(10)
        await scene.until(lambda: scene.nodes.updates)
        ((first, ensemble),) = scene.nodes.fragments
        assert first == 0, "nothing was confirmed in the first fragment, so it is gone"
        assert ensemble[1:] == (B2, B3)
        is_blamed = scene.health.is_quarantined(B1, scene.clock.monotonic_ns())
        assert is_blamed == (error is BookieFailed)

    # One turn at a time, so that nothing is confirmed by the other two before.
    play_writer(story, quorum=Quorum(3, 3, 3))


def test_busy_means_later_and_nothing_else() -> None:
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


def test_some_of_a_batch_may_be_busy() -> None:
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


def test_failures_during_a_change_are_for_the_next_one() -> None:
    """WR3."""

    async def story(scene: WriterScene) -> None:
        await scene.append(5)

        async def meanwhile() -> None:
            if not scene.nodes.updates:
                kill(scene, "b2")
                await asyncio.sleep(1)

        scene.nodes.before_update = meanwhile
        hang(scene, "b2")
        kill(scene, "b3")
        assert await scene.append(5) == [5, 6, 7, 8, 9]
        await scene.until(lambda: len(scene.nodes.updates) == 2)
        first, second = (each.fragments[-1] for each in scene.nodes.updates)
        assert first.ensemble[:2] == (B1, B2)
        assert sorted(second.ensemble) == [B1, B4, B5]
        assert second.ensemble[2] == first.ensemble[2]

    play_writer(story)


def test_with_too_few_bookies_it_goes_on_with_what_stands() -> None:
    """WR3: and takes the third one back as soon as it lives again, with all that it missed."""

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


def test_a_partial_replacement_is_better_than_none() -> None:
    """WR3."""

    async def story(scene: WriterScene) -> None:
        await scene.append(1)
        kill(scene, "b2", "b3")
        assert await scene.append(5) == [1, 2, 3, 4, 5]
        ensemble = scene.nodes.fragments[-1][1]
        assert ensemble in ((B1, B4, B3), (B1, B2, B4))

    play_writer(story, bookies=("b1", "b2", "b3", "b4"))


def test_a_watcher_hears_how_far_it_is_and_once_why_it_ends() -> None:
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


def test_without_a_quorum_it_fails_within_the_deadline_and_can_be_closed() -> None:
    """WR6: what was sent is unknown until the ledger is closed without it."""

    async def story(scene: WriterScene) -> None:
        await scene.append(5)
        hang(scene, "b2", "b3")
        started = now()
        lost = scene.writer.append(b"x")
        kill(scene, "b2", "b3")
        with pytest.raises(AppendUnsettled) as caught:
            await lost
        assert isinstance(caught.value.__cause__, NotEnoughBookies)
        assert re.search(r"needs 2 \(b2: .*reset.*, b3: .*reset.*\)", str(caught.value)), "and why"
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


def test_what_no_bookie_was_sent_is_known_not_to_be_there() -> None:
    async def story(scene: WriterScene) -> None:
        for name in THREE:
            scene.bookie(name).node.kill()
        with pytest.raises(NotEnoughBookies) as caught:
            await scene.writer.append(b"x")
        assert caught.value.outcome is Outcome.NOT_APPLIED

    play_writer(story, bookies=THREE)


def test_a_spare_in_quarantine_is_used_once_it_answers() -> None:
    """WR3: another that hangs is no help, so it is asked first."""

    async def story(scene: WriterScene) -> None:
        await scene.append(1)
        scene.health.on_failure(B4, scene.clock.monotonic_ns())
        hang(scene, "b4")
        kill(scene, "b2")
        assert await scene.append(1) == [1]
        await asyncio.sleep(DEADLINE_S)
        assert not scene.nodes.updates, "two of three stand, and that is enough"
        scene.kept["b4"].answer_adds = acknowledge
        await asyncio.sleep(DEADLINE_S)
        assert scene.nodes.fragments[-1][1] == (B1, B4, B3)

    play_writer(story, bookies=("b1", "b2", "b3", "b4"))


def test_a_bookie_that_hung_sits_again_once_it_answers() -> None:
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


def test_a_spare_in_quarantine_is_used_at_once_when_the_quorum_needs_it() -> None:
    async def story(scene: WriterScene) -> None:
        await scene.append(1)
        scene.health.on_failure(B4, scene.clock.monotonic_ns())
        scene.bookie("b4").on_call = ignore
        kill(scene, "b2")
        assert await scene.append(1) == [1]
        await asyncio.sleep(1)
        assert not scene.nodes.updates, "two of three stand, and that is enough"
        kill(scene, "b3")
        assert await scene.append(1) == [2]
        assert B4 in scene.nodes.fragments[-1][1]

    play_writer(story, bookies=("b1", "b2", "b3", "b4"))


# --- Metadata -------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_closed", [False, True], ids=["in recovery", "closed"])
def test_a_ledger_that_is_not_open_any_more_is_never_changed(is_closed: bool) -> None:
    """WR4: the writer, cut from two bookies, would go on with two others after recovery."""

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
def test_a_fence_ends_the_writer_for_good(error: type[RollbookError]) -> None:
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


def test_an_idle_writer_that_was_fenced_hears_of_it_when_it_closes() -> None:
    async def story(scene: WriterScene) -> None:
        await scene.append(5)
        scene.nodes.put(scene.nodes.stored.metadata.with_recovery_started())
        with pytest.raises(LedgerFenced):
            await scene.writer.close()

    play_writer(story)


@pytest.mark.parametrize("is_applied", [True, False])
def test_a_change_whose_reply_was_lost_is_found_or_made_again(is_applied: bool) -> None:
    """WR4: both ways the ledger has one change."""

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


def test_a_change_that_comes_true_late_is_recognised() -> None:
    """WR4: a reply was lost, the node read as it was before, and then the write arrived. By then the
    next attempt starts further on.
    """

    async def story(scene: WriterScene) -> None:
        await scene.append(5)
        late: list[Callable[[], None]] = []
        update = scene.nodes.update

        async def delayed(stored: object, metadata: object) -> object:
            if not late:
                late.append(lambda: scene.nodes.put(metadata))  # type: ignore[arg-type]  # It is.
                raise ConnectionLost
            late.pop()()
            scene.nodes.update = update  # type: ignore[method-assign]  # As it was.
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


def test_a_change_that_was_made_before_a_recovery_is_no_reason_to_go_on() -> None:
    """WR4: its reply was lost, and when the ledger is read again somebody recovers it."""

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


def test_re_replication_of_earlier_fragments_is_no_reason_to_stop() -> None:
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


def test_who_moves_the_end_of_the_ledger_fences_its_writer() -> None:
    """WR4: two writers of one ledger are one too many."""

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


def test_a_metadata_store_that_is_away_stops_nobody_who_has_a_quorum() -> None:
    """WR2: those who stay confirm entries while the change waits; it is made when the store is back."""

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
        assert first == 65, "a new attempt starts where the ledger ends by then"
        await scene.append(1)
        await scene.until(lambda: scene.kept[ensemble[2]].entries == [65])

    play_writer(story, config=ClientConfig(writer_window_entries=40))


def test_after_a_day_the_ledger_is_read_back_before_anything_is_sent() -> None:
    """WR5: fences of deleted ledgers are remembered for a week only."""

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


def test_after_a_day_nothing_is_sent_again_either() -> None:
    """WR5: a process that stood still for so long has adds without answers."""

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


def test_close_waits_for_what_is_pending_and_for_a_change_under_way() -> None:
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


def test_close_gives_third_copies_on_their_way() -> None:
    """A successor that is still being connected gets the last entries, too."""

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


def test_a_ledger_that_is_closed_as_wanted_is_closed() -> None:
    """A recovery may have been quicker, or our own reply was lost."""

    async def story(scene: WriterScene) -> None:
        await scene.append(5)
        recovering = scene.nodes.stored.metadata.with_recovery_started()
        scene.nodes.put(recovering.with_recovery_closed(EntryId(4), 5))
        await scene.writer.close()

    play_writer(story)


def test_a_ledger_that_was_closed_elsewhere_is_an_error() -> None:
    async def story(scene: WriterScene) -> None:
        await scene.append(5)
        recovering = scene.nodes.stored.metadata.with_recovery_started()
        scene.nodes.put(recovering.with_recovery_closed(EntryId(5), 6))
        for _ in range(2):
            with pytest.raises(LedgerClosed):
                await scene.writer.close()

    play_writer(story)


def test_a_cancelled_close_comes_to_its_end() -> None:
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


def test_a_store_that_stays_away_ends_a_close() -> None:
    async def story(scene: WriterScene) -> None:
        async def fail() -> None:
            raise MetadataUnavailable

        await scene.append(1)
        scene.nodes.before_update = scene.nodes.before_read = fail
        with pytest.raises(MetadataUnavailable):
            await scene.writer.close()

    play_writer(story)


def test_a_close_that_loses_both_quorum_and_store_says_so() -> None:
    """The change that was under way is given up with the writer: nobody cancelled the close."""

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


# --- What callers see -----------------------------------------------------------------------------


def test_writer_faster_than_its_bookies_keeps_within_its_memory_window() -> None:
    """WR6: `append` says so when it is full, and `ready` waits."""

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


def test_many_who_wait_for_room_all_get_it() -> None:
    async def story(scene: WriterScene) -> None:
        async def one() -> EntryId:
            await scene.writer.ready()
            return await scene.writer.append(b"x")

        found = await asyncio.gather(*(one() for _ in range(100)))
        assert sorted(found) == list(range(100))

    play_writer(story, config=ClientConfig(writer_window_entries=7))


def test_room_that_one_gives_up_goes_to_the_next() -> None:
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


def test_cancelling_an_append_cancels_the_news_only() -> None:
    async def story(scene: WriterScene) -> None:
        cancelled, kept = scene.writer.append(b"x"), scene.writer.append(b"y")
        cancelled.cancel()
        assert await kept == 1
        assert scene.writer.last_add_confirmed == 1

    play_writer(story)


def test_the_last_entry_is_told_when_nothing_follows() -> None:
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


def test_telling_the_last_entry_takes_no_task() -> None:
    """WR7: a server of many quiet logs does it all the time."""

    async def story(scene: WriterScene) -> None:
        scene.kept["b3"].answer_adds = ignore
        await scene.append(3)
        running = asyncio.all_tasks()
        await scene.until(lambda: scene.kept["b1"].explicit_lacs)
        assert asyncio.all_tasks() <= running
        await scene.writer.stop()

    play_writer(story)


def test_the_last_entry_is_told_until_a_quorum_knows() -> None:
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


def test_a_busy_writer_tells_nothing_twice() -> None:
    """WR7: entries carry the LAC themselves."""

    async def story(scene: WriterScene) -> None:
        for _ in range(100):
            await scene.append(1)
            await asyncio.sleep(0.01)
        assert not scene.kept["b1"].explicit_lacs
        assert scene.kept["b1"].lacs[99] == 98

    play_writer(story)


def test_a_stopped_writer_leaves_the_ledger_open_and_nothing_running() -> None:
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


def test_close_that_is_waited_for_reports_that_the_writer_was_stopped() -> None:
    """Else the caller would end, as if it had been cancelled."""

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
    """Confirmed when it returns."""
    futures = []
    for _ in range(count):
        futures.append(scene.writer.append(b"x"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await asyncio.gather(*futures)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """How many adds were given to each bookie's connection, each time."""
    counts: dict[str, list[int]] = {name: [] for name in THREE}
    write = AddChannel.write

    def noted(channel: AddChannel, frames: bytes | list[bytes], count: int) -> None:
        counts[channel.bookie].append(count)
        write(channel, frames, count)

    monkeypatch.setattr(AddChannel, "write", noted)
    return counts


def test_what_gathers_leaves_with_the_answer(
    written: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """WR10."""
    monkeypatch.setattr(rollbook.ledger.core.add_pipeline, "_GATHER_S", 3.0)

    async def story(scene: WriterScene) -> None:
        await scene.append(1)
        await asyncio.sleep(1)  # Nobody owes an answer.
        since = now()
        await append_in_turns(scene, 6)
        assert now() - since < 1
        assert written["b1"] == written["b2"] == [1, 1, 1, 2, 2]

    play_writer(story)


def test_what_gathers_for_a_bookie_that_hangs_leaves_all_the_same() -> None:
    """WR10: and the others are not asked to wait for it."""

    async def story(scene: WriterScene) -> None:
        await scene.append(1)
        hang(scene, "b3")
        await append_in_turns(scene, 6)
        await asyncio.sleep(0.1)
        assert scene.kept["b3"].entries == [0, 1, 2, 3, 4, 5, 6]

    play_writer(story)


def test_much_of_one_turn_leaves_before_it_ends(written: dict[str, list[int]]) -> None:
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
