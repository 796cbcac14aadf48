"""Adds and their replies in version 2, a chunk at a time. Big-endian; a frame's body is

    ADD request    u8 version · u8 operation · u16 flags · 20 bytes key · the entry as stored
    ADD reply      u8 version · u8 operation · u16 0 · i32 code · i64 ledger · i64 entry

The 32 bytes of a request up to and including the entry's ledger id do not change while one writer
writes one ledger, nor do the 20 bytes of a reply before the entry id: they are compared as one.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from typing import Final

from rollbook.proto.ids import EntryId
from rollbook.proto.wire import v2
from rollbook.proto.wire.adds import (
    WRITERS_MAX,
    AddGroup,
    AddPacker,
    AddReplies,
    Adds,
    WriterFields,
)
from rollbook.proto.wire.digest import (
    ENTRY_HEADER_BYTES,
    LEDGER_KEY_BYTES,
    LedgerDigest,
    pack_entry_header,
)
from rollbook.proto.wire.frames import FRAME_BYTES_MAX, LENGTH_BYTES
from rollbook.proto.wire.messages import Failure

_ENTRY_AT: Final = 4 + LEDGER_KEY_BYTES  # In the body of a request.
_BODY_BYTES_MIN: Final = _ENTRY_AT + ENTRY_HEADER_BYTES

_request_at: Final = struct.Struct(">I32sqq").unpack_from  # Length, writer, entry id, LAC.
_REQUEST_BYTES: Final = 52  # What `_request_at` looks at.
_pack_request_head: Final = struct.Struct(">II20s").pack
_WRITER: Final = struct.Struct(">I20sq")

_REPLY: Final = struct.Struct(">20sq")
_REPLY_HEAD: Final = struct.Struct(">IIiq")
_pack_reply: Final = struct.Struct(">IIiqq").pack  # The same in one go.
_REPLY_BODY_BYTES: Final = _REPLY.size - LENGTH_BYTES


@dataclass(slots=True)
class _AddGroup(AddGroup):
    entry_ids: list[EntryId] = field(default_factory=list)
    lacs: list[EntryId] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    version: int = v2.VERSION

    def pack_replies(self, error: Failure = None) -> bytes:
        header = v2.pack_header(self.version, v2.ADD)
        head = (_REPLY_BODY_BYTES, header, v2.code_of(error), self.ledger_id)
        if len(self.entry_ids) == 1:  # As a rule where a connection has many ledgers.
            return _pack_reply(*head, self.entry_ids[0])
        return b"".join(map(_REPLY.pack, repeat(_REPLY_HEAD.pack(*head)), self.entry_ids))


def take_adds(buffer: bytes, position: int, frame_bytes_max: int) -> tuple[Adds | None, int]:
    """The adds that lie whole at `position`, and where they end.

    Stops at whatever is not plainly an add: other operations, adds to be refused, cut frames.
    """
    groups: dict[bytes, _AddGroup] = {}
    current = b""
    first, size, body_bytes_max = position, len(buffer), frame_bytes_max - LENGTH_BYTES
    while position + _REQUEST_BYTES <= size:
        length, writer, entry_id, lac = _request_at(buffer, position)
        end = position + LENGTH_BYTES + length
        if end > size or not _BODY_BYTES_MIN <= length <= body_bytes_max or entry_id < 0:
            break
        start = position + (LENGTH_BYTES + _ENTRY_AT)
        if writer != current:
            if (group := groups.get(writer)) is None:
                if (known := _unpack_writer(writer)) is None:
                    break
                fields, version = known
                groups[writer] = _AddGroup(*fields, [entry_id], [lac], [start], [end], version)
                position = end
                continue
            current = writer
            add_entry_id, add_lac = group.entry_ids.append, group.lacs.append
            add_start, add_end = group.starts.append, group.ends.append
        add_entry_id(entry_id)
        add_lac(lac)
        add_start(start)
        add_end(end)
        position = end
    if position == first:
        return None, position
    return Adds(buffer, first, position, list(groups.values())), position


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
        header = pack_entry_header(self._ledger_id, entry_id, last_add_confirmed, ledger_length)
        return b"".join((head, header, self._digest(header, payload), payload))

    def _pack_heads(self, first_entry: EntryId, count: int, payload_bytes: int) -> Iterable[bytes]:
        size = self._fixed_bytes + payload_bytes
        return repeat(_pack_request_head(size, self._word, self._ledger_key), count)


def take_add_replies(buffer: bytes, position: int) -> tuple[list[AddReplies], int]:
    """The replies to adds that lie whole at `position`, and where they end."""
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
            add_entry_id = group.entry_ids.append
        add_entry_id(entry_id)
        position += _REPLY.size
    return list(replies.values()), position


def _open_replies(head: bytes) -> AddReplies | None:
    length, word, code, ledger_id = _REPLY_HEAD.unpack(head)
    header = v2.unpack_header(word)
    if length != _REPLY_BODY_BYTES or header.operation != v2.ADD or not header.is_supported:
        return None
    return AddReplies(v2.failure_of(code), ledger_id, [])
