"""Garbage collection with the simulated metadata store: ledgers it deletes, and ledgers it keeps."""

import asyncio
import random
from array import array
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from rollbook.bookie.config import SpaceConfig
from rollbook.bookie.deleted_ledger_scan import DeletedLedgerScan
from rollbook.bookie.ledger_gc import Garbage
from rollbook.bookie.storage import Storage
from rollbook.proto.cluster.cluster_root import Cluster, initialise
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.errors import LedgerFenced, MetadataUnavailable, NoSuchLedger, Overloaded
from rollbook.proto.formats.layout import Layout
from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.metadata import Fragment, LedgerMetadata, draw_creation_token
from rollbook.proto.ports import MetadataStore
from rollbook.proto.quorum import Quorum
from tests.simulation.kernel import Node, World
from tests.unit.bookie.test_storage import (
    CONFIG,
    KEY,
    add,
    adds,
    entry,
    fill,
    open_storage,
    settle,
)

SPACE = SpaceConfig(gc_interval_s=100.0, gc_quarantine_s=1000.0, deleted_kept_s=5000.0)


class Site:
    """A storage, a cluster, and the garbage collection that compares them."""

    def __init__(
        self, world: World, node: Node, storage: Storage, store: MetadataStore, cluster: Cluster
    ) -> None:
        self.world = world
        self.node = node
        self.storage = storage
        self.store = store
        self.cluster = cluster
        self.ledgers = LedgerNodes(store, cluster.root, cluster.layout)
        self.restart()

    def restart(self) -> None:
        """Replaces the garbage collection, which loses its in-memory state."""
        census = DeletedLedgerScan(self.store, self.cluster)
        self.garbage = Garbage(self.storage, self.node.clock, SPACE, census)

    async def create(self, *ledger_ids: int) -> None:
        for ledger_id in ledger_ids:
            await self.ledgers.create(metadata(ledger_id))

    async def fill(self, *ledger_ids: int) -> None:
        await self.create(*ledger_ids)
        for start in range(0, len(ledger_ids), 50):
            await add(self.storage, *((each, 0) for each in ledger_ids[start : start + 50]))

    async def delete(self, *ledger_ids: int) -> None:
        for ledger_id in ledger_ids:
            await self.ledgers.delete(LedgerId(ledger_id))

    async def is_here(self, ledger_id: int) -> bool:
        try:
            return await self.storage.read(ledger_id, 0) == entry(ledger_id, 0)
        except NoSuchLedger:
            return False

    async def scans(self, count: int, pause_s: float = 110.0) -> None:
        for _ in range(count):
            await self.garbage.collect()
            await asyncio.sleep(pause_s)


def metadata(ledger_id: int) -> LedgerMetadata:
    return LedgerMetadata(
        LedgerId(ledger_id),
        Quorum(1, 1, 1),
        (Fragment(EntryId(0), (BookieId("b1:3181"),)),),
        created_ms=1,
        creation_token=draw_creation_token(random.Random(ledger_id)),
    )


def tell(
    story: Callable[[Site], Awaitable[None]], seed: int = 1, layout: Layout = Layout.HIERARCHICAL
) -> None:
    world = World(seed)
    node = world.node("b1")

    async def main(node: Node) -> None:
        store = await node.metadata()
        cluster = await initialise(store, "/ledgers", node.randomness, layout)
        await Storage.make(node.disk, CONFIG, node.randomness)
        storage = await open_storage(node)
        storage.start()
        await story(Site(world, node, storage, store, cluster))
        await storage.close()
        await store.close()

    async def scenario() -> None:
        await node.start(main).result

    world.run(scenario())


def test_log_events_cover_the_whole_life_of_a_ledger() -> None:
    """Clients and bookies log events from its creation to the deletion of its copy."""
    life: list[str] = []

    async def story(site: Site) -> None:
        with capture_logs() as events:
            await site.fill(1, 2, 3)
            stored = await site.ledgers.read(LedgerId(2))
            moved = stored.metadata.with_writer_ensemble(EntryId(1), (BookieId("b2:3181"),))
            stored = await site.ledgers.update(stored, moved)
            stored = await site.ledgers.update(stored, stored.metadata.with_recovery_started())
            await site.storage.fence(2, KEY)
            closed = stored.metadata.with_recovery_closed(EntryId(0), 10)
            await site.ledgers.update(stored, closed)
            await site.delete(2, 3)
            await site.scans(2)
            await asyncio.sleep(1000)
            await site.scans(1)
        life.extend(each["event"] for each in events if each.get("ledger_id") == 2)
        summaries = [each for each in events if each["event"] == "ledgers_deleted"]
        assert [(each["count"], each["left_out"]) for each in summaries] == [(2, 0)]

    tell(story)
    assert life == [
        "ledger_created",
        "ledger_fragments_changed",
        "ledger_recovery_started",
        "ledger_fenced",
        "ledger_closed",
        "ledger_deleted",
        "ledger_collected",
    ]


# --- Deleted copies ----------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [Layout.HIERARCHICAL, Layout.LONG_HIERARCHICAL])
def test_deleted_ledger_is_collected_after_two_scans_and_quarantine(layout: Layout) -> None:
    """B11: it stays fenced for a long time, and is then forgotten completely."""

    async def story(site: Site) -> None:
        ids = [0, 1, 9_999, 10_000, 123_456, 10**9, 2**31 - 1]
        if layout is Layout.LONG_HIERARCHICAL:
            ids += [2**40, 2**63 - 1]
        await site.fill(*ids)
        await site.storage.fence(5, KEY)  # This ledger has no entries and no metadata.
        gone = ids[::2]
        await site.delete(*gone)
        await site.scans(2)
        assert site.garbage.state.agreed == len(gone) + 1
        for ledger_id in ids:
            assert await site.is_here(ledger_id)  # Entries stay readable during the quarantine.
        await site.scans(10)
        for ledger_id in ids:
            assert await site.is_here(ledger_id) == (ledger_id not in gone)
        assert site.garbage.state.deleted == len(gone) + 1
        assert site.garbage.state.suspects == 0
        assert site.storage.add(adds((gone[0], 1), is_recovery=True)).refusals == (LedgerFenced,)
        assert site.storage.is_fenced(5)
        await asyncio.sleep(4000)
        await site.scans(1)
        assert site.storage.is_fenced(gone[0])
        await asyncio.sleep(1500)
        await site.scans(1)
        assert site.storage.is_fenced(gone[0])  # Replay of the journal would delete it again.
        await site.create(77)
        await fill(site.storage, range(77, 78), entries=80, size=1000)
        await settle(site.storage)
        await site.scans(1)
        assert not site.storage.is_fenced(gone[0])
        assert len(await site.storage.ledger_ids()) == len(ids) - len(gone) + 1

    tell(story, layout=layout)


def test_forced_collection_skips_the_quarantine() -> None:
    async def story(site: Site) -> None:
        await site.fill(1, 2)
        await site.delete(1)
        await site.garbage.collect(force=True)
        await asyncio.sleep(50)
        await site.garbage.collect(force=True)
        assert await site.is_here(1)  # Even a forced collection needs two scans an interval apart.
        await asyncio.sleep(51)
        await site.garbage.collect(force=True)
        assert not await site.is_here(1)
        assert await site.is_here(2)

    tell(story)


# --- Kept copies ------------------------------------------------------------------------------


def test_existing_ledger_is_never_garbage_whenever_created() -> None:
    """B11: it may be created between or during scans, and get its first add early or late."""

    async def story(site: Site) -> None:
        made: list[int] = []
        chance = random.Random(3)

        async def make() -> None:
            for ledger_id in range(200):
                await site.create(ledger_id)
                await asyncio.sleep(chance.uniform(0, 20))
                await add(site.storage, (ledger_id, 0))
                made.append(ledger_id)

        site.world.metadata.lag_s = (0.0, 5.0)
        work = asyncio.ensure_future(make())
        while not work.done():
            await site.garbage.collect()
            await asyncio.sleep(chance.uniform(0, 60))
        await site.scans(12)
        for ledger_id in made:
            assert await site.is_here(ledger_id)
        assert site.garbage.state.deleted == 0
        assert site.garbage.state.ledgers == 200

    tell(story)


def test_ledger_restored_in_quarantine_is_kept() -> None:
    """B11: an operator deleted the wrong ledger and restores its metadata."""

    async def story(site: Site) -> None:
        await site.fill(1, 2)
        await site.delete(1)
        await site.scans(5)
        await site.create(1)
        await site.scans(15)
        assert await site.is_here(1)
        await site.delete(1)  # Its absence must be confirmed again.
        await site.scans(2)
        assert await site.is_here(1)

    tell(story)


def test_adds_are_refused_between_last_check_and_deletion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B1, B11: adds to a ledger that is recreated at that moment may fail, but not be lost."""

    async def story(site: Site) -> None:
        async def absent(census: DeletedLedgerScan, ids: "array[int]") -> "array[int]":
            before = await still_absent(census, ids)
            await site.create(*before)
            for ledger_id in before:
                admission = site.storage.add(adds((ledger_id, 5)))
                # "Fenced" would make its writer believe in another writer and give up.
                assert admission.refusals == (Overloaded,)
            return before[:1]

        still_absent = DeletedLedgerScan.still_absent
        monkeypatch.setattr(DeletedLedgerScan, "still_absent", absent)
        await site.fill(0, 1)
        await site.delete(0, 1)
        await site.scans(13)
        assert site.garbage.state.deleted == 1
        assert not await site.is_here(0)
        assert await site.is_here(1)
        await add(site.storage, (1, 5))  # Its writer can continue.

    tell(story)


def test_restart_begins_the_quarantine_again() -> None:
    async def story(site: Site) -> None:
        await site.fill(1, 2)
        await site.delete(1)
        for _ in range(8):
            await site.scans(3)
            site.restart()
        assert await site.is_here(1)
        await site.scans(14)
        assert not await site.is_here(1)

    tell(story)


def test_metadata_outage_makes_no_ledger_suspect() -> None:
    """B11."""

    async def story(site: Site) -> None:
        await site.fill(*range(20))
        site.world.metadata.down()
        for _ in range(5):
            await site.garbage.collect(force=True)
            assert site.garbage.state.outcome == "failed"
            assert site.garbage.state.reason
            await asyncio.sleep(200)
        site.world.metadata.up()
        await asyncio.sleep(60)
        await site.garbage.collect(force=True)
        for ledger_id in range(20):
            assert await site.is_here(ledger_id)
        assert site.garbage.state.suspects == 0

    tell(story)


@pytest.mark.parametrize("how", ["emptied", "another cluster", "own trees gone", "no instance id"])
def test_emptied_or_foreign_cluster_deletes_no_ledger(how: str) -> None:
    """B11."""

    async def story(site: Site) -> None:
        await site.fill(*range(20))
        if how in ("emptied", "another cluster"):
            await remove(site.store, "/ledgers")
            await remove(site.store, site.cluster.own_root)
        if how == "another cluster":
            await initialise(site.store, "/ledgers", site.node.randomness)
        if how == "own trees gone":
            await site.delete(*range(20))
            await remove(site.store, site.cluster.own_root)
        if how == "no instance id":
            await site.delete(*range(20))
            await remove(site.store, "/ledgers/INSTANCEID")
        for _ in range(4):
            await site.garbage.collect(force=True)
            assert site.garbage.state.outcome == "failed"
            await asyncio.sleep(200)
        for ledger_id in range(20):
            assert await site.is_here(ledger_id)

    tell(story)


async def remove(store: MetadataStore, path: str) -> None:
    for name in await store.children(path):
        await remove(store, f"{path}/{name}")
    await store.delete(path)


def test_partial_listings_delete_no_existing_ledger() -> None:
    """B11: each ledger is checked by itself before its deletion."""

    async def story(site: Site) -> None:
        await site.fill(*range(40))
        await site.delete(7)
        site.world.metadata.partial_listing_odds = 1.0
        for _ in range(10):
            await site.garbage.collect(force=True)
            await asyncio.sleep(110)
        site.world.metadata.partial_listing_odds = 0.0
        for ledger_id in range(40):
            assert await site.is_here(ledger_id) == (ledger_id != 7)

    tell(story)


def test_many_deletions_wait_for_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """B11: an operator's forced scan deletes them, if the scan does not fail."""

    async def story(site: Site) -> None:
        await site.fill(*range(300))
        await site.delete(*range(200))
        await site.scans(15)
        assert site.garbage.state.outcome == "braked"
        for fails in (True, False):
            with monkeypatch.context() as patch:
                if fails:
                    patch.setattr(DeletedLedgerScan, "absent_of", unavailable)
                await site.scans(15)
                forced = await site.garbage.collect(force=True) if fails else site.garbage.state
            assert (forced.outcome, forced.deleted) == ("failed" if fails else "braked", 0)
            for ledger_id in range(0, 300, 7):
                assert await site.is_here(ledger_id)
        await site.garbage.collect(force=True)
        assert site.garbage.state.deleted == 200
        for ledger_id in range(300):
            assert await site.is_here(ledger_id) == (ledger_id >= 200)

    tell(story)


async def unavailable(census: DeletedLedgerScan, ids: "array[int]") -> "array[int]":
    raise MetadataUnavailable("no answer")


def test_without_metadata_nothing_is_garbage() -> None:
    async def story(site: Site) -> None:
        await site.fill(1)
        await site.delete(1)
        garbage = Garbage(site.storage, site.node.clock, SPACE, None)
        for _ in range(20):
            await garbage.collect(force=True)
            await asyncio.sleep(200)
        assert garbage.state.outcome == "off"
        assert await site.is_here(1)

    tell(story)


# --- The scan by itself -----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_scan_returns_ids_absent_from_metadata(seed: int) -> None:
    """For ids that are dense or far apart."""

    async def story(site: Site) -> None:
        chance = random.Random(seed)
        spread = chance.choice((50, 30_000, 2**40))
        pool = sorted(dict.fromkeys(chance.randrange(spread) for _ in range(60)))
        there = [each for each in pool if chance.random() < 0.7]
        here = [each for each in pool if chance.random() < 0.7]
        await site.create(*there)
        census = DeletedLedgerScan(site.store, site.cluster)
        ids = array("q", here)
        absent = array("q", [each for each in here if each not in there])
        assert await census.absent_of(ids) == absent
        assert await census.still_absent(ids) == absent

    tell(story, seed=seed, layout=Layout.LONG_HIERARCHICAL)


def test_missing_layout_node_is_rewritten() -> None:
    """Without this node every scan would walk the whole cluster."""

    async def story(site: Site) -> None:
        await site.create(1)
        path = site.cluster.path("LAYOUT")
        written = await site.store.get(path)
        assert written is not None
        await site.store.delete(path)
        assert not await DeletedLedgerScan(site.store, site.cluster).absent_of(array("q", [1]))
        found = await site.store.get(path)
        assert found is not None
        assert found.value == written.value

    tell(story)


def test_deletion_is_refused_when_only_fence_space_is_left() -> None:
    """B4: fences cannot be made elsewhere, so they get the last space."""

    async def story(site: Site) -> None:
        await site.fill(0)
        journal = site.storage._journal
        records, journal.is_full = journal.active.records, True
        records.header, header = (
            replace(records.header, allocated_bytes=records.end + 128),
            records.header,
        )
        with pytest.raises(OSError, match="for fences and recovery"):
            await site.storage.delete(0)
        records.header, journal.is_full = header, False
        assert await site.is_here(0)
        await add(site.storage, (0, 9))  # The ledger is unchanged.
        await site.storage.delete(0)
        assert not await site.is_here(0)

    tell(story)
