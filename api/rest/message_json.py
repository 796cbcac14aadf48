"""Converts messages of the log service to JSON and back, and generates their JSON schemas.

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
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from rollbook.logservice.ids import (
    INT64_MAX,
    CursorName,
    LogName,
    Position,
    parse_cursor_name,
    parse_position,
)
from rollbook.logservice.messages import LogJournal
from rollbook.proto.errors import InvalidRequest

Convert = Callable[[Any], Any]
Json = dict[str, Any]

# Published names of messages, where they differ from their classes' names.
_TITLES: Final[dict[type, str]] = {LogJournal: "Journal"}
_NAME_SCHEMA: Final[Json] = {"type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,254}$"}
_POSITION_SCHEMA: Final[Json] = {
    "description": "123, -10, earliest, latest, ts:2026-01-31T10:00:00Z, ago:15m or cursor:NAME",
    "type": ["string", "integer"],
}


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
    return {_key(each, hints[each.name]): each.name for each in fields(kind)}


# --- To JSON ----------------------------------------------------------------------------------


@cache
def _writer(kind: Any) -> Convert:
    hints = get_type_hints(kind)
    parts = [
        (_key(each, hints[each.name]), each.name, _to(hints[each.name])) for each in fields(kind)
    ]

    def write(value: Any) -> Json:
        found = {}
        for key, name, convert in parts:
            field = getattr(value, name)
            found[key] = field if convert is None or field is None else convert(field)
        return found

    return write


def _key(field: "Field[Any]", hint: Any) -> str:
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
        (_key(each, hints[each.name]), each, _from(hints[each.name]), _is_optional(each, hints))
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
            elif not _has_default(field):
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


def _has_default(field: "Field[Any]") -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


# --- Schemas ----------------------------------------------------------------------------------


def schema_of(kind: Any, *, without: tuple[str, ...] = (), is_said: bool = False) -> Json:
    """A message's JSON schema. `is_said`: clients send the message, and may leave out only fields with a default."""
    hints = get_type_hints(kind)
    kept = [each for each in fields(kind) if each.name not in without]
    found: Json = {
        "type": "object",
        "title": _TITLES.get(kind, kind.__name__),
        "properties": {_key(f, hints[f.name]): _schema(hints[f.name], is_said) for f in kept},
        "required": [_key(f, hints[f.name]) for f in kept if not (is_said and _has_default(f))],
    }
    if text := _first_line(kind):
        found["description"] = text
    if is_said:
        found["additionalProperties"] = False
    return found


def _first_line(kind: Any) -> str:
    text = (kind.__doc__ or "").partition("\n")[0]
    return "" if text.startswith(f"{kind.__name__}(") else text


def _schema(hint: Any, is_said: bool) -> Json:
    found = _schema_of_kind(bare(hint), is_said)
    if type(None) not in get_args(hint):
        return found
    return {"anyOf": [found, {"type": "null"}]}


def _schema_of_kind(kind: Any, is_said: bool) -> Json:
    plain: dict[Any, Json] = {
        int: {"type": "integer", "format": "int64"},
        str: {"type": "string"},
        bool: {"type": "boolean"},
        float: {"type": "number"},
        bytes: {"type": "string", "contentEncoding": "base64"},
        CursorName: _NAME_SCHEMA,
        LogName: {"type": "string"},
        Position: _POSITION_SCHEMA,
    }
    if kind in plain:
        return dict(plain[kind])
    if get_origin(kind) is tuple:
        member = get_args(kind)[0]
        if get_origin(member) is tuple:
            return {"type": "object", "additionalProperties": {"type": "string"}}
        return {"type": "array", "items": _schema(member, is_said)}
    if get_origin(kind) in (dict, Mapping):
        return {"type": "object", "additionalProperties": _schema(get_args(kind)[1], is_said)}
    if issubclass(kind, Enum):
        return {"type": "string", "enum": [each.value for each in kind]}
    assert is_dataclass(kind), kind
    return schema_of(kind, is_said=is_said)


# --- Examples ---------------------------------------------------------------------------------

_EXAMPLES: Final[Json] = {
    "address": "127.0.0.1:7400",
    "before": 1700,
    "etag": "5f0c2d1e",
    "first_offset": 1700,
    "freed_at_us": 1_795_305_600_000_000,
    "head": 0,
    "holder": "orders-service-1",
    "kind": "log_opened",
    "log": "default/orders",
    "name": "billing",
    "next_offset": 1703,
    "next_page": "",
    "offset": 1703,
    "owner": "127.0.0.1:7400",
    "owner_id": "log-1~0badcafe",
    "reason": "it had no owner",
    "server": "log-1~0badcafe",
    "server_id": "log-1~0badcafe",
    "started_us": 1_795_219_200_000_000,
    "tail": 1703,
    "time_us": 1_795_219_200_000_000,
    "timestamp_us": 1_795_219_200_000_000,
    "to": "log-2",
    "updated_us": 1_795_219_200_000_000,
    "version": "0.1.0",
}


def example_of(kind: Any, *, without: tuple[str, ...] = ()) -> Json:
    """An example of a message: typical values for known names, otherwise of the schema's types."""
    hints = get_type_hints(kind)
    found: Json = {}
    for each in fields(kind):
        if each.name not in without:
            key = _key(each, hints[each.name])
            found[key] = _example(each.name, hints[each.name])
    return found


def _example(name: str, hint: Any) -> Any:
    kind = bare(hint)
    if kind in (int, str) and type(_EXAMPLES.get(name)) is kind:
        return _EXAMPLES[name]
    if kind in (LogName, CursorName):
        return _EXAMPLES["log" if kind is LogName else "name"]
    if kind == Position:
        return _EXAMPLES["before"]
    plain: dict[Any, Any] = {int: 1, str: "", bool: False, float: 1.0, bytes: ""}
    if kind in plain:
        return plain[kind]
    if get_origin(kind) is tuple:
        member = get_args(kind)[0]
        return {} if get_origin(member) is tuple else [_example(name.removesuffix("s"), member)]
    if get_origin(kind) in (dict, Mapping):
        return {}
    if issubclass(kind, Enum):
        return next(iter(kind)).value
    return example_of(kind)
