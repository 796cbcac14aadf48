r"""Formats records as the user specifies: `rollbook log read orders -f '%o %t %k=%v\n'`.

    %o  offset                        %k  key, empty if there is none      %v  value
    %t  time, in the form of `ts:`    %h  headers, as `name=value,…`       %s  size of the value in bytes
    %T  time, in microseconds         %h{NAME}  this header, empty if there is none
    %e  the producer's event time, in microseconds, empty if there is none     %%  a percent sign

    %k{hex}  %k{base64}  %v{hex}  %v{base64}      for bytes that are not text
    \n  \t  \r  \0  \\                            nothing else is printed after a record

Bytes of records and of the format are written unchanged. On a terminal, however, a record's control characters
are shown in a form such as `\x1b`, so that the writer of a record cannot control the terminal.
"""

import base64
import os
import re
from collections.abc import Callable
from typing import Final

from rollbook.logservice.core.record_block import Record
from rollbook.logservice.position_syntax import AtTime
from rollbook.proto.errors import InvalidRequest
from rollbook.proto.printable import harmless

Write = Callable[[Record], bytes]

_PART: Final = re.compile(
    r"(?P<percent>%%)|%(?P<field>.)(?:\{(?P<how>[^}]*)\}|(?!\{))|\\(?P<escape>.)|(?P<plain>[^%\\]+)",
    re.DOTALL,
)
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_AS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "hex": lambda value: value.hex().encode(),
    "base64": base64.b64encode,
}


def compile_format(text: str, *, on_terminal: bool = False) -> Write:
    """Compiles a format into a function that writes a record. Raises `InvalidRequest`."""
    parts: list[Write] = []
    end = 0
    while end < len(text):
        found = _PART.match(text, end)
        if found is None:
            raise _wrong(f"{text[end:]!r} at the end is incomplete")
        parts.append(_part(found, on_terminal))
        end = found.end()
    return lambda record: b"".join([part(record) for part in parts])


def _part(found: "re.Match[str]", on_terminal: bool) -> Write:
    if found["percent"]:
        return _always(b"%")
    if (plain := found["plain"]) is not None:
        return _always(os.fsencode(plain))
    if (escape := found["escape"]) is not None:
        if escape not in _ESCAPES:
            raise _wrong(f"unknown escape \\{escape}")
        return _always(_ESCAPES[escape])
    field, how = found["field"], found["how"]
    if field == "h" and how is not None:
        write = _header(how)
    elif field not in _FIELDS:
        raise _wrong(f"unknown field %{field}")
    elif how is None:
        write = _FIELDS[field]
    elif field in "kv" and how in _AS:
        write = _converted(_FIELDS[field], _AS[how])
    else:
        raise _wrong(f"%{field} has no form {{{how}}}")
    return _converted(write, _harmless) if on_terminal else write


def _converted(write: Write, convert: Callable[[bytes], bytes]) -> Write:
    return lambda record: convert(write(record))


def _harmless(value: bytes) -> bytes:
    return harmless(value.decode(errors="backslashreplace"), keeps="\n\t").encode()


def _always(said: bytes) -> Write:
    return lambda _: said


def _wrong(what: str) -> InvalidRequest:
    known = " ".join(f"%{name}" for name in _FIELDS)
    escapes = " ".join(f"\\{name}" for name in _ESCAPES)
    return InvalidRequest(
        f"the format is invalid: {what}",
        next_step=f"use {known} %% %h{{NAME}} %v{{hex}} %v{{base64}} {escapes}",
    )


def _time(record: Record) -> bytes:
    return str(AtTime(record.timestamp_us)).removeprefix("ts:").encode()


def _header(name: str) -> Write:
    return lambda record: record.headers.get(name, b"")


def _headers(record: Record) -> bytes:
    return b",".join(b"%s=%s" % (name.encode(), value) for name, value in record.headers.items())


_FIELDS: Final[dict[str, Write]] = {
    "o": lambda record: b"%d" % record.offset,
    "t": _time,
    "T": lambda record: b"%d" % record.timestamp_us,
    "e": lambda record: b"" if record.event_time_us is None else b"%d" % record.event_time_us,
    "k": lambda record: record.key or b"",
    "v": lambda record: record.value,
    "s": lambda record: b"%d" % len(record.value),
    "h": _headers,
}
