"""Where a bounded read ends: at an offset or at a time, whichever comes first.

Blocks are returned whole. Records of the last block that are beyond the end do not count: `next_offset` says where
the result ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rollbook.logservice.core.record_block import Block, opened_bytes_of, span_of
from rollbook.logservice.ids import Offset
from rollbook.logservice.messages import Records


@dataclass(frozen=True, slots=True)
class Until:
    offset: Offset | None = None
    timestamp_us: int | None = None  # Records of that time or later are beyond the end.

    def is_reached(self, position: Offset) -> bool:
        return self.offset is not None and position >= self.offset

    def cut(self, records: Records) -> tuple[Records | None, bool]:
        """The records before the end, or None, and whether the end is reached."""
        blocks: Sequence[bytes] = records.blocks
        start, end = records.base_offset, records.next_offset
        is_over = self.is_reached(end)
        if self.offset is not None and self.offset < end:
            end = max(self.offset, start)
        if self.timestamp_us is not None:
            for block in blocks:
                if Block(block).timestamp_us >= self.timestamp_us:
                    end, is_over = max(min(span_of(block)[0], end), start), True
                    break
        if end <= start:
            return None, is_over
        if end < records.next_offset:
            blocks = tuple(block for block in blocks if span_of(block)[0] < end)
        return Records(tuple(blocks), start, end), is_over


def cut_to_size(records: Records, records_max: int, bytes_max: int) -> Records:
    """The first blocks, at least one, within both bounds. `next_offset` excludes records beyond `records_max`.

    The size of a block is its stored or its unpacked size, whichever is larger (LB3).
    """
    kept: list[bytes] = []
    end = records.base_offset
    for block in records.blocks:
        _, next_offset = span_of(block)
        bytes_max -= opened_bytes_of(block)
        if kept and bytes_max < 0:
            break
        kept.append(block)
        end = min(next_offset, Offset(records.base_offset + records_max))
        if end < next_offset or end - records.base_offset >= records_max:
            break
    return Records(tuple(kept), records.base_offset, end)
