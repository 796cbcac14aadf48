"""Generates JSON schemas and examples of the log service's messages, for OpenAPI. `message_json.py` converts the
messages in the same form.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final, get_args, get_origin, get_type_hints

from rollbook.api.rest.message_json import Json, bare, has_default, json_key
from rollbook.logservice.ids import CursorName, LogName
from rollbook.logservice.messages import LogJournal
from rollbook.logservice.position_syntax import Position

# Published names of messages, where they differ from their classes' names.
_TITLES: Final[dict[type, str]] = {LogJournal: "Journal"}
_NAME_SCHEMA: Final[Json] = {"type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,254}$"}
_POSITION_SCHEMA: Final[Json] = {
    "description": "123, -10, earliest, latest, ts:2026-01-31T10:00:00Z, ago:15m or cursor:NAME",
    "type": ["string", "integer"],
}


def schema_of(kind: Any, *, without: tuple[str, ...] = (), is_request: bool = False) -> Json:
    """A message's JSON schema. `is_request`: clients send the message, and may leave out only fields with a default."""
    hints = get_type_hints(kind)
    kept = [each for each in fields(kind) if each.name not in without]
    found: Json = {
        "type": "object",
        "title": _TITLES.get(kind, kind.__name__),
        "properties": {
            json_key(f, hints[f.name]): _schema(hints[f.name], is_request) for f in kept
        },
        "required": [
            json_key(f, hints[f.name]) for f in kept if not (is_request and has_default(f))
        ],
    }
    if text := _first_line(kind):
        found["description"] = text
    if is_request:
        found["additionalProperties"] = False
    return found


def _first_line(kind: Any) -> str:
    text = (kind.__doc__ or "").partition("\n")[0]
    return "" if text.startswith(f"{kind.__name__}(") else text


def _schema(hint: Any, is_request: bool) -> Json:
    found = _schema_of_kind(bare(hint), is_request)
    if type(None) not in get_args(hint):
        return found
    return {"anyOf": [found, {"type": "null"}]}


def _schema_of_kind(kind: Any, is_request: bool) -> Json:
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
        return {"type": "array", "items": _schema(member, is_request)}
    if get_origin(kind) in (dict, Mapping):
        return {"type": "object", "additionalProperties": _schema(get_args(kind)[1], is_request)}
    if issubclass(kind, Enum):
        return {"type": "string", "enum": [each.value for each in kind]}
    assert is_dataclass(kind), kind
    return schema_of(kind, is_request=is_request)


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
            key = json_key(each, hints[each.name])
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
