"""Replay of a journal rebuilds the journal index for any order of adds and controls."""

import itertools
import random
from collections.abc import Iterator

import pytest

from rollbook.bookie.core import replay as replaying
from rollbook.bookie.core.control_records import Control, ControlOperation
from rollbook.bookie.core.journal_index import JournalIndex
from rollbook.bookie.core.record_format import FILE_HEADER_BYTES, RecordKind, RecordReader
from rollbook.bookie.core.record_packer import Frames, RecordPacker, Write, index_of
from rollbook.bookie.core.replay import replay
from rollbook.bookie.core.torn_tail import scan
from rollbook.proto.ids import EntryId, LedgerId
from rollbook.proto.wire import v2_adds, v3_adds
from rollbook.proto.wire.add_columns import AddPacker, Adds
from rollbook.proto.wire.digest import DigestType, LedgerDigest
from rollbook.proto.wire.journaled_adds import StoredAdds, StoredEntries
from rollbook.proto.wire.request_decoder import RequestDecoder

FILE_ID = bytes(range(16))
LEDGERS = (1, 2, 300)


def packers() -> list[AddPacker]:
    """One packer of each protocol version for each ledger."""
    digests = [LedgerDigest(DigestType.CRC32C, b"password", LedgerId(each)) for each in LEDGERS]
    keys = [bytes([number]) * 20 for number in range(len(LEDGERS))]
    txn_ids = itertools.count(1)
    second = [v2_adds.V2AddPacker(*each) for each in zip(keys, digests, strict=True)]
    third = [v3_adds.V3AddPacker(*each, txn_ids) for each in zip(keys, digests, strict=True)]
    return [*second, *third]


def some_frames(chance: random.Random, writers: list[AddPacker]) -> list[Frames]:
    """Uses few entry ids, so that entries repeat."""
    sent = b"".join(
        chance.choice(writers).pack(EntryId(chance.randrange(20)), EntryId(-1), 0, b"x" * size)
        for size in chance.choices((10, 11, 500), k=chance.randint(1, 30))
    )
    return [
        Frames(bytes(adds.frames), -adds.start, tuple(adds.groups))
        for adds in RequestDecoder().feed(sent)
        if isinstance(adds, Adds)
    ]


def add_to_index(index: JournalIndex, write: Write) -> None:
    """Indexes a write as the storage does."""
    for record in write.records:
        for control in record.controls:
            if control.operation in (ControlOperation.DELETE, ControlOperation.DROP):
                index.drop(control.ledger_id)
        for placed in record.adds:
            for group, positions, lengths in index_of(placed):
                lac = group.last_add_confirmed
                index.add_group(group.ledger_id, lac, group.entry_ids, positions, lengths)


@pytest.mark.parametrize("seed", range(60))
def test_replay_rebuilds_the_journal_index_of_writing(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest of repeats counts, and nothing from before a deletion, for any batch size."""
    chance = random.Random(seed)
    monkeypatch.setattr(replaying, "_GATHERED_MAX", chance.choice((1, 30, 2**17)))
    packer, writers, written = (
        RecordPacker(FILE_ID, FILE_HEADER_BYTES, 1, 0),
        packers(),
        JournalIndex(),
    )
    contents = bytearray(FILE_HEADER_BYTES)
    for _ in range(12):
        items: list[Frames | Control] = list(some_frames(chance, writers))
        for operation in (ControlOperation.DELETE, ControlOperation.DROP, ControlOperation.LAC):
            if chance.random() < 0.3:
                control = Control(operation, chance.choice(LEDGERS), None)
                items.insert(chance.randrange(len(items) + 1), control)
        write = packer.pack(items)
        packer.on_synced(write)
        contents += b"".join(write.buffers)
        add_to_index(written, write)
    reader = RecordReader(bytes(contents), FILE_ID)
    found = replay(reader, scan(reader)).index
    assert {ledger_id: rows.sorted_columns() for ledger_id, rows in found.by_ledger()} == {
        ledger_id: rows.sorted_columns() for ledger_id, rows in written.by_ledger()
    }
    assert (found.entries, found.entry_bytes) == (written.entries, written.entry_bytes)


def test_only_deletions_flush_gathered_adds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sorting pays off only for many adds at once, so other records must not trigger it."""
    taken: list[int] = []

    def take(gathered: StoredAdds) -> Iterator[StoredEntries]:
        taken.append(len(gathered))
        return as_ever(gathered)

    as_ever = StoredAdds.take
    monkeypatch.setattr(StoredAdds, "take", take)
    add, delete = (
        packers()[0].pack(EntryId(0), EntryId(-1), 0, b"x"),
        Control(ControlOperation.DELETE, LEDGERS[1], None),
    )
    (adds,) = RequestDecoder().feed(add)
    assert isinstance(adds, Adds)
    frames = Frames(bytes(adds.frames), -adds.start, tuple(adds.groups))
    packer, contents = RecordPacker(FILE_ID, FILE_HEADER_BYTES, 1, 0), bytearray(FILE_HEADER_BYTES)
    for item in (
        delete,
        frames,
        Control(ControlOperation.FENCE, LEDGERS[0], None),
        frames,
        delete,
        delete,
    ):
        write = packer.pack([item])
        packer.on_synced(write)
        idle = packer.pack_empty(RecordKind.IDLE)
        contents += b"".join([*write.buffers, *idle.buffers])
        packer.on_synced(idle)
    reader = RecordReader(bytes(contents), FILE_ID)
    assert replay(reader, scan(reader)).index.entries == 2
    assert taken == [2]
