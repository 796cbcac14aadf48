"""Recovery's metadata on every store: marks, locks, votes, lifecycles, the index and drains."""

import asyncio
import random

import pytest

from rollbook.proto.cluster.bookie_lifecycle_nodes import LifecycleNodes
from rollbook.proto.cluster.cluster_root import initialise
from rollbook.proto.cluster.election import Election
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.cluster.underreplication_marks import Marks
from rollbook.proto.errors import MetadataConflict, NoSuchNode, RollbookError
from rollbook.proto.formats.lifecycle import Lifecycle, LifecycleState
from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.ports import Check
from rollbook.proto.runtime.clock import SystemClock
from rollbook.recovery.ledger_index import LedgerIndex
from tests.contract.stores import DEADLINE_S, SHORT_SESSION_S, Site
from tests.contract.test_cluster_shells import ROOT, B, ledger

L7 = LedgerId(7)


@pytest.mark.parametrize("loss", ["request", "answer"])
async def test_marks_and_locks_work_despite_lost_messages(site: Site, loss: str) -> None:
    """MK1, MK2, MK3, LR1."""
    store, rival = await site.open(), await site.open()
    lose = site.lose_next_request if loss == "request" else site.lose_next_answer
    await initialise(store, ROOT, random.Random(1))
    marks, theirs = Marks(store, ROOT), Marks(rival, ROOT)
    await marks.prepare()
    await lose(store)
    await marks.mark(L7, [B[0]], 1)
    await lose(store)
    assert await marks.mark(L7, [B[1]], 2)
    await lose(store)
    lock = await marks.take(L7, "worker-1")
    assert lock is not None
    assert await theirs.take(L7, "worker-2") is None
    found = await marks.read(L7)
    assert found is not None
    assert found.mark.missing == (B[0], B[1])
    assert await theirs.mark(L7, [B[2]], 3)
    assert not await marks.unmark(found, lock), "the ledger was marked again in between"
    found = await marks.read(L7)
    assert found is not None
    await lose(store)
    assert await marks.unmark(found, lock)
    await lose(store)
    await marks.release(lock)
    assert [each async for each in theirs.ids()] == []
    assert await theirs.take(L7, "worker-2") is not None


async def test_new_marks_are_made_together_or_not_at_all(site: Site) -> None:
    """MK1: on each store, in one transaction."""
    store = await site.open()
    await initialise(store, ROOT, random.Random(1))
    marks = Marks(store, ROOT)
    await marks.prepare()
    assert not await marks.mark_new({L7: (B[0],)}, 1), "the parent nodes do not exist yet"
    assert await marks.mark(L7, [B[0]], 1)
    assert await marks.mark_new({LedgerId(8): (B[0],), LedgerId(9): (B[0], B[1])}, 2)
    assert not await marks.mark_new({LedgerId(10): (B[0],), LedgerId(9): (B[2],)}, 3)
    assert [each async for each in marks.ids()] == [7, 8, 9]
    found = await marks.read(LedgerId(9))
    assert found is not None
    assert found.mark.missing == (B[0], B[1])


async def test_lock_ends_with_its_session_and_bars_later_swaps(site: Site) -> None:
    """MK3: a worker whose session expired while it was suspended swaps nothing."""
    store, rival = await site.open(session_timeout_s=SHORT_SESSION_S), await site.open()
    cluster = await initialise(rival, ROOT, random.Random(1))
    nodes = LedgerNodes(store, ROOT, cluster.layout)
    stored = await nodes.create(ledger(L7))
    marks, theirs = Marks(store, ROOT), Marks(rival, ROOT)
    await marks.prepare()
    lock = await marks.take(L7, "worker-1")
    assert lock is not None
    await site.suspend(store)
    async with asyncio.timeout(DEADLINE_S):
        while (taken := await theirs.take(L7, "worker-2")) is None:
            await asyncio.sleep(0.1)
    await site.resume(store)
    changed = stored.metadata.with_close(EntryId(9), 90)
    with pytest.raises(RollbookError):
        await nodes.swap(stored, changed, [lock.check], lock.session)
    await marks.release(lock)
    assert await theirs.holder(L7) == "worker-2"
    swapped = await LedgerNodes(rival, ROOT, cluster.layout).swap(
        stored, changed, [taken.check], taken.session
    )
    assert swapped.version == stored.version + 1


@pytest.mark.parametrize("loss", ["request", "answer"])
async def test_election_passes_to_the_next_vote_when_the_leader_leaves(
    site: Site, loss: str
) -> None:
    """EL1, EL2."""
    first, second = await site.open(), await site.open()
    lose = site.lose_next_request if loss == "request" else site.lose_next_answer
    await initialise(first, ROOT, random.Random(1))
    folder = f"{ROOT}/underreplication/auditorelection"
    ours = Election(first, folder, B[0], above=ROOT)
    theirs = Election(second, folder, B[1], above=ROOT)
    await ours.stand()
    await ours.withdraw()
    await lose(first)
    vote = await ours.lead()
    await theirs.stand()
    assert len(await second.children(folder)) == 2
    assert await theirs.leader() == B[0]
    leading = asyncio.get_running_loop().create_task(theirs.lead())
    await first.close()
    async with asyncio.timeout(DEADLINE_S):
        await leading
    with pytest.raises(NoSuchNode):
        await second.transaction([vote.check])


@pytest.mark.parametrize("loss", ["request", "answer"])
async def test_lifecycle_writes_check_version_and_conditions(site: Site, loss: str) -> None:
    """LC2, LR1."""
    store = await site.open()
    lose = site.lose_next_request if loss == "request" else site.lose_next_answer
    cluster = await initialise(store, ROOT, random.Random(1))
    nodes = LifecycleNodes(store, cluster)
    found = await nodes.write(await nodes.read(B[0]), Lifecycle(LifecycleState.DRAINING, "aa"))
    await lose(store)
    changed = await nodes.write(found, Lifecycle(LifecycleState.DRAINED, "bb"))
    assert changed == await nodes.read(B[0])
    with pytest.raises(MetadataConflict):
        await nodes.write(found, Lifecycle(LifecycleState.ACTIVE, "cc"))
    last = Lifecycle(LifecycleState.ACTIVE, "dd")
    with pytest.raises(NoSuchNode):
        await nodes.write(changed, last, checks=[Check(f"{ROOT}/vote")])


async def test_ledger_index_follows_changes_after_a_lost_connection(site: Site) -> None:
    """RI1."""
    store, client = await site.open(), await site.open()
    cluster = await initialise(store, ROOT, random.Random(1))
    nodes = LedgerNodes(client, ROOT, cluster.layout)
    for ledger_id in range(50):
        await nodes.create(ledger(LedgerId(ledger_id)))
    index = LedgerIndex(store, cluster, SystemClock())
    running = asyncio.get_running_loop().create_task(index.run())
    try:
        async with asyncio.timeout(DEADLINE_S):
            while len(index) < 50 or not index.is_ready:
                await asyncio.sleep(0.01)
            await site.cut(store)
            stored = await nodes.read(LedgerId(3))
            stored = await nodes.update(stored, stored.metadata.with_close(EntryId(9), 90))
            moved = stored.metadata.with_replacement(EntryId(0), B[0], B[3])
            await nodes.update(stored, moved)
            await nodes.delete(LedgerId(4))
            expected: dict[BookieId, int] = {B[0]: 48, B[1]: 49, B[2]: 49, B[3]: 1}
            while index.bookies() != expected:
                await asyncio.sleep(0.01)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
