"""Formats the values of records as readable text."""

import json
from enum import StrEnum
from typing import Final

VALUE_BYTES_SHOWN: Final = 1000


class Form(StrEnum):
    TEXT = "text"
    JSON = "json"
    HEX = "hex"


def value_in(form: Form, value: bytes, size: int) -> str:
    """`value`: the part that is shown. `size`: the size of the whole value. A value that cannot be
    shown in this form is shown as text, or as hex if it is not text.
    """
    rest = f"… ({size:,} bytes)" if size > len(value) else ""
    if form is Form.HEX:
        return value.hex(" ") + rest
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        is_cut = bool(rest) and error.start >= len(value) - 3  # The cut is within a character.
        if not is_cut:
            return value.hex(" ") + rest
        text = value[: error.start].decode()
    if form is Form.JSON and not rest:
        try:
            return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            return text
    return text + rest
