"""Prints the bytes of records and entries, unchanged or as text.

This module imports only the standard library, since most commands of logs load it.
"""

import sys
from typing import Final

_HEX: Final = "hex:"


def print_bytes(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def as_text(value: bytes) -> str:
    """Returns text if possible, otherwise `hex:` and hexadecimal. Text that begins with `hex:` is shown in
    hexadecimal, too.
    """
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return f"{_HEX}{value.hex()}"
    if text.isprintable() and not text.startswith(_HEX):
        return text
    is_clear = text.strip() and not text.startswith(_HEX)
    return repr(text)[1:-1] if is_clear else f"{_HEX}{value.hex()}"
