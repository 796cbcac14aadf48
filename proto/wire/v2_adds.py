"""Adds and their replies in version 2, a chunk at a time. Big-endian; a frame's body is

    ADD request    u8 version · u8 operation · u16 flags · 20 bytes key · the entry as stored
    ADD reply      u8 version · u8 operation · u16 0 · i32 code · i64 ledger · i64 entry

The 32 bytes of a request up to and including the entry's ledger id do not change while one writer
writes one ledger, nor do the 20 bytes of a reply before the entry id: they are compared as one.
Many consecutive adds of one size with consecutive ids are compared, and read, by columns.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from typing import Final, cast

from rollbook.proto.ids import EntryId
from rollbook.proto.wire import v2
from rollbook.proto.wire.adds import (
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
    LEDGER_KEY_BYTES,
    LedgerDigest,
)
from rollbook.proto.wire.frame_columns import count_int64s_on, count_same, pack_int64s_on
from rollbook.proto.wire.frames import FRAME_BYTES_MAX, LENGTH_BYTES
from rollbook.proto.wire.messages import Failure

_ENTRY_AT: Final = 4 + LEDGER_KEY_BYTES  # The position of the entry in the body of a request.
_BODY_BYTES_MIN: Final = _ENTRY_AT + ENTRY_HEADER_BYTES
# The position of the entry id in a frame: the bytes before it are equal in all frames of a writer.
_ENTRY_ID_AT: Final = 36

_request_at: Final = struct.Struct(">I32sqq").unpack_from  # Length, writer, entry id, LAC.
_REQUEST_BYTES: Final = 52  # The fields that `_request_at` reads.
_entry_id_at: Final = struct.Struct(">q").unpack_from
_pack_request_head: Final = struct.Struct(">II20s").pack
_WRITER: Final = struct.Struct(">I20sq")

_REPLY: Final = struct.Struct(">20sq")
_REPLY_HEAD: Final = struct.Struct(">IIiq")
_pack_reply: Final = struct.Struct(">IIiqq").pack  # The same in one go.
_REPLY_BODY_BYTES: Final = _REPLY.size - LENGTH_BYTES


@dataclass(slots=True)
class _V2AddGroup(AddGroup):
    version: int = v2.VERSION

    def add_run(self, run: AddColumns) -> None:
        if not self.entry_ids:
            self.entry_ids, self.lacs, self.starts, self.ends = run
        else:
            for column, more in zip(self.lists(), run, strict=True):
                column.extend(more)

    def lists(self) -> list[list[int]]:
        """Its columns, to be added to."""
        if not isinstance(self.entry_ids, list):
            self.entry_ids, self.lacs = [*self.entry_ids], [*self.lacs]
            self.starts, self.ends = [*self.starts], [*self.ends]
        return cast(list[list[int]], [self.entry_ids, self.lacs, self.starts, self.ends])

    def pack_replies(self, error: Failure = None) -> bytes:
        entry_ids, header = self.entry_ids, v2.pack_header(self.version, v2.ADD)
        fields = (_REPLY_BODY_BYTES, header, v2.code_of(error), self.ledger_id)
        if len(entry_ids) == 1:  # The usual case for a connection with many ledgers.
            return _pack_reply(*fields, entry_ids[0])
        head = _REPLY_HEAD.pack(*fields)
        if not isinstance(entry_ids, range):
            return b"".join(map(_REPLY.pack, repeat(head), entry_ids))
        replies = bytearray(head.ljust(_REPLY.size) * len(entry_ids))
        for at, column in enumerate(pack_int64s_on(entry_ids[0], len(entry_ids)), len(head)):
            replies[at :: _REPLY.size] = column
        return bytes(replies)


def take_adds(buffer: bytes, position: int, frame_bytes_max: int) -> tuple[Adds | None, int]:
    """The adds that are whole at `position`, and where they end.

    Stops at whatever is not plainly an add: other operations, adds to be refused, cut frames.
    """
    groups: dict[bytes, _V2AddGroup] = {}
    current, has_lists = b"", False
    run_from = position  # A run may begin here.
    first, size, body_bytes_max = position, len(buffer), frame_bytes_max - LENGTH_BYTES
    while position + _REQUEST_BYTES <= size:
        length, writer, entry_id, lac = _request_at(buffer, position)
        end = position + LENGTH_BYTES + length
        if end > size or not _BODY_BYTES_MIN <= length <= body_bytes_max or entry_id < 0:
            break
        if writer != current:
            opened = groups.get(writer) or _open_group(writer)
            if opened is None:
                break
            groups[writer] = group = opened
            current, has_lists = writer, False
        if position >= run_from:
            run_from = position + RUN_MIN * (end - position)
            if run := _take_run(buffer, position, end, entry_id):
                group.add_run(run)
                has_lists = False
                position = run_from = run.ends[-1]
                continue
        start = position + (LENGTH_BYTES + _ENTRY_AT)
        if not has_lists:
            if not group.entry_ids:  # Usually all that it gets, if there are many writers.
                group.entry_ids, group.lacs = [entry_id], [lac]
                group.starts, group.ends = [start], [end]
                position = end
                continue
            add_entry_id, add_lac, add_start, add_end = [each.append for each in group.lists()]
            has_lists = True
        add_entry_id(entry_id)
        add_lac(lac)
        add_start(start)
        add_end(end)
        position = end
    if position == first:
        return None, position
    return Adds(buffer, first, position, list(groups.values())), position


def _take_run(buffer: bytes, position: int, end: int, entry_id: EntryId) -> AddColumns | None:
    """The add at `position` and the following ones that are like it, except for payloads, with
    consecutive ids; None if these are too few.
    """
    size = end - position
    id_at = position + _ENTRY_ID_AT
    rows = min((len(buffer) - position) // size, RUN_MAX)
    far = RUN_MIN - 1
    if (
        rows <= far
        or _entry_id_at(buffer, id_at + far * size)[0] != entry_id + far
        or not buffer.startswith(buffer[position:id_at], position + size)
    ):
        return None

    def count_like(rows: int) -> int:
        rows = count_int64s_on(buffer, id_at, size, rows)
        return count_same(buffer, position, size, rows, range(_ENTRY_ID_AT))

    rows = count_run(count_like, rows)
    if rows < RUN_MIN:
        return None
    return run_at(buffer, position + LENGTH_BYTES + _ENTRY_AT, end, size, rows, entry_id)


def _open_group(writer: bytes) -> _V2AddGroup | None:
    if (known := _unpack_writer(writer)) is None:
        return None
    fields, version = known
    return _V2AddGroup(*fields, version=version)


@lru_cache(WRITERS_MAX)
def _unpack_writer(writer: bytes) -> tuple[WriterFields, int] | None:
    """A group's fields before its columns, and its version; None if that is no add."""
    word, key, ledger_id = _WRITER.unpack(writer)
    header = v2.unpack_header(word)
    if header.operation != v2.ADD or not header.is_supported or ledger_id < 0:
        return None
    is_recovery = bool(header.flags & v2.RECOVERY_ADD)
    is_high_priority = bool(header.flags & v2.HIGH_PRIORITY)
    return (ledger_id, key, is_recovery, is_high_priority, False), header.version


# --- A client's side --------------------------------------------------------------------------


class V2AddPacker(AddPacker):
    def __init__(
        self,
        ledger_key: bytes,
        digest: LedgerDigest,
        *,
        is_recovery: bool = False,
        is_high_priority: bool = False,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        super().__init__(ledger_key, digest, frame_bytes_max)
        flags = v2.RECOVERY_ADD * is_recovery | v2.HIGH_PRIORITY * is_high_priority
        self._word = v2.pack_header(v2.VERSION, v2.ADD, flags)
        self._ledger_key = ledger_key
        self._fixed_bytes = _ENTRY_AT + digest.overhead_bytes

    def pack(
        self,
        entry_id: EntryId,
        last_add_confirmed: EntryId,
        ledger_length: int,
        payload: bytes,
    ) -> bytes:
        if len(payload) > self.payload_bytes_max:
            raise self._too_large(payload)
        head = _pack_request_head(self._fixed_bytes + len(payload), self._word, self._ledger_key)
        before = self._pack_before_payload(entry_id, last_add_confirmed, ledger_length, payload)
        return b"".join((head, before, payload))

    def _pack_heads(self, first_entry: EntryId, count: int, payload_bytes: int) -> Iterable[bytes]:
        size = self._fixed_bytes + payload_bytes
        return repeat(_pack_request_head(size, self._word, self._ledger_key), count)


def take_add_replies(buffer: bytes, position: int) -> tuple[list[AddReplies], int]:
    """The replies to adds that are whole at `position`, and where they end."""
    replies: dict[bytes, AddReplies] = {}
    current = b""
    view = memoryview(buffer)[position:]
    for head, entry_id in _REPLY.iter_unpack(view[: len(view) - len(view) % _REPLY.size]):
        if head != current:
            group = replies.get(head) or _open_replies(head)
            if group is None:
                break
            replies[head] = group
            current = head
            add_entry_id = cast(list[EntryId], group.entry_ids).append
        add_entry_id(entry_id)
        position += _REPLY.size
    return list(replies.values()), position


def _open_replies(head: bytes) -> AddReplies | None:
    length, word, code, ledger_id = _REPLY_HEAD.unpack(head)
    header = v2.unpack_header(word)
    if length != _REPLY_BODY_BYTES or header.operation != v2.ADD or not header.is_supported:
        return None
    return AddReplies(v2.failure_of(code), ledger_id, [])
