"""Draining and removing real bookies by command (BL1, BL5, BL10, BL16, BL25, BL26)."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rollbook.proto.errors import (
    InvalidRequest,
    LifecycleConflict,
    NotConfirmed,
    NotEnoughBookies,
)
from rollbook.proto.formats.lifecycle import LifecycleState
from rollbook.proto.ids import BookieId
from rollbook.proto.runtime.clock import SystemClock
from rollbook.recovery.bookie_decommission import Departures
from tests.messages import raises_message
from tests.support.ledger_cluster import LocalCluster
from tests.unit.recovery.test_worker import LOST, PATIENCE_S, Site, site_of


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    names = ("bk-1", "bk-2", "bk-3", "bk-4")
    async with asyncio.timeout(PATIENCE_S), LocalCluster(tmp_path, names) as cluster:
        yield cluster


@asynccontextmanager
async def removal_site(cluster: LocalCluster) -> AsyncIterator[tuple[Site, Departures]]:
    async with site_of(cluster) as site:
        randomness = random.Random(1)
        yield site, Departures(site.store, site.ledgers.cluster, SystemClock(), randomness)


async def state_of(departures: Departures, bookie: BookieId = LOST) -> LifecycleState:
    return (await departures.status([bookie]))[bookie].lifecycle.state


async def test_started_drain_can_be_cancelled(cluster: LocalCluster) -> None:
    """The bookie is read-only while it drains."""
    async with removal_site(cluster) as (site, departures):
        await site.write(5)
        (begun,) = await departures.drain([LOST])
        assert (begun.lifecycle.state, begun.lifecycle.ledgers) == (LifecycleState.DRAINING, 1)
        while LOST not in site.ledgers.live().read_only:
            await asyncio.sleep(0.01)
        with raises_message(LifecycleConflict):
            await departures.drain([LOST])
        await departures.undrain(LOST)
        assert await state_of(departures) is LifecycleState.ACTIVE
        while LOST not in site.ledgers.live().writable:
            await asyncio.sleep(0.01)


async def test_drain_without_spare_bookies_needs_force(
    cluster: LocalCluster,
) -> None:
    """LC3: all given bookies drain, or none."""
    async with removal_site(cluster) as (site, departures):
        await site.write(5, ensemble=4, write=4)
        with raises_message(NotEnoughBookies):
            await departures.drain([LOST, BookieId("bk-3")])
        assert await state_of(departures) is LifecycleState.ACTIVE
        await departures.drain([LOST], is_forced=True)
        assert await state_of(departures) is LifecycleState.DRAINING


async def test_drain_of_an_unknown_bookie_is_refused(cluster: LocalCluster) -> None:
    async with removal_site(cluster) as (_, departures):
        with raises_message(InvalidRequest):
            await departures.drain([BookieId("bk-9")])


async def test_removal_is_safe_once_no_ledger_names_the_bookie(cluster: LocalCluster) -> None:
    async with removal_site(cluster) as (site, departures):
        ledger_id = await site.write(5)
        verdict = await departures.judge([LOST])
        assert not verdict.is_safe
        assert (verdict.damage.named, verdict.damage.below_ack) == (1, 0)
        with raises_message(InvalidRequest):
            await departures.remove([LOST])
        await departures.drain([LOST])
        while LOST not in site.ledgers.live().read_only:
            await asyncio.sleep(0.01)
        await site.drains.mark(ledger_id, (LOST,), 1)
        await site.worker.work_once()
        verdict = await departures.judge([LOST])
        assert verdict.is_safe
        with raises_message(InvalidRequest):
            await departures.remove([LOST])
        await site.lose()
        await departures.remove([LOST])
        assert await state_of(departures) is LifecycleState.ACTIVE
        with raises_message(InvalidRequest):
            await departures.judge([LOST])


async def test_removal_losing_data_needs_the_number_of_lost_ledgers(cluster: LocalCluster) -> None:
    async with removal_site(cluster) as (site, departures):
        await site.write(5)
        await site.write(5, ensemble=1, write=1, ack=1)
        await site.lose()
        with raises_message(NotConfirmed):
            await departures.remove([LOST])
        with pytest.raises(NotConfirmed):
            await departures.remove([LOST], ledgers_given_up=2)
        await departures.remove([LOST], ledgers_given_up=1)
