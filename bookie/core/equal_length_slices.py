"""Cuts small entries from a record's body: one call cuts entries of equal length at equal distances.

Adds of equal size are stored in this way, whatever client sent them. Cutting them one by one would
cost several times as much as copying their bytes.
"""

import struct
from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from rollbook.proto.arange import array_of

_COUNT_MIN: Final = 16  # A smaller number of entries is cut faster one by one.
_SHAPES_MAX: Final = 32  # Cached struct formats; each takes up to 32 bytes for each entry.


def cut_evenly(
    body: bytes, origin: int, positions: Sequence[int], lengths: Sequence[int], start: int
) -> tuple[bytes, ...]:
    """Cuts entries, beginning with number `start`, from a body that begins at `origin`; may return
    no entry.

    Cuts all entries that lie in the body at the distance of the first two; returns none if one of
    them does not.
    """
    if len(positions) - start < _COUNT_MIN:
        return ()
    position, length = positions[start], lengths[start]
    step = positions[start + 1] - position
    room = origin + len(body) - position - length  # The bytes after the first of these entries.
    if position < origin or step < length or step <= 0 or room < 0:
        return ()
    count = min(len(positions) - start, room // step + 1)
    end = start + count
    if (
        count < _COUNT_MIN
        or positions[start:end] != array_of("I", range(position, position + count * step, step))
        or lengths[start:end] != array("I", [length]) * count
    ):
        return ()
    return _cut_of(length, step - length, count)(body, position - origin)


@lru_cache(_SHAPES_MAX)
def _cut_of(length: int, gap: int, count: int) -> Callable[[bytes, int], tuple[bytes, ...]]:
    return struct.Struct(f"{length}s{gap}x" * (count - 1) + f"{length}s").unpack_from
