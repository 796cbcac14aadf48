"""Automatic healing of real bookies in doubt, without fencing live writers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from rollbook.ledger.ledgers import Ledgers
from rollbook.proto.cluster.bookie_watcher import BookieWatcher
from rollbook.proto.cluster.underreplication_marks import Marks
from rollbook.proto.errors import BookieUnreachable
from rollbook.proto.ids import BookieId
from rollbook.proto.metadata import LedgerState
from rollbook.proto.runtime.clock import SystemClock
from rollbook.proto.tasks import TaskGroup
from rollbook.recovery import heal_scheduler
from rollbook.recovery.config import HealConfig
from rollbook.recovery.heal_scheduler import HealScheduler
from rollbook.recovery.possible_losses_port import BookieDoubts, DoubtsPage
from tests.support.healing import DirectDoubts
from tests.support.ledger_cluster import LocalCluster
from tests.unit.recovery.test_possible_loss_healer import (
    HURT,
    QUICK,
    held_by,
    is_in_doubt,
    knows_all,
    write,
)

PATIENCE_S = 60.0
CONFIG = HealConfig(look_again_s=0.05, grace_s=0.0, retry_pause_s=0.05)
LOST = BookieId(HURT)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with (
        asyncio.timeout(PATIENCE_S),
        LocalCluster(tmp_path, ("bk-1", "bk-2", "bk-3", "bk-4")) as cluster,
    ):
        yield cluster


class CountingHealing(HealScheduler):
    turns = 0  # Started turns.

    async def _turn(self, group: TaskGroup) -> None:
        self.turns += 1
        await super()._turn(group)


async def finish_two_turns(healer: CountingHealing) -> None:
    """Wait until two turns that started after this call have ended."""
    turns = healer.turns
    await until(lambda: healer.turns >= turns + 3)


@asynccontextmanager
async def healing(
    cluster: LocalCluster,
    ledgers: Ledgers,
    config: HealConfig = CONFIG,
    doubts_of: Callable[[BookieId], BookieDoubts | None] | None = None,
) -> AsyncIterator[CountingHealing]:
    def of(bookie: BookieId) -> BookieDoubts | None:
        return DirectDoubts(cluster.bookies[bookie]) if bookie in cluster.bookies else None

    while not knows_all(ledgers, cluster):
        await asyncio.sleep(0.01)
    store, root = ledgers.store, ledgers.cluster.root
    watcher = BookieWatcher(store, root)
    await watcher.start()
    healer = CountingHealing(
        ledgers, watcher, Marks(store, root), SystemClock(), doubts_of or of, config
    )
    running = asyncio.create_task(healer.run())
    try:
        yield healer
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await watcher.close()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


async def lose_journal(cluster: LocalCluster) -> None:
    await cluster.stop(HURT)
    await cluster.lose_journal(HURT)
    await cluster.start(HURT)


async def test_bookie_that_lost_its_journal_is_healed_automatically(cluster: LocalCluster) -> None:
    """DH1, HL1: its closed ledgers are restored, and no doubts remain."""
    async with cluster.connect(QUICK) as ledgers:
        writers = [await write(ledgers, 50, is_closed=True) for _ in range(4)]
        await lose_journal(cluster)
        assert is_in_doubt(cluster)
        async with healing(cluster, ledgers) as healer:
            await until(lambda: not is_in_doubt(cluster))
            await until(lambda: not healer.states)
        for writer in writers:
            if writer.metadata.names(LOST):
                assert await held_by(cluster, writer.ledger_id) == list(range(50))


async def test_idle_writer_leaves_a_bookie_doubting_everything(
    cluster: LocalCluster,
) -> None:
    """DH3, WR11: the registration announces the doubts; the ledger stays open."""
    async with cluster.connect(QUICK) as ledgers:
        while True:
            writer = await ledgers.create()
            if writer.metadata.names(LOST):
                break
            await writer.close()
        await writer.append(b"before")
        await lose_journal(cluster)
        while (info := ledgers.live().find(LOST)) is None or not info.gives_up_slots:
            await asyncio.sleep(0.01)
        async with healing(cluster, ledgers, replace(CONFIG, grace_s=20.0)):
            await until(lambda: not is_in_doubt(cluster))
        stored = await ledgers.metadata(writer.ledger_id, fresh=True)
        assert stored.metadata.state is LedgerState.OPEN
        assert LOST not in stored.metadata.fragments[-1].ensemble
        while (info := ledgers.live().find(LOST)) is None or info.gives_up_slots:
            await asyncio.sleep(0.01)
        assert await writer.append(b"after") == 1
        await writer.close()
        while not (await ledgers.verify(writer.ledger_id)).is_sound:
            await asyncio.sleep(0.05)  # The third copy may still be in flight.


async def test_dead_writers_ledger_is_closed_after_the_grace_period(
    cluster: LocalCluster,
) -> None:
    """DH3."""
    async with cluster.connect(QUICK) as ledgers:
        while True:
            writer = await write(ledgers, 10)
            if writer.metadata.names(LOST):
                break
        await lose_journal(cluster)
        async with healing(cluster, ledgers, replace(CONFIG, grace_s=0.5)) as healer:
            await until(lambda: LOST in healer.states and healer.states[LOST].attempts > 0)
            stored = await ledgers.metadata(writer.ledger_id, fresh=True)
            assert stored.metadata.state is LedgerState.OPEN, (
                "its writer has time to leave the bookie"
            )
            await until(lambda: not is_in_doubt(cluster))
        assert (await ledgers.metadata(writer.ledger_id, fresh=True)).metadata.is_closed


async def test_dead_writers_ledger_is_closed_after_its_bookie_was_formatted(
    cluster: LocalCluster,
) -> None:
    """DH3: a format puts open ledgers in doubt; without a close they would stay on two copies."""
    async with cluster.connect(QUICK) as ledgers:
        while True:
            writer = await write(ledgers, 10)
            if writer.metadata.names(LOST):
                break
        await cluster.stop(HURT)
        await cluster.format(HURT)
        await cluster.start(HURT)
        async with healing(cluster, ledgers, replace(CONFIG, grace_s=0.5)) as healer:
            await until(lambda: LOST in healer.states and healer.states[LOST].attempts > 0)
            assert not healer.states[LOST].doubts_everything
            stored = await ledgers.metadata(writer.ledger_id, fresh=True)
            assert stored.metadata.state is LedgerState.OPEN, (
                "its writer has time to leave the bookie"
            )
            await until(lambda: not is_in_doubt(cluster))
        assert (await ledgers.metadata(writer.ledger_id, fresh=True)).metadata.is_closed
        assert await held_by(cluster, writer.ledger_id) == list(range(10))


class Unreachable:
    """Doubts of a bookie whose admin API does not answer."""

    def __init__(self) -> None:
        self.asked = 0

    async def page(self, after: int, limit: int) -> DoubtsPage:
        self.asked += 1
        raise BookieUnreachable("nobody answers")

    async def settle(self, *_: object) -> None: ...

    async def settle_everything(self, stamp: str) -> None: ...


async def test_unreachable_doubts_page_is_not_polled_before_its_retry(
    cluster: LocalCluster,
) -> None:
    """DH2: the healer does not spin."""
    away = Unreachable()
    async with (
        cluster.connect(QUICK) as ledgers,
        healing(
            cluster,
            ledgers,
            replace(CONFIG, retry_pause_s=60.0),
            lambda bookie: away if bookie == LOST else None,
        ) as healer,
    ):
        await until(lambda: LOST in healer.states)
        await finish_two_turns(healer)
        assert away.asked == 1
        assert healer.states[LOST].attempts == 1
        assert "nobody answers" in healer.states[LOST].last_error


async def test_no_bookie_is_healed_while_recovery_is_disabled(cluster: LocalCluster) -> None:
    async with cluster.connect(QUICK) as ledgers:
        await write(ledgers, 5, is_closed=True)
        marks = Marks(ledgers.store, ledgers.cluster.root)
        await marks.prepare()
        await marks.disable()
        await lose_journal(cluster)
        async with healing(cluster, ledgers) as healer:
            await finish_two_turns(healer)
            assert is_in_doubt(cluster)
            await marks.enable()
            await until(lambda: not is_in_doubt(cluster))


async def test_entries_without_a_copy_are_reported_once(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DH4."""
    reported: list[int] = []

    def report(event: str, *, ledgers: int, **_: object) -> None:
        assert event == "bookie_entries_lost"
        reported.append(ledgers)

    monkeypatch.setattr(heal_scheduler.logger, "error", report)
    async with cluster.connect(QUICK) as ledgers:
        while True:
            writer = await write(ledgers, 3, is_closed=True, ensemble=1, write=1, ack=1)
            if writer.metadata.names(LOST):
                break
        await lose_journal(cluster)
        async with healing(cluster, ledgers) as healer:
            await until(lambda: LOST in healer.states and healer.states[LOST].attempts >= 3)
            assert healer.states[LOST].lost == 1
    assert reported == [1]
