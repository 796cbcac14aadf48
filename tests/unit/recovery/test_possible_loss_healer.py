"""Healing a bookie that lost entries; real bookies on real sockets and disks in this process."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollbook.ledger.config import ClientConfig
from rollbook.ledger.ledgers import Ledgers
from rollbook.ledger.writer import LedgerWriter
from rollbook.proto.errors import (
    BadConfig,
    ConnectionLost,
    EntryStateUnknown,
    NoSuchEntry,
    NoSuchLedger,
    RecoveryIncomplete,
    Superseded,
    WrongBookie,
)
from rollbook.proto.ids import BookieId, LedgerId
from rollbook.proto.metadata import LedgerState
from rollbook.proto.wire.digest import DigestType
from rollbook.proto.wire.entry_list import EntryList
from rollbook.recovery.config import HealConfig
from rollbook.recovery.core.entry_spans import WHOLE, EntrySpan
from rollbook.recovery.ledger_loss_healer import HealingOutcome, LedgerLossHealer
from rollbook.recovery.possible_loss_healer import Healing, PossibleLossHealer
from rollbook.recovery.possible_losses_port import DoubtsPage
from tests.support.healing import DirectDoubts
from tests.support.ledger_cluster import LocalCluster

PATIENCE_S = 60.0
QUICK = ClientConfig(read_deadline_s=2.0, recovery_patience_s=0.3)
SMALL = HealConfig(window_bytes=4 * 1024)  # About thirty entries.
HURT = "bk-2"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with asyncio.timeout(PATIENCE_S), LocalCluster(tmp_path) as cluster:
        yield cluster


async def write(
    ledgers: Ledgers, count: int, *, is_closed: bool = False, **quorum: Any
) -> LedgerWriter:
    """Write a ledger; its writer stops without a close unless `is_closed`."""
    writer = await ledgers.create(**{"ensemble": 3, "write": 3, "ack": 2, **quorum})
    writer.append_many([b"%0100d" % number for number in range(count)])
    await writer.flush()
    await (writer.close() if is_closed else writer.stop())
    return writer


async def reformat(cluster: LocalCluster) -> None:
    await cluster.stop(HURT)
    await cluster.format(HURT)
    await cluster.start(HURT)


async def heal(
    cluster: LocalCluster,
    ledgers: Ledgers,
    accepted: Mapping[int, Sequence[EntrySpan]] = {},
    doubts: DirectDoubts | None = None,
    **how: bool,
) -> Healing:
    while not knows_all(ledgers, cluster):
        await asyncio.sleep(0.01)
    doubts = doubts or DirectDoubts(cluster.bookies[HURT])
    healer = PossibleLossHealer(ledgers, BookieId(HURT), doubts, SMALL, accepted=accepted, **how)
    return await healer.heal()


def knows_all(ledgers: Ledgers, cluster: LocalCluster) -> bool:
    """Whether the client knows the current address of every running bookie."""
    for name, bookie in cluster.bookies.items():
        info = ledgers.live().find(BookieId(name))
        if info is None or info.address != bookie.advertised:
            return False
    return True


async def held_by(cluster: LocalCluster, ledger_id: int) -> list[int]:
    return await cluster.bookies[HURT].storage.entry_ids(ledger_id)


async def lac_of(ledgers: Ledgers, ledger_id: int) -> int:
    async with await ledgers.open(ledger_id) as reader:
        return reader.last_add_confirmed


def is_in_doubt(cluster: LocalCluster) -> bool:
    return bool(cluster.bookies[HURT].storage.catalog.doubts)


# --- Formatted ----------------------------------------------------------------------------------


async def test_formatted_bookie_blocks_recovery_until_healed(
    cluster: LocalCluster,
) -> None:
    """HL1, HL2: it answers UNKNOWN until healed; the close keeps all confirmed entries."""
    async with cluster.connect(QUICK) as ledgers:
        writers = [await write(ledgers, 200), await write(ledgers, 3)]
        ids = [writer.ledger_id for writer in writers]
        await reformat(cluster)
        await cluster.stop("bk-3")
        with pytest.raises(RecoveryIncomplete, match="bk-2: ENTRY_STATE_UNKNOWN"):
            await ledgers.open_recover(ids[0])
        await cluster.start("bk-3")
        healing = await heal(cluster, ledgers)
        assert healing.ledgers == {HealingOutcome.HEALED: 2}
        assert healing.closed == 2
        assert not is_in_doubt(cluster)
        for ledger_id, count in zip(ids, (200, 3), strict=True):
            assert (await ledgers.metadata(ledger_id)).metadata.last_entry == count - 1
            verdict = await ledgers.verify(ledger_id)
            assert verdict.is_sound
            assert verdict.entries == count
        await cluster.stop("bk-1")
        await cluster.stop("bk-3")  # Only the healed bookie is left to read from.
        async with await ledgers.open(ids[0]) as reader:
            assert [int(entry.payload) async for entry in reader.read()] == list(range(200))
        with pytest.raises(NoSuchEntry):
            await cluster.bookies[HURT].storage.read(ids[0], 200)


async def test_settled_doubts_stay_settled_after_a_restart(cluster: LocalCluster) -> None:
    """HL2."""
    async with cluster.connect(QUICK) as ledgers:
        writer = await write(ledgers, 50)
        await reformat(cluster)
        await heal(cluster, ledgers)
        await cluster.stop(HURT)
        await cluster.start(HURT)
        assert not is_in_doubt(cluster)
        assert await held_by(cluster, writer.ledger_id) == list(range(50))
        assert (await heal(cluster, ledgers)).ledgers == {}


@pytest.mark.parametrize("digest", [DigestType.CRC32C, DigestType.HMAC], ids=lambda d: d.name)
async def test_healing_restores_only_the_bookies_stripe(
    cluster: LocalCluster, digest: DigestType
) -> None:
    async with cluster.connect(QUICK) as ledgers:
        writer = await write(ledgers, 100, write=2, digest=digest, password=b"hush")
        ledger_id = writer.ledger_id
        before = await held_by(cluster, ledger_id)
        assert 60 < len(before) < 70
        await reformat(cluster)
        healing = await heal(cluster, ledgers)
        assert healing.ledgers == {HealingOutcome.HEALED: 1}
        assert await held_by(cluster, ledger_id) == before
        assert not is_in_doubt(cluster)


async def test_doubts_of_a_deleted_ledger_are_settled(cluster: LocalCluster) -> None:
    """HL5."""
    async with cluster.connect(QUICK) as ledgers:
        writer = await write(ledgers, 10)
        await reformat(cluster)
        await ledgers.delete(writer.ledger_id)
        assert (await heal(cluster, ledgers)).ledgers == {HealingOutcome.GONE: 1}
        assert not is_in_doubt(cluster)


async def test_ledger_deleted_during_healing_counts_as_gone(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HL5: deleted after its metadata was read."""
    async with cluster.connect(QUICK) as ledgers, cluster.connect(QUICK) as others:
        ledger_id = (await write(ledgers, 10, is_closed=True)).ledger_id
        await reformat(cluster)
        list_entries = LedgerLossHealer._list

        async def list_late(self: LedgerLossHealer) -> EntryList:
            monkeypatch.undo()
            await others.delete(ledger_id)
            return await list_entries(self)

        monkeypatch.setattr(LedgerLossHealer, "_list", list_late)
        assert (await heal(cluster, ledgers, includes_all=True)).ledgers == {HealingOutcome.GONE: 1}
        assert not is_in_doubt(cluster)


async def test_emptied_metadata_store_settles_no_doubts(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HL5: a store without our own trees proves nothing about any ledger."""
    async with cluster.connect(QUICK) as ledgers:
        writer = await write(ledgers, 10)
        await reformat(cluster)
        await ledgers.delete(writer.ledger_id)
        store = ledgers._store
        own_root = ledgers.cluster.own_root
        read = store.get

        async def get(path: str, **more: Any) -> Any:
            return None if path == own_root else await read(path, **more)

        monkeypatch.setattr(store, "get", get)
        healing = await heal(cluster, ledgers)
        assert healing.ledgers == {HealingOutcome.WAITING: 1}
        assert "our own trees" in healing.remarkable[0].reason
        assert is_in_doubt(cluster)


async def test_closed_ledgers_are_restored_with_includes_all(
    cluster: LocalCluster,
) -> None:
    async with cluster.connect(QUICK) as ledgers:
        closed = await write(ledgers, 70, is_closed=True)
        writer = await ledgers.create(ensemble=3, write=3, ack=2)
        await reformat(cluster)  # A format puts no closed ledger in doubt.
        assert (await heal(cluster, ledgers, includes_all=True)).entries == 70
        assert (await ledgers.verify(closed.ledger_id)).is_sound
        assert (await heal(cluster, ledgers, includes_all=True)).entries == 0
        await writer.stop()


async def test_healing_rehearsal_changes_nothing(cluster: LocalCluster) -> None:
    async with cluster.connect(QUICK) as ledgers:
        closed = await write(ledgers, 70, is_closed=True)
        writer = await write(ledgers, 10)
        await reformat(cluster)
        healing = await heal(cluster, ledgers, includes_all=True, is_rehearsal=True)
        assert (healing.entries, healing.closed) == (70, 1)
        assert healing.ledgers == {HealingOutcome.PLANNED: 2}
        assert cluster.bookies[HURT].storage.catalog.doubts.ledger_ids == [writer.ledger_id]
        metadata = (await ledgers.metadata(writer.ledger_id, fresh=True)).metadata
        assert metadata.state is LedgerState.OPEN
        with pytest.raises(NoSuchLedger):
            await cluster.bookies[HURT].storage.read_last(closed.ledger_id)


# --- Losses ------------------------------------------------------------------------------------


async def test_only_losses_accepted_for_the_ledger_are_given_up(cluster: LocalCluster) -> None:
    """HL1: only the formatted bookie had copies, so the end of the ledger is unknown."""
    async with cluster.connect(replace(QUICK, explicit_lac_idle_ms=0)) as ledgers:
        writer = await write(ledgers, 90, write=1, ack=1)
        ledger_id = writer.ledger_id
        share = await held_by(cluster, ledger_id)
        assert len(share) == 30
        await reformat(cluster)

        healing = await heal(cluster, ledgers)
        assert healing.ledgers == {HealingOutcome.WAITING: 1}
        (found,) = healing.remarkable
        assert "bk-2: ENTRY_STATE_UNKNOWN" in found.reason
        assert f"--accept-loss {ledger_id}" in found.next_step
        assert is_in_doubt(cluster)

        other = await heal(cluster, ledgers, {ledger_id + 1: [WHOLE]})
        assert other.ledgers == {HealingOutcome.WAITING: 1}

        # Accepts the loss of all entries above the first; the first itself stays in doubt.
        some = [EntrySpan(share[0] + 1, 2**63 - 1)]
        assert (await heal(cluster, ledgers, {ledger_id: some})).ledgers == {
            HealingOutcome.WAITING: 1
        }
        with pytest.raises(EntryStateUnknown):
            await cluster.bookies[HURT].storage.read(ledger_id, share[0])

        healing = await heal(cluster, ledgers, {ledger_id: [WHOLE]})
        assert healing.ledgers == {HealingOutcome.HEALED: 1}
        (found,) = healing.remarkable
        assert found.given_up == [
            EntrySpan(share[0], share[0])
        ]  # The other entries were given up before.
        assert not is_in_doubt(cluster)
        async with await ledgers.open_recover(ledger_id) as reader:
            assert reader.last_add_confirmed == share[0] - 1


async def test_only_entries_without_a_copy_are_lost_and_stay_in_doubt(
    cluster: LocalCluster,
) -> None:
    """HL1: in a closed ledger."""
    async with cluster.connect(QUICK) as ledgers:
        writer = await write(ledgers, 90, write=1, ack=1, is_closed=True)
        ledger_id = writer.ledger_id
        share = await held_by(cluster, ledger_id)
        await reformat(cluster)
        storage = cluster.bookies[HURT].storage
        await storage.doubt([(ledger_id, -1, 2**63 - 1)])
        healing = await heal(cluster, ledgers)
        assert healing.ledgers == {HealingOutcome.LOST: 1}
        lost = healing.remarkable[0].lost
        assert [first for first, _ in lost] == share
        assert storage.catalog.doubts.of(ledger_id) == tuple((each, each) for each in share)

        some = [EntrySpan(share[0], share[1])]
        healing = await heal(cluster, ledgers, {ledger_id: some})
        assert healing.ledgers == {HealingOutcome.LOST: 1}
        assert [first for first, _ in healing.remarkable[0].given_up] == share[:2]
        assert [first for first, _ in storage.catalog.doubts.of(ledger_id)] == share[2:]


async def test_healing_waits_for_an_unreachable_copy(cluster: LocalCluster) -> None:
    async with cluster.connect(QUICK) as ledgers:
        writer = await write(ledgers, 60, write=2, ack=2, is_closed=True)
        ledger_id = writer.ledger_id
        await reformat(cluster)
        storage = cluster.bookies[HURT].storage
        await storage.doubt([(ledger_id, 0, 59)])
        await cluster.stop("bk-3")
        healing = await heal(cluster, ledgers)
        assert healing.ledgers == {HealingOutcome.WAITING: 1}
        assert "bk-3: unreachable" in healing.remarkable[0].reason
        assert 0 < len(await held_by(cluster, ledger_id)) < 40
        await cluster.start("bk-3")
        assert (await heal(cluster, ledgers)).ledgers == {HealingOutcome.HEALED: 1}
        assert (await ledgers.verify(ledger_id)).is_sound


# --- Races and failures--------------------------------------------------------------------------


class Dying(DirectDoubts):
    """Its connection breaks, before or after the bookie has received the request."""

    def __init__(self, cluster: LocalCluster, settles: int, *, is_heard: bool) -> None:
        super().__init__(cluster.bookies[HURT])
        self._left = settles
        self._is_heard = is_heard

    @property
    def has_broken(self) -> bool:
        return self._left < 0

    async def settle(self, stamp: str, ledger_id: LedgerId, ranges: list[EntrySpan]) -> None:
        self._left -= 1
        if self._left >= 0 or self._is_heard:
            await super().settle(stamp, ledger_id, ranges)
        if self._left < 0:
            raise ConnectionLost


@pytest.mark.parametrize("is_heard", [False, True])
async def test_healing_resumes_after_losing_its_connection_at_any_step(
    cluster: LocalCluster, is_heard: bool
) -> None:
    """HL4: settled entries are restored, and the next healer continues."""
    async with cluster.connect(QUICK) as ledgers:
        ledger_id = (await write(ledgers, 300)).ledger_id
        await reformat(cluster)
        doubts = cluster.bookies[HURT].storage.catalog.doubts
        doubted: list[Sequence[tuple[int, int]]] = []  # What is left when each connection breaks.
        while is_in_doubt(cluster):
            # Each healer settles one step more than the one before, and its connection breaks then.
            dying = Dying(cluster, 0 if is_heard or not doubted else 1, is_heard=is_heard)
            healed = (await heal(cluster, ledgers, doubts=dying)).ledgers
            outcome = HealingOutcome.WAITING if dying.has_broken else HealingOutcome.HEALED
            assert healed == {outcome: 1}
            held = await held_by(cluster, ledger_id)
            for entry_id in range(300):
                assert entry_id in held or doubts.about(ledger_id, entry_id)
            doubted.append(doubts.of(ledger_id))
            assert doubted[-1] not in doubted[:-1]
        assert len(doubted) > 5
        verdict = await ledgers.verify(ledger_id)
        assert (verdict.is_sound, verdict.entries) == (True, 300)


async def test_concurrent_healers_both_succeed(cluster: LocalCluster) -> None:
    """HL4."""
    async with cluster.connect(QUICK) as ledgers:
        ids = [(await write(ledgers, 80)).ledger_id for _ in range(3)]
        await reformat(cluster)
        for healing in await asyncio.gather(*(heal(cluster, ledgers) for _ in range(2))):
            assert healing.ledgers == {HealingOutcome.HEALED: 3}
        assert not is_in_doubt(cluster)
        for ledger_id in ids:
            assert (await ledgers.verify(ledger_id)).is_sound


class Rotting(DirectDoubts):
    """While the healer runs, a restored entry turns out to be damaged."""

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__(cluster.bookies[HURT])
        self.storage = cluster.bookies[HURT].storage
        self.pages = 0
        self._has_rotted = False

    async def page(self, after: int, limit: int) -> DoubtsPage:
        self.pages += 1
        return await super().page(after, limit)

    async def settle(self, stamp: str, ledger_id: LedgerId, ranges: list[EntrySpan]) -> None:
        if not self._has_rotted:
            self._has_rotted = True
            await self.storage.doubt([(ledger_id, 5, 5)])
            with pytest.raises(Superseded):
                await super().settle(stamp, ledger_id, ranges)
            assert self.storage.catalog.doubts.about(ledger_id, 5)
        await super().settle(stamp, ledger_id, ranges)


async def test_doubt_added_during_healing_is_healed_too(cluster: LocalCluster) -> None:
    """HL4: the healer reads the doubts again, and verifies entries that are listed."""
    async with cluster.connect(QUICK) as ledgers:
        ledger_id = (await write(ledgers, 40)).ledger_id
        await reformat(cluster)
        rotting = Rotting(cluster)
        healing = await heal(cluster, ledgers, doubts=rotting)
        assert healing.ledgers == {HealingOutcome.HEALED: 1}
        assert rotting.pages == 2
        assert not is_in_doubt(cluster)
        assert (await ledgers.verify(ledger_id)).is_sound


async def test_healing_confirmed_entries_leaves_the_writer_running(cluster: LocalCluster) -> None:
    async with cluster.connect(QUICK) as ledgers:
        writer = await ledgers.create(ensemble=3, write=3, ack=2)
        writer.append_many([b"%0100d" % number for number in range(100)])
        await writer.flush()
        while (
            await lac_of(ledgers, writer.ledger_id)
        ) < 99:  # An idle writer sends its explicit LAC.
            await asyncio.sleep(0.01)
        storage = cluster.bookies[HURT].storage
        await storage.doubt([(writer.ledger_id, 10, 49)])  # Like a damaged log.
        healing = await heal(cluster, ledgers)
        assert (healing.ledgers, healing.closed) == ({HealingOutcome.HEALED: 1}, 0)
        assert not is_in_doubt(cluster)
        assert await writer.append(b"more") == 100
        await writer.close()


async def test_healing_with_doubts_of_another_bookie_is_refused(cluster: LocalCluster) -> None:
    async with cluster.connect(QUICK) as ledgers:
        with pytest.raises(WrongBookie):
            await heal(cluster, ledgers, doubts=DirectDoubts(cluster.bookies["bk-1"]))


# --- Lost journal -------------------------------------------------------------------------------


async def test_bookie_that_lost_its_journal_is_healed(cluster: LocalCluster) -> None:
    """HL3: everything is in doubt until each ledger naming the bookie is whole and fenced there."""
    async with cluster.connect(QUICK) as ledgers:
        closed = (await write(ledgers, 60, is_closed=True)).ledger_id
        opened = (await write(ledgers, 30)).ledger_id
        single = (await write(ledgers, 9, ensemble=1, write=1, ack=1)).ledger_id
        await cluster.stop(HURT)
        await cluster.lose_journal(HURT)
        bookie = await cluster.start(HURT)
        storage = bookie.storage
        assert storage.catalog.doubts.everything
        assert bookie.is_read_only
        with pytest.raises(EntryStateUnknown):
            await storage.read(closed, 1000)

        names_it = HURT in (await ledgers.metadata(single)).metadata.fragments[0].ensemble
        healing = await heal(cluster, ledgers)
        if names_it:
            assert healing.ledgers == {HealingOutcome.HEALED: 2, HealingOutcome.WAITING: 1}
            assert healing.doubts_everything
            assert storage.catalog.doubts.everything
            healing = await heal(cluster, ledgers, {single: [WHOLE]})
            assert [each.ledger_id for each in healing.remarkable] == [single]
        assert healing.ledgers == {HealingOutcome.HEALED: 3}
        assert not healing.doubts_everything
        assert not is_in_doubt(cluster)
        assert not bookie.is_read_only
        for ledger_id, count in ((closed, 60), (opened, 30)):
            assert storage.is_fenced(ledger_id)
            verdict = await ledgers.verify(ledger_id)
            assert verdict.is_sound
            assert verdict.entries == count
        with pytest.raises(NoSuchEntry):
            await storage.read(closed, 1000)
        await cluster.stop(HURT)
        bookie = await cluster.start(HURT)
        assert not bookie.storage.catalog.doubts
        assert bookie.storage.is_fenced(closed)


async def test_stale_stamp_does_not_settle_all_doubts_after_a_restart(
    cluster: LocalCluster,
) -> None:
    """HL4: the restart may have found further losses."""
    async with cluster.connect(QUICK) as ledgers:
        await write(ledgers, 10, is_closed=True)
        await cluster.stop(HURT)
        await cluster.lose_journal(HURT)
        await cluster.start(HURT)
        stamp = (await DirectDoubts(cluster.bookies[HURT]).page(-1, 1)).stamp
        await cluster.stop(HURT)
        await cluster.start(HURT)
        with pytest.raises(Superseded):
            await DirectDoubts(cluster.bookies[HURT]).settle_everything(stamp)
        assert cluster.bookies[HURT].storage.catalog.doubts.everything


async def test_broken_connection_does_not_fail_healing(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection from before the bookie's last start may fail only at the next request."""
    async with cluster.connect(QUICK) as ledgers:
        await write(ledgers, 10)
        await reformat(cluster)
        call, broken = ledgers.bookies.call, list[BookieId]()

        async def breaks_once(bookie: BookieId, *about: Any, **how: Any) -> Any:
            if bookie == HURT and not broken:
                broken.append(bookie)
                raise ConnectionLost("it was reset", bookie=bookie)
            return await call(bookie, *about, **how)

        monkeypatch.setattr(ledgers.bookies, "call", breaks_once)
        healing = await heal(cluster, ledgers)
        assert broken
        assert healing.ledgers == {HealingOutcome.HEALED: 1}


def test_invalid_heal_config_is_rejected() -> None:
    with pytest.raises(BadConfig):
        HealConfig(ledgers_at_once=0)
