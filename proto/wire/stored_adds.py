"""Adds read back from where they were stored as they came: whose entries they hold, and where.

They were judged when they came, and whoever stored them vouches for their bytes. So nothing is looked
at but what tells an entry's place, and nothing is kept that only an answer needs. Entries of a ledger
are gathered over many chunks: where ledgers come in turn, to open a list for each of them in each chunk
costs more than all that is put into it.

In version 3 adds of one size look alike but for transaction id, ledger and entry. So a model is made of
one, and those behind it are compared with that: up to the entry id they must say what an add of a known
ledger says, behind it likewise, and the entry id between them must be the entry's own.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from rollbook.proto.wire import v2
from rollbook.proto.wire.digest import ENTRY_HEADER_BYTES, LEDGER_KEY_BYTES
from rollbook.proto.wire.frames import LENGTH_BYTES
from rollbook.proto.wire.varint import message_pattern, unpack_varint

_V2_ADD: Final = struct.Struct(">I32sqq")  # Length; word, key and ledger id; entry id, LAC.
_V2_WRITER: Final = struct.Struct(">I20sq")
_V2_HEAD_BYTES: Final = LENGTH_BYTES + 4 + LEDGER_KEY_BYTES
_V2_BYTES_MIN: Final = _V2_HEAD_BYTES + ENTRY_HEADER_BYTES

_match_v3: Final = message_pattern(
    rb"""
    \x0a . \x08\x03 \x10\x02 \x18U                            # header: version 3, ADD, an id;
    ((?: \xaa\x06 | \x20 [\x80-\xff]{0,3}[\x00-\x7f] \xaa\x06) V  # perhaps a priority; the add's size,
    (?: \x08V\x10 | \xa0\x06\x01 \x08V\x10))                  # perhaps its flag, ledger id;
    (V)                                                      # entry id;
    (\x1a\x14 .{20} \x22V)                                   # key, how long the entry is
    """
).match
_KEY_AT: Final = 2  # In the last of these,
_SIZE_AT: Final = _KEY_AT + LEDGER_KEY_BYTES + 1
_IDS: Final = struct.Struct(">qqq")  # Of an entry: ledger, entry, LAC.
_length_at: Final = struct.Struct(">I").unpack_from
_unpack_size: Final = lru_cache(maxsize=8192)(unpack_varint)
_WRITERS_MAX: Final = 65_536  # In version 3 one counts for each size of its entries.


@dataclass(slots=True)
class StoredEntries:
    """Of one ledger, in the order in which they were added."""

    ledger_key: bytes  # The first that was shown.
    entry_ids: list[int] = field(default_factory=list)
    lacs: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    def clear(self) -> None:
        for column in (self.entry_ids, self.lacs, self.starts, self.lengths):
            column.clear()


_Append = Callable[[int], None]


class _Writer(NamedTuple):
    """How to add to the columns of a ledger: looked up once, since writers may come in turn."""

    behind: bytes  # What its adds of version 3 have behind the entry id.
    add_entry_id: _Append
    add_lac: _Append
    add_start: _Append
    add_length: _Append


class StoredAdds:
    """`ledgers` has what was gathered, and keeps its columns when they are cleared."""

    def __init__(self) -> None:
        self.ledgers: dict[int, StoredEntries] = {}  # By when they were first met.
        self._v2_writers: dict[bytes, _Writer] = {}
        self._v3_writers: dict[bytes, _Writer] = {}  # By what stands before an entry id.

    def gather(self, buffer: bytes, position: int) -> int:
        """From whole adds, of which the first byte has that position; returns where they end.

        That is behind the last one, unless there is something else.
        """
        at = 0
        while at < len(buffer):
            end = self._gather_v2(buffer, at, position)
            if end == at:
                end = self._gather_v3(buffer, at, position)
            if end == at:
                break
            at = end
        return at

    def _gather_v2(self, buffer: bytes, at: int, position: int) -> int:
        writers = self._v2_writers
        current = b""
        moved, last = position + _V2_HEAD_BYTES, len(buffer) - _V2_BYTES_MIN
        while at <= last:
            length, writer, entry_id, lac = _V2_ADD.unpack_from(buffer, at)
            if writer != current:
                opened = writers.get(writer) or self._open_v2(writer)
                if opened is None:
                    break
                current = writer
                _, add_entry_id, add_lac, add_start, add_length = opened
            add_entry_id(entry_id)
            add_lac(lac)
            add_start(at + moved)
            at += LENGTH_BYTES + length
            add_length(length - (_V2_HEAD_BYTES - LENGTH_BYTES))
        return at

    def _open_v2(self, writer: bytes) -> _Writer | None:
        word, ledger_key, ledger_id = _V2_WRITER.unpack(writer)
        if v2.unpack_header(word).operation != v2.ADD:
            return None
        opened = self._v2_writers[writer] = self._open(ledger_id, ledger_key, b"")
        return opened

    def _gather_v3(self, buffer: bytes, at: int, position: int) -> int:
        while match := _match_v3(buffer, at + LENGTH_BYTES):
            before, behind = match.group(1, 3)
            start = match.end()
            ledger_id, entry_id, lac = _IDS.unpack_from(buffer, start)
            if len(self._v3_writers) >= _WRITERS_MAX:
                self._v3_writers.clear()
            writer = self._open(ledger_id, behind[_KEY_AT : _SIZE_AT - 1], behind)
            self._v3_writers[before] = writer
            length = _unpack_size(behind[_SIZE_AT:])
            writer.add_entry_id(entry_id)
            writer.add_lac(lac)
            writer.add_start(position + start)
            writer.add_length(length)
            end = at + LENGTH_BYTES + _length_at(buffer, at)[0]
            if buffer[end : end + LENGTH_BYTES] == buffer[at : at + LENGTH_BYTES]:
                places = match.start(1) - at, match.start(2) - at, match.start(3) - at, start - at
                end = self._gather_alike(buffer, at, end, position, length, places)
            at = end
        return at

    def _gather_alike(
        self,
        buffer: bytes,
        model: int,
        at: int,
        position: int,
        length: int,
        places: tuple[int, int, int, int],
    ) -> int:
        """What lies at `at` and is like the add at `model` in all its sizes; where that ends."""
        before_at, entry_at, behind_at, start = places
        size = at - model
        like = _like(
            *(before_at - _V3_SIZES_BYTES, entry_at - before_at, behind_at - entry_at - 1),
            *(start - behind_at, length - _IDS.size, size - start - length),
        )
        sizes, *_ = like.unpack_from(buffer, model)
        current = high = b""
        high_bits = 0
        whole = (len(buffer) - at) // size * size
        moved = position + start
        for found in like.iter_unpack(memoryview(buffer)[at : at + whole]):
            found_sizes, before, low, found_high, behind, _, entry_id, lac = found
            if before != current:
                writer = self._v3_writers.get(before)
                if writer is None:
                    break
                current = before
                expected, add_entry_id, add_lac, add_start, add_length = writer
            if found_high != high:  # It changes with each 128th entry.
                high = found_high
                high_bits = _unpack_high_bits(high)
            if behind != expected or found_sizes != sizes or low & 0x7F | high_bits != entry_id:
                break
            add_entry_id(entry_id)
            add_lac(lac)
            add_start(at + moved)
            add_length(length)
            at += size
        return at

    def _open(self, ledger_id: int, ledger_key: bytes, behind: bytes) -> _Writer:
        entries = self.ledgers.get(ledger_id)
        if entries is None:
            entries = self.ledgers[ledger_id] = StoredEntries(ledger_key)
        return _Writer(
            behind,
            entries.entry_ids.append,
            entries.lacs.append,
            entries.starts.append,
            entries.lengths.append,
        )


_V3_SIZES_BYTES: Final = LENGTH_BYTES + 2  # The frame's length, and that of its header.


@lru_cache(maxsize=4096)
def _like(txn: int, before: int, high: int, behind: int, payload: int, tail: int) -> struct.Struct:
    """An add of known sizes: those; up to its entry id; that, low byte first; up to the entry; its
    ledger id, entry id and LAC."""
    return struct.Struct(f">{_V3_SIZES_BYTES}s{txn}x{before}sB{high}s{behind}sqqq{payload}x{tail}x")


@lru_cache(maxsize=8192)
def _unpack_high_bits(varint: bytes) -> int:
    """What a varint says behind its first byte; more than any entry id if it has another size.

    Were it shorter, there would be something else behind it, and a writer might have made that fit.
    """
    if any(byte < 0x80 for byte in varint[:-1]) or varint[-1:] >= b"\x80":
        return 1 << 63
    return unpack_varint(varint) << 7 if varint else 0
