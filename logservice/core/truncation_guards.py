"""Guards: the protected cursors of a log. No truncation passes a guard.

All guards of a log are in one node, together with the floor, below which no guard is made.

    move a guard   changes the cursor and the guards, in one step; refused below the floor
    truncate       changes the ledger list and the guards, in one step; the floor rises to the new head

Both change the one node of the guards, and only if it still has the version that was read. So the second of
two changes sees the first (LL6): no truncation passes a guard, and no guard is made on truncated records.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Self

from rollbook.logservice.core.log_node_format import FORMAT_VERSION, check_version
from rollbook.logservice.ids import (
    FIRST_OFFSET,
    CursorName,
    Offset,
    parse_cursor_name,
    parse_offset,
)
from rollbook.logservice.schema import log_node_pb2 as schema
from rollbook.proto.errors import (
    BadMetadata,
    Guarded,
    Invalid,
    InvalidRequest,
    Truncated,
)
from rollbook.proto.formats.checked_protobuf import as_text, pack_binary, unpack_binary

GUARDS_MAX: Final = 1000
_NAMES_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class TruncationGuards:
    floor: Offset = FIRST_OFFSET
    offsets: tuple[tuple[CursorName, Offset], ...] = ()  # Sorted by name.

    def with_guard(self, name: CursorName, offset: Offset) -> Self:
        """The guards with this guard added or moved. Raises `Truncated` for an offset below the floor,
        `InvalidRequest` if there would be too many guards.
        """
        if offset < self.floor:
            raise Truncated(
                "the records there are truncated, so a mark cannot protect them",
                offset=offset,
                head=self.floor,
            )
        guards = dict(self.offsets)
        guards[name] = offset
        if len(guards) > GUARDS_MAX:
            raise InvalidRequest(f"a log has at most {GUARDS_MAX} marks")
        return self._with(guards)

    def without_guard(self, name: CursorName) -> Self:
        guards = dict(self.offsets)
        guards.pop(name, None)
        return self._with(guards)

    def with_floor(self, head: Offset) -> Self:
        """The guards with the floor raised to `head`; a higher floor stays. Raises `Guarded` if a guard is
        below `head`.
        """
        if names := self.below(head):
            raise Guarded(
                marks=tuple(str(name) for name in names[:_NAMES_MAX]),
                before=head,
                lowest=min(offset for _, offset in self.offsets),
                next_step="move or delete these marks first, or truncate to the lowest of them",
            )
        return replace(self, floor=max(self.floor, head))

    def below(self, head: Offset) -> tuple[CursorName, ...]:
        return tuple(name for name, offset in self.offsets if offset < head)

    @property
    def lowest(self) -> Offset | None:
        return min((offset for _, offset in self.offsets), default=None)

    def _with(self, guards: Mapping[CursorName, Offset]) -> Self:
        return replace(self, offsets=tuple(sorted(guards.items())))


def pack_guards(guards: TruncationGuards, token: bytes) -> bytes:
    return pack_binary(
        schema.MarksNode(
            format_version=FORMAT_VERSION,
            token=token,
            floor=guards.floor,
            marks=[schema.Mark(name=name, offset=offset) for name, offset in guards.offsets],
        )
    )


def unpack_guards(data: bytes) -> tuple[TruncationGuards, bytes]:
    """The guards, and the token of the write that stored them. Raises `BadMetadata`, `UnsupportedVersion`."""
    message = unpack_binary(schema.MarksNode, data)
    check_version(message.format_version)
    try:
        offsets = {
            parse_cursor_name(as_text(mark.name)): parse_offset(mark.offset)
            for mark in message.marks
        }
        guards = TruncationGuards(parse_offset(message.floor), tuple(sorted(offsets.items())))
    except Invalid as error:
        raise BadMetadata(error.message) from None
    if len(offsets) != len(message.marks) or guards.below(guards.floor):
        raise BadMetadata("the marks of a log contradict each other")
    return guards, message.token
