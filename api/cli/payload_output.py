"""Formats and prints the bytes of records and entries: unchanged, framed, as text or for JSON.

len32    (u32 length, big-endian · payload)*

This module imports only the standard library, since most commands of logs load it.
"""

import base64
import struct
import sys
from collections.abc import Iterable
from typing import Final

LENGTH: Final = struct.Struct(">I")
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


def framed(payloads: Iterable[bytes], frame: str) -> bytes:
    match frame:
        case "lf":
            return b"".join(payload + b"\n" for payload in payloads)
        case "nul":
            return b"".join(payload + b"\0" for payload in payloads)
        case "len32":
            return b"".join(LENGTH.pack(len(payload)) + payload for payload in payloads)
    return b"".join(payloads)


def as_json(name: str, value: bytes) -> dict[str, str]:
    """Returns the value as text if possible, otherwise in base64 under another name."""
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}
