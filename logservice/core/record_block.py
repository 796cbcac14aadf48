"""A block: a batch of records as its producer framed it, stored as one entry and returned to
readers unchanged.

No server looks at a record. The client frames the block, the server checks it and writes its
half of the header, bookies keep it, and readers unpack its records. Everything is little-endian.

    header     0  u8[3] `RBK` · u8 version (1)
               4  u32  CRC-32C of everything from byte 40 to the end
               8  i64  base offset          ┐
              16  i64  timestamp, µs        │ the server's half: 0 when framed; protected by
              24  i64  owner epoch          │ the entry's digest
              32  i64  writer epoch         ┘
              40  u8   flags (1: control)   ┐
              41  u8   codec (0 none, 1 zstd; 2 is reserved for lz4)
              42  u8   bytes of producer id, 0: no producer
              43  u8   0
              44  u32  count of records     │ the client's half, covered by the CRC
              48  u32  count of sections    │
              52  u32  body bytes, stored   │
              56  u32  body bytes, unpacked │
              60  u32  producer epoch       │
              64  i64  producer sequence number
              72  producer id, zeros up to a multiple of 8
    body       directory · sections, each at a multiple of 8 in the body and right after the previous
               one, the first right after the directory; the codec packs the whole body

    directory  for each section: u16 section · u8 encoding (0: as below) · u8 flags (1: a reader that does
               not know it must refuse the block) · u32 start in the body · u32 bytes · u32 0

Sections are buffers as Arrow lays them out: offsets are int32, one more than there are items, from
0; validity is one bit for each item, the lowest bit first. The sections of n records with p headers in all:

     1 VALUE_OFFSETS    n+1        2 VALUES              always present
     3 KEY_OFFSETS      n+1        4 KEYS                 5 KEY_VALIDITY    if some have no key
     6 EVENT_TIMES      n x i64, µs                       7 EVENT_TIME_VALIDITY
     8 HEADER_OFFSETS   n+1, into the headers: where each record's headers begin and end
     9 HEADER_NAME_OFFSETS   p+1  10 HEADER_NAMES         1 to 255 bytes of printable ASCII each
    11 HEADER_VALUE_OFFSETS  p+1  12 HEADER_VALUES
    32 CONTROL          only in control blocks, which have no other section and no records

New sections need no new version. If a record has a header name twice, readers see the last one.

A block from a client is untrusted: every number of the header, the directory and the offsets is checked
against the limits and against each other before the block is accepted (LB1). All of it is checked again
before a reader gets a record (LB2). All offsets of a section are checked together, as lanes of one large
integer. This takes 4 ns a record and makes no objects for records.

Clients import this module, so it loads nothing heavy, and zstd only for blocks that are packed with it.
"""

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from functools import lru_cache
from itertools import accumulate, chain, pairwise, repeat
from operator import index
from typing import Any, Final, NamedTuple, TypeVar

import google_crc32c

from rollbook.logservice.ids import (
    INT64_MAX,
    PRODUCER_ID_BYTES_MAX,
    Offset,
    OwnerEpoch,
    ProducerRef,
    WriterEpoch,
)
from rollbook.logservice.log_config import (
    BATCH_BYTES_CEILING,
    BATCH_RECORDS_CEILING,
    LogConfig,
)
from rollbook.proto.errors import (
    BadChecksum,
    BlockCorrupt,
    EntryTooLarge,
    Invalid,
    InvalidBlock,
    InvalidRequest,
    UnsupportedVersion,
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MAGIC: Final = b"RBK\x01"  # The last byte is the version.
HEADER_BYTES: Final = 72
# The most bytes of blocks that are opened together, unless a single block is larger (LB3).
OPENED_BYTES_MAX: Final = 4 * 1024 * 1024
CONTROL_FLAG: Final = 1

_SERVER_HALF: Final = 8
_CLIENT_HALF: Final = 40
_CODEC_AT: Final = 41
_HEADER: Final = struct.Struct("<4sIqqqqBBBBIIIIIq")
_CLIENT_HEADER: Final = struct.Struct("<BBBBIIIIIq")
_SERVER_HEADER: Final = struct.Struct("<qqqq")
_SPAN: Final = struct.Struct("<q28xI")  # From the header's server half on: base offset, count.
_PACKING: Final = struct.Struct("<B14xI")  # From the header's codec on: codec, unpacked size.
_CRC: Final = struct.Struct("<I")
_PAIR: Final = struct.Struct("<ii")
_PADDING: Final = tuple(bytes(-length % 8) for length in range(8))
_UNSTAMPED: Final = bytes(_CLIENT_HALF - _SERVER_HALF)
_DIRECTORY_ENTRY: Final = struct.Struct("<HBBIII")
# How the body of a block with a single value begins: a directory of two sections, then two offsets.
_LONE_VALUE: Final = struct.Struct("<HBBIIIHBBIIIii")
_LONE_SECTIONS: Final = 2
_LONE_BYTES_MAX: Final = 64 * 1024
_MUST_BE_KNOWN: Final = 1
_INT32_MAX: Final = 2**31 - 1
_UINT32_MAX: Final = 2**32 - 1
_TOP: Final = 1 << 31
_TOPS_KEPT_MAX: Final = 16_384  # The largest count whose mask is cached.
_SECTIONS_MAX: Final = 64
# Strings of equal size are cut out together; their number is a multiple of this.
_ONE_SIZE_COUNTS: Final = 32
# The most strings that are cut out together; the struct format for each count is cached.
_ONE_SIZE_MAX: Final = 4096
_HEADER_NAME_BYTES_MAX: Final = 255
_HEADER_NAME: Final = re.compile(r"[!-~]{1,255}")
_PRINTABLE: Final = bytes(range(0x21, 0x7F))
_ZSTD_LEVEL: Final = 1
_ZSTD_PAYS: Final = (
    7 / 8
)  # A body is kept unpacked unless it packs to this part of its size or less.

assert _HEADER.size == HEADER_BYTES
assert _CLIENT_HALF + _CLIENT_HEADER.size == HEADER_BYTES


class Codec(IntEnum):
    NONE = 0
    ZSTD = 1


_CODECS: Final = tuple(Codec)


class Section(IntEnum):
    VALUE_OFFSETS = 1
    VALUES = 2
    KEY_OFFSETS = 3
    KEYS = 4
    KEY_VALIDITY = 5
    EVENT_TIMES = 6
    EVENT_TIME_VALIDITY = 7
    HEADER_OFFSETS = 8
    HEADER_NAME_OFFSETS = 9
    HEADER_NAMES = 10
    HEADER_VALUE_OFFSETS = 11
    HEADER_VALUES = 12
    CONTROL = 32


_KNOWN: Final = frozenset(map(int, Section))
_OFFSETS_AT: Final = 2 * _DIRECTORY_ENTRY.size
_LONE_OFFSETS: Final = (int(Section.VALUE_OFFSETS), 0, 0, _OFFSETS_AT, 8, 0)
_LONE_BYTES: Final = (int(Section.VALUES), 0, 0, _OFFSETS_AT + 8)

Headers = Mapping[str, bytes]


class _NoHeaders(Mapping[str, bytes]):
    """The empty mapping that all records without headers share. It is shared, so it is immutable, and it can be
    pickled, unlike a proxy of a dict.
    """

    __slots__ = ()

    def __getitem__(self, name: str) -> bytes:
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "{}"

    def __reduce__(self) -> str:
        return "NO_HEADERS"


NO_HEADERS: Final[Headers] = _NoHeaders()


class Record(NamedTuple):
    offset: Offset
    value: bytes
    key: bytes | None
    headers: Headers
    timestamp_us: (
        int  # The server's time: the same for a whole batch, never before an earlier record's.
    )
    event_time_us: int | None  # The producer's own time.

    @property
    def timestamp(self) -> datetime:
        """`timestamp_us`, in UTC."""
        return _EPOCH + timedelta(microseconds=self.timestamp_us)

    @property
    def event_time(self) -> datetime | None:
        """`event_time_us`, in UTC."""
        if self.event_time_us is None:
            return None
        return _EPOCH + timedelta(microseconds=self.event_time_us)


@dataclass(slots=True)  # Mutable: frozen objects are slow to make, and each append makes one.
class BlockInfo:
    """The facts about a block that sequencing needs."""

    count: int
    producer: ProducerRef | None
    codec: Codec
    bytes: int
    unpacked_bytes: int
    crc: int


@dataclass(frozen=True, slots=True)
class Limits:
    record_bytes_max: int  # Bounds a value, a key and a header's value.
    batch_bytes_max: int  # Bounds a body, packed or not.
    batch_records_max: int

    @classmethod
    def of(cls, config: LogConfig) -> "Limits":
        return cls(config.record_bytes_max, config.batch_bytes_max, config.batch_records_max)


CEILING: Final = Limits(BATCH_BYTES_CEILING, BATCH_BYTES_CEILING, BATCH_RECORDS_CEILING)
"""The most that any log allows, for code that does not know the log's limits."""


# --- Packing ----------------------------------------------------------------------------------


def pack_block(
    values: Sequence[bytes],
    *,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers | None] | None = None,
    event_times: Sequence[int | None] | None = None,
    producer: ProducerRef | None = None,
    codec: Codec = Codec.NONE,
) -> bytes:
    """A block as the client frames it. With a codec the body is packed, unless that saves less than an eighth.

    Raises `InvalidRequest`, and `EntryTooLarge` for records that fit into no block.
    """
    count = len(values)
    if not count:
        raise InvalidRequest("a batch has at least one record")
    for column, name in ((keys, "keys"), (headers, "headers"), (event_times, "event times")):
        if column is not None and len(column) != count:
            raise InvalidRequest(f"{len(column)} {name} for {count} records")
    if count == 1 and keys is None and headers is None and event_times is None:
        value, size = values[0], len(values[0])
        if size < _LONE_BYTES_MAX:
            body = b"".join((_before_lone_value(size), value, _PADDING[size % 8]))
            return _framed(body, _LONE_SECTIONS, count, 0, producer, codec)
    sections = _strings(Section.VALUE_OFFSETS, values)
    if keys is not None and any(key is not None for key in keys):
        sections += _strings(Section.KEY_OFFSETS, [key or b"" for key in keys])
        if None in keys:
            sections.append(_buffer(Section.KEY_VALIDITY, _pack_validity(keys)))
    if event_times is not None and any(time is not None for time in event_times):
        sections.append(_buffer(Section.EVENT_TIMES, _pack_times(event_times)))
        if None in event_times:
            sections.append(_buffer(Section.EVENT_TIME_VALIDITY, _pack_validity(event_times)))
    if headers is not None and any(headers):
        sections += _pack_headers(headers)
    return _pack(sections, count, 0, producer, codec)


def pack_sections(
    sections: Sequence[tuple[Section, bytes]],
    records: int,
    *,
    producer: ProducerRef | None = None,
    codec: Codec = Codec.NONE,
) -> bytes:
    """A block as the client frames it. `sections` are columns in their final layout, in the order of the
    section numbers.

    Raises `InvalidRequest` without records, and `EntryTooLarge`. The server makes all other checks.
    """
    if not records:
        raise InvalidRequest("a batch has at least one record")
    return _pack([_buffer(*each) for each in sections], records, 0, producer, codec)


def with_producer(block: bytes, producer: ProducerRef) -> bytes:
    """The same records as a batch of this producer, not stamped: byte for byte what `pack_block` makes for it.

    Raises `InvalidBlock`, `UnsupportedVersion`, and `BadChecksum` for a damaged block: a new CRC would hide
    the damage.
    """
    header = _unpack_header(block)
    if google_crc32c.value(block[_CLIENT_HALF:]) != header.crc:
        raise BadChecksum
    half = b"".join(
        (
            _CLIENT_HEADER.pack(
                header.flags,
                header.codec,
                len(producer.id),
                0,
                header.records,
                header.sections,
                header.stored_bytes,
                header.unpacked_bytes,
                producer.epoch,
                producer.seq,
            ),
            producer.id,
            _PADDING[len(producer.id) % 8],
            memoryview(block)[header.body :],
        )
    )
    return b"".join((MAGIC, _CRC.pack(google_crc32c.value(half)), _UNSTAMPED, half))


def producer_of(block: bytes) -> ProducerRef | None:
    """The producer of a batch; None if it has none. Raises `InvalidBlock`, `UnsupportedVersion`."""
    return _producer_of(block, _unpack_header(block))


def by_name(headers: Headers) -> dict[str, bytes]:
    """The headers sorted by name, which is the order in which they are framed. A retry must have the same
    bytes, since the CRC distinguishes it from another batch (LS6).
    """
    return dict(sorted(headers.items()))


def pack_control_block(payload: bytes) -> bytes:
    return _pack([_buffer(Section.CONTROL, payload)], 0, CONTROL_FLAG, None, Codec.NONE)


def stamped(
    block: bytes,
    *,
    base_offset: int,
    base_timestamp_us: int,
    owner_epoch: int,
    writer_epoch: int,
) -> bytes:
    """The block with the server's half written; the client's half is not checked."""
    server_half = _SERVER_HEADER.pack(base_offset, base_timestamp_us, owner_epoch, writer_epoch)
    return b"".join((block[:_SERVER_HALF], server_half, memoryview(block)[_CLIENT_HALF:]))


class _Packed(NamedTuple):
    section: Section
    length: int
    pieces: Sequence[bytes]


def _buffer(section: Section, data: bytes) -> _Packed:
    return _Packed(section, len(data), (data,))


def _strings(offsets: Section, items: Sequence[bytes]) -> list[_Packed]:
    """Two columns: the offsets of strings, and their bytes in the section with the next number."""
    ends = list(accumulate(map(len, items), initial=0))
    total = ends[-1]
    if total > _INT32_MAX:
        raise EntryTooLarge("a batch has at most 2^31-1 bytes", got=total)
    packed = struct.pack(f"<{len(ends)}i", *ends)
    return [_buffer(offsets, packed), _Packed(Section(offsets + 1), total, items)]


def _pack(
    sections: Sequence[_Packed],
    records: int,
    flags: int,
    producer: ProducerRef | None,
    codec: Codec,
) -> bytes:
    directory, parts = [], []
    end = _DIRECTORY_ENTRY.size * len(sections)
    for section, length, pieces in sections:
        directory.append(_DIRECTORY_ENTRY.pack(section, 0, 0, end, length, 0))
        parts += [pieces, (_PADDING[length % 8],)]
        end += length + -length % 8
        if end > _INT32_MAX:
            raise EntryTooLarge("a batch has at most 2^31-1 bytes", got=end)
    body = b"".join(chain(directory, *parts))
    return _framed(body, len(sections), records, flags, producer, codec)


def _framed(
    body: bytes,
    sections: int,
    records: int,
    flags: int,
    producer: ProducerRef | None,
    codec: Codec,
) -> bytes:
    stored = _compress(body) if codec is Codec.ZSTD else body
    if len(stored) > len(body) * _ZSTD_PAYS:
        stored, codec = body, Codec.NONE
    identity = producer.id if producer else b""
    header = b"".join(
        (
            _CLIENT_HEADER.pack(
                flags,
                codec,
                len(identity),
                0,
                records,
                sections,
                len(stored),
                len(body),
                *((producer.epoch, producer.seq) if producer else (0, 0)),
            ),
            identity,
            _PADDING[len(identity) % 8],
        )
    )
    crc = google_crc32c.extend(google_crc32c.value(header), stored)
    return b"".join((MAGIC, _CRC.pack(crc), _UNSTAMPED, header, stored))


def _pack_validity(items: Sequence[object | None]) -> bytes:
    bits = "".join(["0" if item is None else "1" for item in reversed(items)])
    return int(bits, 2).to_bytes((len(items) + 7) // 8, "little")


def check_event_time(time_us: int) -> None:
    """Raises `InvalidRequest` for a time that no block can hold."""
    try:
        is_one = -INT64_MAX <= index(time_us) <= INT64_MAX
    except TypeError:
        is_one = False
    if not is_one:
        raise InvalidRequest(
            f"event time {time_us!r:.80} is not a whole number of microseconds that fits into 63 bits and a sign"
        )


def check_header_name(name: str) -> None:
    """Raises `InvalidRequest` for an invalid header name."""
    if not _HEADER_NAME.fullmatch(name):
        raise InvalidRequest(
            f"header {name[:80]!r} is not 1 to {_HEADER_NAME_BYTES_MAX} characters of "
            "printable ASCII"
        )


def _pack_times(times: Sequence[int | None]) -> bytes:
    present = [time or 0 for time in times]
    try:
        check_event_time(min(present))
        check_event_time(max(present))
        return struct.pack(f"<{len(present)}q", *present)
    # The invalid item is looked for only after packing has failed, which is rare.
    except (TypeError, struct.error):
        for time in present:
            check_event_time(time)
        raise


def _pack_headers(headers: Sequence[Headers | None]) -> list[_Packed]:
    names: list[bytes] = []
    contents: list[bytes] = []
    counts: list[int] = [0]
    for pairs in headers:
        for name, content in (pairs or NO_HEADERS).items():
            check_header_name(name)
            names.append(name.encode())
            contents.append(content)
        counts.append(len(names))
    return [
        _buffer(Section.HEADER_OFFSETS, struct.pack(f"<{len(counts)}i", *counts)),
        *_strings(Section.HEADER_NAME_OFFSETS, names),
        *_strings(Section.HEADER_VALUE_OFFSETS, contents),
    ]


def _compress(body: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(body)


# --- Checking ---------------------------------------------------------------------------------


class _Header(NamedTuple):
    magic: bytes
    crc: int
    base_offset: int
    timestamp_us: int
    owner_epoch: int
    writer_epoch: int
    flags: int
    codec: int
    producer_id_bytes: int
    zero: int
    records: int
    sections: int
    stored_bytes: int
    unpacked_bytes: int
    producer_epoch: int
    producer_seq: int

    @property
    def body(self) -> int:
        return HEADER_BYTES + self.producer_id_bytes + -self.producer_id_bytes % 8


_Spans = dict[int, tuple[int, int]]  # Each section's start and end in the body or block.


def check_block(block: bytes, limits: Limits) -> BlockInfo:
    """Check that a client's block is consistent, down to the last offset (LB1, G10).

    Raises `InvalidBlock`, `UnsupportedVersion`, `BadChecksum`, `EntryTooLarge`. The memory that the check
    takes is at most a few times the block and `batch_bytes_max`.
    """
    header = _unpack_header(block)
    if header.flags:
        raise InvalidBlock("a client's block must not have flags", flags=header.flags)
    if not _is_lone_value(block, header, limits):
        _open(block, header, limits)
    return BlockInfo(
        header.records,
        _producer_of(block, header),
        _CODECS[header.codec],
        len(block),
        header.unpacked_bytes,
        header.crc,
    )


def _unpack_header(block: bytes) -> _Header:
    """The header's values, checked against the block's length and against each other."""
    if len(block) < HEADER_BYTES:
        raise InvalidBlock(f"{len(block)} bytes are too few for a block")
    header = _Header._make(_HEADER.unpack_from(block))
    if header.magic != MAGIC:
        if header.magic[:3] != MAGIC[:3]:
            raise InvalidBlock("a block starts with RBK")
        raise UnsupportedVersion("a block has a newer version", version=header.magic[3])
    if header.codec > Codec.ZSTD:
        raise UnsupportedVersion("a block has an unknown codec", codec=header.codec)
    if (
        header.zero
        or header.flags & ~CONTROL_FLAG
        or header.producer_id_bytes > PRODUCER_ID_BYTES_MAX
        or header.producer_seq < 0
        or (not header.producer_id_bytes and (header.producer_epoch or header.producer_seq))
        or (not header.codec and header.stored_bytes != header.unpacked_bytes)
        or bool(header.records) == bool(header.flags & CONTROL_FLAG)
    ):
        raise InvalidBlock("a block's header contradicts itself")
    if header.producer_id_bytes % 8 and any(
        block[HEADER_BYTES + header.producer_id_bytes : header.body]
    ):
        raise InvalidBlock("a producer's id is longer than the header says")
    if len(block) != header.body + header.stored_bytes:
        raise InvalidBlock(
            "a block is shorter or longer than its header says",
            bytes=len(block),
            says=header.body + header.stored_bytes,
        )
    return header


def _is_lone_value(block: bytes, header: _Header, limits: Limits) -> bool:
    """Make all checks of `_open` in one step, for a block with a single value and nothing else; most blocks
    are like this when there are many logs. Returns False if the block has anything else, or is invalid.
    """
    if header.records != 1 or header.sections != _LONE_SECTIONS or header.codec:
        return False
    body = header.body
    start = body + _LONE_VALUE.size
    size = int.from_bytes(block[start - 4 : start], "little")
    padding = _PADDING[size % 8]
    return (
        size <= limits.record_bytes_max
        and header.stored_bytes <= limits.batch_bytes_max
        and header.stored_bytes == _LONE_VALUE.size + size + len(padding)
        and block.startswith(_before_lone_value(size), body)
        and block.endswith(padding)
        and google_crc32c.value(block[_CLIENT_HALF:]) == header.crc
    )


@lru_cache(64)
def _before_lone_value(size: int) -> bytes:
    return _LONE_VALUE.pack(*_LONE_OFFSETS, *_LONE_BYTES, size, 0, 0, size)


def _producer_of(block: bytes, header: _Header) -> ProducerRef | None:
    if not header.producer_id_bytes:
        return None
    identity = block[HEADER_BYTES : HEADER_BYTES + header.producer_id_bytes]
    return ProducerRef(identity, header.producer_epoch, header.producer_seq)


def _open(block: bytes, header: _Header, limits: Limits) -> tuple[bytes, _Spans]:
    """Return the bytes that have the sections, and where each section is, after checking all of them."""
    if header.records > limits.batch_records_max:
        raise EntryTooLarge(
            "a batch has too many records", limit=limits.batch_records_max, got=header.records
        )
    if max(header.stored_bytes, header.unpacked_bytes) > limits.batch_bytes_max:
        raise EntryTooLarge(
            "a batch is too large",
            limit=limits.batch_bytes_max,
            got=max(header.stored_bytes, header.unpacked_bytes),
        )
    if google_crc32c.value(block[_CLIENT_HALF:]) != header.crc:
        raise BadChecksum
    if header.codec:
        body, start = _decompress(block[header.body :], header.unpacked_bytes), 0
    else:
        # The body stays in the block: cutting it out would copy it.
        body, start = block, header.body
    spans = _read_directory(body, start, header.sections)
    if header.records:
        _check_columns(body, spans, header.records, limits)
    elif Section.CONTROL not in spans:
        raise InvalidBlock("a control block has no CONTROL section")
    return body, spans


def _decompress(stored: bytes, unpacked_bytes: int) -> bytes:
    """Unpack a body. The declared size is checked before anything is unpacked, and a frame unpacks to no
    more than that.
    """
    import zstandard

    try:
        if zstandard.frame_content_size(stored) != unpacked_bytes:
            raise InvalidBlock("a block's body unpacks to another size than its header says")
        body = zstandard.ZstdDecompressor().decompress(stored, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise InvalidBlock(f"a block's body cannot be unpacked: {error}") from None
    if len(body) != unpacked_bytes:  # A zstd frame with the declared size 0 may unpack to any size.
        raise InvalidBlock("a block's body unpacks to another size than its header says")
    return body


def _read_directory(body: bytes, first: int, count: int) -> _Spans:
    """The sections of the body that starts at `first`. Sections follow each other without gaps, so they do
    not overlap and no bytes are hidden.
    """
    end = first + count * _DIRECTORY_ENTRY.size
    if count > _SECTIONS_MAX or end > len(body):
        raise InvalidBlock("a block's directory is larger than its body", sections=count)
    spans: _Spans = {}
    for entry in _DIRECTORY_ENTRY.iter_unpack(body[first:end]):
        section, encoding, flags, start, length, zero = entry
        is_known = section in _KNOWN
        is_in_place = first + start == end and length <= len(body) - end and section not in spans
        if not is_in_place or zero or flags & ~_MUST_BE_KNOWN:
            raise InvalidBlock("a block's directory does not match its body", section=section)
        if (encoding and is_known) or (flags and not is_known):
            raise UnsupportedVersion(
                "a block has a section of an unknown kind or encoding", section=section
            )
        spans[section] = (end, end + length)
        end += length + -length % 8
        if length % 8 and any(body[end - 8 + length % 8 : end]):
            raise InvalidBlock("the padding between two sections is not zero", section=section)
    if end != len(body):
        raise InvalidBlock("a block's directory does not match its body")
    return spans


def _check_columns(body: bytes, spans: _Spans, count: int, limits: Limits) -> None:
    record_max = limits.record_bytes_max
    _check_strings(body, spans, Section.VALUE_OFFSETS, count, record_max)
    if len(spans) == 2:  # Most blocks have values only.
        return
    if Section.CONTROL in spans:
        raise InvalidBlock("a block of records has a CONTROL section")
    if Section.KEY_OFFSETS in spans or Section.KEYS in spans:
        _check_strings(body, spans, Section.KEY_OFFSETS, count, record_max)
    _check_validity(body, spans, Section.KEY_VALIDITY, Section.KEYS, count)
    if Section.EVENT_TIMES in spans:
        start, end = spans[Section.EVENT_TIMES]
        if end - start != 8 * count:
            raise InvalidBlock("the number of event times is not the number of records")
    _check_validity(body, spans, Section.EVENT_TIME_VALIDITY, Section.EVENT_TIMES, count)
    if any(section in spans for section in _OF_HEADERS):
        _check_headers(body, spans, count, record_max)


_OF_HEADERS: Final = (
    Section.HEADER_OFFSETS,
    Section.HEADER_NAME_OFFSETS,
    Section.HEADER_NAMES,
    Section.HEADER_VALUE_OFFSETS,
    Section.HEADER_VALUES,
)


def _check_headers(body: bytes, spans: _Spans, count: int, value_max: int) -> None:
    if not all(section in spans for section in _OF_HEADERS):
        raise InvalidBlock("headers lack one of their sections")
    start, end = spans[Section.HEADER_NAME_OFFSETS]
    pairs = (end - start) // 4 - 1
    if pairs < 0:
        raise InvalidBlock("the number of offsets is not the number of items plus one")
    start, end = spans[Section.HEADER_OFFSETS]
    _check_offsets(body[start:end], count, pairs, pairs)
    _check_strings(
        body, spans, Section.HEADER_NAME_OFFSETS, pairs, _HEADER_NAME_BYTES_MAX, shortest=1
    )
    _check_strings(body, spans, Section.HEADER_VALUE_OFFSETS, pairs, value_max)
    start, end = spans[Section.HEADER_NAMES]
    if body[start:end].translate(None, _PRINTABLE):
        raise InvalidBlock("the name of a header is not printable ASCII")


def _check_strings(
    body: bytes, spans: _Spans, offsets: Section, count: int, longest: int, shortest: int = 0
) -> None:
    """Check a column of offsets against the size of the bytes that they divide, which are in the section
    with the next number.
    """
    try:
        (start, end), (data_start, data_end) = spans[offsets], spans[offsets + 1]
    except KeyError:
        raise InvalidBlock(f"{offsets.name} or their bytes are missing") from None
    _check_offsets(body[start:end], count, data_end - data_start, longest, shortest)


def _check_offsets(offsets: bytes, count: int, total: int, longest: int, shortest: int = 0) -> None:
    """Check that `count + 1` int32 offsets start at 0, never go back, and end at `total`.

    Each offset is a lane of 32 bits in one integer, with its top bit clear. With the top bits set in the
    minuend, no lane borrows from the next, and a cleared top bit in the difference means that an offset
    went back.
    """
    if len(offsets) != 4 * (count + 1):
        raise InvalidBlock("the number of offsets is not the number of items plus one")
    lanes = int.from_bytes(offsets, "little")
    tops = _tops(count) if count <= _TOPS_KEPT_MAX else _in_each_lane(_TOP, count)
    last = lanes >> 32 * count
    starts, ends = lanes ^ last << 32 * count, lanes >> 32
    if lanes & _UINT32_MAX or last != total or last > _INT32_MAX:
        raise InvalidBlock("offsets do not cover their bytes")
    if ends & tops:
        raise InvalidBlock("an offset is negative")
    lengths = (ends | tops) - starts
    if lengths & tops != tops:
        raise InvalidBlock("offsets go back")
    if shortest and lengths - _in_each_lane(shortest, count) & tops != tops:
        raise InvalidBlock("an item is empty, but must not be")
    if total > longest and (_in_each_lane(longest, count) | tops) - (lengths ^ tops) & tops != tops:
        raise EntryTooLarge("a record, key or header is too large", limit=longest)


@lru_cache(maxsize=32)
def _tops(count: int) -> int:
    return _in_each_lane(_TOP, count)


def _in_each_lane(value: int, count: int) -> int:
    return int.from_bytes(value.to_bytes(4, "little") * count, "little")


def _check_validity(
    body: bytes, spans: _Spans, validity: Section, items: Section, count: int
) -> None:
    if validity not in spans:
        return
    start, end = spans[validity]
    if items not in spans or end - start != (count + 7) // 8:
        raise InvalidBlock(f"{validity.name} does not have one bit for each record")
    if count % 8 and body[end - 1] >> count % 8:
        raise InvalidBlock(f"{validity.name} has bits after the last record")


# --- Reading ----------------------------------------------------------------------------------

T = TypeVar("T")


def span_of(block: bytes) -> tuple[Offset, Offset]:
    """The first offset of a stamped block and the offset after its last record, from the header alone, for routing.
    Raises `BlockCorrupt`.
    """
    try:
        base_offset, count = _SPAN.unpack_from(block, _SERVER_HALF)
    except struct.error:
        raise _without_header(block) from None
    return base_offset, base_offset + count


def _without_header(block: bytes) -> BlockCorrupt:
    return BlockCorrupt(
        f"a block's header has {HEADER_BYTES} bytes, and this block has {len(block)}"
    )


def packed_body_of(block: bytes) -> int:
    """The unpacked size of a stamped block's body, from its header alone; 0 if the body is not packed.

    Raises `BlockCorrupt`.
    """
    try:
        codec, unpacked_bytes = _PACKING.unpack_from(block, _CODEC_AT)
    except struct.error:
        raise _without_header(block) from None
    return unpacked_bytes if codec else 0


def opened_bytes_of(block: bytes) -> int:
    """The size of a block as stored or, if that is larger, as unpacked: what quotas and bounds count (LB3).

    The size comes from the header alone, which is not trusted before the block is checked. A checked block
    unpacks to no more than the ceiling, so a larger size counts as the ceiling.
    """
    if len(block) < HEADER_BYTES or not block[_CODEC_AT]:
        return len(block)
    return max(len(block), min(packed_body_of(block), BATCH_BYTES_CEILING))


def opened_together(
    blocks: Sequence[bytes], stored_bytes_max: int = _UINT32_MAX
) -> Iterator[list[bytes]]:
    """Runs of blocks, in order. The blocks of a run have at most `OPENED_BYTES_MAX` unpacked bytes and
    `stored_bytes_max` stored bytes, unless the run is a single block (LB3).
    """
    run: list[bytes] = []
    stored, opened = 0, 0
    for block in blocks:
        size = len(block)
        body = packed_body_of(block) if block[_CODEC_AT] else size
        if run and (stored + size > stored_bytes_max or opened + body > OPENED_BYTES_MAX):
            yield run
            run, stored, opened = [], 0, 0
        run.append(block)
        stored += size
        opened += body
    if run:
        yield run


class Block:
    """A stamped block. The header's values are available immediately; the body is opened and checked (LB2)
    on first access.

    Raises `BlockCorrupt`, and `UnsupportedVersion` for a newer version.
    """

    __slots__ = ("_header", "_opened", "data")

    def __init__(self, data: bytes) -> None:
        self.data: Final = data
        self._header: Final = _as_stored(_unpack_header, data)
        self._opened: tuple[bytes, _Spans] | None = None

    @property
    def count(self) -> int:
        return self._header.records

    @property
    def base_offset(self) -> Offset:
        return Offset(self._header.base_offset)

    @property
    def next_offset(self) -> Offset:
        return Offset(self._header.base_offset + self._header.records)

    @property
    def timestamp_us(self) -> int:
        return self._header.timestamp_us

    @property
    def owner_epoch(self) -> OwnerEpoch:
        return OwnerEpoch(self._header.owner_epoch)

    @property
    def writer_epoch(self) -> WriterEpoch:
        return WriterEpoch(self._header.writer_epoch)

    @property
    def crc(self) -> int:
        """The CRC of everything that the client framed."""
        return self._header.crc

    @property
    def producer(self) -> ProducerRef | None:
        return _producer_of(self.data, self._header)

    @property
    def codec(self) -> Codec:
        return Codec(self._header.codec)

    @property
    def unpacked_bytes(self) -> int:
        return self._header.unpacked_bytes

    @property
    def is_control(self) -> bool:
        return bool(self._header.flags & CONTROL_FLAG)

    # --- Contents -----------------------------------------------------------------------------

    def section(self, section: Section) -> memoryview | None:
        """The bytes of a column, without a copy, as a buffer for Arrow. None: the block has no such section."""
        body, spans = self._open()
        if section not in spans:
            return None
        start, end = spans[section]
        return memoryview(body)[start:end]

    def bytes_before(self, index: int) -> int:
        """How many bytes of the body the first `index` records take, without validity bits."""
        spans = self._open()[1]
        size = self._strings_before(Section.VALUE_OFFSETS, index)
        if Section.KEY_OFFSETS in spans:
            size += self._strings_before(Section.KEY_OFFSETS, index)
        if Section.EVENT_TIMES in spans:
            size += 8 * index
        if Section.HEADER_OFFSETS in spans:
            (headers,) = self._ints(Section.HEADER_OFFSETS, index, index + 1)
            size += 4 * index + self._strings_before(Section.HEADER_NAME_OFFSETS, headers)
            size += self._strings_before(Section.HEADER_VALUE_OFFSETS, headers)
        return size

    def values(self) -> list[bytes]:
        return self._values(0, self.count)

    def value(self, index: int) -> bytes:
        """The value of one record, without unpacking the others."""
        if not 0 <= index < self.count:
            raise IndexError(index)
        body, spans = self._open()
        start, end = struct.unpack_from("<ii", body, spans[Section.VALUE_OFFSETS][0] + 4 * index)
        base = spans[Section.VALUES][0]
        return body[base + start : base + end]

    def keys(self) -> list[bytes | None]:
        return self._keys(0, self.count)

    def event_times(self) -> list[int | None]:
        return self._event_times(0, self.count)

    def headers(self) -> list[Headers]:
        return self._headers(0, self.count)

    def records(self, start: int = 0, end: int | None = None) -> list[Record]:
        """The records from `start` up to `end`, by default all. Other records are not unpacked."""
        base = self._header.base_offset
        if end is None:
            end = self.count
        if len(self._open()[1]) == 2:  # Most blocks have values only.
            rest: tuple[Any, ...] = (repeat(None), repeat(NO_HEADERS))
            event_times: Any = repeat(None)
        else:
            rest = (self._keys(start, end), self._headers(start, end))
            event_times = self._event_times(start, end)
        rows: Iterator[tuple[Any, ...]] = zip(
            range(base + start, base + end),
            self._values(start, end),
            *rest,
            repeat(self._header.timestamp_us),
            event_times,
            strict=False,  # Repeats have no end.
        )
        # Skips the class's constructor, which takes four times as long.
        return list(map(tuple.__new__, repeat(Record), rows))

    def control(self) -> bytes:
        """The bytes of the CONTROL section."""
        section = self.section(Section.CONTROL)
        assert section is not None
        return bytes(section)

    def _open(self) -> tuple[bytes, _Spans]:
        if self._opened is None:
            self._opened = _as_stored(lambda data: _open(data, self._header, CEILING), self.data)
        return self._opened

    def _values(self, start: int, end: int) -> list[bytes]:
        return self._strings(Section.VALUE_OFFSETS, start, end) if end > start else []

    def _keys(self, start: int, end: int) -> list[bytes | None]:
        if Section.KEYS not in self._open()[1]:
            return [None] * (end - start)
        keys = self._strings(Section.KEY_OFFSETS, start, end)
        return self._masked(Section.KEY_VALIDITY, keys, start)

    def _event_times(self, start: int, end: int) -> list[int | None]:
        body, spans = self._open()
        if Section.EVENT_TIMES not in spans:
            return [None] * (end - start)
        first = spans[Section.EVENT_TIMES][0] + 8 * start
        times = struct.unpack_from(f"<{end - start}q", body, first)
        return self._masked(Section.EVENT_TIME_VALIDITY, times, start)

    def _headers(self, start: int, end: int) -> list[Headers]:
        if Section.HEADER_OFFSETS not in self._open()[1]:
            return [NO_HEADERS] * (end - start)
        ends = self._ints(Section.HEADER_OFFSETS, start, end + 1)
        first, last = ends[0], ends[-1]
        packed_names = self._strings(Section.HEADER_NAME_OFFSETS, first, last)
        names = [name.decode() for name in packed_names]
        contents = self._strings(Section.HEADER_VALUE_OFFSETS, first, last)
        return [
            dict(zip(names[a - first : b - first], contents[a - first : b - first], strict=True))
            if b > a
            else NO_HEADERS
            for a, b in pairwise(ends)
        ]

    def _ints(self, section: Section, start: int, end: int) -> tuple[int, ...]:
        body, spans = self._open()
        return struct.unpack_from(f"<{end - start}i", body, spans[section][0] + 4 * start)

    def _strings(self, offsets: Section, start: int, end: int) -> list[bytes]:
        body, spans = self._open()
        ends_at, base = spans[offsets][0] + 4 * start, spans[offsets + 1][0]
        found = _cut_of_one_size(body, ends_at, base, end - start)
        ends = self._ints(offsets, start + len(found), end + 1)
        first = ends[0]
        data = body[base + first : base + ends[-1]]
        if first:
            found += [data[a - first : b - first] for a, b in pairwise(ends)]
        else:
            found += [data[a:b] for a, b in pairwise(ends)]
        return found

    def _strings_before(self, offsets: Section, index: int) -> int:
        """The size of the first `index` strings and of their offsets."""
        return self._ints(offsets, index, index + 1)[0] + 4 * index

    def _masked(self, validity: Section, items: Sequence[T], start: int) -> list[T | None]:
        """The items, with None where the bitmap has no bit. `start`: the index of the first one."""
        body, spans = self._open()
        if validity not in spans:
            return list(items)
        base, skipped = spans[validity][0], start % 8
        bitmap = body[base + start // 8 : base + (start + len(items) + 7) // 8]
        bits = bin(int.from_bytes(bitmap, "little") >> skipped | 1 << len(items))
        bits = bits[: -len(items) - 1 : -1]
        return [item if bit == "1" else None for item, bit in zip(items, bits, strict=True)]


def _cut_of_one_size(body: bytes, ends_at: int, base: int, count: int) -> list[bytes]:
    """The first of `count` strings, if these have one size, as is usual; otherwise an empty list. Their
    number is a multiple of 32, at most 4096. One call cuts all of them out, in a third of the time of one
    call for each string.
    """
    count = min(count, _ONE_SIZE_MAX) // _ONE_SIZE_COUNTS * _ONE_SIZE_COUNTS
    if not count:
        return []
    start, size = _PAIR.unpack_from(body, ends_at)
    _, last = _PAIR.unpack_from(body, ends_at + 4 * count - 4)
    if start or not size or last != size * count:
        return []
    ends, cut = _cutter(size, count)
    return [*cut(body, base)] if body.startswith(ends, ends_at) else []


@lru_cache(32)
def _cutter(size: int, count: int) -> tuple[bytes, Callable[[bytes, int], tuple[bytes, ...]]]:
    """The end offsets of `count` strings of one size, and a function that cuts them."""
    ends = struct.pack(f"<{count + 1}i", *range(0, size * count + 1, size))
    return ends, struct.Struct(f"{size}s" * count).unpack_from


def _as_stored(look: Callable[[bytes], T], data: bytes) -> T:
    """Call `look`. An invalid stored block raises `BlockCorrupt`, since its reader made no mistake."""
    try:
        return look(data)
    except UnsupportedVersion:
        raise
    except Invalid as error:
        raise BlockCorrupt(str(error)) from None
