"""Makes a sample of any message class from its type hints, with all fields or only required ones."""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from rollbook.logservice.core.record_block import pack_block
from rollbook.logservice.ids import CursorName, LogName, Offset
from rollbook.logservice.log_config import ConfigValues, LogConfig, WriterMode
from rollbook.logservice.messages import Append, Seal
from rollbook.logservice.position_syntax import AtOffset, Position
from rollbook.proto.errors import OffsetMismatch, RollbookError
from rollbook.proto.quorum import Quorum

LOG = LogName("ns", "log")
SAID: dict[str, Any] = {
    "quorum": Quorum(5, 3, 2),
    "roll_bytes": 1 << 20,
    "retention_age_s": 60,
    "retention_bytes": 0,
    "writer_mode": WriterMode.EXCLUSIVE,
    "labels": (("a", "b"), ("c", "d")),
    "description": "text",
}


def sample(kind: Any, *, is_full: bool = True) -> Any:
    hints = get_type_hints(kind)
    found = {}
    for each in fields(kind):
        has_default = each.default is not MISSING or each.default_factory is not MISSING
        if is_full or not has_default:
            found[each.name] = _value(hints[each.name], is_full=is_full)
    if kind in (Append, Seal) and "block" in found:
        found["block"] = pack_block([b"x"])
    return kind(**found)


def _value(hint: Any, *, is_full: bool) -> Any:
    if get_origin(hint) in (UnionType, Union) and type(None) in get_args(hint):
        if not is_full:
            return None
        (hint,) = (each for each in get_args(hint) if each is not type(None))
    if hint is CursorName:
        return CursorName("cursor")
    hint = getattr(hint, "__supertype__", hint)
    plain = {int: 7, str: "text", bool: True, bytes: b"bytes", float: 1.5}
    if hint in plain:
        return plain[hint]
    if hint is LogName:
        return LOG
    if hint == Position:
        return AtOffset(Offset(3))
    if hint in (ConfigValues, LogConfig):
        return hint(**SAID if is_full else {})
    if hint is RollbookError:
        return OffsetMismatch("it moved", expected=1, tail=2)
    if get_origin(hint) is tuple:
        return (_value(get_args(hint)[0], is_full=is_full),) if is_full else ()
    if get_origin(hint) is Mapping:
        return {"key": _value(get_args(hint)[1], is_full=is_full)} if is_full else {}
    if issubclass(hint, Enum):
        return list(hint)[-1]
    assert is_dataclass(hint), hint
    return sample(hint, is_full=is_full)
