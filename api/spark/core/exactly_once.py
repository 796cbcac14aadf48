"""Rules that divide a batch of rows into blocks of a log, and that recognise a repeated batch.

The rows of a batch have a fixed order: by partition, and within a partition in the order of its rows. Rows
are cut into as few blocks as the log's limits allow, and the cuts depend only on the sizes of rows (SK5).
Each block carries the batch's number as its producer's `epoch`, and the block's place in the batch as `seq`. The
log alone shows what was written: its blocks of a batch must hold the first rows of the batch (SK6), and the other
rows are appended after them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rollbook.proto.errors import SinkReplayDiverged

DIVERGED: Final = (
    "the plan gives different rows than before, for example after a shuffle or with random values: set rowOrder=bytes "
    "to sort each partition, or start the query with another checkpoint"
)


@dataclass(frozen=True, slots=True)
class WrittenBlock:
    """A block of this batch that is in the log."""

    offset: int
    count: int
    seq: int


@dataclass(frozen=True, slots=True)
class LastBatch:
    """The number of the last batch that is completely in the log, and its start and end."""

    batch: int
    start: int
    end: int

    def looks_from(self, batch: int, log: str) -> int:
        """Returns the lowest offset at which the log may have blocks of this batch. Raises `SinkReplayDiverged`."""
        if batch < self.batch:
            raise SinkReplayDiverged(
                f"batch {batch} is written to {log} after batch {self.batch} of the same query",
                next_step="the checkpoint was restored from an older copy: start the query with another one",
            )
        return self.start if batch == self.batch else self.end


def cut(
    start: int, end: int, size_of: Callable[[int, int], int], bytes_max: int, records_max: int
) -> list[tuple[int, int]]:
    """Cuts rows into runs within the limits. A single row that exceeds them is a run of its own. `size_of` must not
    shrink if its range grows.
    """
    found: list[tuple[int, int]] = []
    while start < end:
        low, high = start + 1, min(end, start + records_max)
        while low < high:
            middle = (low + high + 1) // 2
            if size_of(start, middle) <= bytes_max:
                low = middle
            else:
                high = middle - 1
        found.append((start, low))
        start = low
    return found


def rows_written(
    written: Sequence[WrittenBlock],
    rows: int,
    is_same: Callable[[WrittenBlock, int], bool],
    log: str,
) -> int:
    """Returns the number of the batch's rows that are in the log. `is_same` returns whether a block holds
    the rows that begin at an index (SK6).

    Raises `SinkReplayDiverged`.
    """
    done = 0
    for block in written:
        if done + block.count > rows or not is_same(block, done):
            raise SinkReplayDiverged(
                f"{log} has other records of this batch at {block.offset} than this query writes now",
                next_step=DIVERGED,
                log=log,
                seq=block.seq,
            )
        done += block.count
    return done
