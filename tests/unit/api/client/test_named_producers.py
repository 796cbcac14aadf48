"""Batches with producer numbers from the caller are recognised when they are repeated."""

import asyncio
from typing import Any

import pytest

from rollbook.logservice.core.record_block import Block, pack_block, with_producer
from rollbook.logservice.ids import ProducerRef
from rollbook.proto.errors import (
    BadChecksum,
    InvalidBlock,
    InvalidRequest,
    Outcome,
    ProducerFenced,
    ProducerGap,
)
from tests.messages import raises_message
from tests.unit.api.client.conftest import Site, hurried

ID = b"spark/8a1f"


async def test_repeated_batch_gets_the_offsets_of_the_first(site: Site) -> None:
    log = await site.client("a").open("orders", create=True)
    first = await log.append_many([b"a", b"b"], producer=ProducerRef(ID, 0, 0))
    await log.append(b"other")
    other = await site.client("a").open("orders")  # To the log, this is another process.
    again = await other.append_many([b"a", b"b"], producer=ProducerRef(ID, 0, 0))
    assert (first.is_duplicate, again.is_duplicate) == (False, True)
    assert (again.first_offset, again.next_offset) == (0, 2)
    follows = await other.append_many([b"c"], producer=ProducerRef(ID, 0, 1))
    assert follows.first_offset == 3
    (batch,) = [each async for each in log.read_batches(again.first_offset, again.next_offset)]
    sent = pack_block([b"a", b"b"], producer=ProducerRef(ID, 0, 0))
    assert batch.blocks[0].crc == Block(sent).crc  # Callers compare this checksum.


async def test_retry_after_a_lost_response_keeps_its_number(site: Site) -> None:
    log = await site.client("a").open("orders", create=True)
    core = site.cores["a"]
    core.holds.add("append_stream")
    with hurried(log._client, attempt_s=0.05):
        work = asyncio.create_task(log.append_many([b"a"], producer=ProducerRef(ID, 3, 0)))
        while sum(len(each._results) for each in core.streams) < 2:
            await asyncio.sleep(0.005)
    core.release()
    ack = await work
    assert (ack.is_duplicate, ack.first_offset) == (True, 0)
    assert site.cluster.log(log.name).tail == 1


async def test_producer_gap_and_fencing_are_raised_to_the_caller(site: Site) -> None:
    log = await site.client("a").open("orders", create=True)
    with pytest.raises(ProducerGap) as gap:  # The client's own producer would begin a new epoch.
        await log.append_many([b"b"], producer=ProducerRef(ID, 0, 1))
    assert gap.value.outcome is Outcome.NOT_APPLIED
    await log.append_many([b"x"], producer=ProducerRef(ID, 1, 0))
    with pytest.raises(ProducerFenced):
        await log.append_many([b"a"], producer=ProducerRef(ID, 0, 0))
    assert site.cluster.log(log.name).tail == 1


async def test_packed_block_is_appended_unchanged(site: Site) -> None:
    log = await site.client("a").open("orders", create=True)
    ref = ProducerRef(ID, 0, 0)
    block = pack_block([b"a", b"b"], keys=[None, b"k"])
    assert (await log.append_block(block, producer=ref)).next_offset == 2
    assert (await log.append_block(block, producer=ref)).is_duplicate
    assert (
        await log.append_block(with_producer(block, ref))
    ).is_duplicate  # The block has its own producer.
    assert not (await log.append_block(block)).is_duplicate  # The client adds its own producer.
    blocks = [Block(each) for each in site.cluster.log(log.name).blocks]
    assert [each.values() for each in blocks] == [[b"a", b"b"]] * 2
    assert blocks[0].data[40:] == with_producer(block, ref)[40:]
    assert blocks[1].producer not in (None, ref)
    copied = await (await site.client("a").open("copy", create=True)).append_block(
        blocks[0].data, producer=ref
    )
    assert copied.first_offset == 0


async def test_invalid_block_is_refused(site: Site) -> None:
    log = await site.client("a").open("orders", create=True)
    block = bytearray(pack_block([b"value"] * 3))
    block[-9] ^= 1
    for data, error in ((b"no block", InvalidBlock), (bytes(block), BadChecksum)):
        for producer in (None, ProducerRef(ID, 0, 0)):
            with pytest.raises(error):
                await log.append_block(data, producer=producer)
    assert site.cluster.log(log.name).tail == 0


@pytest.mark.parametrize("producer", [(ID, 0, 0), "spark", ProducerRef("text", 0, 0)])  # type: ignore[arg-type]  # Invalid.
async def test_invalid_producer_is_refused_with_advice(site: Site, producer: Any) -> None:
    log = await site.client("a").open("orders", create=True)
    with raises_message(InvalidRequest):
        await log.append_many([b"a"], producer=producer)
