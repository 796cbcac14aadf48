"""Bytes as people can read them: values of records, and nodes of the metadata without their secrets (DB4)."""

import json
import re
from enum import StrEnum
from typing import Any, Final

VALUE_BYTES_SHOWN: Final = 1000
HIDDEN: Final = "(hidden)"
_SECRET: Final = re.compile("passw|secret|token|credential|private|hmac", re.IGNORECASE)
_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_LEDGER_HEAD: Final = b"BookieMetadataFormatVersion"


class Form(StrEnum):
    TEXT = "text"
    JSON = "json"
    HEX = "hex"


def value_in(form: Form, value: bytes, size: int) -> str:
    """`value`: as much of it as is shown; `size`: of all of it. What is not of that form is shown as text, or else
    as hex.
    """
    rest = f"… ({size:,} bytes)" if size > len(value) else ""
    if form is Form.HEX:
        return value.hex(" ") + rest
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        is_cut = bool(rest) and error.start >= len(value) - 3  # Within a character.
        if not is_cut:
            return value.hex(" ") + rest
        text = value[: error.start].decode()
    if form is Form.JSON and not rest:
        try:
            return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            return text
    return text + rest


def node_text(value: bytes) -> str:
    """Of a node of the metadata. Only text is shown: a password may be anywhere in other bytes."""
    if not value:
        return "(empty)"
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return f"({len(value):,} bytes that are not text)"
    if value.startswith(_LEDGER_HEAD) or _CONTROL.search(text):
        return f"({len(value):,} bytes that are not text)"
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return "\n".join(map(_masked_line, text.splitlines()))
    if isinstance(found, dict | list | str):
        return json.dumps(_masked(found), indent=2, ensure_ascii=False)
    return text


def _masked(found: Any) -> Any:
    if isinstance(found, dict):
        return {
            name: HIDDEN if _SECRET.search(name) else _masked(value)
            for name, value in found.items()
        }
    if isinstance(found, str):
        return "\n".join(map(_masked_line, found.splitlines()))
    return [_masked(each) for each in found] if isinstance(found, list) else found


def _masked_line(line: str) -> str:
    found = _SECRET.search(line)
    return f"{line[: found.end()]} {HIDDEN}" if found else line
