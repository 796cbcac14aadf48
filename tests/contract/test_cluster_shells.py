"""The cluster shells on every store: ledgers, ids and registrations, with requests and replies lost."""

import asyncio
import random
from collections.abc import Callable

import pytest

from rollbook.proto.cluster.bookie_watcher import BookieWatcher, LiveBookies
from rollbook.proto.cluster.cluster_root import ensure_own_root, initialise, open_cluster
from rollbook.proto.cluster.ledger_ids import LedgerIds
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.cluster.registration import BookieRegistration, RegisteredMode
from rollbook.proto.errors import ClusterExists, MetadataConflict, NodeExists
from rollbook.proto.formats.layout import Layout
from rollbook.proto.formats.service_info import describe_bookie
from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.metadata import Fragment, LedgerMetadata
from rollbook.proto.ports import Address, MetadataStore
from rollbook.proto.quorum import Quorum
from rollbook.proto.wire.digest import DigestType
from tests.contract.stores import DEADLINE_S, SHORT_SESSION_S, Site

B = [BookieId(f"b{number}:3181") for number in range(4)]
ROOT = "/ledgers"
tokens = random.Random(9)


def ledger(ledger_id: LedgerId) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id,
        Quorum(3, 3, 2),
        (Fragment(EntryId(0), (B[0], B[1], B[2])),),
        digest_type=DigestType.CRC32C,
        password=b"",
        created_ms=1_700_000_000_000,
        creation_token=tokens.getrandbits(62),
    )


async def until(watcher: BookieWatcher, holds: Callable[[LiveBookies], bool]) -> None:
    found = watcher.current
    async with asyncio.timeout(DEADLINE_S):
        while not holds(found):
            found = await watcher.changed(found)


async def open_ledgers(site: Site) -> tuple[MetadataStore, LedgerNodes]:
    store = await site.open()
    await initialise(store, ROOT, random.Random(1))
    return store, LedgerNodes(store, ROOT, Layout.HIERARCHICAL)


async def test_cluster_is_created_once(site: Site) -> None:
    store, rival = await site.open(), await site.open()
    await site.lose_next_answer(store)
    cluster = await initialise(store, ROOT, random.Random(1))
    assert await open_cluster(rival, ROOT) == cluster
    with pytest.raises(ClusterExists):
        await initialise(rival, ROOT, random.Random(2))
    await ensure_own_root(rival, cluster)


@pytest.mark.parametrize("loss", ["request", "answer"])
async def test_each_write_is_applied_once_despite_a_lost_message(site: Site, loss: str) -> None:
    """LR1: over connections that are cut."""
    store, ledgers = await open_ledgers(site)
    await ledgers.create(ledger(LedgerId(1)))  # Creates the parent nodes.
    lose = site.lose_next_request if loss == "request" else site.lose_next_answer

    wanted = ledger(LedgerId(2))
    await lose(store)
    stored = await ledgers.create(wanted)
    with pytest.raises(NodeExists):
        await ledgers.create(ledger(LedgerId(2)))
    await lose(store)
    stored = await ledgers.update(stored, wanted.with_recovery_started())
    assert stored.version == 1
    with pytest.raises(MetadataConflict):
        await ledgers.delete(LedgerId(2), version=0)
    await lose(store)
    await ledgers.delete(LedgerId(2), version=1)
    assert [each async for each in ledgers.ids()] == [1]


async def test_ledger_ids_are_never_reused(site: Site) -> None:
    store, ledgers = await open_ledgers(site)
    for expected in range(5):
        stored = await ledgers.create_new(ledger)
        assert stored.metadata.ledger_id == expected
        await ledgers.delete(stored.metadata.ledger_id)
    assert "00" not in await store.children(ROOT)
    rival = await site.open()
    drawn = await asyncio.gather(*(LedgerIds(each, ROOT).draw() for each in (store, rival) * 10))
    assert sorted(drawn) == list(range(5, 25))


async def test_bookie_registers_again_after_its_session_expired(site: Site) -> None:
    """RG1, RG2: its session expires while it is cut off; its own old node does not block it."""
    _, _ = await open_ledgers(site)
    store, eyes = await site.open(session_timeout_s=SHORT_SESSION_S), await site.open()
    watcher = BookieWatcher(eyes, ROOT)
    await watcher.start()
    info = describe_bookie(Address("b0", 3181))
    registration = BookieRegistration(store, ROOT, B[0], info, SHORT_SESSION_S)
    await registration.register(RegisteredMode.WRITABLE)
    await until(watcher, lambda live: live.writable.get(B[0]) == info)
    await registration.register(RegisteredMode.READ_ONLY)
    await until(watcher, lambda live: live.read_only.get(B[0]) == info)

    keeper = asyncio.get_running_loop().create_task(registration.keep())
    await site.suspend(store)
    await until(watcher, lambda live: live == LiveBookies())
    await site.resume(store)
    await until(watcher, lambda live: live.read_only.get(B[0]) == info)
    await registration.register(RegisteredMode.WRITABLE)
    await until(watcher, lambda live: B[0] in live.writable)
    await registration.withdraw()
    await until(watcher, lambda live: live == LiveBookies())
    keeper.cancel()
    await asyncio.gather(keeper, return_exceptions=True)
    await watcher.close()


async def test_restarted_bookie_waits_for_its_earlier_session_to_end(site: Site) -> None:
    """RG2: the earlier process died without closing its session, which lasts until its time-out."""
    await open_ledgers(site)
    earlier = await site.open(session_timeout_s=SHORT_SESSION_S)
    store = await site.open(session_timeout_s=SHORT_SESSION_S)
    info = describe_bookie(Address("b0", 3181))
    await BookieRegistration(earlier, ROOT, B[0], info, SHORT_SESSION_S).register(
        RegisteredMode.WRITABLE
    )
    await site.suspend(earlier)
    later = BookieRegistration(store, ROOT, B[0], info, SHORT_SESSION_S)
    await later.register(RegisteredMode.WRITABLE)
    node = await store.get(f"{ROOT}/available/{B[0]}")
    assert node is not None
    assert node.stat.owner == store.session
    await site.resume(earlier)
