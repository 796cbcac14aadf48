"""Formats of existing clusters: each file in `golden/` must be read as what it was made of, for ever, and
be written again byte for byte as long as its format has the version in its name.

The zstd block is only read: another release of the library may pack it differently.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from rollbook.logservice.core.control_blocks import (
    Barrier,
    Control,
    Follows,
    Opened,
    ProducerBegun,
    SealBlock,
    Snapshot,
    WriterAcquired,
    WriterReleased,
    pack_control,
    unpack_control,
)
from rollbook.logservice.core.cursors import pack_cursor, unpack_cursor
from rollbook.logservice.core.ledger_list import LedgerList, LogEvent
from rollbook.logservice.core.log_node_format import pack_log_node, unpack_log_node
from rollbook.logservice.core.producers import AppendedBatch
from rollbook.logservice.core.record_block import (
    CEILING,
    Block,
    Codec,
    check_block,
    pack_block,
    stamped,
)
from rollbook.logservice.core.replayed_state import LogMemory
from rollbook.logservice.core.truncation_guards import TruncationGuards, pack_guards, unpack_guards
from rollbook.logservice.ids import (
    CursorName,
    Offset,
    OwnerEpoch,
    ProducerRef,
    SegmentId,
    ServerId,
    WriterEpoch,
)
from rollbook.logservice.log_config import LogConfig, WriterMode
from rollbook.logservice.messages import Cursor
from rollbook.proto.ids import EntryId, LedgerId
from rollbook.proto.quorum import Quorum
from tests.unit.logservice.lists import closed, rolled

GOLDEN = Path(__file__).parent.parent / "golden"
TOKEN = bytes(range(16))

PLAIN = pack_block([b"first", b"", b"the third one"])
FULL = stamped(
    pack_block(
        [b"first", b"", b"the third one"],
        keys=[b"k", None, b""],
        headers=[{"type": b"order", "trace": b"\x00\xff"}, None, {"type": b"refund"}],
        event_times=[1_700_000_000_000_000, None, -1],
        producer=ProducerRef(b"till-7", 3, 2**40),
    ),
    base_offset=2**40 + 1,
    base_timestamp_us=1_767_225_600_000_000,
    owner_epoch=12,
    writer_epoch=5,
)
CONTROLS: dict[str, Control] = {
    "follows": Follows(LedgerId(1234567), EntryId(41), b"memory"),
    "follows_nothing": Follows(LedgerId(-1), EntryId(-1), b""),
    "snapshot": Snapshot(b"memory"),
    "opened": Opened(OwnerEpoch(12), ServerId("anna~0badcafe"), "its owner bert~1 is gone"),
    "writer_acquired": WriterAcquired(WriterEpoch(5), "till-7", 30_000),
    "writer_acquired_by": WriterAcquired(WriterEpoch(5), "till-7", 30_000, "5c1c9a1e"),
    "writer_released": WriterReleased(WriterEpoch(5)),
    "producer_begun": ProducerBegun(b"loader", 1_767_225_600, is_new=True),
    "barrier": Barrier(),
    "sealed": SealBlock(),
}
CONFIG = LogConfig(
    quorum=Quorum(5, 3, 2),
    roll_bytes=2**30,
    roll_entries=50_000,
    roll_age_s=600,
    retention_age_s=7 * 86_400,
    retention_bytes=0,
    writer_mode=WriterMode.EXCLUSIVE,
    dedupe_batches=128,
    dedupe_age_s=3600,
    record_bytes_max=4096,
    batch_bytes_max=65_536,
    batch_records_max=100,
    tail_cache_bytes=0,
    delete_grace_s=60,
    labels=(("team", "checkout"), ("Stufe", "zwölf")),
    description="all orders",
)


def _lists() -> dict[str, LedgerList]:
    event = LogEvent("log_opened", 5, OwnerEpoch(2), ServerId("bert~1"), "asked", Offset(10))
    grown = replace(rolled(10, 10, 2**40), config=CONFIG).with_event(event)
    rolling = grown.with_successor(LedgerId(2**40), "age", 9_999)
    settled = closed(rolling, 3, 2**41).with_discarded(SegmentId(4)).with_preferred_server("anna")
    truncated = settled.with_head(Offset(11), Offset(2**41)).with_released()
    return {
        "open": rolling,
        "truncated": truncated,
        "sealed": truncated.with_sealed(Offset(2**41)),
        "deleted": truncated.with_deleted(1_767_225_600_000_000),
    }


def _memory(attempt: str = "") -> LogMemory:
    memory = LogMemory()
    memory.tail, memory.timestamp_us = Offset(2**40), 1_767_225_600_000_000
    memory.on_acquired(WriterAcquired(WriterEpoch(5), "Kasse-ü", 30_000, attempt))
    batch = AppendedBatch(
        Offset(2**40), Offset(2**40 + 3), memory.timestamp_us + 1, LedgerId(7), EntryId(41)
    )
    memory.producers.on_batch(ProducerRef(b"till-7", 3, 0), batch, 0)
    memory.tail, memory.timestamp_us = batch.next_offset, batch.timestamp_us
    memory.is_sealed = True
    return memory


def written_today() -> dict[str, bytes]:
    lists = {f"list-1-{name}": pack_log_node(each, TOKEN) for name, each in _lists().items()}
    controls = {f"block-1-{name}": pack_control(each) for name, each in CONTROLS.items()}
    return {
        "block-1-plain": PLAIN,
        "block-1-full": FULL,
        "cursor-1": pack_cursor(CURSOR),
        "marks-1": pack_guards(MARKS, TOKEN),
        "memory-1": _memory().pack(),
        "memory-2": _memory("5c1c9a1e").pack(),
        **lists,
        **controls,
    }


CURSOR = Cursor(CursorName("snapshot"), Offset(2**40), 2**52 + 1, b"s3://x", True, 1_700_000_000)
MARKS = TruncationGuards(
    Offset(7), ((CursorName("a"), Offset(7)), (CursorName("b.2"), Offset(2**50)))
)


def golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.bin").read_bytes()


@pytest.mark.parametrize("name", sorted(written_today()))
def test_written_bytes_equal_the_golden_file(name: str) -> None:
    assert written_today()[name] == golden(name)


def test_every_golden_file_is_known() -> None:
    known = {*written_today(), "block-1-zstd"}
    assert {path.stem for path in GOLDEN.glob("*.bin")} == known


def test_golden_blocks_are_read() -> None:
    check_block(golden("block-1-plain"), CEILING)
    assert Block(golden("block-1-plain")).values() == [b"first", b"", b"the third one"]
    full = Block(golden("block-1-full"))
    assert full.producer == ProducerRef(b"till-7", 3, 2**40)
    assert (full.owner_epoch, full.writer_epoch) == (12, 5)
    first, second, third = full.records()
    assert first.offset == 2**40 + 1
    assert first.headers == {"type": b"order", "trace": b"\x00\xff"}
    assert (second.value, second.key, second.event_time_us) == (b"", None, None)
    assert (third.value, third.key, third.event_time_us) == (b"the third one", b"", -1)
    packed = Block(golden("block-1-zstd"))
    assert packed.codec is Codec.ZSTD
    assert packed.values() == [b"the same again"] * 100


@pytest.mark.parametrize("name", sorted(CONTROLS))
def test_golden_control_blocks_are_read(name: str) -> None:
    assert unpack_control(Block(golden(f"block-1-{name}"))) == CONTROLS[name]


@pytest.mark.parametrize("name", ["open", "truncated", "sealed", "deleted"])
def test_golden_lists_are_read(name: str) -> None:
    assert unpack_log_node(golden(f"list-1-{name}")) == (_lists()[name], TOKEN)


def test_golden_cursors_and_marks_are_read() -> None:
    assert unpack_cursor(CURSOR.name, golden("cursor-1")) == CURSOR
    assert unpack_guards(golden("marks-1")) == (MARKS, TOKEN)


@pytest.mark.parametrize(("name", "attempt"), [("memory-1", ""), ("memory-2", "5c1c9a1e")])
def test_golden_snapshots_are_read(name: str, attempt: str) -> None:
    """Snapshots with an attempt have version 2, so that releases without attempts refuse them."""
    packed = golden(name)
    assert int.from_bytes(packed[:2], "little") == int(name[-1])
    memory = LogMemory.unpack(packed)
    assert (memory.holder, memory.attempt, memory.ttl_ms) == ("Kasse-ü", attempt, 30_000)
    assert (memory.writer_epoch, memory.fence_offset, memory.is_sealed) == (5, 2**40, True)
    assert (memory.tail, memory.timestamp_us) == (2**40 + 3, 1_767_225_600_000_001)
    found = memory.producers.find(ProducerRef(b"till-7", 3, 0), memory.timestamp_us)
    assert found is not None
    assert found[:2] == (2**40, 2**40 + 3)
    assert memory.pack() == packed
