"""Reading over the wire: order, windows, failing copies, the LAC, and tailing a writer."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from rollbook.ledger.reader import LedgerReader
from rollbook.proto.errors import (
    BookieFailed,
    DigestMismatch,
    EntryStateUnknown,
    EntryUnavailable,
    InvalidRequest,
    MetadataUnavailable,
    NoSuchEntry,
    NoSuchLedger,
    RollbookError,
)
from rollbook.proto.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from rollbook.proto.quorum import Quorum
from rollbook.proto.wire.digest import Entry
from rollbook.proto.wire.messages import BatchRead
from tests.messages import raises_message
from tests.unit.ledger.keeper import DIGEST, FAST, L1, Stage, payload_of, stage

E3 = Quorum(ensemble=3, write=3, ack=2)
STRIPED = Quorum(ensemble=5, write=2, ack=2)


async def ids_of(entries: AsyncIterator[Entry]) -> list[int]:
    found: list[int] = []
    async for entry in entries:
        assert entry.payload == payload_of(entry.entry_id)
        found.append(entry.entry_id)
    return found


async def closed_ledger(on: Stage, quorum: Quorum, entries: int) -> LedgerReader:
    names = [f"b{i}" for i in range(quorum.ensemble)]
    await on.create(quorum, (0, " ".join(names)))
    ensemble = tuple(map(BookieId, names))
    for entry_id in range(entries):
        for bookie in quorum.write_set(EntryId(entry_id), ensemble):
            on[bookie].put([entry_id])
    await on.close_at(entries - 1)
    return await on.open()


@pytest.mark.parametrize("quorum", [E3, STRIPED, Quorum(4, 2, 1), Quorum(1, 1, 1)], ids=str)
@pytest.mark.parametrize("batches", [False, True], ids=["plain", "extension"])
def test_all_entries_are_read_in_order(quorum: Quorum, batches: bool) -> None:
    names = [f"b{i}" for i in range(quorum.ensemble)]
    config = replace(FAST, read_batch_bytes=1000, read_window_bytes=4000)

    async def act(on: Stage) -> None:
        if batches:
            on.announce_batches(*names)
        reader = await closed_ledger(on, quorum, 300)
        assert await ids_of(reader.read()) == list(range(300))
        assert await ids_of(reader.read(EntryId(17), EntryId(17))) == [17]
        assert await ids_of(reader.read(EntryId(290))) == list(range(290, 300))
        few = await reader.read_few(EntryId(240), EntryId(299))
        assert [entry.entry_id for entry in few] == list(range(240, 300))
        with pytest.raises(NoSuchEntry):
            await reader.read_few(EntryId(299), EntryId(300))
        with pytest.raises(InvalidRequest):
            await reader.read_few(NO_ENTRY, EntryId(0))
        is_batch = any(isinstance(r, BatchRead) for k in on.keepers("b0") for r in k.heard)
        assert is_batch is (batches or quorum.ensemble == quorum.write)
        await reader.close()

    stage(act, bookies=names, config=config)


def test_empty_ledger_reads_no_entries() -> None:
    async def act(on: Stage) -> None:
        reader = await closed_ledger(on, E3, 0)
        assert await ids_of(reader.read()) == []
        assert reader.last_add_confirmed == NO_ENTRY
        await reader.close()

    stage(act)


@pytest.mark.parametrize(
    "error", [NoSuchEntry, EntryStateUnknown, BookieFailed], ids=lambda each: each.__name__
)
def test_failed_copy_is_read_from_the_next_bookie(error: type[RollbookError]) -> None:
    """RD2."""

    async def act(on: Stage) -> None:
        reader = await closed_ledger(on, E3, 30)
        for name in ("b0", "b1"):
            on[name].refusals[7] = error
        assert await ids_of(reader.read()) == list(range(30))
        await reader.close()

    stage(act)


def test_damaged_and_foreign_copies_are_not_returned() -> None:
    """RD3: neither flipped bits nor another entry's bytes."""

    async def act(on: Stage) -> None:
        reader = await closed_ledger(on, E3, 30)
        on["b0"].entries[7] = on["b0"].entries[7][:-1] + b"?"
        on["b1"].entries[7] = on["b1"].entries[8]
        assert await ids_of(reader.read()) == list(range(30))
        on["b2"].entries[7] = b"short"
        with pytest.raises(DigestMismatch):
            await ids_of(reader.read(EntryId(7), EntryId(7)))
        await reader.close()

    stage(act)


def test_entries_before_a_missing_one_are_returned() -> None:
    """RD3: the error depends on the replies of all bookies with a copy."""

    async def act(on: Stage) -> None:
        reader = await closed_ledger(on, E3, 30)
        for keeper in on.keepers("b0 b1 b2"):
            del keeper.entries[20]
        stream = reader.read()
        assert [(await anext(stream)).entry_id for _ in range(20)] == list(range(20))
        with pytest.raises(NoSuchEntry) as raised:
            await anext(stream)
        assert raised.value.ids["entry_id"] == 20
        on["b1"].refusals[20] = EntryStateUnknown
        with raises_message(EntryUnavailable):
            await ids_of(reader.read(EntryId(20), EntryId(20)))
        await reader.close()

    stage(act)


def test_hung_bookie_delays_reads_by_less_than_the_deadline() -> None:
    """RD2."""

    async def act(on: Stage) -> None:
        reader = await closed_ledger(on, E3, 200)
        loop = asyncio.get_running_loop()
        on["b0"].is_hung = True
        started = loop.time()
        assert await ids_of(reader.read()) == list(range(200))
        assert loop.time() - started < FAST.read_deadline_s / 2
        on["b0"].heard.clear()
        assert await ids_of(reader.read()) == list(range(200))
        assert not on["b0"].heard, "a slow bookie is asked last"
        await reader.close()

    stage(act)


def test_old_bookies_are_read_entry_by_entry() -> None:
    """RD2: they close the connection when they are asked for a batch."""

    async def act(on: Stage) -> None:
        reader = await closed_ledger(on, E3, 100)
        for keeper in on.keepers("b0 b1 b2"):
            keeper.is_old = True
        assert await ids_of(reader.read()) == list(range(100))
        assert sum(isinstance(r, BatchRead) for k in on.keepers("b0 b1 b2") for r in k.heard) < 10
        await reader.close()

    stage(act)


def test_tail_raises_when_the_metadata_store_closes() -> None:
    """RD4: without the store it would never learn of the close."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        for keeper in on.keepers("b0 b1 b2"):
            keeper.put([0])
        reader = await on.open()
        following = asyncio.create_task(ids_of(reader.tail()))
        await asyncio.sleep(0.5)
        await on.store.close()
        with pytest.raises(MetadataUnavailable):
            await following
        await reader.close()

    stage(act)


def test_sparse_batch_reads_need_announcing_bookies() -> None:
    """RD3: other bookies end a batch at the first entry they lack, or reject the request."""
    names = [f"b{i}" for i in range(5)]

    async def act(on: Stage) -> None:
        on.announce_batches(*names[:-1])
        reader = await closed_ledger(on, STRIPED, 50)
        assert await ids_of(reader.read()) == list(range(50))
        heard = [request for each in on.keepers(" ".join(names)) for request in each.heard]
        assert not [request for request in heard if isinstance(request, BatchRead)]
        await reader.close()

    stage(act, bookies=names)


@pytest.mark.parametrize("is_hung", [True, False], ids=["hung", "in doubt"])
def test_striped_ledger_is_read_in_batches_around_failed_bookies(is_hung: bool) -> None:
    """RD2: with few batch reads, not entry by entry."""
    names = [f"b{i}" for i in range(5)]

    async def act(on: Stage) -> None:
        on.announce_batches(*names)
        reader = await closed_ledger(on, Quorum(5, 3, 2), 500)
        on["b1"].is_hung, on["b1"].is_wiped = is_hung, not is_hung
        on["b3"].is_hung, on["b3"].is_wiped = is_hung, not is_hung
        assert await ids_of(reader.read()) == list(range(500))
        assert sum(len(each.heard) for each in on.keepers(" ".join(names))) < 40
        await reader.close()

    stage(act, bookies=names)


def test_reader_finds_copies_moved_by_re_replication() -> None:
    """RD2: all bookies were replaced after the reader was opened."""

    async def act(on: Stage) -> None:
        reader = await closed_ledger(on, E3, 30)
        stored = await on.nodes.read(L1, fresh=True)
        metadata = stored.metadata
        for old, new in (("b0", "b3"), ("b1", "b4"), ("b2", "b5")):
            on[new].entries.update(on[old].entries)
            on[old].entries.clear()
            metadata = metadata.with_replacement(EntryId(0), BookieId(old), BookieId(new))
        await on.nodes.update(stored, metadata)
        assert await ids_of(reader.read()) == list(range(30))
        await reader.close()

    stage(act, bookies=[f"b{i}" for i in range(6)])


def test_read_ahead_stops_when_the_caller_stops_reading() -> None:
    """RD5."""
    config = replace(FAST, read_batch_bytes=1000, read_window_bytes=4000)

    async def act(on: Stage) -> None:
        reader = await closed_ledger(on, E3, 1000)
        stream = reader.read()
        assert (await anext(stream)).entry_id == 0
        await asyncio.sleep(1)
        asked = [r for k in on.keepers("b0 b1 b2") for r in k.heard if isinstance(r, BatchRead)]
        assert len(asked) <= 2 + config.read_window_bytes // config.read_batch_bytes
        assert await ids_of(stream) == list(range(1, 1000))
        await reader.close()

    stage(act, config=config)


def test_closing_the_reader_fails_its_iterations() -> None:
    async def act(on: Stage) -> None:
        reader = await closed_ledger(on, E3, 1000)
        for keeper in on.keepers("b0 b1 b2"):
            keeper.is_hung = True
        reading = asyncio.create_task(ids_of(reader.read()))
        await asyncio.sleep(0.1)
        await reader.close()
        with pytest.raises(InvalidRequest):  # It must not look like the end of the ledger.
            await reading
        with pytest.raises(InvalidRequest):
            await ids_of(reader.read())
        with pytest.raises(InvalidRequest):
            await reader.read_last_confirmed()

    stage(act)


def test_abandoned_iterations_leave_no_tasks_or_listeners() -> None:
    """RD5: a long-lived reader must not accumulate them."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        for keeper in on.keepers("b0 b1 b2"):
            keeper.put(range(50))
        reader = await on.open()
        for _ in range(5):
            async for entry in reader.read():
                if entry.entry_id == 3:
                    break
            async for entry in reader.tail():
                if entry.entry_id == 20:
                    break
        follower = reader.follow(EntryId(49))
        await anext(follower)  # No entry yet; the caller stops here.
        await asyncio.sleep(30)
        assert not reader._tasks
        assert not reader._view._listeners
        assert reader._view._task is None or reader._view._task.done()
        await reader.close()

    stage(act)


# --- The LAC ------------------------------------------------------------------------------------


def test_lac_is_the_highest_of_a_quorum_of_replies() -> None:
    """RD1."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        on["b0"].put(range(5))
        on["b1"].put(range(9))
        on["b2"].is_hung = True
        reader = await on.open()
        assert reader.last_add_confirmed == 7
        with raises_message(NoSuchEntry):
            reader.read(EntryId(0), EntryId(8))
        assert await ids_of(reader.read_unconfirmed(EntryId(8), EntryId(8))) == [8]
        on["b2"].explicit_lac = DIGEST.pack_lac(EntryId(8))
        on["b2"].is_hung, on["b0"].is_hung = False, True
        assert await reader.read_last_confirmed() == 8
        assert await ids_of(reader.read()) == list(range(9))
        await reader.close()

    stage(act)


def test_open_fails_when_most_bookies_may_have_lost_data() -> None:
    """RD1."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        on["b0"].put(range(5))
        on["b1"].is_wiped = on["b2"].is_wiped = True
        with raises_message(EntryUnavailable):
            await on.open()

    stage(act)


def test_lac_is_read_from_the_writers_current_ensemble() -> None:
    """RD1: the writer has moved since the reader was opened."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        for keeper in on.keepers("b0 b1 b2"):
            keeper.put(range(5))
        reader = await on.open()
        assert reader.last_add_confirmed == 3
        await on.move(5, "b3 b4 b5")
        for keeper in on.keepers("b3 b4 b5"):
            keeper.put(range(5, 9))
        assert await reader.read_last_confirmed() == 7
        assert await ids_of(reader.read()) == list(range(8))
        await on.close_at(8)
        assert await reader.read_last_confirmed() == 8
        await reader.close()

    stage(act, bookies=[f"b{i}" for i in range(6)])


def test_reader_with_stale_metadata_finds_the_current_lac() -> None:
    """RD1: a lagging replica of the metadata store may return stale metadata."""

    async def act(on: Stage) -> None:
        stale = await on.create(E3, (0, "b0 b1 b2"))
        for keeper in on.keepers("b0 b1 b2"):
            keeper.put(range(5))
        await on.move(5, "b3 b4 b5")
        for keeper in on.keepers("b3 b4 b5"):
            keeper.put(range(5, 9))
        reader = await on.open(stale)
        assert reader.last_add_confirmed == 7
        await reader.close()

    stage(act, bookies=[f"b{i}" for i in range(6)])


# --- Tailing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_extended", [True, False], ids=["ours", "BookKeeper"])
def test_long_poll_returns_all_newly_confirmed_entries(is_extended: bool) -> None:
    """RD3: a damaged following entry costs one more read."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        for keeper in on.keepers("b0 b1 b2"):
            keeper.put([0])
            keeper.brings_following = is_extended
        reader = await on.open()
        follower = reader.follow(EntryId(0))
        runs: list[list[int]] = []

        async def follow_to(last: int) -> None:
            while not runs or runs[-1][-1] < last:
                news = await anext(follower)
                assert all(entry.payload == payload_of(entry.entry_id) for entry in news.entries)
                if news.entries:
                    runs.append([entry.entry_id for entry in news.entries])

        async def put(last: int) -> None:
            """Put all entries at once while the follower is waiting."""
            following = asyncio.create_task(follow_to(last - 1))
            await asyncio.sleep(0.05)
            for keeper in on.keepers("b0 b1 b2"):
                keeper.put(range(max(keeper.entries) + 1, last + 1), lac=last - 1)
            await following

        await put(9)
        assert runs == ([list(range(9))] if is_extended else [[0], list(range(1, 9))])
        asked = sum(len(keeper.heard) for keeper in on.keepers("b0 b1 b2"))
        runs.clear()
        for keeper in on.keepers("b0 b1 b2"):
            keeper.damaged_following = 14
        await put(20)
        assert [each for run in runs for each in run] == list(range(9, 20))
        assert sum(len(keeper.heard) for keeper in on.keepers("b0 b1 b2")) <= asked + 3
        await follower.aclose()
        await reader.close()

    stage(act)


@pytest.mark.parametrize("quorum", [E3, STRIPED], ids=str)
def test_tail_returns_every_entry_and_ends_at_the_close(quorum: Quorum) -> None:
    """RD4."""
    names = [f"b{i}" for i in range(quorum.ensemble)]
    ensemble = tuple(map(BookieId, names))

    async def act(on: Stage) -> None:
        await on.create(quorum, (0, " ".join(names)))
        reader = await on.open()
        loop = asyncio.get_running_loop()
        seen_at: dict[int, float] = {}

        async def follow() -> list[int]:
            async for entry in reader.tail():
                seen_at[entry.entry_id] = loop.time()
            return list(seen_at)

        following = asyncio.create_task(follow())
        confirmed_at: dict[int, float] = {}
        for entry_id in range(50):
            await asyncio.sleep(0.05)
            for bookie in quorum.write_set(EntryId(entry_id), ensemble):
                on[bookie].put([entry_id])
            confirmed_at[entry_id - 1] = loop.time()
        await on.close_at(49)
        assert await following == list(range(50))
        assert all(seen_at[e] - confirmed_at[e] < 0.2 for e in range(49))
        await reader.close()

    stage(act, bookies=names)


@pytest.mark.parametrize("entries", [1, 2])
def test_tail_of_a_short_ledger_does_not_spin(entries: int) -> None:
    """RD4: with a LAC of 0 and with no LAC at all."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        for keeper in on.keepers("b0 b1 b2"):
            keeper.put(range(entries))
        reader = await on.open()
        following = asyncio.create_task(ids_of(reader.tail()))
        await asyncio.sleep(5)
        assert sum(len(keeper.heard) for keeper in on.keepers("b0 b1 b2")) < 50
        await on.close_at(entries - 1)
        assert await following == list(range(entries))
        await reader.close()

    stage(act)


def test_tail_of_a_ledger_without_entries_does_not_spin() -> None:
    """RD4."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        reader = await on.open()
        following = asyncio.create_task(ids_of(reader.tail()))
        await asyncio.sleep(10)
        assert sum(len(keeper.heard) for keeper in on.keepers("b0 b1 b2")) < 200
        for keeper in on.keepers("b2 b1"):  # `b0` never gets the ledger.
            keeper.put(range(20))
        await asyncio.sleep(1)
        await on.close_at(19)
        assert await following == list(range(20))
        await reader.close()

    stage(act)


def test_tail_is_not_delayed_by_a_hung_bookie() -> None:
    """RD4."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        for keeper in on.keepers("b0 b1 b2"):
            keeper.put([0])
        reader = await on.open()
        loop = asyncio.get_running_loop()
        seen_at: list[float] = []

        async def follow() -> list[int]:
            found: list[int] = []
            async for entry in reader.tail():
                found.append(entry.entry_id)
                seen_at.append(loop.time())
            return found

        following = asyncio.create_task(follow())
        written_at = [loop.time()]
        for entry_id in range(1, 60):
            await asyncio.sleep(0.05)
            written_at.append(loop.time())
            if entry_id % 20 == 10:
                for i, keeper in enumerate(on.keepers("b0 b1 b2")):
                    keeper.is_hung = i == entry_id // 20
            for keeper in on.keepers("b0 b1 b2"):
                keeper.put([entry_id])
        await on.close_at(59)
        assert await following == list(range(60))
        late_s = [seen_at[e] - written_at[e + 1] for e in range(59)]
        assert max(late_s) < 0.3, "the tail does not wait for the hung bookie"
        await reader.close()

    stage(act)


def test_tail_follows_the_writer_to_a_new_ensemble() -> None:
    """RD4."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        for keeper in on.keepers("b0 b1 b2"):
            keeper.put(range(5))
        reader = await on.open()
        following = asyncio.create_task(ids_of(reader.tail()))
        await asyncio.sleep(0.3)
        await on.move(5, "b3 b4 b5")
        for keeper in on.keepers("b3 b4 b5"):
            keeper.put(range(5, 9))
        await asyncio.sleep(0.3)
        assert not following.done()
        await on.close_at(8)
        assert await following == list(range(9))
        await reader.close()

    stage(act, bookies=[f"b{i}" for i in range(6)])


def test_idle_follower_reports_regularly() -> None:
    """RD4: on a quiet ledger, too."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        for keeper in on.keepers("b0 b1 b2"):
            keeper.put(range(2))
        reader = await on.open()
        follower = reader.follow(EntryId(1))
        loop = asyncio.get_running_loop()
        started = loop.time()
        for _ in range(3):
            news = await anext(follower)
            assert (news.entries, news.last_add_confirmed, news.is_closed) == ((), 0, False)
        assert loop.time() - started < 7
        await follower.aclose()
        await reader.close()

    stage(act)


def test_tail_raises_when_all_bookies_hang() -> None:
    """RD4: a tail must not stop silently."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        on["b0"].put(range(2))
        reader = await on.open()
        for keeper in on.keepers("b0 b1 b2"):
            keeper.is_hung = True
        with pytest.raises(EntryUnavailable):
            await ids_of(reader.tail(EntryId(1)))
        await reader.close()

    stage(act)


def test_tail_raises_when_its_ledger_is_deleted() -> None:
    """RD4."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        reader = await on.open()
        following = asyncio.create_task(ids_of(reader.tail()))
        await asyncio.sleep(0.5)
        await on.nodes.delete(LedgerId(1))
        with pytest.raises(NoSuchLedger):
            await following
        await reader.close()

    stage(act)


def test_cancelled_waits_of_a_tail_lose_no_entries() -> None:
    """RD4."""

    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        reader = await on.open()
        tail = reader.tail()
        found: list[int] = []
        for entry_id in range(20):
            for keeper in on.keepers("b0 b1 b2"):
                keeper.put([entry_id])
            try:
                async with asyncio.timeout(0.013 * (entry_id % 5)):
                    while True:
                        found.append((await anext(tail)).entry_id)
            except TimeoutError:
                pass
        await on.close_at(19)
        found += await ids_of(tail)
        assert found == list(range(20))
        await reader.close()

    stage(act)


def test_closing_the_reader_fails_its_tail() -> None:
    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        reader = await on.open()
        following = asyncio.create_task(ids_of(reader.tail()))
        await asyncio.sleep(0.5)
        await reader.close()
        with pytest.raises(InvalidRequest):
            await following

    stage(act)


def test_tail_ends_when_closed_by_another_task() -> None:
    async def act(on: Stage) -> None:
        await on.create(E3, (0, "b0 b1 b2"))
        reader = await on.open()
        tail = reader.tail()
        following = asyncio.create_task(ids_of(tail))
        await asyncio.sleep(0.5)
        await tail.aclose()
        assert await following == []
        await reader.close()

    stage(act)
