"""Converts messages of the log service to JSON and back. `message_schema.py` has their schemas.

    Python                        JSON
    int, str, bool, float         the same; integers up to 2^63-1
    bytes                         base64, in a field whose name ends in `_b64`
    LogName, Position             string; a position may be a number, too
    Enum                          its value
    X | None                      null
    tuple[X, ...]                 array
    Mapping, tuple of pairs       object
    a dataclass                   object, with its field names

A client's input is checked field by field: a missing field, an unknown field or one of the wrong type
is reported with its name. The message's class checks further limits of its values.
"""

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from rollbook.logservice.ids import INT64_MAX, CursorName, LogName, parse_cursor_name
from rollbook.logservice.position_syntax import Position, parse_position
from rollbook.proto.errors import InvalidRequest

Convert = Callable[[Any], Any]
Json = dict[str, Any]


def to_json(value: Any) -> Json:
    kind: Any = type(value)
    found: Json = _writer(kind)(value)
    return found


def from_json(data: Any, kind: Any, **given: Any) -> Any:
    """Parses a request. `given`: the fields that the body must not have. Raises `InvalidRequest`."""
    if not isinstance(data, dict):
        raise InvalidRequest(f"the body has to be an object, not {_kind_of(data)}")
    return _reader(kind, frozenset(given))(data, given)


def field_names(kind: Any) -> dict[str, str]:
    """A request's fields by their JSON names."""
    hints = get_type_hints(kind)
    return {json_key(each, hints[each.name]): each.name for each in fields(kind)}


# --- To JSON ----------------------------------------------------------------------------------


@cache
def _writer(kind: Any) -> Convert:
    hints = get_type_hints(kind)
    parts = [
        (json_key(each, hints[each.name]), each.name, _to(hints[each.name]))
        for each in fields(kind)
    ]

    def write(value: Any) -> Json:
        found = {}
        for key, name, convert in parts:
            field = getattr(value, name)
            found[key] = field if convert is None or field is None else convert(field)
        return found

    return write


def json_key(field: "Field[Any]", hint: Any) -> str:
    return f"{field.name}_b64" if bare(hint) is bytes else field.name


def _to(hint: Any) -> Convert | None:
    """The conversion of values with this type hint; None: no conversion is needed."""
    kind = bare(hint)
    if kind in (int, str, bool, float, CursorName):
        return None
    if kind is bytes:
        return b64
    if kind in (LogName, Position):
        return str
    if get_origin(kind) is tuple:
        member = get_args(kind)[0]
        if get_origin(member) is tuple:
            return dict
        convert = _to(member)
        return list if convert is None else lambda values: [convert(each) for each in values]
    if get_origin(kind) in (dict, Mapping):
        return dict
    if issubclass(kind, Enum):
        return _value_of
    message_class: Any = kind
    return _writer(message_class)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _value_of(member: Enum) -> Any:
    return member.value


# --- From JSON --------------------------------------------------------------------------------


@cache
def _reader(kind: Any, given: frozenset[str]) -> Callable[[Json, Json], Any]:
    hints = get_type_hints(kind)
    parts = [
        (json_key(each, hints[each.name]), each, _from(hints[each.name]), _is_optional(each, hints))
        for each in fields(kind)
        if each.name not in given
    ]
    known = {key for key, *_ in parts}

    def read(data: Json, others: Json) -> Any:
        for key in data:
            if key not in known:
                wanted = ", ".join(sorted(known)) or "nothing"
                raise InvalidRequest(f"unknown field {key[:80]!r}; expected: {wanted}")
        found = dict(others)
        for key, field, convert, is_optional in parts:
            if key in data and data[key] is None and is_optional:
                found[field.name] = None
            elif key in data:
                try:
                    found[field.name] = convert(data[key])
                except InvalidRequest as error:
                    raise InvalidRequest(
                        f"{key}: {error.message}", next_step=error.next_step
                    ) from None
            elif not has_default(field):
                raise InvalidRequest(f"{key} is missing")
        return kind(**found)

    return read


def _from(hint: Any) -> Convert:
    kind = bare(hint)
    if kind is CursorName:
        return lambda value: parse_cursor_name(_checked(value, str))
    if kind is int:
        return _int
    if kind in (str, bool, float):
        return lambda value: _checked(value, kind)
    if kind is bytes:
        return from_b64
    if kind is LogName:
        return lambda value: LogName.parse(_checked(value, str))
    if kind == Position:
        return _position
    if get_origin(kind) is tuple:
        member = get_args(kind)[0]
        if get_origin(member) is tuple:
            return _pairs
        convert = _from(member)
        return lambda values: tuple([convert(each) for each in _checked(values, list)])
    if issubclass(kind, Enum):
        return lambda value: _member(kind, value)
    message_class: Any = kind
    return lambda value: from_json(value, message_class)


def _checked(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise InvalidRequest(f"expected {_JSON_NAMES[kind]}, not {_kind_of(value)}")
    return value


def _int(value: Any) -> int:
    if abs(number := int(_checked(value, int))) > INT64_MAX:
        raise InvalidRequest("a number must be from -(2^63 - 1) to 2^63 - 1")
    return number


def _position(value: Any) -> Any:
    return parse_position(str(value) if type(value) is int else _checked(value, str))


def _pairs(value: Any) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key, _checked(each, str)) for key, each in _checked(value, dict).items()))


def from_b64(value: Any) -> bytes:
    try:
        return base64.b64decode(_checked(value, str), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("it is not base64") from None


def _member(kind: type[Enum], value: Any) -> Enum:
    for member in kind:
        if member.value == value:
            return member
    raise InvalidRequest(f"{value!r:.80} is not one of {', '.join(each.value for each in kind)}")


_JSON_NAMES: Final = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    list: "an array",
    dict: "an object",
    type(None): "null",
}


def _kind_of(value: Any) -> str:
    return _JSON_NAMES[type(value)]


# --- Types ------------------------------------------------------------------------------------


def bare(hint: Any) -> Any:
    """Strips `| None` and `NewType` names from a type hint."""
    if get_origin(hint) in (UnionType, Union):
        kinds = [each for each in get_args(hint) if each is not type(None)]
        if len(kinds) == 1:
            return bare(kinds[0])
    if hint is CursorName:
        return hint
    return bare(hint.__supertype__) if hasattr(hint, "__supertype__") else hint


def _is_optional(field: "Field[Any]", hints: Mapping[str, Any]) -> bool:
    return type(None) in get_args(hints[field.name])


def has_default(field: "Field[Any]") -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING
