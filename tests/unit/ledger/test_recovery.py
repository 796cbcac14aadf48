"""Recovery over the wire: what it decides, what it writes, and which replies it distrusts."""

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


def test_empty_ledger_is_closed_empty() -> None:
    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        closed = await on.recover()
        assert closed.is_closed
        assert (closed.last_entry, closed.length) == (-1, 0)
        assert all(each.is_fenced for each in on.keepers("b0 b1 b2"))

    stage(act)


def test_recovery_keeps_entries_with_two_of_three_copies() -> None:
    """FR2, FR5: the third bookie gets the missing copies."""

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
def test_long_unconfirmed_tail_is_fully_recovered(quorum: Quorum, batches: bool) -> None:
    """FR2: striped or not, with batch reads or single reads."""
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


def test_entries_up_to_the_explicit_lac_are_not_written_back() -> None:
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


def test_last_entry_from_the_fence_reply_is_not_read_again() -> None:
    """FR2: the fence reply holds a valid copy, which is written back."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        on["b0"].put(range(5))
        on["b1"].put(range(4))
        on["b2"].delay_s = 0.01  # Two of three fences suffice.
        closed = await on.recover()
        assert closed.last_entry == 4
        for keeper in on.keepers("b0 b1 b2"):
            asked = [r.entry_id for r in keeper.heard if isinstance(r, EntryRead)]
            assert asked == [NO_ENTRY, 5]
            assert [entry.entry_id for entry in keeper.added] == [4]

    stage(act)


def test_fence_replies_alone_prove_the_end_on_extended_bookies() -> None:
    """FR3: one round of requests."""

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
        assert took_s < FAST.recovery_patience_s / 8, "recovery ends as soon as all have replied"

    stage(act)


@pytest.mark.parametrize("delay_s", [0.01, 2 * FAST.recovery_patience_s / 3], ids=["soon", "late"])
def test_late_fence_reply_with_the_only_copy_is_used(delay_s: float) -> None:
    """FR2: the other two bookies have reported a lower last entry."""

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


def test_unknown_last_entries_do_not_prove_the_end() -> None:
    """FR3: one bookie has nothing, and two do not know."""

    async def act(on: Stage) -> None:
        on.announce_batches("b0", "b1", "b2")
        await on.create(E3, (0, "b0 b1 b2"))
        await on.meet("b0 b1 b2")
        on["b1"].is_wiped = on["b2"].is_wiped = True
        with pytest.raises(RecoveryIncomplete):
            await on.recover()

    stage(act)


def test_bookie_ignoring_the_fence_is_asked_for_the_entry() -> None:
    """FR3: recovery uses the copy of a bookie that answers only plain reads."""

    async def act(on: Stage) -> None:
        on.announce_batches("b0", "b1", "b2")
        await on.create(E3, (0, "b0 b1 b2"))
        on["b2"].put([0], lac=-1)
        await on.meet("b0 b1 b2")
        on["b2"].ignores = lambda r: isinstance(r, EntryRead) and r.entry_id == NO_ENTRY
        assert (await on.recover()).last_entry == 0

    stage(act)


def test_every_read_of_recovery_fences() -> None:
    """FR1, #2614: an entry one copy short of an ack quorum must not reach the last bookie after
    that bookie has replied that it lacks the entry.
    """

    async def act(on: Stage) -> None:
        on.announce_batches("b0", "b1")
        await on.create(E3, (0, "b0 b1 b2"))
        on["b0"].put(range(20), lac=5)
        on["b1"].put(range(7))
        on["b2"].put(range(7))
        on["b2"].delay_s = 0.05  # Recovery does not wait for its fence.
        await on.recover()
        for keeper in on.keepers("b0 b1 b2"):
            for request in keeper.heard:
                assert isinstance(request, ReadLac | EntryRead | BatchRead)
                assert isinstance(request, ReadLac) or request.fence

    stage(act)


def test_bookie_is_fenced_before_its_negative_counts() -> None:
    """FR1, #2614: the entry has one copy; the add of the second is still on its way to a bookie
    that the first round of fences did not reach.
    """

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        on["b0"].put([0, 1], lac=-1)
        on["b0"].ignores = lambda r: isinstance(r, EntryRead) and r.entry_id == 0
        on["b2"].ignores = lambda r: isinstance(r, EntryRead) and r.entry_id == NO_ENTRY
        closed = await on.recover()
        assert closed.last_entry == -1
        assert on["b2"].is_fenced, "otherwise the entry is acknowledged now, and lost"

    stage(act)


def test_entries_of_earlier_fragments_count_as_confirmed() -> None:
    """FR1, #2615: a LAC below the last fragment is raised to its beginning."""

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


def test_ledger_length_is_read_when_the_last_fragment_is_empty() -> None:
    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"), (10, "b0 b1 b3"))
        for keeper in on.keepers("b0 b1 b2"):
            keeper.put(range(10))
        closed = await on.recover()
        assert (closed.last_entry, closed.length) == (9, 10 * PAYLOAD_BYTES)

    stage(act, bookies=("b0", "b1", "b2", "b3"))


@pytest.mark.parametrize("error", [EntryStateUnknown, BookieFailed], ids=lambda each: each.__name__)
def test_error_replies_do_not_count_as_negatives(error: type[RollbookError]) -> None:
    """FR3: one negative and two errors prove nothing; the ledger stays in recovery."""

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


def test_damaged_copies_do_not_count_as_negatives() -> None:
    """FR3."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        for keeper in on.keepers("b0 b1 b2"):
            keeper.put(range(5))
        for name in ("b1", "b2"):
            on[name].entries[5] = on["b0"].entries[4]  # Another entry's bytes with a valid digest.
        with raises_message(RecoveryIncomplete):
            await on.recover()

    stage(act)


def test_wiped_bookies_do_not_count_towards_the_fence_quorum() -> None:
    """FR1: ENTRY_STATE_UNKNOWN is not a successful fence."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        for keeper in on.keepers("b0 b1 b2"):
            keeper.put(range(5))
        on["b1"].is_wiped = on["b2"].is_wiped = True
        with raises_message(RecoveryIncomplete):
            await on.recover()
        assert (await on.read_metadata()).state is LedgerState.IN_RECOVERY

    stage(act)


def test_one_hung_bookie_does_not_block_recovery() -> None:
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


def test_only_copy_on_the_slowest_bookie_is_recovered() -> None:
    """FR2: two negatives would suffice, but the third reply is still on its way."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        on["b2"].put(range(3), lac=-1)
        on["b2"].delay_s = 0.2
        assert (await on.recover()).last_entry == 2
        assert set(on["b0"].entries) == {0, 1, 2}

    stage(act)


def test_write_backs_carry_the_lac_found_at_the_start() -> None:
    """FR4: so that a failed recovery leaves no LAC on bookies that metadata does not cover."""

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


def test_failed_recovery_does_not_mislead_a_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FR4, FR6: the schedule in which a reader saw an entry that was lost later.

    The first recovery replaces two bookies in memory, writes back and fails. A third bookie, named
    by metadata, then has the entry. It must not report a LAC that covers the entry.
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
        assert metadata.fragments == on.stored.metadata.fragments, (
            "only the close publishes replacements"
        )
        assert on["b4"].lac == -1
        # The disk of b4 fails; b0 and b1 never had the entries.
        on["b4"].entries.clear()
        on["b0"].add_error = on["b1"].add_error = None
        closed = await on.recover()
        assert closed.last_entry == -1

    stage(act, bookies=("b0", "b1", "b2", "b3", "b4"))


def test_replaced_bookies_appear_in_metadata_at_the_close() -> None:
    """FR6."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        on["b0"].put(range(3), lac=-1)
        on["b1"].add_error = BookieFailed
        closed = await on.recover()
        assert closed.fragments == (Fragment(EntryId(0), (B0, B3, B2)),)
        assert set(on["b3"].entries) == {0, 1, 2}

    stage(act, bookies=("b0", "b1", "b2", "b3"))


def test_replacement_bookies_are_not_asked_for_negatives() -> None:
    """FR3: a replacement bookie never had the tail, so its negatives prove nothing."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        on["b0"].put(range(3), lac=-1)
        on["b1"].add_error = BookieFailed
        await on.recover()
        assert not [r for r in on["b3"].heard if isinstance(r, EntryRead | BatchRead)]

    stage(act, bookies=("b0", "b1", "b2", "b3"))


def test_concurrent_close_is_adopted() -> None:
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


def test_changed_fragments_restart_recovery() -> None:
    """FR7: recovery never closes on replies of bookies that metadata no longer names."""

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


def test_recovery_with_stale_metadata_uses_the_writers_ensemble() -> None:
    """FR1: recovery reloads metadata when its first update conflicts."""

    async def act(on: Stage) -> None:
        stale = await on.create(E3, (0, "b0 b1 b2"))
        moved = stale.metadata.with_writer_ensemble(EntryId(2), (B0, B1, B3))
        await on.nodes.update(stale, moved)
        for keeper in on.keepers("b0 b1"):
            keeper.put(range(3))
        on["b3"].put([2])
        closed = await on.recover()  # Starts from stale metadata.
        assert closed.last_entry == 2
        assert len(closed.fragments) == 2

    stage(act, bookies=("b0", "b1", "b2", "b3"))


def test_recovery_with_a_wrong_password_raises_unauthorized() -> None:
    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        for keeper in on.keepers("b0 b1 b2"):
            keeper.refusals[-1] = Unauthorized
        with pytest.raises(Unauthorized):
            await on.recover()

    stage(act)


def test_recovery_works_over_protocol_version_2() -> None:
    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        on["b0"].put(range(100), lac=-1)
        closed = await on.recover()
        assert closed.last_entry == 99
        assert len(on["b2"].entries) == 100

    stage(act, config=replace(FAST, protocol_version=2))


def test_entries_larger_than_the_window_are_recovered() -> None:
    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        on["b0"].put(range(10), lac=-1)
        assert (await on.recover()).last_entry == 9

    stage(act, config=replace(FAST, recovery_window_bytes=1))


def test_write_back_to_an_overloaded_bookie_is_retried() -> None:
    """FR5: an overloaded bookie is not replaced."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        on["b0"].put(range(10), lac=-1)
        on["b1"].add_error = Overloaded
        asyncio.get_running_loop().call_later(0.3, setattr, on["b1"], "add_error", None)
        closed = await on.recover()
        assert closed.fragments == on.stored.metadata.fragments
        assert sorted(entry.entry_id for entry in on["b1"].added) == list(range(10))

    stage(act, bookies=("b0", "b1", "b2", "b3"))


def test_broken_connection_does_not_replace_the_bookie() -> None:
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


def test_entry_claiming_to_be_confirmed_itself_is_not_believed() -> None:
    """FR1: otherwise an invalid LAC could end the ledger anywhere."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        for keeper in on.keepers("b0 b1 b2"):
            keeper.put(range(3))
        on["b2"].put([3], lac=2**40)
        assert (await on.recover()).last_entry in (2, 3)

    stage(act)


def test_recovery_waits_for_starting_bookies() -> None:
    """FR1: until the deadline, although another bookie hangs."""

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


def test_concurrent_recoveries_agree() -> None:
    """FR7."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        on["b0"].put(range(30), lac=-1)
        on["b1"].put(range(20), lac=-1)
        one, other = await asyncio.gather(on.recover(), on.recover())
        assert one == other
        assert one.last_entry == 29

    stage(act)


def test_fence_leaves_the_ledger_in_recovery() -> None:
    """FR1: `delete` fences a ledger this way first."""

    async def act(on: Stage) -> None:
        stored = await on.create(E3, (0, "b0 b1 b2"))
        on["b2"].is_hung = True
        fenced = await on.recovery.fence(stored, b"secret", DigestType.CRC32C)
        assert fenced.metadata.state is LedgerState.IN_RECOVERY
        assert on["b0"].is_fenced
        assert on["b1"].is_fenced

    stage(act)


def test_ledger_stays_in_recovery_without_write_back_quorum() -> None:
    """FR5: the close must not include an entry with only one copy."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        on["b0"].put(range(3), lac=-1)
        on["b1"].add_error = on["b2"].add_error = BookieFailed
        with pytest.raises(RollbookError) as raised:
            await on.recover()
        assert raised.value.retryable
        assert (await on.read_metadata()).state is LedgerState.IN_RECOVERY

    stage(act)


def test_failed_write_back_closes_its_channels() -> None:
    """CN3: also if the first entry fails, which the fence reply brings. A forgotten channel would
    reconnect forever.
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
        # A writer with a larger frame limit added it; it can be read but not written back.
        on["b0"].entries[0] = pack_entry(DIGEST, EntryId(0), NO_ENTRY, 1800, bytes(1800))
        on["b2"].delay_s = 0.01  # The fence reply of b0 then brings the entry.
        with pytest.raises(EntryTooLarge):
            await on.recover()
        assert len(opened) == 3
        assert all(channel.is_closed for channel in opened)

    stage(act, config=config)
