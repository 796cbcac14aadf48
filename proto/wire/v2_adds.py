"""Packs and unpacks adds and their replies in version 2, a chunk at a time; `v2_layout.py` draws them.

While one writer writes one ledger, the 32 bytes of a request up to and including the entry's ledger
id do not change, nor do the 20 bytes of a reply before the entry id. Both are compared as a whole.
Many consecutive adds of one size with consecutive ids are compared, and read, by columns.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from typing import Final, cast

from rollbook.proto.ids import EntryId
from rollbook.proto.wire import v2
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
from rollbook.proto.wire.digest import LedgerDigest
from rollbook.proto.wire.frame_columns import count_int64s_on, count_same, pack_int64s_on
from rollbook.proto.wire.frames import FRAME_BYTES_MAX, LENGTH_BYTES
from rollbook.proto.wire.messages import Failure
from rollbook.proto.wire.v2_layout import (
    ADD,
    ADD_BY_WRITER,
    ADD_BYTES_MIN,
    ADD_ENTRY_AT,
    ADD_ENTRY_ID_AT,
    ADD_HEAD,
    ADD_WRITER,
    HIGH_PRIORITY,
    RECOVERY_ADD,
    REPLY_BY_LEDGER,
    REPLY_FRAME,
    REPLY_HEAD,
    VERSION,
    pack_header,
    unpack_header,
)

_ADD_BODY_BYTES_MIN: Final = ADD_BYTES_MIN - LENGTH_BYTES
_REPLY_BODY_BYTES: Final = REPLY_FRAME.size - LENGTH_BYTES

_request_at: Final = ADD_BY_WRITER.unpack_from
_REQUEST_BYTES: Final = ADD_BY_WRITER.size  # The size of the fields that `_request_at` reads.
_pack_request_head: Final = ADD_HEAD.pack
_pack_reply: Final = REPLY_FRAME.pack


@dataclass(slots=True)
class _V2AddGroup(AddGroup):
    version: int = VERSION

    def add_run(self, run: AddColumns) -> None:
        if not self.entry_ids:
            self.entry_ids, self.lacs, self.starts, self.ends = run
        else:
            for column, more in zip(self.lists(), run, strict=True):
                column.extend(more)

    def lists(self) -> list[list[int]]:
        """Returns the group's columns as lists, which can grow."""
        if not isinstance(self.entry_ids, list):
            self.entry_ids, self.lacs = [*self.entry_ids], [*self.lacs]
            self.starts, self.ends = [*self.starts], [*self.ends]
        return cast(list[list[int]], [self.entry_ids, self.lacs, self.starts, self.ends])

    def pack_replies(self, error: Failure = None) -> bytes:
        entry_ids, header = self.entry_ids, pack_header(self.version, ADD)
        fields = (_REPLY_BODY_BYTES, header, v2.code_of(error), self.ledger_id)
        if len(entry_ids) == 1:  # This is the usual case on a connection with many ledgers.
            return _pack_reply(*fields, entry_ids[0])
        head = REPLY_HEAD.pack(*fields)
        if not isinstance(entry_ids, range):
            return b"".join(map(REPLY_BY_LEDGER.pack, repeat(head), entry_ids))
        replies = bytearray(head.ljust(REPLY_BY_LEDGER.size) * len(entry_ids))
        for at, column in enumerate(pack_int64s_on(entry_ids[0], len(entry_ids)), len(head)):
            replies[at :: REPLY_BY_LEDGER.size] = column
        return bytes(replies)


def take_adds(buffer: bytes, position: int, frame_bytes_max: int) -> tuple[Adds | None, int]:
    """Returns the adds from `position` on that have arrived completely, and where they end.

    Stops at everything that is no plain add: other operations, adds to be refused, incomplete frames.
    """
    groups: dict[bytes, _V2AddGroup] = {}
    current, has_lists = b"", False
    run_from = position  # A run is looked for again from this position on.
    first, size, body_bytes_max = position, len(buffer), frame_bytes_max - LENGTH_BYTES
    while position + _REQUEST_BYTES <= size:
        length, writer, entry_id, lac = _request_at(buffer, position)
        end = position + LENGTH_BYTES + length
        if end > size or not _ADD_BODY_BYTES_MIN <= length <= body_bytes_max or entry_id < 0:
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
        start = position + ADD_ENTRY_AT
        if not has_lists:
            if not group.entry_ids:  # If there are many writers, most groups have only one entry.
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
    """Returns the columns of the add at `position` and of the following adds, as far as they have
    consecutive ids and differ only in their payloads, or None if there are too few.
    """
    size = end - position
    id_at = position + ADD_ENTRY_ID_AT
    rows = min((len(buffer) - position) // size, RUN_MAX)
    far = RUN_MIN - 1
    if (
        rows <= far
        or _request_at(buffer, position + far * size)[2] != entry_id + far
        or not buffer.startswith(buffer[position:id_at], position + size)
    ):
        return None

    def count_like(rows: int) -> int:
        rows = count_int64s_on(buffer, id_at, size, rows)
        return count_same(buffer, position, size, rows, range(ADD_ENTRY_ID_AT))

    rows = count_run(count_like, rows)
    if rows < RUN_MIN:
        return None
    return run_at(buffer, position + ADD_ENTRY_AT, end, size, rows, entry_id)


def _open_group(writer: bytes) -> _V2AddGroup | None:
    if (known := _unpack_writer(writer)) is None:
        return None
    fields, version = known
    return _V2AddGroup(*fields, version=version)


@lru_cache(WRITERS_MAX)
def _unpack_writer(writer: bytes) -> tuple[WriterFields, int] | None:
    """Returns a group's fields before its columns, and its version, or None if the frame is no add."""
    word, key, ledger_id = ADD_WRITER.unpack(writer)
    header = unpack_header(word)
    if header.operation != ADD or not header.is_supported or ledger_id < 0:
        return None
    is_recovery = bool(header.flags & RECOVERY_ADD)
    is_high_priority = bool(header.flags & HIGH_PRIORITY)
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
        flags = RECOVERY_ADD * is_recovery | HIGH_PRIORITY * is_high_priority
        self._word = pack_header(VERSION, ADD, flags)
        self._ledger_key = ledger_key
        self._fixed_bytes = ADD_HEAD.size - LENGTH_BYTES + digest.overhead_bytes

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
    """Returns the replies to adds from `position` on that have arrived completely, and where they end."""
    replies: dict[bytes, AddReplies] = {}
    current = b""
    view = memoryview(buffer)[position:]
    for head, entry_id in REPLY_BY_LEDGER.iter_unpack(
        view[: len(view) - len(view) % REPLY_BY_LEDGER.size]
    ):
        if head != current:
            group = replies.get(head) or _open_replies(head)
            if group is None:
                break
            replies[head] = group
            current = head
            add_entry_id = cast(list[EntryId], group.entry_ids).append
        add_entry_id(entry_id)
        position += REPLY_BY_LEDGER.size
    return list(replies.values()), position


def _open_replies(head: bytes) -> AddReplies | None:
    length, word, code, ledger_id = REPLY_HEAD.unpack(head)
    header = unpack_header(word)
    if length != _REPLY_BODY_BYTES or header.operation != ADD or not header.is_supported:
        return None
    return AddReplies(v2.failure_of(code), ledger_id, [])
