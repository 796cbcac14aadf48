"""The format of snapshots, and of the pointer that says which snapshot is valid.

Snapshots are written in pieces into a separate log, NAME.snapshots; the key of each piece is the token of its
snapshot. A snapshot is valid once the pointer names it. The pointer is the protected cursor `snapshot` of the
log, at the first offset that is not in the snapshot, and its blob is JSON:

    epoch           the newest writer epoch in the snapshot
    first, next     the range of its pieces in the other log, which may also have pieces of other snapshots
    token, length, crc32c

The pointer is moved by compare-and-set from the version that was read before the snapshot was begun. If two
replicas write at once, only one of them succeeds. The pieces of each valid snapshot therefore come after those of
the previous valid one (WK6).

Then both logs are truncated up to the previous snapshot: a replica that has begun to restore the previous
snapshot can finish, unless yet another one is written first.
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
    """The place of a snapshot's pieces, and its length and checksum."""

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
        """Parses a blob. Raises `DigestMismatch` if it does not have the form that this class writes."""
        try:
            fields = json.loads(blob)
            token = str(fields.pop("token"))
            return cls(token=token, **{name: int(value) for name, value in fields.items()})  # type: ignore[arg-type]  # Unknown names raise TypeError.
        except (ValueError, TypeError, KeyError, AttributeError):
            raise DigestMismatch("the cursor `snapshot` does not name a snapshot") from None

    def check(self, data: bytes) -> bytes:
        """Raises `DigestMismatch`."""
        if len(data) != self.length or google_crc32c.value(data) != self.crc32c:
            raise DigestMismatch(
                "the snapshot differs from the one that was written", got=len(data)
            )
        return data


def pieces_of(data: bytes) -> Iterator[bytes]:
    """Cuts data into one or more pieces."""
    for start in range(0, max(len(data), 1), _PIECE_BYTES):
        yield data[start : start + _PIECE_BYTES]


def is_due(applied: Offset, snapshot_at: Offset, every: int) -> bool:
    """Returns whether a replay from the last snapshot would be too long."""
    return applied - snapshot_at >= every
