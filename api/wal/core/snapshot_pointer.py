"""Snapshots, and the pointer that says which one counts.

A snapshot is written into a log of its own, NAME.snapshots, in pieces, each with the snapshot's
token as its key. It counts from the moment at which the pointer names it: the protected cursor `snapshot` of
the log, at the first offset that is not in it, whose blob is JSON:

    epoch           the newest writer epoch in it
    first, next     where its pieces are in the other log, perhaps among those of others
    token, length, crc32c

The pointer is moved by compare-and-set from the version that was read before the snapshot was begun. So
of two replicas that write at once one does it in vain, and pieces are in the order of pointers (WK6).

Then both logs are truncated up to the previous snapshot: a replica that has begun to restore that
one has time to finish, until yet another one is written.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final, Self

import google_crc32c

from rollbook.logservice.ids import Offset, WriterEpoch
from rollbook.proto.errors import DigestMismatch

POINTER_CURSOR: Final = "snapshot"
SUFFIX: Final = ".snapshots"
_PIECE_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class SnapshotPointer:
    """Where a snapshot is, and its checks."""

    epoch: WriterEpoch
    first: Offset
    next: Offset
    token: str
    length: int
    crc32c: int

    def pack(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpack(cls, blob: bytes) -> Self:
        """Raises `DigestMismatch`: a blob that we did not write cannot be interpreted."""
        try:
            fields = json.loads(blob)
            token = str(fields.pop("token"))
            return cls(token=token, **{name: int(value) for name, value in fields.items()})  # type: ignore[arg-type]  # Names that are none raise TypeError.
        except (ValueError, TypeError, KeyError, AttributeError):
            raise DigestMismatch("the mark `snapshot` names no snapshot") from None

    def check(self, data: bytes) -> bytes:
        """Raises `DigestMismatch`."""
        if len(data) != self.length or google_crc32c.value(data) != self.crc32c:
            raise DigestMismatch("the snapshot is not what was written", got=len(data))
        return data


def pieces_of(data: bytes) -> Iterator[bytes]:
    """Cuts data into one or more pieces."""
    for start in range(0, max(len(data), 1), _PIECE_BYTES):
        yield data[start : start + _PIECE_BYTES]


def is_due(applied: Offset, snapshot_at: Offset, every: int) -> bool:
    """Whether a replay from the last snapshot would be too long."""
    return applied - snapshot_at >= every
