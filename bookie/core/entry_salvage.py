"""Finds entries in a damaged record that their own digests prove sound.

A bookie does not know the digest type or the password of a ledger. But a damaged entry's CRC
matches by chance as rarely as one of our own checksums. A digest with a key proves nothing here,
and neither does an entry without a digest.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from rollbook.proto.wire import v2_adds, v2_layout, v3_adds, v3_fast_path_layout
from rollbook.proto.wire.add_columns import Adds
from rollbook.proto.wire.digest import (
    ENTRY_HEADER_BYTES,
    DigestType,
    digest_function,
    entry_ids_at,
    pack_ledger_id,
)
from rollbook.proto.wire.frames import LENGTH_BYTES, length_at

_PROVING: Final = [
    (kind, digest_function(kind, b"")) for kind in (DigestType.CRC32C, DigestType.CRC32)
]
# Possible distances from a frame's start to its entry.
_HEAD_BYTES: Final = (v2_layout.ADD_ENTRY_AT, *v3_fast_path_layout.ADD_ENTRY_AT)
_FRAME_BYTES_MAX: Final = 2**31  # No limit of frame sizes was ever as large.


def proves_itself(entry: bytes, ledger_id: int, entry_id: int) -> bool:
    if len(entry) < ENTRY_HEADER_BYTES or entry_ids_at(entry) != (ledger_id, entry_id):
        return False
    header = entry[:ENTRY_HEADER_BYTES]
    for kind, digest in _PROVING:
        payload_at = ENTRY_HEADER_BYTES + kind.size
        if len(entry) >= payload_at and (
            entry[ENTRY_HEADER_BYTES:payload_at] == digest(header, entry[payload_at:])
        ):
            return True
    return False


class Salvaged(NamedTuple):
    ledger_id: int
    entry_id: int
    last_add_confirmed: int
    start: int
    end: int
    ledger_key: bytes


def find_entries(
    body: bytes, ledger_ids: Iterable[int], keys: Mapping[int, bytes]
) -> list[Salvaged]:
    """Returns the entries of these ledgers in a damaged FRAMES body that have a valid digest.

    Frames are found by the ledger id before each entry, and not by following their lengths, because
    the length of a frame may be damaged. Therefore an apparent frame may be part of a payload that
    the writer of another ledger wrote. That writer does not know this ledger's key. Only frames
    with the ledger's known key count; if no key is known, all frames of the ledger must have the
    same key.
    """
    places = sorted(
        at for ledger_id in ledger_ids for at in _find_all(body, pack_ledger_id(ledger_id))
    )
    found: list[Salvaged] = []
    for at in places:
        if (not found or at >= found[-1].end) and (entry := _entry_at(body, at)):
            found.append(entry)
    shown: dict[int, dict[bytes, None]] = {}
    for entry in found:
        shown.setdefault(entry.ledger_id, {})[entry.ledger_key] = None
    trusted = {each: next(iter(of)) for each, of in shown.items() if len(of) == 1} | dict(keys)
    return [entry for entry in found if trusted.get(entry.ledger_id) == entry.ledger_key]


def _find_all(body: bytes, pattern: bytes) -> Iterator[int]:
    at = body.find(pattern)
    while at >= 0:
        yield at
        at = body.find(pattern, at + 1)


def _entry_at(body: bytes, at: int) -> Salvaged | None:
    for head_bytes in _HEAD_BYTES:
        start = at - head_bytes
        if start < 0:
            break
        size = LENGTH_BYTES + length_at(body, start)[0]
        frame = body[start : start + size]
        if len(frame) < size:
            continue
        take = v2_adds.take_adds if head_bytes == v2_layout.ADD_ENTRY_AT else v3_adds.take_adds
        adds, _ = take(frame, 0, _FRAME_BYTES_MAX)
        if adds:
            group = adds.groups[0]
            entry = frame[group.starts[0] : group.ends[0]]
            if proves_itself(entry, group.ledger_id, group.entry_ids[0]):
                return Salvaged(
                    group.ledger_id,
                    group.entry_ids[0],
                    group.lacs[0],
                    start + group.starts[0],
                    start + group.ends[0],
                    group.ledger_key,
                )
    return None


def take_frames(body: bytes) -> Iterator[Adds]:
    """Returns the adds of a FRAMES record, up to the first add that cannot be read."""
    position = 0
    while position < len(body):
        adds, end = v2_adds.take_adds(body, position, _FRAME_BYTES_MAX)
        if adds is None:
            adds, end = v3_adds.take_adds(body, position, _FRAME_BYTES_MAX)
        if adds is None:
            return
        yield adds
        position = end
