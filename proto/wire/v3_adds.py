"""Packs and unpacks adds and their replies in version 3, a chunk at a time.

Peers write the fields of an add in one of two orders: Java before 4.18 by field number, and Java
since then with the recovery flag first. One regular expression matches both, and then every length
is checked against the others. A writer's adds of one size differ only in their payloads and in
three numbers at fixed positions. Therefore adds after a matched one are only compared with it,
which proves as much at half the cost. Many consecutive adds, or replies, are compared and read by
columns, at a tenth of the cost. An add in any other form, for example with unknown fields, is
decoded by protobuf and packed again in the usual form by this module. Therefore stored adds always
have a known form.

A transaction id must be unique only on its connection. A client draws the ids for all its
connections from one counter, so that all bookies of a write set can get the same frame.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple, Self, cast

from rollbook.proto.ids import EntryId, LedgerId
from rollbook.proto.wire import v3
from rollbook.proto.wire.add_columns import (
    RUN_MAX,
    RUN_MIN,
    WRITERS_MAX,
    AddColumns,
    AddGroup,
    AddPacker,
    AddReplies,
    Adds,
    WriterFields,
    count_run,
    run_at,
)
from rollbook.proto.wire.digest import (
    ENTRY_HEADER_BYTES,
    ENTRY_ID_AT,
    LEDGER_LENGTH_AT,
    LedgerDigest,
    entry_ids_and_lac_at,
)
from rollbook.proto.wire.frame_columns import (
    count_alike,
    count_int64s_on,
    count_same,
    count_varints_on,
    pack_varints_on,
    unpack_column,
    varint_columns,
)
from rollbook.proto.wire.frames import FRAME_BYTES_MAX, LENGTH_BYTES, length_at, pack_length
from rollbook.proto.wire.messages import Failure
from rollbook.proto.wire.v3_fast_path_layout import (
    ADD_BODY_TAG,
    ADD_ENTRY,
    ADD_ENTRY_TAG,
    ADD_HEADER,
    ADD_KEY_TAG,
    ADD_LEDGER,
    ADD_LEDGER_TAG,
    ADD_REPLY,
    ADD_REPLY_HEAD,
    ADD_REQUEST,
    ADD_SIZE,
    ADD_TAG,
    ADD_TAILS,
    ADD_TXN_ID,
    DEFERRED_SYNC,
    ENTRY_TAG,
    FLAG_RECOVERY,
    HEADER_AT,
    HEADER_SIZE_AT,
    HEADER_TAG,
    LEDGER_TAG,
    OWN_SIZE_AT,
    PRIORITY_TAG,
    RESPONSE_STATUS_TAG,
    STATUS_TAG,
    TXN_ID_AT,
    add_of_shape,
    is_urgent,
    key_of,
    ledger_of,
)
from rollbook.proto.wire.varint import message_pattern, pack_varint, unpack_varint

_match_request: Final = ADD_REQUEST.match
_match_reply: Final = ADD_REPLY.match
_match_reply_head: Final = ADD_REPLY_HEAD.fullmatch
# A longer transaction id is not compared by columns: the value of a varint of ten bytes may exceed 64 bits.
_TXN_BYTES_MAX: Final = 9
_is_short_varint: Final = message_pattern(rb"V").fullmatch
# With fewer replies, searching for equal ones costs more than it saves.
_REPLIES_ALIKE_MIN: Final = 8
_REPLIES_ALIKE_MAX: Final = 1024

# Few sizes occur, so a cache spares unpacking their varints each time.
_unpack_size: Final = lru_cache(maxsize=8192)(unpack_varint)

_SHAPES_MAX: Final = 4096  # The maximum number of shapes of adds that a packer keeps.


class _Lists(NamedTuple):
    """The columns of a group, as lists."""

    entry_ids: list[EntryId]
    lacs: list[EntryId]
    starts: list[int]
    ends: list[int]
    txn_ids: list[bytes]  # They stay varints, since they are only echoed.
    entry_varints: list[bytes]  # They stay varints, since they are only echoed.


class _V3AddColumns(NamedTuple):
    columns: AddColumns
    txn_columns: list[bytes]  # The bytes that replies echo, by columns.
    entry_columns: list[bytes]

    def add_to(self, lists: _Lists) -> None:
        for column, more in zip(lists[:4], self.columns, strict=True):
            cast(list[int], column).extend(more)
        lists.txn_ids.extend(map(bytes, zip(*self.txn_columns, strict=True)))
        lists.entry_varints.extend(map(bytes, zip(*self.entry_columns, strict=True)))


@dataclass(slots=True)
class _V3AddGroup(AddGroup):
    ledger_varint: bytes = b""
    run: _V3AddColumns | None = None  # All adds of the group; None if they are in `lists`.
    lists: _Lists = field(default_factory=lambda: _Lists([], [], [], [], [], []))

    def add(self, run: _V3AddColumns) -> None:
        if self.run is None and not self.lists.entry_ids:
            self.run = run
        else:
            self.loosen()
            run.add_to(self.lists)

    def loosen(self) -> None:
        """Converts the run to lists. This must happen before a frame that is no part of the run is added."""
        if self.run is not None:
            self.run.add_to(self.lists)
            self.run = None

    def finish(self) -> Self:
        """Fills the group's fields when no more adds follow."""
        columns = self.run.columns if self.run else self.lists[:4]
        self.entry_ids, self.lacs, self.starts, self.ends = columns
        return self

    def pack_replies(self, error: Failure = None) -> bytes:
        status = pack_varint(v3.code_of(error))
        if self.run is not None:
            return self._pack_alike(self.run, status)
        replies: list[bytes] = []
        txn_bytes = entry_bytes = 0
        for txn_id, entry_id in zip(self.lists.txn_ids, self.lists.entry_varints, strict=True):
            if len(txn_id) != txn_bytes or len(entry_id) != entry_bytes:
                txn_bytes, entry_bytes = len(txn_id), len(entry_id)
                before, between = _around_reply(txn_bytes, status, self.ledger_varint, entry_bytes)
            replies += (before, txn_id, between, entry_id)
        return b"".join(replies)

    def _pack_alike(self, run: _V3AddColumns, status: bytes) -> bytes:
        txn_bytes, entry_bytes = len(run.txn_columns), len(run.entry_columns)
        before, between = _around_reply(txn_bytes, status, self.ledger_varint, entry_bytes)
        reply = b"".join((before, bytes(txn_bytes), between, bytes(entry_bytes)))
        size = len(reply)
        replies = bytearray(reply * len(run.columns.entry_ids))
        for at, column in enumerate(run.txn_columns, len(before)):
            replies[at::size] = column
        for at, column in enumerate(run.entry_columns, size - entry_bytes):
            replies[at::size] = column
        return bytes(replies)


_Append = Callable[[Any], None]
_Opened = tuple[_V3AddGroup, _Append, _Append, _Append, _Append, _Append, _Append]
"""A group and the functions that append to its columns. They are looked up once for each group,
since writers may alternate.
"""
_Places = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
"""The positions of an add's transaction id, entry id and entry."""


@lru_cache(WRITERS_MAX)
def _around_reply(
    txn_bytes: int, status: bytes, ledger_id: bytes, entry_bytes: int
) -> tuple[bytes, bytes]:
    """Returns the bytes of a reply before its transaction id, and those between it and the entry id
    at the reply's end.
    """
    ids = b"".join((STATUS_TAG, status, LEDGER_TAG, ledger_id, ENTRY_TAG))
    size = pack_varint(len(ids) + entry_bytes)
    own = b"".join((RESPONSE_STATUS_TAG, status, ADD_TAG, size, ids))
    header = HEADER_TAG + pack_varint(len(ADD_HEADER) + txn_bytes) + ADD_HEADER
    return pack_length(len(header) + txn_bytes + len(own) + entry_bytes) + header, own


def take_adds(buffer: bytes, position: int, frame_bytes_max: int) -> tuple[Adds | None, int]:
    """Returns the adds in the usual form from `position` on that have arrived completely, and where they end.

    Stops at everything else: other operations, adds to be refused, adds in an unusual form, incomplete frames.
    """
    # This is one function, because the loop runs once for each add, and smaller functions would
    # cost a call each.
    groups: dict[tuple[bytes, ...], _Opened] = {}
    current: tuple[bytes, ...] = ()
    current_ledger_id, high_varint, high_bits = -1, b"", 0
    run_from = position  # A run is looked for again from this position on.
    first, size, body_bytes_max = position, len(buffer), frame_bytes_max - LENGTH_BYTES
    while match := _match_request(buffer, position + LENGTH_BYTES):
        txn_id, priority, add_size, ledger, entry, key, body_size = match.groups()
        (length,) = length_at(buffer, position)
        end = position + LENGTH_BYTES + length
        entry_start = match.end()
        entry_end = entry_start + _unpack_size(body_size)
        if (
            end > size
            or length > body_bytes_max
            or not entry_start + ENTRY_HEADER_BYTES <= entry_end <= end
            or (add_at := match.start(ADD_LEDGER)) + _unpack_size(add_size) != end
            or buffer[position + HEADER_SIZE_AT] != match.start(ADD_SIZE) - position - OWN_SIZE_AT
        ):
            break
        ledger_id, entry_id, lac = entry_ids_and_lac_at(buffer, entry_start)
        if entry[1:] != high_varint:  # The high bytes change only with each 128th entry.
            high_varint = entry[1:]
            high_bits = _unpack_high_bits(high_varint)
        if entry[0] & 0x7F | high_bits != entry_id:
            break
        writer = (ledger, key, priority, buffer[entry_end:end])
        if writer != current or ledger_id != current_ledger_id:
            opened = groups.get(writer) or _open_group(writer)
            if opened is None or ledger_id != opened[0].ledger_id:
                break
            groups[writer] = opened
            current, current_ledger_id = writer, ledger_id
            group, add_entry_id, add_lac, add_start, add_end, add_txn_id, add_varint = opened
        places = match.span(ADD_TXN_ID), match.span(ADD_ENTRY), (entry_start, entry_end)
        step = end - position
        if position >= run_from:
            run_from = position + RUN_MIN * step
            if run := _take_run(buffer, position, step, places, entry_id):
                group.add(run)
                position += len(run.columns.entry_ids) * step
                run_from = position
                continue
        if group.run is not None:
            group.loosen()
        add_entry_id(entry_id)
        add_lac(lac)
        add_start(entry_start)
        add_end(entry_end)
        add_txn_id(txn_id)
        add_varint(entry)
        if buffer.startswith(ledger, add_at + step):  # The next add seems to be like this one.
            end = _take_alike(buffer, position, end, group.lists, places)
        position = end
    if position == first:
        return None, position
    return Adds(buffer, first, position, [each[0].finish() for each in groups.values()]), position


def _take_run(
    buffer: bytes, position: int, size: int, places: _Places, entry_id: int
) -> _V3AddColumns | None:
    """Returns the columns of the add at `position` and of the following adds, as far as they are
    like it (in the sense of `_take_alike`) and have consecutive ids, or None if there are too few.
    """
    (txn_at, txn_end), (varint_at, varint_end), (entry_start, entry_end) = places
    txn_bytes, entry_bytes = txn_end - txn_at, varint_end - varint_at
    rows = min((len(buffer) - position) // size, RUN_MAX)
    far = RUN_MIN - 1
    if (
        rows <= far
        or txn_bytes > _TXN_BYTES_MAX
        or entry_ids_and_lac_at(buffer, entry_start + far * size)[1] != entry_id + far
        or not buffer.startswith(buffer[varint_end : entry_start + ENTRY_ID_AT], varint_end + size)
    ):
        return None
    fixed = _fixed_places(
        size,
        *(at - position for at in (txn_at, txn_end, varint_at, varint_end)),
        entry_start - position,
        entry_end - position,
    )

    def count_like(rows: int) -> int:
        rows = count_int64s_on(buffer, entry_start + ENTRY_ID_AT, size, rows)
        rows = count_varints_on(buffer, varint_at, size, rows, entry_bytes, entry_id)
        _, rows = varint_columns(buffer, txn_at, size, rows, txn_bytes)
        return count_same(buffer, position, size, rows, fixed)

    rows = count_run(count_like, rows)
    if rows < RUN_MIN:
        return None
    txn_columns, _ = varint_columns(buffer, txn_at, size, rows, txn_bytes)
    return _V3AddColumns(
        run_at(buffer, entry_start, entry_end, size, rows, entry_id),
        txn_columns,
        pack_varints_on(entry_id, rows, entry_bytes),
    )


@lru_cache(maxsize=4096)
def _fixed_places(
    size: int,
    txn_at: int,
    txn_end: int,
    varint_at: int,
    varint_end: int,
    entry_start: int,
    entry_end: int,
) -> Sequence[int]:
    """Returns the positions at which adds of one shape do not differ. Within the entry, only the
    ledger id is at such positions.
    """
    return (
        *range(txn_at),
        *range(txn_end, varint_at),
        *range(varint_end, entry_start + ENTRY_ID_AT),
        *range(entry_end, size),
    )


def _take_alike(buffer: bytes, model: int, position: int, lists: _Lists, places: _Places) -> int:
    """Takes the frames after the add at `model` that are like it, and returns where they end.

    They differ from it only in the low bits of the transaction id and the entry id, the ids in the
    entry, and the payload. Therefore everything that was checked for the model holds for them, too.
    """
    (txn_at, txn_end), (varint_at, varint_end), (entry_start, entry_end) = places
    size = position - model
    like = add_of_shape(
        txn_at - model,
        varint_at - txn_at - 1,
        entry_start + ENTRY_ID_AT - varint_at - 1,
        entry_end - entry_start - LEDGER_LENGTH_AT,
        position - entry_end,
    )
    before, txn_low, between, varint_low, behind, entry_id, _, tail = like.unpack_from(
        buffer, model
    )
    base = entry_id - varint_low
    entry_ids: list[EntryId] = []
    lacs: list[EntryId] = []
    whole = (len(buffer) - position) // size * size
    for a, txn, b, low, c, found, lac, d in like.iter_unpack(
        memoryview(buffer)[position : position + whole]
    ):
        if (
            found - low != base
            or a != before
            or b != between
            or c != behind
            or d != tail
            or (txn ^ txn_low) & 0x80
            or (low ^ varint_low) & 0x80
        ):
            break
        entry_ids.append(found)
        lacs.append(lac)
    end = position + len(entry_ids) * size
    moved = range(size, end - model, size)
    lists.entry_ids.extend(entry_ids)
    lists.lacs.extend(lacs)
    lists.starts.extend(range(entry_start + size, end, size))
    lists.ends.extend(range(entry_end + size, end + 1, size))
    lists.txn_ids.extend([buffer[txn_at + by : txn_end + by] for by in moved])
    lists.entry_varints.extend([buffer[varint_at + by : varint_end + by] for by in moved])
    return end


@lru_cache(maxsize=8192)
def _unpack_high_bits(varint: bytes) -> int:
    """Returns the part of a varint's value that the bytes after its first byte give."""
    return unpack_varint(varint) << 7 if varint else 0


def _open_group(writer: tuple[bytes, ...]) -> _Opened | None:
    unpacked = _unpack_writer_of(writer)
    if unpacked is None:
        return None
    fields, ledger_varint = unpacked
    group = _V3AddGroup(*fields, ledger_varint=ledger_varint)
    lists = group.lists
    return (
        group,
        lists.entry_ids.append,
        lists.lacs.append,
        lists.starts.append,
        lists.ends.append,
        lists.txn_ids.append,
        lists.entry_varints.append,
    )


def _unpack_writer_of(writer: tuple[bytes, ...]) -> tuple[WriterFields, bytes] | None:
    # An unusual tail may be as long as a frame, so it is not cached.
    return _unpack_writer(*writer) if writer[-1] in ADD_TAILS else None


@lru_cache(WRITERS_MAX)  # The same writers recur with every append, so this is cached.
def _unpack_writer(
    ledger: bytes, key: bytes, priority: bytes, tail: bytes
) -> tuple[WriterFields, bytes]:
    """Returns a group's fields before its columns, and its ledger id as a varint. The arguments are
    short, so they can be cached.
    """
    varint, has_flag = ledger_of(ledger)
    is_recovery = has_flag or tail.endswith(FLAG_RECOVERY)
    is_deferred = tail.startswith(DEFERRED_SYNC)
    ledger_id = LedgerId(unpack_varint(varint))
    return (ledger_id, key_of(key), is_recovery, is_urgent(priority), is_deferred), varint


# --- A client's side --------------------------------------------------------------------------


class V3AddPacker(AddPacker):
    """Packs adds in version 3. `txn_ids` counts the requests of this client on all its connections."""

    def __init__(
        self,
        ledger_key: bytes,
        digest: LedgerDigest,
        txn_ids: Iterator[int],
        *,
        is_recovery: bool = False,
        is_high_priority: bool = False,
        is_sync_deferred: bool = False,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        super().__init__(ledger_key, digest, frame_bytes_max)
        self._txn_ids = txn_ids
        self._priority = PRIORITY_TAG + pack_varint(v3.HIGH_PRIORITY) if is_high_priority else b""
        self._ledger = ADD_LEDGER_TAG + pack_varint(digest.ledger_id) + ADD_ENTRY_TAG
        self._key = ADD_KEY_TAG + ledger_key + ADD_BODY_TAG
        self._tail = DEFERRED_SYNC * is_sync_deferred + FLAG_RECOVERY * is_recovery
        self._overhead_bytes = digest.overhead_bytes
        self._around: dict[tuple[int, int, int], tuple[bytes, bytes, bytes]] = {}

    def pack(
        self,
        entry_id: EntryId,
        last_add_confirmed: EntryId,
        ledger_length: int,
        payload: bytes,
    ) -> bytes:
        if len(payload) > self.payload_bytes_max:
            raise self._too_large(payload)
        txn_id, entry = pack_varint(next(self._txn_ids)), pack_varint(entry_id)
        sizes = len(payload), len(txn_id), len(entry)
        before, between, behind = self._around.get(sizes) or self._build(*sizes)
        start = self._pack_before_payload(entry_id, last_add_confirmed, ledger_length, payload)
        return b"".join((before, txn_id, between, entry, behind, start, payload, self._tail))

    def _pack_heads(
        self, first_entry: EntryId, count: int, payload_bytes: int
    ) -> Iterable[bytes] | None:
        entry_bytes = len(pack_varint(first_entry))
        if self._tail or len(pack_varint(first_entry + count - 1)) != entry_bytes:
            return None
        txn_ids = [*islice(self._txn_ids, count)]
        txn_bytes = len(pack_varint(txn_ids[0]))
        counts_on = txn_ids == [*range(txn_ids[0], txn_ids[0] + count)]
        if not counts_on or len(pack_varint(txn_ids[-1])) != txn_bytes:
            return None  # Transaction ids that are drawn and not used do no harm.
        sizes = payload_bytes, txn_bytes, entry_bytes
        before, between, behind = self._around.get(sizes) or self._build(*sizes)
        head = b"".join((before, bytes(txn_bytes), between, bytes(entry_bytes), behind))
        size, heads = len(head), bytearray(head * count)
        for at, column in enumerate(pack_varints_on(txn_ids[0], count, txn_bytes), len(before)):
            heads[at::size] = column
        entry_at = len(before) + txn_bytes + len(between)
        for at, column in enumerate(pack_varints_on(first_entry, count, entry_bytes), entry_at):
            heads[at::size] = column
        packed = bytes(heads)
        return [packed[at : at + size] for at in range(0, len(packed), size)]

    def _build(
        self, payload_bytes: int, txn_bytes: int, entry_bytes: int
    ) -> tuple[bytes, bytes, bytes]:
        """Returns the bytes before the transaction id, those between it and the entry id, and those
        between the entry id and the entry.
        """
        body_bytes = self._overhead_bytes + payload_bytes
        behind = self._key + pack_varint(body_bytes)
        own_bytes = len(self._ledger) + entry_bytes + len(behind) + body_bytes + len(self._tail)
        between = b"".join((self._priority, ADD_TAG, pack_varint(own_bytes), self._ledger))
        header_bytes = len(ADD_HEADER) + txn_bytes + len(self._priority)
        before = HEADER_TAG + pack_varint(header_bytes) + ADD_HEADER
        frame_bytes = len(before) + txn_bytes + len(between) - len(self._ledger) + own_bytes
        if len(self._around) >= _SHAPES_MAX:
            self._around.clear()
        around = pack_length(frame_bytes) + before, between, behind
        self._around[payload_bytes, txn_bytes, entry_bytes] = around
        return around


class _Heard:
    """Replies that differ only in their transaction ids and entry ids."""

    __slots__ = ("_entry_ids", "_run", "entry_bytes", "error", "ledger_id")

    def __init__(self, error: Failure, ledger_id: LedgerId, entry_bytes: int) -> None:
        self.error = error
        self.ledger_id = ledger_id
        # The number of bytes that a head leaves for the entry id; -1 if the head is invalid.
        self.entry_bytes = entry_bytes
        self._entry_ids: list[int] = []
        self._run: range | None = None  # All entry ids, if they are consecutive; otherwise None.

    @classmethod
    def of(cls, head: bytes, known: AddReplies | None) -> Self:
        """`known` is an earlier reply with this head, if it was taken as the only one."""
        heard = cls(*_unpack_head(head))
        if known is not None:
            heard._entry_ids.extend(known.entry_ids)
        return heard

    def add(self, entry_ids: Iterable[int]) -> None:
        run = self._run
        if not isinstance(entry_ids, range) or (run is None and self._entry_ids):
            self._loosen().extend(entry_ids)
        elif run is None:
            self._run = entry_ids
        elif run.stop == entry_ids.start:
            self._run = range(run.start, entry_ids.stop)
        else:
            self._loosen().extend(entry_ids)

    def appender(self) -> _Append:
        return self._loosen().append

    def _loosen(self) -> list[int]:
        if self._run is not None:
            self._entry_ids.extend(self._run)
            self._run = None
        return self._entry_ids

    def finish(self) -> AddReplies:
        entry_ids = cast(Sequence[EntryId], self._run or self._entry_ids)
        return AddReplies(self.error, self.ledger_id, entry_ids)


def take_add_replies(buffer: bytes, position: int) -> tuple[list[AddReplies], int]:
    """Returns the replies to adds in the usual form from `position` on that have arrived
    completely, and where they end.
    """
    replies: dict[bytes, _Heard | AddReplies] = {}
    current, high_varint, high_bits = b"", b"", 0
    run_from = position  # A run is looked for again from this position on.
    add_entry_id: _Append | None = None
    while match := _match_reply(buffer, position + LENGTH_BYTES):
        head, entry = match.groups()
        end = match.end()
        if (
            position + LENGTH_BYTES + length_at(buffer, position)[0] != end
            or match.start(1) != position + HEADER_AT + buffer[position + HEADER_SIZE_AT]
        ):
            break
        if entry[1:] != high_varint:
            high_varint = entry[1:]
            high_bits = _unpack_high_bits(high_varint)
        entry_id = entry[0] & 0x7F | high_bits
        size = end - position
        head_at = match.start(1)
        if head != current:
            known = replies.get(head)
            if known is None and not buffer.startswith(head, head_at + size):
                # This handles a ledger with a single reply; the code below is for ledgers with more.
                error, ledger_id, entry_bytes = _unpack_head(head)
                if len(entry) != entry_bytes:
                    break
                replies[head] = AddReplies(error, ledger_id, [EntryId(entry_id)])
                position = end
                continue
            heard = known if isinstance(known, _Heard) else _Heard.of(head, known)
            replies[head], current, add_entry_id = heard, head, None
        if len(entry) != heard.entry_bytes:
            break
        # The head is remembered, too, since it recurs if ledgers alternate.
        if buffer.startswith(head, head_at + size) and buffer.startswith(
            head, head_at + _REPLIES_ALIKE_MIN * size
        ):
            found: Sequence[int] = ()
            if position >= run_from:
                run_from = position + RUN_MIN * size
                found = _take_replies_on(buffer, position, size, head_at, entry_id, len(entry))
                if found:
                    run_from = position + len(found) * size
            if not found:
                found = _take_replies_alike(buffer, position, size, head_at, entry)
            if found:
                heard.add(found)
                position, add_entry_id = position + len(found) * size, None
                continue
        if add_entry_id is None:
            add_entry_id = heard.appender()
        add_entry_id(entry_id)
        position = end
    finished = [each.finish() if isinstance(each, _Heard) else each for each in replies.values()]
    return [each for each in finished if each.entry_ids], position


def _take_replies_alike(
    buffer: bytes, position: int, size: int, head_at: int, entry: bytes
) -> Sequence[int]:
    """Returns the entry ids of the reply at `position` and of the following replies that differ
    from it only in their transaction ids and entry ids. The result is empty if there is a priority
    after the transaction id.
    """
    if not _is_short_varint(buffer[position + TXN_ID_AT : head_at]):
        return ()
    rows = min((len(buffer) - position) // size, _REPLIES_ALIKE_MAX)
    entry_place = size - len(entry)
    places = range(TXN_ID_AT, head_at - position), range(entry_place, size)
    rows = count_alike(buffer, position, size, rows, places)
    return unpack_column(buffer, position + entry_place, size, rows, len(entry))


def _take_replies_on(
    buffer: bytes, position: int, size: int, head_at: int, entry_id: int, entry_bytes: int
) -> range:
    """Does the same as `_take_replies_alike` for replies with consecutive entry ids, which follow a
    chunk of adds. The result is empty if there are too few. The expected bytes of all replies are
    made from the first one and compared at once.
    """
    rows = min((len(buffer) - position) // size, _REPLIES_ALIKE_MAX)
    if rows < RUN_MIN or not _is_short_varint(buffer[position + TXN_ID_AT : head_at]):
        return range(0)
    txn_bytes, entry_place = head_at - position - TXN_ID_AT, size - entry_bytes

    def count_like(rows: int) -> int:
        rows = count_varints_on(buffer, position + entry_place, size, rows, entry_bytes, entry_id)
        txn_columns, rows = varint_columns(buffer, position + TXN_ID_AT, size, rows, txn_bytes)
        end = position + rows * size
        expected = bytearray(buffer[position : position + size] * rows)
        for place, column in enumerate(txn_columns, TXN_ID_AT):
            expected[place::size] = column[:rows]
        for place in range(entry_place, size):
            expected[place::size] = buffer[position + place : end : size]
        return rows if expected == buffer[position:end] else 0

    rows = count_run(count_like, rows)
    return range(entry_id, entry_id + rows) if rows >= RUN_MIN else range(0)


@lru_cache(maxsize=4096)
def _unpack_head(head: bytes) -> tuple[Failure, LedgerId, int]:
    match = _match_reply_head(head)
    assert match is not None
    outer, own_size, inner, ledger_id = match.groups()
    statuses = unpack_varint(outer), unpack_varint(inner)
    error = v3.failure_of(statuses[0]) or v3.failure_of(statuses[1])
    entry_bytes = match.end(2) + own_size[0] - len(head)
    if not all(map(v3.is_status, statuses)):
        entry_bytes = -1
    return error, LedgerId(unpack_varint(ledger_id)), entry_bytes
