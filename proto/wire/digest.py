"""The layout of entries and LAC packets, and the digest that protects them. Big-endian.

    entry:       0 i64 ledger id · 8 i64 entry id · 16 i64 LAC · 24 i64 length · 32 digest · payload
    LAC packet:  0 i64 ledger id · 8 i64 LAC · 16 digest

The number before each field is its position in bytes. The LAC is the last add confirmed that the
writer knew when it sent the entry, or -1 if it knew none. The length counts the payload bytes of
the ledger up to and including this entry. The digest covers all bytes except its own:

    CRC32C  4 bytes      CRC32  8 bytes, zero-extended      HMAC  20 bytes, SHA-1      DUMMY  none

Two keys come from a ledger's password: SHA-1 of `ledger` and the password is sent to bookies and
guards the ledger; SHA-1 of `mac` and the password is the key of HMAC and is never sent.

Copies of one entry need not be equal byte by byte: a client that writes an entry again puts the LAC
that it knows into it.
"""

import hashlib
import hmac
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Final, NamedTuple

import google_crc32c

from rollbook.proto.errors import DigestMismatch
from rollbook.proto.ids import EntryId, LedgerId
from rollbook.proto.ports import Buffer

LEDGER_KEY_BYTES: Final = 20
_SMALL: Final = 16 * 1024

_ENTRY_HEADER: Final = struct.Struct(">qqqq")
_LAC_HEADER: Final = struct.Struct(">qq")
# The first fields of an entry header, for code that reads one, two or three of them.
_LEDGER_ID: Final = struct.Struct(">q")
_ENTRY_IDS: Final = struct.Struct(">qq")
_ENTRY_IDS_AND_LAC: Final = struct.Struct(">qqq")

ENTRY_ID_AT: Final = _LEDGER_ID.size
LAC_AT: Final = _ENTRY_IDS.size
LEDGER_LENGTH_AT: Final = _ENTRY_IDS_AND_LAC.size
ENTRY_HEADER_BYTES: Final = _ENTRY_HEADER.size
pack_entry_header: Final = _ENTRY_HEADER.pack
entry_header_at: Final = _ENTRY_HEADER.unpack_from
entry_ids_and_lac_at: Final = _ENTRY_IDS_AND_LAC.unpack_from
entry_ids_at: Final = _ENTRY_IDS.unpack_from
pack_entry_ids: Final = _ENTRY_IDS.pack
pack_ledger_id: Final = _LEDGER_ID.pack
lac_packet_at: Final = _LAC_HEADER.unpack_from  # Without the digest.
_pack_crc32: Final = struct.Struct(">Q").pack
_pack_crc32c: Final = struct.Struct(">I").pack


def ledger_key(password: bytes) -> bytes:
    """Returns the key of a ledger, which BookKeeper calls the master key."""
    return hashlib.sha1(b"ledger" + password, usedforsecurity=False).digest()


def mac_key(password: bytes) -> bytes:
    return hashlib.sha1(b"mac" + password, usedforsecurity=False).digest()


class DigestType(Enum):
    """Digest types with their numbers in a ledger's metadata."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4

    @property
    def size(self) -> int:
        return _SIZES[self]


_SIZES: Final = {
    DigestType.CRC32: 8,
    DigestType.HMAC: 20,
    DigestType.CRC32C: 4,
    DigestType.DUMMY: 0,
}
LAC_PACKET_SIZES: Final = frozenset(_LAC_HEADER.size + size for size in _SIZES.values())


def _crc32(header: bytes, payload: bytes) -> bytes:
    return _pack_crc32(zlib.crc32(payload, zlib.crc32(header)))


def _crc32c(header: bytes, payload: bytes) -> bytes:
    return _pack_crc32c(google_crc32c.extend(google_crc32c.value(header), payload))


def _dummy(_header: bytes, _payload: bytes) -> bytes:
    return b""


DigestOf = Callable[[bytes, bytes], bytes]
"""A function that returns the digest of a header and its payload; it is stored between the two."""


def digest_function(kind: DigestType, password: bytes) -> DigestOf:
    if kind is DigestType.HMAC:
        key = mac_key(password)
        return lambda header, payload: hmac.digest(key, header + payload, "sha1")
    return {
        DigestType.CRC32: _crc32,
        DigestType.CRC32C: _crc32c,
        DigestType.DUMMY: _dummy,
    }[kind]


class Entry(NamedTuple):
    ledger_id: LedgerId
    entry_id: EntryId
    last_add_confirmed: EntryId
    ledger_length: int
    payload: bytes


class LedgerDigest:
    """Packs and verifies the entries and LAC packets of one ledger."""

    def __init__(self, kind: DigestType, password: bytes, ledger_id: LedgerId) -> None:
        self.kind = kind
        self.ledger_id = ledger_id
        self.digest = digest_function(kind, password)
        # The number of bytes that an entry has beyond its payload.
        self.overhead_bytes = ENTRY_HEADER_BYTES + kind.size

    def digests(self, headers: Sequence[bytes], payloads: Iterable[bytes]) -> Iterable[bytes]:
        """Returns the digests of several entries, one for each header and payload."""
        if self.kind is not DigestType.CRC32C:
            return map(self.digest, headers, payloads)
        of_headers = map(google_crc32c.value, headers)
        return map(_pack_crc32c, map(google_crc32c.extend, of_headers, payloads))

    def pack_before_payload(
        self, entry_id: EntryId, last_add_confirmed: EntryId, ledger_length: int, payload: bytes
    ) -> bytes:
        """Returns the header and digest of an entry: all bytes before its payload."""
        header = pack_entry_header(self.ledger_id, entry_id, last_add_confirmed, ledger_length)
        return header + self.digest(header, payload)

    def unpack_entry(self, body: Buffer, entry_id: EntryId | None) -> Entry:
        """Verifies and unpacks an entry. Raises `DigestMismatch` unless these are exactly the bytes
        that were packed for the entry (W4). With `entry_id` None it accepts any entry of the
        ledger, for the reply to a read of the last entry. If the entry is large, only its payload
        is copied. A small entry is first copied whole, since slicing a view costs more than copying
        so few bytes.
        """
        if len(body) < _SMALL:
            body = bytes(body)
        if len(body) < self.overhead_bytes:
            raise self._mismatch("an entry is incomplete", entry_id)
        header = bytes(body[:ENTRY_HEADER_BYTES])
        payload = bytes(body[self.overhead_bytes :])
        if body[ENTRY_HEADER_BYTES : self.overhead_bytes] != self.digest(header, payload):
            raise self._mismatch("an entry's digest is wrong", entry_id)
        ledger_id, stored_entry_id, lac, ledger_length = entry_header_at(header)
        entry = Entry(ledger_id, stored_entry_id, lac, ledger_length, payload)
        if entry.ledger_id != self.ledger_id:
            raise self._mismatch(f"this is an entry of ledger {entry.ledger_id}", entry_id)
        if entry_id is not None and entry.entry_id != entry_id:
            raise self._mismatch(f"this is entry {entry.entry_id}", entry_id)
        return entry

    def pack_lac(self, last_add_confirmed: EntryId) -> bytes:
        header = _LAC_HEADER.pack(self.ledger_id, last_add_confirmed)
        return header + self.digest(header, b"")

    def unpack_lac(self, packet: Buffer) -> EntryId:
        if len(packet) != _LAC_HEADER.size + self.kind.size:
            raise self._mismatch("a LAC packet has the wrong size")
        header = bytes(packet[: _LAC_HEADER.size])
        if packet[_LAC_HEADER.size :] != self.digest(header, b""):
            raise self._mismatch("a LAC packet's digest is wrong")
        ledger_id, last_add_confirmed = lac_packet_at(header)
        if ledger_id != self.ledger_id:
            raise self._mismatch(f"this is a LAC packet of ledger {ledger_id}")
        return EntryId(last_add_confirmed)

    def _mismatch(self, message: str, entry_id: EntryId | None = None) -> DigestMismatch:
        if entry_id is None:
            return DigestMismatch(message, ledger_id=self.ledger_id)
        return DigestMismatch(message, ledger_id=self.ledger_id, entry_id=entry_id)
