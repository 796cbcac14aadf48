"""The entries of a batch in both protocols: (i32 size, the entry as stored)*, big-endian."""

import struct
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import Final

from rollbook.proto.errors import BadFrame
from rollbook.proto.ports import Buffer
from rollbook.proto.wire.digest import ENTRY_HEADER_BYTES

# From this size on, copying an entry costs more than handling it separately.
LARGE_BYTES: Final = 64 * 1024
_SIZE: Final = struct.Struct(">i")
SIZE_BYTES: Final = _SIZE.size


def pack_bodies(bodies: Collection[Buffer]) -> Iterator[Buffer]:
    sizes = map(_SIZE.pack, map(len, bodies))
    return chain.from_iterable(zip(sizes, bodies, strict=True))


def join_bodies(bodies: Sequence[Buffer]) -> bytes:
    """Does the same as `pack_bodies`, but joins the result. For bodies of one size, the usual case,
    it costs half as much.
    """
    if len(set(map(len, bodies))) != 1:
        return b"".join(pack_bodies(bodies))
    return _SIZE.pack(len(bodies[0])).join((b"", *bodies))


def unpack_bodies(data: bytes, position: int, end: int) -> Iterator[memoryview]:
    """Yields entries. Entries shorter than a header are refused, since a view takes fifty times their size."""
    view = memoryview(data)
    while position < end:
        if end - position < _SIZE.size:
            raise BadFrame(
                f"a batch ends with {end - position} bytes, which are too few for a size"
            )
        (size,) = _SIZE.unpack_from(data, position)
        position += _SIZE.size
        if not ENTRY_HEADER_BYTES <= size <= end - position:
            raise BadFrame(f"a batch has an entry of {size} bytes where {end - position} are left")
        yield view[position : position + size]
        position += size
