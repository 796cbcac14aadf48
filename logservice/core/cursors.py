"""Cursors: named offsets in a log, with some bytes that their user chooses. Each cursor has a node.

A protected cursor is also a guard, which holds truncation back (`truncation_guards.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Self

from rollbook.logservice.core.log_node_format import FORMAT_VERSION, check_version
from rollbook.logservice.ids import (
    CursorName,
    Offset,
    parse_offset,
)
from rollbook.logservice.messages import NO_CURSOR, CommitCursor, Cursor
from rollbook.logservice.schema import log_node_pb2 as schema
from rollbook.proto.errors import (
    BadMetadata,
    CursorAhead,
    InvalidRequest,
    MetadataConflict,
)
from rollbook.proto.formats.checked_protobuf import as_text, pack_binary, unpack_binary

BLOB_BYTES_MAX: Final = 4096
CURSOR_VERSION_BITS: Final = 53  # At most 53 bits: many JSON parsers read numbers as doubles.
CURSORS_MAX: Final = 10_000  # The most cursors that a log may have.
CURSORS_OF_PRINCIPAL_MAX: Final = 1_000  # The most cursors that a principal may have in one log.
# The most cursors that a principal may have in all logs: they take up to 215 MB of the metadata store.
CURSORS_IN_ALL_LOGS_MAX: Final = 50_000
_DELETE_SOME: Final = "delete unused cursors: rollbook cursor ls, rollbook cursor rm"


@dataclass(frozen=True, slots=True)
class CursorCounts:
    """The number of cursors of a log, by the principal that created them (CB1)."""

    # Sorted by name; a principal without cursors is left out.
    by_principal: tuple[tuple[str, int], ...] = ()

    @property
    def total(self) -> int:
        return sum(count for _, count in self.by_principal)

    def recounted(self, total: int) -> Self:
        """The counts, corrected to this total. Earlier releases do not count cursors; the difference is
        counted under an empty name.
        """
        named = {name: count for name, count in self.by_principal if name}
        return self._with({**named, "": max(total - sum(named.values()), 0)})

    def with_one_more(self, principal: str) -> Self:
        """The counts with one more cursor of the principal. Raises `InvalidRequest` beyond the bounds."""
        if self.total >= CURSORS_MAX:
            raise InvalidRequest(f"a log has at most {CURSORS_MAX} cursors", next_step=_DELETE_SOME)
        counts = dict(self.by_principal)
        count = counts.get(principal, 0) + 1
        if principal and count > CURSORS_OF_PRINCIPAL_MAX:
            raise InvalidRequest(
                f"{principal} has {CURSORS_OF_PRINCIPAL_MAX} cursors in this log, and may have no more",
                next_step=_DELETE_SOME,
            )
        return self._with({**counts, principal: count})

    def with_one_less(self, principal: str) -> Self:
        counts = dict(self.by_principal)
        return self._with({**counts, principal: max(counts.get(principal, 0) - 1, 0)})

    def _with(self, counts: Mapping[str, int]) -> Self:
        return replace(self, by_principal=tuple(sorted((n, c) for n, c in counts.items() if c)))


def one_more_in_all_logs(principal: str, total: int) -> int:
    """The principal's new total. `total`: the number of cursors that it has in all logs. Raises `InvalidRequest`
    beyond the bound (CB1).
    """
    if total >= CURSORS_IN_ALL_LOGS_MAX:
        raise InvalidRequest(
            f"{principal} has {CURSORS_IN_ALL_LOGS_MAX} cursors in all logs together, and may have no more",
            next_step=_DELETE_SOME,
        )
    return total + 1


def committed(
    request: CommitCursor,
    found: Cursor | None,
    version: int,
    now_us: int,
    tail: Offset | None,
    uid: str,
) -> Cursor:
    """The cursor after the request.

    `tail` is the log's tail as far as it is known, `uid` is the log's uid. Raises `MetadataConflict` if the cursor has
    another version than the caller expects, `CursorAhead` if the cursor would go back and the request does not allow
    that, `InvalidRequest` if the cursor would be beyond the tail or its blob is too large.
    """
    expected = request.expected_version
    if expected is not None and expected != (NO_CURSOR if found is None else found.version):
        raise MetadataConflict(
            "another client has moved the cursor",
            cursor=request.name,
            expected_version=expected,
            version=NO_CURSOR if found is None else found.version,
        )
    offset = parse_offset(request.offset)
    if found is not None and offset < found.offset and not request.may_rewind:
        raise CursorAhead(
            "the cursor would go back",
            cursor=request.name,
            offset=found.offset,
            wanted=offset,
            next_step="set may_rewind to move the cursor back",
        )
    if tail is not None and offset > tail:
        raise InvalidRequest("the cursor would be beyond the tail", offset=offset, tail=tail)
    blob = request.blob
    if blob is None:
        blob = b"" if found is None else found.blob
    if len(blob) > BLOB_BYTES_MAX:
        raise InvalidRequest(f"a cursor carries at most {BLOB_BYTES_MAX} bytes", got=len(blob))
    is_protected = request.is_protected
    if is_protected is None:
        is_protected = found is not None and found.is_protected
    return Cursor(request.name, offset, version, blob, is_protected, now_us, uid)


def check_expected(found: Cursor, expected_version: int | None) -> None:
    if expected_version is not None and expected_version != found.version:
        raise MetadataConflict(
            "another client has moved the cursor",
            cursor=found.name,
            expected_version=expected_version,
            version=found.version,
        )


# --- Bytes ------------------------------------------------------------------------------------


def pack_cursor(cursor: Cursor, principal: str = "") -> bytes:
    """The bytes of a cursor. `principal`: its creator."""
    return pack_binary(
        schema.CursorNode(
            format_version=FORMAT_VERSION,
            version=cursor.version,
            offset=cursor.offset,
            blob=cursor.blob,
            is_protected=cursor.is_protected,
            changed_us=cursor.updated_us,
            log_uid=bytes.fromhex(cursor.uid),
            principal=principal,
        )
    )


def unpack_cursor(name: CursorName, data: bytes) -> Cursor:
    """The cursor in these bytes. Raises `BadMetadata`, `UnsupportedVersion`."""
    message = unpack_binary(schema.CursorNode, data)
    check_version(message.format_version)
    if min(message.offset, message.version, message.changed_us) < 0:
        raise BadMetadata("a cursor has a negative number")
    return Cursor(
        name,
        Offset(message.offset),
        message.version,
        message.blob,
        message.is_protected,
        message.changed_us,
        message.log_uid.hex(),
    )


def creator_of(data: bytes) -> str:
    """The principal that created the cursor in these bytes. Raises `BadMetadata`."""
    return str(unpack_binary(schema.CursorNode, data).principal)


def pack_counts(counts: CursorCounts, token: bytes) -> bytes:
    return pack_binary(
        schema.CursorCounts(
            format_version=FORMAT_VERSION,
            token=token,
            counts=[
                schema.CursorCount(principal=name, cursors=count)
                for name, count in counts.by_principal
            ],
        )
    )


def unpack_counts(data: bytes) -> CursorCounts:
    """The counts in these bytes. Raises `BadMetadata`, `UnsupportedVersion`."""
    message = unpack_binary(schema.CursorCounts, data)
    check_version(message.format_version)
    pairs = ((as_text(each.principal), each.cursors) for each in message.counts)
    return CursorCounts(tuple(sorted(pairs)))
