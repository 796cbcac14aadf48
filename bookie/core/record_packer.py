"""Natural group commit: all requests that arrive while the disk is busy are written by the next
write, which begins at once.

There is no timer: an add that finds the disk idle is written alone, at the latency of the disk. The
longer a write takes, the more requests the next write has. Waiting requests are packed into records
of about `_RECORD_BYTES`, which readers read and verify as a whole. A write starts on a new sector,
so that durable bytes are never written again (B2).

The storage limits the bytes in the queue: it refuses requests before they are queued here.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from rollbook.bookie.core.control_records import Control
from rollbook.bookie.core.record_format import (
    HEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    RecordKind,
    align,
    pack_record,
    pack_rows,
)
from rollbook.proto.arange import array_of
from rollbook.proto.wire.add_columns import AddGroup

_RECORD_BYTES: Final = 64 * 1024
_ROW_BYTES: Final = 24


class Frames(NamedTuple):
    """Accepted adds, as they were received."""

    frames: bytes
    moved: int  # The position in `frames` minus the position in `groups`.
    groups: tuple[AddGroup, ...]

    @property
    def is_one_add(self) -> bool:
        return len(self.groups) == 1 and len(self.groups[0].entry_ids) == 1


class PlacedFrames(NamedTuple):
    """The places of adds: a position in the file is a position in `groups` plus `moved`."""

    groups: tuple[AddGroup, ...]
    moved: int


class PlacedRecord(NamedTuple):
    position: int
    kind: RecordKind
    body: bytes
    adds: tuple[PlacedFrames, ...]
    controls: tuple[Control, ...]
    ledgers: int


class Write(NamedTuple):
    """The bytes of one write, which is followed by one sync."""

    position: int
    buffers: list[bytes]
    records: list[PlacedRecord]
    end: int  # The end of the write, on a sector boundary.
    last_sequence: int


class RecordPacker:
    """Numbers the records of one file and lays them out, one write after the other."""

    def __init__(self, file_id: bytes, position: int, next_sequence: int, last_synced: int) -> None:
        self.position = position
        self.next_sequence = next_sequence
        self.last_synced = last_synced
        self._file_id = file_id

    def pack(self, items: Iterable[Frames | Control]) -> Write:
        """Lays out one write. The caller calls `on_synced` before it lays out the next write."""
        start = self.position
        buffers: list[bytes] = []
        records: list[PlacedRecord] = []
        frames: list[Frames] = []
        controls: list[Control] = []
        size = 0
        for item in items:
            if isinstance(item, Control):
                if frames:
                    self._pack_frames(frames, buffers, records)
                    size = 0
                controls.append(item)
                continue
            if controls:
                self._pack_controls(controls, buffers, records)
            if frames and size + len(item.frames) > _RECORD_BYTES:
                self._pack_frames(frames, buffers, records)
                size = 0
            frames.append(item)
            size += len(item.frames)
        if frames:
            self._pack_frames(frames, buffers, records)
        if controls:
            self._pack_controls(controls, buffers, records)
        return self._close(start, buffers, records)

    def pack_empty(self, kind: RecordKind) -> Write:
        """Packs an IDLE or END record, which has only a `last_synced` and no contents."""
        start = self.position
        buffers: list[bytes] = []
        self._place(kind, b"", b"", buffers)
        return self._close(start, buffers, [])

    def pack_body(self, kind: RecordKind, body: bytes, rows: bytes = b"") -> Write:
        """Packs one record."""
        start = self.position
        buffers: list[bytes] = []
        self._place(kind, body, rows, buffers)
        return self._close(start, buffers, [])

    def on_synced(self, write: Write) -> None:
        assert write.last_sequence >= self.last_synced, "B3: the durable sequence went back"
        self.last_synced = write.last_sequence

    def _pack_frames(
        self, frames: list[Frames], buffers: list[bytes], records: list[PlacedRecord]
    ) -> None:
        body = frames[0].frames if len(frames) == 1 else b"".join([f.frames for f in frames])
        body_at = self.position + HEAD_BYTES
        placed: list[PlacedFrames] = []
        at = body_at
        for each in frames:
            placed.append(PlacedFrames(each.groups, at + each.moved))
            at += len(each.frames)
        rows = _rows_of(frames)
        position = self._place(RecordKind.FRAMES, body, pack_rows(rows), buffers)
        records.append(
            PlacedRecord(position, RecordKind.FRAMES, body, tuple(placed), (), len(rows))
        )
        frames.clear()

    def _pack_controls(
        self, controls: list[Control], buffers: list[bytes], records: list[PlacedRecord]
    ) -> None:
        body = b"".join([control.pack() for control in controls])
        rows = b"".join([control.pack_row() for control in controls])
        position = self._place(RecordKind.CONTROL, body, rows, buffers)
        records.append(PlacedRecord(position, RecordKind.CONTROL, body, (), tuple(controls), 0))
        controls.clear()

    def _place(self, kind: RecordKind, body: bytes, rows: bytes, buffers: list[bytes]) -> int:
        position = self.position
        head, rest = pack_record(
            self._file_id, position, kind, self.next_sequence, self.last_synced, body, rows
        )
        buffers += (head, body, rest)
        self.position += len(head) + len(body) + len(rest)
        self.next_sequence += 1
        return position

    def _close(self, start: int, buffers: list[bytes], records: list[PlacedRecord]) -> Write:
        padding = align(self.position) - self.position
        if padding:
            buffers.append(bytes(padding))
            self.position += padding
        return Write(start, buffers, records, self.position, self.next_sequence - 1)


def size_of(item: Frames | Control) -> int:
    """Returns the item's maximum size in a file, without the padding of its write."""
    if isinstance(item, Control):
        body, rows = len(item.pack()), 1
    else:
        body, rows = len(item.frames), len(item.groups)
    return body + rows * _ROW_BYTES + RECORD_OVERHEAD_BYTES


def _rows_of(frames: list[Frames]) -> list[tuple[int, int, int]]:
    groups = [group for each in frames for group in each.groups]
    if len(groups) == 1:
        return [(groups[0].ledger_id, *_ends_of(groups[0].entry_ids))]
    rows: dict[int, tuple[int, int, int]] = {}
    for group in groups:
        ids, ledger_id = group.entry_ids, group.ledger_id
        first, last = _ends_of(ids)
        if found := rows.get(ledger_id):
            first, last = min(first, found[1]), max(last, found[2])
        rows[ledger_id] = (ledger_id, first, last)
    return list(rows.values())


def _ends_of(ids: Sequence[int]) -> tuple[int, int]:
    if len(ids) == 1 or isinstance(ids, range):
        return ids[0], ids[-1]
    return min(ids), max(ids)


def index_of(placed: PlacedFrames) -> Iterable[tuple[AddGroup, Sequence[int], Sequence[int]]]:
    """Returns, for each group, the positions of its entries in the file, and their lengths."""
    moved = placed.moved
    for group in placed.groups:
        starts = group.starts
        if len(starts) == 1:
            yield group, (moved + starts[0],), (group.ends[0] - starts[0],)
        elif isinstance(starts, range):  # If it is a range, all entries have the same length.
            places = range(moved + starts.start, moved + starts.stop, starts.step)
            yield (
                group,
                array_of("I", places),
                array("I", (group.ends[0] - starts.start,)) * len(starts),
            )
        else:
            yield (
                group,
                array("I", [moved + start for start in starts]),
                array("I", map(int.__sub__, group.ends, starts)),
            )
