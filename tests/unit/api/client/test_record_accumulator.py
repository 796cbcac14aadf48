"""How a writer puts records into batches, and what their submitters get."""

import asyncio
import os
import random
from array import array
from itertools import count
from typing import Any

import pytest

from rollbook.api.client.config import LogClientConfig
from rollbook.api.client.core.retries_and_outcomes import again
from rollbook.api.client.producer_batch import Batch, Submission
from rollbook.api.client.record_accumulator import RecordAccumulator
from rollbook.bookie.core import connection_memory
from rollbook.ledger import send_queue
from rollbook.logservice.core.record_block import Block, Codec, stamped
from rollbook.logservice.ids import Offset, OwnerEpoch, ProducerRef, WriterEpoch
from rollbook.logservice.log_config import LogConfig
from rollbook.logservice.messages import AppendAck
from rollbook.proto.errors import (
    ClientClosed,
    EntryTooLarge,
    InvalidRequest,
    Outcome,
    QuorumTimeout,
)
from rollbook.proto.ids import EntryId, LedgerId
from rollbook.proto.wire.digest import DigestType, LedgerDigest
from rollbook.proto.wire.v3_adds import V3AddPacker

KIB = 1024
PRODUCER = ProducerRef(b"p" * 16, 0, 0)


def gathering_of(
    log: LogConfig | None = None, config: LogClientConfig | None = None
) -> RecordAccumulator:
    return RecordAccumulator(config or LogClientConfig(), log or LogConfig(), lambda: 0.0)


def add(accumulator: RecordAccumulator, value: Any, key: Any = None) -> tuple[Batch, int]:
    index = accumulator.add(value, key, None, None)
    return accumulator.newest, index


def block_of(batch: Batch) -> Block:
    batch.pack(PRODUCER, Codec.NONE)
    return Block(
        stamped(batch.block, base_offset=0, base_timestamp_us=0, owner_epoch=1, writer_epoch=0)
    )


@pytest.mark.parametrize("seed", range(30))
def test_every_record_is_at_its_returned_batch_and_index(seed: int) -> None:
    rng = random.Random(seed)
    accumulator = gathering_of(
        config=LogClientConfig(
            batch_bytes_max=2 * KIB,
            batch_records_max=rng.choice((3, 20, 1000)),
            window_batches=1000,
        )
    )
    told: dict[Batch, list[tuple[bytes, bytes | None]]] = {}
    taken = []
    for number in range(300):
        value = rng.randbytes(rng.choice((0, 10, 100, 400)))
        key = rng.choice((None, None, b"key of %d" % number))
        batch, index = add(accumulator, value, key)
        assert index == len(told.setdefault(batch, []))
        told[batch].append((value, key))
        if rng.random() < 0.05 and (some := accumulator.take(only_full=rng.random() < 0.5)):
            taken.append(some)
            accumulator.settle(some)
    while last := accumulator.take(only_full=False):
        taken.append(last)
    assert taken == list(told)  # Batches are taken in order.
    for batch in taken:
        block = block_of(batch)
        assert [*zip(block.values(), block.keys(), strict=True)] == told[batch]
        assert block.count <= accumulator._records_max
        assert len(block.data) <= 2 * KIB + 200  # 200: room for framing.


def test_memoryview_counts_by_its_bytes() -> None:
    """The view has eight bytes per item."""
    accumulator = gathering_of(config=LogClientConfig(batch_bytes_max=2 * KIB))
    view = memoryview(array("q", range(100)))
    batches = {add(accumulator, view)[0] for _ in range(10)}
    accumulator.take(only_full=False)
    assert max(len(block_of(batch).data) for batch in batches) <= 2 * KIB + 200
    with pytest.raises(EntryTooLarge):
        add(gathering_of(LogConfig(record_bytes_max=799)), view)


def test_refused_record_leaves_the_batch_unchanged() -> None:
    accumulator = gathering_of(LogConfig(record_bytes_max=100))
    batch, _ = add(accumulator, b"first")
    with pytest.raises(EntryTooLarge):
        add(accumulator, bytes(101))
    with pytest.raises(InvalidRequest):
        add(accumulator, b"keyed", key=7)
    with pytest.raises(InvalidRequest):
        add(accumulator, ["a list"])
    assert add(accumulator, b"second") == (batch, 1)
    assert batch.values == [b"first", b"second"]


@pytest.mark.parametrize("size", [0, 1, 100, KIB])
def test_full_batch_fits_one_chunk(size: int) -> None:
    """Two chunks would cost both ends a copy, a system call and a turn of the loop."""
    accumulator = gathering_of()
    value = os.urandom(size)
    while (batch := accumulator.take(only_full=True)) is None:
        add(accumulator, value)
    digest = LedgerDigest(DigestType.CRC32C, b"", LedgerId(1 << 40))
    packer = V3AddPacker(bytes(20), digest, count(1 << 40))
    frame = packer.pack(EntryId(1 << 30), EntryId(1 << 30), 1 << 50, block_of(batch).data)
    assert len(frame) <= min(send_queue.CHUNK_BYTES_MAX, connection_memory.CHUNK_BYTES_MAX)


def test_submission_returns_its_offset_or_raises_its_error() -> None:
    def submission() -> Submission:
        return Submission(Batch(0.0), 3)

    coming, acked, failed = submission(), submission(), submission()
    ack = AppendAck(
        Offset(40),
        Offset(50),
        0,
        False,
        OwnerEpoch(1),
        WriterEpoch(0),
        LedgerId(1),
        EntryId(1),
    )
    acked._batch.settle(ack, None)
    failed._batch.settle(None, QuorumTimeout("too late"))
    with pytest.raises(asyncio.InvalidStateError):
        coming.result()
    assert acked.result() == 43
    with pytest.raises(QuorumTimeout):
        failed.result()
    assert [each.done() for each in (coming, acked, failed)] == [False, True, True]


def test_records_are_counted_as_they_are_settled() -> None:
    """PC1: the tally counts records, not batches."""
    accumulator = gathering_of(config=LogClientConfig(batch_records_max=2))
    for _ in range(7):
        accumulator.add(b"x", None, None, None)
    assert accumulator.pending == 7
    acked, doubtful = accumulator.take(only_full=True), accumulator.take(only_full=True)
    assert acked is not None
    assert doubtful is not None
    ack = AppendAck(
        Offset(0), Offset(2), 0, False, OwnerEpoch(1), WriterEpoch(0), LedgerId(1), EntryId(0)
    )
    acked.settle(ack, None)
    accumulator.settle(acked)
    assert (accumulator.tally.acked, accumulator.tally.next_offset, accumulator.pending) == (
        2,
        2,
        5,
    )
    assert not accumulator.hides_losses
    doubtful.settle(None, QuorumTimeout())
    accumulator.settle(doubtful)
    for batch in accumulator.stop(QuorumTimeout()):
        batch.settle(None, again(QuorumTimeout(), Outcome.NOT_APPLIED))
        accumulator.settle(batch)
    assert (accumulator.tally.in_doubt, accumulator.tally.not_appended, accumulator.pending) == (
        2,
        3,
        0,
    )
    assert accumulator.hides_losses


@pytest.mark.parametrize("way", ["submission", "writer"])
def test_raised_loss_is_not_reported_again(way: str) -> None:
    """PC1."""
    accumulator = gathering_of()
    accumulator.add(b"x", None, None, None)
    submission = Submission(accumulator.newest, 0)
    batch = accumulator.take(only_full=False)
    assert batch is not None
    batch.settle(None, QuorumTimeout())
    accumulator.settle(batch)
    accumulator.stop(QuorumTimeout())
    assert accumulator.hides_losses
    with pytest.raises(QuorumTimeout):
        submission.result() if way == "submission" else accumulator.add(b"y", None, None, None)
    assert not accumulator.hides_losses


def test_closing_writer_sends_its_records_and_refuses_more() -> None:
    """PC1: otherwise a record that another thread submits during the close would be in doubt."""
    accumulator = gathering_of()
    accumulator.add(b"x", None, None, None)
    accumulator.refuse_more()
    with pytest.raises(ClientClosed):
        accumulator.add(b"y", None, None, None)
    batch = accumulator.take(only_full=True)
    assert batch is not None
    assert batch.values == [b"x"]
