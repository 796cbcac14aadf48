"""The log service as network fronts call it, over real bookies: create, append, read, tail."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rollbook.logservice import messages
from rollbook.logservice.core.record_block import Block, pack_block
from rollbook.logservice.ids import LogName, Offset
from rollbook.logservice.log_config import LogConfig
from rollbook.logservice.position_syntax import AtOffset, Earliest
from rollbook.logservice.service import LogService
from tests.support.log_cluster import PATIENCE_S, LogCluster

ORDERS = LogName("default", "orders")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LogCluster]:
    async with LogCluster(tmp_path) as cluster:
        yield cluster


def due() -> float:
    return asyncio.get_running_loop().time() + PATIENCE_S


def batch(first: int, count: int) -> bytes:
    return pack_block([b"%d" % number for number in range(first, first + count)])


async def append(service: LogService, first: int, count: int) -> messages.AppendAck:
    return await service.append(messages.Append(ORDERS, batch(first, count)), due())


def values_of(blocks: tuple[bytes, ...], start: int, end: int) -> list[bytes]:
    found: list[bytes] = []
    for block in map(Block, blocks):
        first, last = max(start - block.base_offset, 0), min(end, block.next_offset)
        found += block.values()[first : last - block.base_offset]
    return found


async def test_create_append_read_and_tail(cluster: LogCluster) -> None:
    service = (await cluster.start_server("a")).service
    state = await service.ensure_log(messages.EnsureLog(ORDERS, LogConfig()), due())
    assert state.was_created
    acks = [await append(service, first, 10) for first in range(0, 100, 10)]
    assert [ack.first_offset for ack in acks] == list(range(0, 100, 10))

    answer = await service.read(messages.Read(ORDERS, AtOffset(Offset(37)), records_max=20), due())
    assert (answer.first_offset, answer.tail) == (37, 100)
    values = values_of(answer.blocks, 37, answer.next_offset)
    assert values == [b"%d" % number for number in range(37, answer.next_offset)]

    told: list[bytes] = []

    async def tail() -> None:
        async for event in service.read_stream(messages.ReadStream(ORDERS, Earliest())):
            if isinstance(event, messages.Records):
                told.extend(values_of(event.blocks, event.base_offset, event.next_offset))
            if len(told) >= 120:
                return

    tailing = asyncio.create_task(tail())
    await append(service, 100, 10)
    await append(service, 110, 10)
    async with asyncio.timeout(PATIENCE_S):
        await tailing
    assert told == [b"%d" % number for number in range(120)]


async def test_a_range_of_closed_segments_is_read_without_asking_the_owner(
    cluster: LogCluster,
) -> None:
    """Otherwise each stream of a replay spread over servers would cost the owner a request."""
    asked: list[messages.GetTail] = []
    ask_peer = cluster._ask_peer

    async def ask(request: messages.GetTail, address: str, due: float) -> Any:
        asked.append(request)
        return await ask_peer(request, address, due)

    cluster._ask_peer = ask  # type: ignore[method-assign,assignment]  # The test answers for the peer.
    a = await cluster.start_server("a", rebalance_after_s=3600.0)  # Server a keeps the log.
    await a.service.ensure_log(messages.EnsureLog(ORDERS), due())
    for first in (0, 10):
        await append(a.service, first, 10)
        await a.service.roll_log(messages.RollLog(ORDERS), due())
    await append(a.service, 20, 10)
    b = await cluster.start_server("b", rebalance_after_s=3600.0)
    found: list[bytes] = []

    async def read(start: int, until: int) -> None:
        request = messages.ReadStream(ORDERS, AtOffset(Offset(start)), until_offset=Offset(until))
        async for event in b.service.read_stream(request):
            if isinstance(event, messages.Records):
                found.extend(values_of(event.blocks, event.base_offset, event.next_offset))

    async with asyncio.timeout(PATIENCE_S):
        while len((await b.server.nodes.read(ORDERS)).list.unclosed) > 1:
            await asyncio.sleep(0.01)
        await read(5, 15)
        await read(15, 20)
        assert found == [b"%d" % number for number in range(5, 20)]
        assert asked == []
        await read(20, 25)
        assert asked != []
