"""Recovery over the wire: what it decides, what it leaves behind, whom it does not believe."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from rollbook.ledger.bookie_client import AddChannel
from rollbook.proto.cluster.ledger_nodes import StoredLedger
from rollbook.proto.errors import (
    BookieFailed,
    BookieReadOnly,
    EntryStateUnknown,
    EntryTooLarge,
    Overloaded,
    RecoveryIncomplete,
    RollbookError,
    Unauthorized,
)
from rollbook.proto.ids import NO_ENTRY, BookieId, EntryId
from rollbook.proto.metadata import Fragment, LedgerMetadata, LedgerState
from rollbook.proto.quorum import Quorum
from rollbook.proto.wire.digest import DigestType
from rollbook.proto.wire.messages import BatchRead, EntryRead, ReadLac
from tests.messages import raises_message
from tests.support.entries import pack_entry
from tests.unit.ledger.keeper import DIGEST, FAST, PAYLOAD_BYTES, Stage, payload_of, stage

E3 = Quorum(ensemble=3, write=3, ack=2)
B0, B1, B2, B3 = (BookieId(f"b{i}") for i in range(4))


def test_an_empty_ledger_is_closed_empty() -> None:
    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        closed = await on.recover()
        assert closed.is_closed
        assert (closed.last_entry, closed.length) == (-1, 0)
        assert all(each.is_fenced for each in on.keepers("b0 b1 b2"))

    stage(act)


def test_what_two_of_three_have_is_kept() -> None:
    """FR2, FR5: and the third gets its copies."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        on["b0"].put(range(10), lac=-1)
        on["b1"].put(range(8), lac=-1)
        on["b2"].put(range(10), lac=-1)
        closed = await on.recover()
        assert (closed.last_entry, closed.length) == (9, 10 * PAYLOAD_BYTES)
        assert set(on["b1"].entries) == set(range(10))
        assert closed.fragments == on.stored.metadata.fragments

    stage(act)


@pytest.mark.parametrize("batches", [False, True], ids=["singles", "batches"])
@pytest.mark.parametrize("quorum", [E3, Quorum(5, 3, 2), Quorum(4, 2, 2)], ids=str)
def test_a_long_tail_is_recovered_whole(quorum: Quorum, batches: bool) -> None:
    """FR2: striped or not, by runs or one by one."""
    names = [f"b{i}" for i in range(quorum.ensemble)]
    ensemble = tuple(map(BookieId, names))

    async def act(on: Stage) -> None:
        if batches:
            on.announce_batches(*names)
        await on.create(quorum, (0, " ".join(names)))
        for entry_id in range(500):
            for bookie in quorum.write_set(EntryId(entry_id), ensemble)[: quorum.ack]:
                on[bookie].put([entry_id], lac=-1)
        closed = await on.recover()
        assert (closed.last_entry, closed.length) == (499, 500 * PAYLOAD_BYTES)
        for entry_id in range(500):
            for bookie in quorum.write_set(EntryId(entry_id), ensemble):
                assert payload_of(entry_id) in on[bookie].entries[entry_id]
        assert batches is any(isinstance(r, BatchRead) for r in on["b0"].heard)

    stage(act, bookies=names)


def test_what_the_writer_told_when_it_rested_is_not_written_again() -> None:
    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        for keeper in on.keepers("b0 b1 b2"):
            keeper.put(range(50), lac=-1)
        on["b1"].explicit_lac = DIGEST.pack_lac(EntryId(49))
        on["b2"].delay_s = 0.01
        closed = await on.recover()
        assert (closed.last_entry, closed.length) == (49, 50 * PAYLOAD_BYTES)
        assert not [entry for keeper in on.keepers("b0 b1 b2") for entry in keeper.added]

    stage(act)


def test_an_entry_that_the_fence_brings_is_not_asked_for() -> None:
    """FR2: its answer is a valid copy like any other, and is written back as it came."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        on["b0"].put(range(5))
        on["b1"].put(range(4))
        on["b2"].delay_s = 0.01  # The other two are enough.
        closed = await on.recover()
        assert closed.last_entry == 4
        for keeper in on.keepers("b0 b1 b2"):
            asked = [r.entry_id for r in keeper.heard if isinstance(r, EntryRead)]
            assert asked == [NO_ENTRY, 5]
            assert [entry.entry_id for entry in keeper.added] == [4]

    stage(act)


def test_the_fence_alone_proves_the_end_where_bookies_word_is_good() -> None:
    """FR3: one round of questions."""

    async def act(on: Stage) -> None:
        on.announce_batches("b0", "b1", "b2")
        await on.create(E3, (0, "b0 b1 b2"))
        for keeper in on.keepers("b0 b1 b2"):
            keeper.put(range(5))
        on["b1"].explicit_lac = DIGEST.pack_lac(EntryId(4))
        await on.meet("b0 b1 b2")
        on["b2"].delay_s = 0.01
        began_s = asyncio.get_running_loop().time()
        closed = await on.recover()
        assert closed.last_entry == 4
        for keeper in on.keepers("b0 b1 b2"):
            assert [r.entry_id for r in keeper.heard if isinstance(r, EntryRead)] == [NO_ENTRY]
            assert not keeper.added
        took_s = asyncio.get_running_loop().time() - began_s
        assert took_s < FAST.recovery_patience_s / 8, "as soon as all have been heard"

    stage(act)


@pytest.mark.parametrize("delay_s", [0.01, 2 * FAST.recovery_patience_s / 3], ids=["soon", "late"])
def test_a_fence_that_is_answered_late_may_bring_the_only_copy(delay_s: float) -> None:
    """FR2: two have named a lower one as their last."""

    async def act(on: Stage) -> None:
        on.announce_batches("b0", "b1", "b2")
        await on.create(E3, (0, "b0 b1 b2"))
        for keeper in on.keepers("b0 b1 b2"):
            keeper.put(range(5), lac=-1)
        on["b2"].put([5, 6])
        await on.meet("b0 b1 b2")
        on["b2"].delay_s = delay_s
        assert (await on.recover()).last_entry == 6
        assert {5, 6} <= set(on["b0"].entries)

    stage(act)


def test_doubt_about_the_last_entry_is_no_word_for_it() -> None:
    """FR3: one has nothing, one cannot tell, and one is not there."""

    async def act(on: Stage) -> None:
        on.announce_batches("b0", "b1", "b2")
        await on.create(E3, (0, "b0 b1 b2"))
        await on.meet("b0 b1 b2")
        on["b1"].is_wiped = on["b2"].is_wiped = True
        with pytest.raises(RecoveryIncomplete):
            await on.recover()

    stage(act)


def test_who_does_not_answer_the_fence_is_asked_for_the_entry() -> None:
    """FR3: it is heard if it can be."""

    async def act(on: Stage) -> None:
        on.announce_batches("b0", "b1", "b2")
        await on.create(E3, (0, "b0 b1 b2"))
        on["b2"].put([0], lac=-1)
        await on.meet("b0 b1 b2")
        on["b2"].ignores = lambda r: isinstance(r, EntryRead) and r.entry_id == NO_ENTRY
        assert (await on.recover()).last_entry == 0

    stage(act)


def test_every_question_fences() -> None:
    """FR1, as #2614 showed: an entry that is at one bookie less than an ack quorum must not reach the
    last one after that has said that it has none.
    """

    async def act(on: Stage) -> None:
        on.announce_batches("b0", "b1")
        await on.create(E3, (0, "b0 b1 b2"))
        on["b0"].put(range(20), lac=5)
        on["b1"].put(range(7))
        on["b2"].put(range(7))
        on["b2"].delay_s = 0.05  # Its fence is not waited for.
        await on.recover()
        for keeper in on.keepers("b0 b1 b2"):
            for request in keeper.heard:
                assert isinstance(request, ReadLac | EntryRead | BatchRead)
                assert isinstance(request, ReadLac) or request.fence

    stage(act)


def test_a_bookie_is_fenced_before_its_negative_counts() -> None:
    """FR1, #2614: the entry has one copy; the writer's add for the second one is still on its way to
    a bookie that the first round of fences did not reach.
    """

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        on["b0"].put([0, 1], lac=-1)
        on["b0"].ignores = lambda r: isinstance(r, EntryRead) and r.entry_id == 0
        on["b2"].ignores = lambda r: isinstance(r, EntryRead) and r.entry_id == NO_ENTRY
        closed = await on.recover()
        assert closed.last_entry == -1
        assert on["b2"].is_fenced, "or else the entry is acknowledged now, and lost"

    stage(act)


def test_earlier_fragments_are_taken_as_confirmed() -> None:
    """FR1, #2615: a LAC below the last fragment's beginning is raised to it."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"), (10, "b0 b1 b3"))
        for keeper in on.keepers("b0 b1 b2"):
            keeper.put(range(10), lac=-1)
        on["b0"].put([10], lac=-1)
        on["b3"].is_hung = True
        closed = await on.recover()
        assert closed.last_entry == 10
        assert [f.first_entry for f in closed.fragments] == [0, 10]
        asked = [
            r.entry_id for k in on.keepers("b0 b1") for r in k.heard if isinstance(r, EntryRead)
        ]
        assert {e for e in asked if e >= 0} <= {10, 11}
        assert not on["b2"].heard

    stage(act, bookies=("b0", "b1", "b2", "b3"))


def test_the_length_is_known_without_anything_to_recover() -> None:
    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"), (10, "b0 b1 b3"))
        for keeper in on.keepers("b0 b1 b2"):
            keeper.put(range(10))
        closed = await on.recover()
        assert (closed.last_entry, closed.length) == (9, 10 * PAYLOAD_BYTES)

    stage(act, bookies=("b0", "b1", "b2", "b3"))


@pytest.mark.parametrize("error", [EntryStateUnknown, BookieFailed], ids=lambda each: each.__name__)
def test_what_is_no_answer_is_no_negative(error: type[RollbookError]) -> None:
    """FR3: one negative and two that do not know prove nothing; the ledger stays in recovery."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        for keeper in on.keepers("b0 b1 b2"):
            keeper.put(range(5))
        for name in ("b1", "b2"):
            on[name].refusals[5] = error
        with raises_message(RecoveryIncomplete) as raised:
            await on.recover()
        assert raised.value.ids["entry_id"] == 5
        assert raised.value.retryable
        assert (await on.read_metadata()).state is LedgerState.IN_RECOVERY
        on["b2"].refusals.clear()
        assert (await on.recover()).last_entry == 4

    stage(act)


def test_damaged_bytes_are_no_negative() -> None:
    """FR3."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        for keeper in on.keepers("b0 b1 b2"):
            keeper.put(range(5))
        for name in ("b1", "b2"):
            on[name].entries[5] = on["b0"].entries[4]  # Somebody else's, digest and all.
        with raises_message(RecoveryIncomplete):
            await on.recover()

    stage(act)


def test_wiped_bookies_cannot_be_fenced_into_a_quorum() -> None:
    """FR1: their silence is no answer."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        for keeper in on.keepers("b0 b1 b2"):
            keeper.put(range(5))
        on["b1"].is_wiped = on["b2"].is_wiped = True
        with raises_message(RecoveryIncomplete):
            await on.recover()
        assert (await on.read_metadata()).state is LedgerState.IN_RECOVERY

    stage(act)


def test_one_hung_bookie_does_not_block() -> None:
    """FR3, #1067."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        on["b0"].put(range(5))
        on["b1"].put(range(5))
        on["b2"].is_hung = True
        started = asyncio.get_running_loop().time()
        closed = await on.recover()
        assert closed.last_entry == 4
        assert asyncio.get_running_loop().time() - started < 3 * FAST.recovery_patience_s

    stage(act)


def test_the_last_one_heard_may_have_the_only_copy() -> None:
    """FR2: two negatives would be enough, and the third is on its way."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        on["b2"].put(range(3), lac=-1)
        on["b2"].delay_s = 0.2
        assert (await on.recover()).last_entry == 2
        assert set(on["b0"].entries) == {0, 1, 2}

    stage(act)


def test_write_backs_carry_the_lac_of_the_beginning() -> None:
    """FR4: so that a recovery that dies leaves no LAC behind that metadata does not vouch for."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        for keeper in on.keepers("b0 b1 b2"):
            keeper.put(range(4))
        on["b2"].put(range(4, 40), lac=2)
        await on.recover()
        added = [entry for keeper in on.keepers("b0 b1 b2") for entry in keeper.added]
        assert {entry.last_add_confirmed for entry in added} == {2}
        assert {entry.entry_id for entry in added} == set(range(3, 40))

    stage(act)


def test_a_recovery_that_dies_changes_nothing_that_a_later_one_goes_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FR4, FR6: the schedule in which a reader saw an entry that later was gone.

    The first recovery replaces two bookies in memory, writes back and dies; a third bookie, which
    metadata names, has the entry then. It must not tell a LAC that covers it.
    """

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b4"))
        on["b4"].put([0, 1], lac=-1)
        on["b0"].add_error = on["b1"].add_error = BookieReadOnly
        update, is_at_the_close = on.nodes.update, asyncio.Event()

        async def die_before_the_close(
            stored: StoredLedger, metadata: LedgerMetadata
        ) -> StoredLedger:
            if metadata.is_closed:
                is_at_the_close.set()
                await asyncio.Event().wait()
            return await update(stored, metadata)

        monkeypatch.setattr(on.nodes, "update", die_before_the_close)
        first = asyncio.create_task(on.recover())
        await is_at_the_close.wait()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        monkeypatch.undo()
        assert on["b2"].entries.keys() == on["b3"].entries.keys() == {0, 1}
        metadata = await on.read_metadata()
        assert metadata.fragments == on.stored.metadata.fragments, "only CLOSED shows them"
        assert on["b4"].lac == -1
        # Its disk dies; the others never had the entries.
        on["b4"].entries.clear()
        on["b0"].add_error = on["b1"].add_error = None
        closed = await on.recover()
        assert closed.last_entry == -1

    stage(act, bookies=("b0", "b1", "b2", "b3", "b4"))


def test_replaced_bookies_show_with_the_close() -> None:
    """FR6."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        on["b0"].put(range(3), lac=-1)
        on["b1"].add_error = BookieFailed
        closed = await on.recover()
        assert closed.fragments == (Fragment(EntryId(0), (B0, B3, B2)),)
        assert set(on["b3"].entries) == {0, 1, 2}

    stage(act, bookies=("b0", "b1", "b2", "b3"))


def test_negatives_come_from_the_frozen_ensemble_alone() -> None:
    """FR3: a replacement bookie never had the tail, so its "no" is nothing to go by."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        on["b0"].put(range(3), lac=-1)
        on["b1"].add_error = BookieFailed
        await on.recover()
        assert not [r for r in on["b3"].heard if isinstance(r, EntryRead | BatchRead)]

    stage(act, bookies=("b0", "b1", "b2", "b3"))


def test_somebody_elses_close_is_taken() -> None:
    """FR7."""

    async def act(on: Stage) -> None:
        stored = await on.create(E3, (0, "b0 b1 b2"))
        for keeper in on.keepers("b0 b1 b2"):
            keeper.put(range(5))
        on["b2"].delay_s = 0.1
        task = asyncio.create_task(on.recover())
        await on.scene.until(lambda: on["b0"].is_fenced)
        found = await on.nodes.read(stored.metadata.ledger_id, fresh=True)
        await on.nodes.update(found, found.metadata.with_recovery_closed(EntryId(3), 40))
        closed = await task
        assert (closed.last_entry, closed.length) == (3, 40)

    stage(act)


def test_changed_fragments_begin_it_anew() -> None:
    """FR7: it never closes on what it learnt of bookies that are named no more."""

    async def act(on: Stage) -> None:
        stored = await on.create(E3, (0, "b0 b1 b2"))
        for keeper in on.keepers("b0 b1 b3"):
            keeper.put(range(5))
        on["b2"].delay_s = 0.1
        task = asyncio.create_task(on.recover())
        await on.scene.until(lambda: on["b0"].is_fenced)
        found = await on.nodes.read(stored.metadata.ledger_id, fresh=True)
        moved = Fragment(EntryId(0), (B0, B1, B3))
        await on.nodes.update(found, replace(found.metadata, fragments=(moved,)))
        closed = await task
        assert closed.fragments == (moved,)
        assert closed.last_entry == 4
        assert on["b3"].is_fenced

    stage(act, bookies=("b0", "b1", "b2", "b3"))


def test_the_writer_may_move_until_recovery_has_begun() -> None:
    """FR1: the race for the first change of metadata is run again."""

    async def act(on: Stage) -> None:
        stale = await on.create(E3, (0, "b0 b1 b2"))
        moved = stale.metadata.with_writer_ensemble(EntryId(2), (B0, B1, B3))
        await on.nodes.update(stale, moved)
        for keeper in on.keepers("b0 b1"):
            keeper.put(range(3))
        on["b3"].put([2])
        closed = await on.recover()  # From the stale one.
        assert closed.last_entry == 2
        assert len(closed.fragments) == 2

    stage(act, bookies=("b0", "b1", "b2", "b3"))


def test_a_wrong_password_is_told() -> None:
    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        for keeper in on.keepers("b0 b1 b2"):
            keeper.refusals[-1] = Unauthorized
        with pytest.raises(Unauthorized):
            await on.recover()

    stage(act)


def test_it_speaks_version_2_as_well() -> None:
    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        on["b0"].put(range(100), lac=-1)
        closed = await on.recover()
        assert closed.last_entry == 99
        assert len(on["b2"].entries) == 100

    stage(act, config=replace(FAST, protocol_version=2))


def test_entries_larger_than_the_window_come_one_by_one() -> None:
    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        on["b0"].put(range(10), lac=-1)
        assert (await on.recover()).last_entry == 9

    stage(act, config=replace(FAST, recovery_window_bytes=1))


def test_a_busy_bookie_is_offered_the_same_again() -> None:
    """FR5: later, and nothing else."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        on["b0"].put(range(10), lac=-1)
        on["b1"].add_error = Overloaded
        asyncio.get_running_loop().call_later(0.3, setattr, on["b1"], "add_error", None)
        closed = await on.recover()
        assert closed.fragments == on.stored.metadata.fragments
        assert sorted(entry.entry_id for entry in on["b1"].added) == list(range(10))

    stage(act, bookies=("b0", "b1", "b2", "b3"))


def test_a_broken_line_is_no_broken_bookie() -> None:
    """FR5."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        on["b0"].put(range(10), lac=-1)
        recovering = asyncio.create_task(on.recover())
        await on.scene.until(lambda: on["b1"].is_fenced)
        for peer in on["b1"].scripted.living_peers:
            peer.transport.abort()
        closed = await recovering
        assert closed.fragments == on.stored.metadata.fragments
        assert set(on["b1"].entries) == set(range(10))

    stage(act, bookies=("b0", "b1", "b2", "b3"))


def test_an_entry_that_tells_of_itself_is_not_believed() -> None:
    """FR1: without a digest nonsense would end the ledger anywhere."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        for keeper in on.keepers("b0 b1 b2"):
            keeper.put(range(3))
        on["b2"].put([3], lac=2**40)
        assert (await on.recover()).last_entry in (2, 3)

    stage(act)


def test_bookies_that_are_being_started_are_waited_for() -> None:
    """FR1: until the deadline, whether others of them hang or not."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        on["b0"].is_hung = True
        recovering = asyncio.create_task(on.recover())
        await asyncio.sleep(0.5)
        on.start("b1")
        await asyncio.sleep(0.5)
        on.start("b2")
        assert (await recovering).last_entry == -1

    stage(act, bookies=["b0"])


def test_two_recoveries_agree() -> None:
    """FR7."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        on["b0"].put(range(30), lac=-1)
        on["b1"].put(range(20), lac=-1)
        one, other = await asyncio.gather(on.recover(), on.recover())
        assert one == other
        assert one.last_entry == 29

    stage(act)


def test_a_fence_stops_the_writer_and_leaves_the_ledger_in_recovery() -> None:
    """FR1: before a ledger is deleted."""

    async def act(on: Stage) -> None:
        stored = await on.create(E3, (0, "b0 b1 b2"))
        on["b2"].is_hung = True
        fenced = await on.recovery.fence(stored, b"secret", DigestType.CRC32C)
        assert fenced.metadata.state is LedgerState.IN_RECOVERY
        assert on["b0"].is_fenced
        assert on["b1"].is_fenced

    stage(act)


def test_too_few_bookies_to_write_back_to_is_no_end() -> None:
    """FR5: an entry on one bookie only is not closed over."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        on["b0"].put(range(3), lac=-1)
        on["b1"].add_error = on["b2"].add_error = BookieFailed
        with pytest.raises(RollbookError) as raised:
            await on.recover()
        assert raised.value.retryable
        assert (await on.read_metadata()).state is LedgerState.IN_RECOVERY

    stage(act)


def test_an_entry_that_cannot_be_written_back_leaves_no_channel_behind() -> None:
    """CN3: neither if that shows in the very first, which the fence brings. A channel that is forgotten
    would be connected again and again.
    """
    config = replace(FAST, frame_bytes_max=2000)
    opened: list[AddChannel] = []

    async def act(on: Stage) -> None:
        bookies = on.scene.bookies
        add_channel = bookies.add_channel

        def note(*args: Any, **options: Any) -> AddChannel:
            opened.append(add_channel(*args, **options))
            return opened[-1]

        bookies.add_channel = note  # type: ignore[method-assign]  # A spy.
        await on.create(E3, (0, "b0 b1 b2"))
        # It was added by somebody with a larger limit, and can just be read.
        on["b0"].entries[0] = pack_entry(DIGEST, EntryId(0), NO_ENTRY, 1800, bytes(1800))
        on["b2"].delay_s = 0.01  # So that the fence brings it.
        with pytest.raises(EntryTooLarge):
            await on.recover()
        assert len(opened) == 3
        assert all(channel.is_closed for channel in opened)

    stage(act, config=config)
