"""Reads adds that were stored as received, and finds the entries of each ledger in them.

The adds were validated on arrival, and the journal has checked their bytes. Therefore only the
bytes that give an entry's position are read, and fields that only a reply needs are skipped.
Consecutive adds of one size are read by columns, even if they are for different ledgers. In version
2 only their size and opcode must be equal; in version 3 they must agree in everything that gives
the entry's position: tags, sizes, and the length of each varint. The result has a row for each
entry. When the rows are taken, those of many chunks are sorted by ledger together. If ledgers
alternate, sorting each chunk separately would cost more than all other work.
"""

from array import array
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, count, islice
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

from rollbook.proto.arange import array_of
from rollbook.proto.wire import v2_layout, v3_fast_path_layout
from rollbook.proto.wire.add_columns import count_run
from rollbook.proto.wire.digest import (
    ENTRY_ID_AT,
    LAC_AT,
    LEDGER_KEY_BYTES,
    entry_ids_and_lac_at,
)
from rollbook.proto.wire.frame_columns import count_same, unpack_int64s, varint_columns
from rollbook.proto.wire.frames import LENGTH_BYTES, length_at
from rollbook.proto.wire.v3_fast_path_layout import ADD_BODY_SIZE, ADD_KEY, key_of, varying_spans
from rollbook.proto.wire.varint import unpack_varint

IntArray: TypeAlias = "array[int]"

_v2_ids_at: Final = v2_layout.ADD_IDS.unpack_from
_V2_KEY_AT: Final = v2_layout.ADD_KEY_AT
_V2_ENTRY_AT: Final = v2_layout.ADD_ENTRY_AT
_V2_BYTES_MIN: Final = v2_layout.ADD_BYTES_MIN

_match_v3: Final = v3_fast_path_layout.ADD_REQUEST.match
_IDS_AT: Final = 0, ENTRY_ID_AT, LAC_AT  # The positions of the ids and the LAC in an entry.
_unpack_size: Final = lru_cache(maxsize=8192)(unpack_varint)

_ALIKE_MIN: Final = 16  # With fewer adds, reading them by columns costs more than it saves.


class StoredEntries(NamedTuple):
    """The entries of one ledger, in the order in which they were added."""

    ledger_id: int
    last_add_confirmed: int  # The highest LAC that any of the entries names.
    entry_ids: IntArray
    starts: IntArray
    lengths: IntArray


class _Shape(NamedTuple):
    """The positions of the fields in adds of one shape."""

    size: int
    fixed: Sequence[int]  # The positions at which all adds of the shape agree.
    varints: tuple[range, ...]  # The positions of the varints, which have equal sizes in all adds.
    key_at: int
    entry_at: int
    entry_bytes: int


class StoredAdds:
    def __init__(self) -> None:
        self.ledger_keys: dict[int, bytes] = {}  # The first key that was sent for each ledger.
        # The row numbers of each ledger.
        self._rows: defaultdict[int, list[int]] = defaultdict(list)
        self._entry_ids: IntArray = array("q")
        self._lacs: IntArray = array("q")
        self._starts: IntArray = array("I")
        self._lengths: IntArray = array("I")

    def __len__(self) -> int:
        """Returns how many entries were gathered and have not been taken."""
        return len(self._entry_ids)

    def gather(self, buffer: bytes, position: int) -> int:
        """Gathers the entries of whole adds in `buffer`, whose first byte is stored at `position`.

        Returns where the adds end in `buffer`: after the last add, or at the first frame that is no add.
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

    def take(self) -> Iterator[StoredEntries]:
        """Takes the gathered entries, ledger by ledger. The cost does not grow with the number of known
        ledgers."""
        by_ledger, self._rows = self._rows, defaultdict(list)
        order = [*chain.from_iterable(by_ledger.values())]
        entry_ids, lacs = _in_order(self._entry_ids, order), _in_order(self._lacs, order)
        starts, lengths = _in_order(self._starts, order), _in_order(self._lengths, order)
        for column in (self._entry_ids, self._lacs, self._starts, self._lengths):
            del column[:]
        first = 0
        for ledger_id, rows in by_ledger.items():
            own = slice(first, first + len(rows))
            lac = max(lacs[own])
            yield StoredEntries(ledger_id, lac, entry_ids[own], starts[own], lengths[own])
            first = own.stop

    def _gather_v2(self, buffer: bytes, at: int, position: int) -> int:
        known_word, alike_from, last = -1, at, len(buffer) - _V2_BYTES_MIN
        while at <= last:
            length, word, ledger_id, entry_id, lac = _v2_ids_at(buffer, at)
            if word != known_word:
                if v2_layout.unpack_header(word).operation != v2_layout.ADD:
                    break
                known_word = word
            size = LENGTH_BYTES + length
            if at >= alike_from:
                alike_from = at + _ALIKE_MIN * size
                if _seems_alike(buffer, at, size):
                    shape = _v2_shape(size)
                    if rows := self._add_alike(buffer, at, position, shape):
                        at += rows * size
                        alike_from = at
                        continue
            start, at = at + _V2_ENTRY_AT, at + size
            self._add(ledger_id, entry_id, lac, position + start, at - start)
            if ledger_id not in self.ledger_keys:
                self.ledger_keys[ledger_id] = buffer[start - LEDGER_KEY_BYTES : start]
        return at

    def _gather_v3(self, buffer: bytes, at: int, position: int) -> int:
        alike_from = at
        while match := _match_v3(buffer, at + LENGTH_BYTES):
            size = LENGTH_BYTES + length_at(buffer, at)[0]
            if at >= alike_from:
                alike_from = at + _ALIKE_MIN * size
                if _seems_alike(buffer, at, size):
                    edges = [edge - at for span in varying_spans(match) for edge in span]
                    shape = _v3_shape(
                        size, match.end() - at, _unpack_size(match[ADD_BODY_SIZE]), *edges
                    )
                    if rows := self._add_alike(buffer, at, position, shape):
                        at += rows * size
                        alike_from = at
                        continue
            ledger_id, entry_id, lac = entry_ids_and_lac_at(buffer, start := match.end())
            self._add(
                ledger_id, entry_id, lac, position + start, _unpack_size(match[ADD_BODY_SIZE])
            )
            if ledger_id not in self.ledger_keys:
                self.ledger_keys[ledger_id] = key_of(match[ADD_KEY])
            at += size
        return at

    def _add(self, ledger_id: int, entry_id: int, lac: int, start: int, length: int) -> None:
        self._rows[ledger_id].append(len(self._entry_ids))
        self._entry_ids.append(entry_id)
        self._lacs.append(lac)
        self._starts.append(start)
        self._lengths.append(length)

    def _add_alike(self, buffer: bytes, at: int, position: int, shape: _Shape) -> int:
        """Adds the entries of the add at that position and of the following adds of its shape.
        Returns how many it added: 0 if there are too few.
        """
        found = _count_alike(buffer, at, shape)
        if found < _ALIKE_MIN:
            return 0
        size, ids_at, first = shape.size, at + shape.entry_at, len(self._entry_ids)
        ledgers_before = len(self._rows)
        ledger_ids, entry_ids, lacs = (
            unpack_int64s(buffer, ids_at + place, size, found) for place in _IDS_AT
        )
        self._entry_ids += entry_ids
        self._lacs += lacs
        start = position + ids_at
        self._starts += array_of("I", range(start, start + found * size, size))
        self._lengths += array("I", [shape.entry_bytes]) * found
        if ledger_ids == ledger_ids[:1] * found:
            self._rows[ledger_ids[0]].extend(range(first, first + found))
        else:
            rows_of_each = map(self._rows.__getitem__, ledger_ids)
            # Consumes the iterator, and so appends all of them; the results are dropped.
            deque(map(list.append, rows_of_each, count(first)), maxlen=0)
        for ledger_id in islice(reversed(self._rows), len(self._rows) - ledgers_before):
            if ledger_id not in self.ledger_keys:
                key_at = at + shape.key_at + (self._rows[ledger_id][0] - first) * size
                self.ledger_keys[ledger_id] = buffer[key_at : key_at + LEDGER_KEY_BYTES]
        return found


def _seems_alike(buffer: bytes, at: int, size: int) -> bool:
    """Returns whether there may be enough adds of this size: checks only where the last of them would begin."""
    return buffer.startswith(buffer[at : at + _V2_KEY_AT], at + (_ALIKE_MIN - 1) * size)


def _count_alike(buffer: bytes, at: int, shape: _Shape) -> int:
    size, varints = shape.size, shape.varints

    def count_like(rows: int) -> int:
        rows = count_same(buffer, at, size, rows, shape.fixed)
        for places in varints:
            _, rows = varint_columns(buffer, at + places.start, size, rows, len(places))
        return rows

    return count_run(count_like, (len(buffer) - at) // size)


@lru_cache(maxsize=4096)
def _v2_shape(size: int) -> _Shape:
    return _Shape(size, range(_V2_KEY_AT), (), _V2_KEY_AT, _V2_ENTRY_AT, size - _V2_ENTRY_AT)


@lru_cache(maxsize=4096)
def _v3_shape(size: int, entry_at: int, entry_bytes: int, *edges: int) -> _Shape:
    """Returns the shape of an add in version 3. `edges` has the positions at which the transaction
    id, the ledger id, the entry id and the key begin and end.
    """
    starts, ends = edges[::2], edges[1::2]
    fixed = chain.from_iterable(map(range, (0, *ends), (*starts, entry_at)))
    *varints, key = map(range, starts, ends)
    return _Shape(size, tuple(fixed), tuple(varints), key.start, entry_at, entry_bytes)


def _in_order(column: IntArray, order: Sequence[int]) -> IntArray:
    """Returns the values that the column has in these rows."""
    if len(order) < 2 or column == column[:1] * len(order):
        return column[:]
    return array(column.typecode, itemgetter(*order)(column))
