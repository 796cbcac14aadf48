"""Copies that metadata no longer names: which are dropped, which are kept, and later adds."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rollbook.bookie.storage import Storage
from rollbook.bookie.surplus import Surplus, SurplusState
from rollbook.proto.cluster.cluster_root import Cluster, initialise
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.cluster.underreplication_marks import Marks
from rollbook.proto.errors import LedgerFenced, NoSuchEntry, Unauthorized
from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.metadata import Fragment, LedgerMetadata
from rollbook.proto.ports import MetadataStore
from rollbook.proto.quorum import Quorum
from tests.simulation.kernel import Node, World
from tests.unit.bookie.test_storage import (
    CONFIG,
    KEY,
    OTHER_KEY,
    add,
    adds,
    entry,
    fill_file,
    open_storage,
    settle,
)

US, THEM = BookieId("us:3181"), BookieId("them:3181")
DAY_S = 100.0
SESSION_S = 10.0


class Site:
    def __init__(
        self, world: World, node: Node, storage: Storage, store: MetadataStore, cluster: Cluster
    ) -> None:
        self.world = world
        self.node = node
        self.storage = storage
        self.store = store
        self.cluster = cluster
        self.ledgers = LedgerNodes(store, cluster.root, cluster.layout)
        self.surplus = self.new_surplus()

    def new_surplus(self) -> Surplus:
        return Surplus(
            self.storage, self.node.clock, DAY_S, self.store, self.cluster, US, SESSION_S
        )

    async def create(self, ledger_id: int, holder: BookieId, *, closed: bool = True) -> None:
        metadata = LedgerMetadata(
            LedgerId(ledger_id),
            Quorum(1, 1, 1),
            (Fragment(EntryId(0), (holder,)),),
            created_ms=1,
            creation_token=ledger_id,
        )
        if closed:
            metadata = metadata.with_close(EntryId(1), 20)
        await self.ledgers.create(metadata)

    async def name(self, ledger_id: int) -> None:
        """Names this bookie in the ledger's metadata, as a repair does."""
        stored = await self.ledgers.read(LedgerId(ledger_id))
        await self.ledgers.update(stored, stored.metadata.with_replacement(EntryId(0), THEM, US))

    async def look(self, pause_s: float = DAY_S) -> SurplusState:
        await asyncio.sleep(pause_s)
        return await self.surplus.look()

    async def held(self, ledger_id: int) -> list[int]:
        return await self.storage.entry_ids(ledger_id)


def tell(story: Callable[[Site], Awaitable[None]], seed: int = 1) -> None:
    world = World(seed)
    node = world.node("us")

    async def main(node: Node) -> None:
        store = await node.metadata(session_timeout_s=SESSION_S)
        cluster = await initialise(store, "/ledgers", node.randomness)
        await Storage.make(node.disk, CONFIG, node.randomness)
        storage = await open_storage(node)
        storage.start()
        site = Site(world, node, storage, store, cluster)
        await story(site)
        await site.storage.close()
        await store.close()

    async def scenario() -> None:
        await node.start(main).result

    world.run(scenario())


async def reopen(site: Site) -> Storage:
    await site.storage.close()
    storage = await open_storage(site.node)
    storage.start()
    return storage


# --- Dropped copies ----------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["memory", "logs"])
def test_surplus_copies_are_dropped_after_two_checks(where: str) -> None:
    """B16: their entries are then absent, not unknown; key and fence stay."""

    async def story(site: Site) -> None:
        for ledger_id, holder in ((1, THEM), (2, US), (3, THEM)):
            await site.create(ledger_id, holder, closed=ledger_id != 3)
            await add(site.storage, (ledger_id, 0), (ledger_id, 1))
        await site.storage.fence(1, KEY)
        if where == "logs":
            await fill_file(site.storage, 2)
            await settle(site.storage)
        first = await site.look()
        assert (first.ledgers, first.surplus, first.dropped) == (3, 1, 0)
        assert first.first_ledgers == (1,)
        assert first.surplus_bytes == 2 * len(entry(1, 0))
        assert await site.held(1) == [0, 1]
        second = await site.look()
        assert (second.outcome, second.surplus, second.dropped) == ("done", 0, 1)
        for _ in range(2):
            assert await site.held(1) == []
            for question in (site.storage.read(1, 0), site.storage.read_last(1)):
                with pytest.raises(NoSuchEntry):
                    await question
            assert len(await site.held(2)) >= 2  # Metadata names this bookie.
            # An open ledger's writer may use this bookie again.
            assert await site.held(3) == [0, 1]
            assert site.storage.add(adds((1, 0))).refusals == (LedgerFenced,)
            refused = site.storage.add(adds((1, 0), key=OTHER_KEY, is_recovery=True)).refusals
            assert refused == (Unauthorized,)
            site.storage = await reopen(site)
        assert not await Marks(site.store, site.cluster.root).locked()

    tell(story)


@pytest.mark.parametrize("rolls", range(4))
def test_recovery_adds_after_a_drop_are_kept(rolls: int) -> None:
    """B16: this holds across restarts, whether or not journal files became logs around the drop."""

    async def story(site: Site) -> None:
        await site.create(1, THEM)
        await site.create(9, US)
        await add(site.storage, (1, 0), (1, 1))
        if rolls & 1:
            await fill_file(site.storage, 9)
            await settle(site.storage)
        await site.look()
        await site.look()
        assert await site.held(1) == []
        await add(site.storage, (1, 1), is_recovery=True)
        if rolls & 2:
            await fill_file(site.storage, 9)
            await settle(site.storage)
        for _ in range(3):
            assert await site.held(1) == [1]
            assert await site.storage.read(1, 1) == entry(1, 1)
            site.storage = await reopen(site)
        await site.name(1)
        site.surplus = site.new_surplus()
        for _ in range(3):
            await site.look()
        assert await site.held(1) == [1]

    tell(story)


def test_drop_covers_entries_in_a_running_checkpoint() -> None:
    """B5, B16."""

    async def story(site: Site) -> None:
        await site.create(1, THEM)
        await add(site.storage, (1, 0))
        await site.look()
        await asyncio.sleep(DAY_S)
        await fill_file(site.storage, 9)  # The checkpoint begins during the check.
        await site.surplus.look()
        await settle(site.storage)
        assert await site.held(1) == []
        site.storage = await reopen(site)
        assert await site.held(1) == []

    tell(story)


# --- Kept copies ------------------------------------------------------------------------------


def test_copies_added_after_the_first_check_are_kept() -> None:
    """B16: a repair without locks copies first, and names this bookie afterwards."""

    async def story(site: Site) -> None:
        await site.create(1, THEM)
        await add(site.storage, (1, 0))
        await site.look()
        await add(site.storage, (1, 0), is_recovery=True)
        assert (await site.look()).dropped == 0
        await site.name(1)
        for _ in range(3):
            await site.look()
        assert await site.held(1) == [0]

    tell(story)


def test_copies_are_kept_while_a_repair_holds_the_lock() -> None:
    """B16: the repair relies on the entries listed here."""

    async def story(site: Site) -> None:
        await site.create(1, THEM)
        await add(site.storage, (1, 0))
        async with await site.node.metadata() as other:
            marks = Marks(other, site.cluster.root)
            await marks.prepare()
            lock = await marks.take(LedgerId(1), "a worker")
            assert lock
            await site.look()
            assert (await site.look()).dropped == 0
            assert await site.held(1) == [0]
            await marks.release(lock)
        assert (await site.look()).dropped == 1

    tell(story)


def test_copies_are_kept_if_the_lock_may_have_expired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B16: a bookie that was paused for longer than its session drops nothing."""

    async def story(site: Site) -> None:
        async def read(self: LedgerNodes, ledger_id: LedgerId, *, fresh: bool = False) -> object:
            found = await as_ever(self, ledger_id, fresh=fresh)
            if locks := await Marks(site.store, site.cluster.root).locked():
                assert locks == {1}
                await asyncio.sleep(2 * SESSION_S)
            return found

        await site.create(1, THEM)
        await add(site.storage, (1, 0))
        await site.look()
        as_ever = LedgerNodes.read
        monkeypatch.setattr(LedgerNodes, "read", read)
        assert (await site.look()).dropped == 0
        assert await site.held(1) == [0]

    tell(story)


def test_ledger_with_possible_losses_is_kept_until_healed() -> None:
    """B1, B16: entries that may have been lost must not become absent."""

    async def story(site: Site) -> None:
        await site.create(1, THEM)
        await add(site.storage, (1, 0))
        await site.storage.doubt([(1, 5, 6)])
        await site.look()
        assert (await site.look()).dropped == 0
        await site.storage.settle(site.storage.doubts_stamp, 1, [(5, 6)])
        await site.look()
        assert (await site.look()).dropped == 1

    tell(story)


def test_metadata_outage_drops_no_copies() -> None:
    """B16."""

    async def story(site: Site) -> None:
        await site.create(1, THEM)
        await add(site.storage, (1, 0))
        site.world.metadata.down()
        assert (await site.look()).outcome == "failed"
        site.world.metadata.up()
        await asyncio.sleep(60)
        assert (await site.look()).dropped == 0
        assert (await site.look()).dropped == 1

    tell(story)


def test_entries_are_not_listed_during_a_drop() -> None:
    """B16: a repair that gets the lock next must copy all entries."""

    async def story(site: Site) -> None:
        await add(site.storage, (1, 0))
        dropping = asyncio.ensure_future(site.storage.drop(1))
        await asyncio.sleep(0)
        assert await site.storage.entry_ids(1) == []
        await dropping

    tell(story)
