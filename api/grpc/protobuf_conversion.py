"""Converts the classes of `logservice/messages.py` to messages of `rollbook.v1`, and back.

One converter is enough for all of them, since a class and its message have fields with the same names. The
message has the name of the class, followed by `Request` if the class is a request. If a field is absent, it has the
default of the class.

    Python                        protobuf
    int, str, bool, bytes, float  the same; integers up to 2^63-1
    LogName, Position             string
    Enum                          enum, by the members' names; UNSPECIFIED means absent
    X | None                      optional X
    tuple[X, ...]                 repeated X
    Mapping, tuple of pairs       map
    a dataclass                   message
    ReadEvent                     message with a oneof; its fields have the names of the classes
    RollbookError                 ErrorDetail (`status.py`)

Message fields that have no counterpart in the Python class (`records` in place of a block) are handled in
`record_framing.py`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from google.protobuf.message import Message

from rollbook.api.grpc.status import detail_of, error_of
from rollbook.logservice.ids import INT64_MAX, CursorName, LogName, parse_cursor_name
from rollbook.logservice.log_config import ConfigValues
from rollbook.logservice.messages import LogJournal, Records
from rollbook.logservice.position_syntax import Position, parse_position
from rollbook.proto.errors import InvalidRequest, RollbookError
from rollbook.proto.v1 import admin_pb2, cluster_pb2, cursor_pb2, log_pb2
from rollbook.proto.wire.varint import pack_varint

Convert = Callable[[Any], Any]

_MODULES: Final = (log_pb2, cursor_pb2, admin_pb2, cluster_pb2)
# Messages that do not have the names of their classes. `ConfigValues` shares its message with `LogConfig`.
_CALLED_OTHERWISE: Final[dict[type, str]] = {ConfigValues: "LogConfig", LogJournal: "Journal"}


def message_of(kind: type) -> type[Message]:
    called = _CALLED_OTHERWISE.get(kind, kind.__name__)
    for name in (f"{called}Request", called):
        for module in _MODULES:
            if found := getattr(module, name, None):
                message: type[Message] = found
                return message
    raise AssertionError(f"no message for {kind}")


def pack(value: Any) -> Any:
    """Converts a request or response to its protobuf message."""
    kind: Any = type(value)
    return _packer(kind)(value)


def unpack(message: Message, kind: Any) -> Any:
    """Converts a message to an object of the class `kind`. Raises `InvalidRequest` if the message is invalid."""
    return _unpacker(kind)(message)


def pack_event(event: Any) -> log_pb2.ReadEvent:
    packed = log_pb2.ReadEvent()
    getattr(packed, _snake(type(event).__name__)).CopyFrom(pack(event))
    return packed


def pack_records(event: Records) -> bytes:
    """Returns the serialized message of `pack_event`. The blocks are copied only once: an event of half a MiB takes
    5 µs, and would take 30 µs with protobuf messages.
    """
    inner: list[bytes] = []
    for block in event.blocks:
        inner += (_BLOCK_TAG, pack_varint(len(block)), block)
    if event.base_offset:  # Zero means absent.
        inner += (_BASE_OFFSET_TAG, pack_varint(event.base_offset))
    if event.next_offset:
        inner += (_NEXT_OFFSET_TAG, pack_varint(event.next_offset))
    return b"".join((_RECORDS_TAG, pack_varint(sum(map(len, inner))), *inner))


def _tag(message: type[Message], field: str, wire_type: int) -> bytes:
    return pack_varint(message.DESCRIPTOR.fields_by_name[field].number << 3 | wire_type)


_NUMBER, _BYTES = 0, 2  # Wire types, which are the low three bits of a tag.
_RECORDS_TAG: Final = _tag(log_pb2.ReadEvent, "records", _BYTES)
_BLOCK_TAG: Final = _tag(log_pb2.Records, "blocks", _BYTES)
_BASE_OFFSET_TAG: Final = _tag(log_pb2.Records, "base_offset", _NUMBER)
_NEXT_OFFSET_TAG: Final = _tag(log_pb2.Records, "next_offset", _NUMBER)


def unpack_event(message: log_pb2.ReadEvent, kinds: Mapping[str, type]) -> Any:
    """Returns None for an event of a newer release."""
    name = message.WhichOneof("event")
    return unpack(getattr(message, name), kinds[name]) if name else None


def event_kinds(union: Any) -> dict[str, type]:
    return {_snake(kind.__name__): kind for kind in get_args(union)}


@cache
def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


# --- One class --------------------------------------------------------------------------------


@cache
def _packer(kind: Any) -> Convert:
    message = message_of(kind)
    hints = get_type_hints(kind)
    plain = [f.name for f in fields(kind) if _to_wire(hints[f.name]) is None]
    others = [(f.name, w) for f in fields(kind) if (w := _to_wire(hints[f.name]))]

    def packed(value: Any) -> Any:
        found = {name: getattr(value, name) for name in plain}
        for name, convert in others:
            if (field := getattr(value, name)) is not None:
                found[name] = convert(field)
        return message(**found)

    return packed


@cache
def _unpacker(kind: Any) -> Convert:
    hints = get_type_hints(kind)
    descriptor = message_of(kind).DESCRIPTOR
    parts = [_part(each, hints[each.name], descriptor) for each in fields(kind)]

    def unpacked(message: Any) -> Any:
        return kind(*[part(message) for part in parts])

    return unpacked


def _part(field: "Field[Any]", hint: Any, descriptor: Any) -> Convert:
    name = field.name
    described = descriptor.fields_by_name[name]
    convert = _from_wire(hint)
    if not described.has_presence and not isinstance(_bare(hint), type(Enum)):

        def value(message: Any) -> Any:
            try:
                return convert(getattr(message, name))
            except InvalidRequest as error:
                raise InvalidRequest(
                    f"{name}: {error.message}", next_step=error.next_step
                ) from None

        return value
    default = field.default
    if field.default_factory is not MISSING:
        default = field.default_factory()
    elif default is MISSING and _is_optional(hint):
        default = None
    is_enum = not described.has_presence

    def present(message: Any) -> Any:
        if getattr(message, name) if is_enum else message.HasField(name):
            try:
                return convert(getattr(message, name))
            except InvalidRequest as error:
                raise InvalidRequest(
                    f"{name}: {error.message}", next_step=error.next_step
                ) from None
        if default is MISSING:
            raise InvalidRequest(f"{name} is missing")
        return default

    return present


# --- One field --------------------------------------------------------------------------------


def _bare(hint: Any) -> Any:
    """Strips `| None` and `NewType` names from a type hint."""
    if get_origin(hint) in (UnionType, Union):
        kinds = [each for each in get_args(hint) if each is not type(None)]
        if len(kinds) == 1:
            return _bare(kinds[0])
    if hint is CursorName:
        return hint
    return _bare(hint.__supertype__) if hasattr(hint, "__supertype__") else hint


def _is_optional(hint: Any) -> bool:
    return type(None) in get_args(hint)


def _to_wire(hint: Any) -> Convert | None:
    """Returns the conversion of values with this type hint; None: values need no conversion."""
    kind = _bare(hint)
    is_optional = _is_optional(hint)
    if kind in (int, str, bool, bytes, float, CursorName):
        return _same if is_optional else None
    if kind in (LogName, Position):
        return str
    if get_origin(kind) is tuple:
        member = get_args(kind)[0]
        return dict if get_origin(member) is tuple else _each(_to_wire(member) or _same)
    if get_origin(kind) in (dict, Mapping):
        return dict
    if kind is RollbookError:
        return detail_of
    if issubclass(kind, Enum):
        return _enum_names(kind).__getitem__
    message_class: Any = kind
    return _packer(message_class)


def _from_wire(hint: Any) -> Convert:
    kind = _bare(hint)
    if kind is int:
        return _checked_int
    if kind in (str, bool, bytes, float):
        return _same
    if kind is CursorName:
        return parse_cursor_name
    if kind is LogName:
        return LogName.parse
    if kind == Position:
        return parse_position
    if get_origin(kind) is tuple:
        member = get_args(kind)[0]
        if get_origin(member) is tuple:
            return lambda value: tuple(sorted(value.items()))
        convert = _from_wire(member)
        return lambda value: tuple([convert(each) for each in value])
    if get_origin(kind) in (dict, Mapping):
        return dict
    if kind is RollbookError:
        return error_of
    if issubclass(kind, Enum):
        return _enum_members(kind)
    message_class: Any = kind
    return _unpacker(message_class)


def _same(value: Any) -> Any:
    return value


def _each(convert: Convert) -> Convert:
    return lambda values: [convert(each) for each in values]


def _checked_int(value: int) -> int:
    if value > INT64_MAX:
        raise InvalidRequest(f"{value} is above 2^63-1")
    return value


def _enum_names(kind: type[Enum]) -> dict[Enum, str]:
    """Protobuf's names for the members of an enum: `AtTail.FOLLOW` is AT_TAIL_FOLLOW."""
    return {member: f"{_snake(kind.__name__).upper()}_{member.name}" for member in kind}


def _enum_members(kind: type[Enum]) -> Convert:
    numbers = _enum_numbers(kind)

    def member(number: int) -> Enum:
        if (found := numbers.get(number)) is None:
            raise InvalidRequest(f"{number} is not one of {', '.join(m.name for m in kind)}")
        return found

    return member


def _enum_numbers(kind: type[Enum]) -> dict[int, Enum]:
    for module in _MODULES:
        if wire := module.DESCRIPTOR.enum_types_by_name.get(kind.__name__):
            names = _enum_names(kind)
            return {wire.values_by_name[names[member]].number: member for member in kind}
    raise AssertionError(f"no enum for {kind}")
