"""Reads records from standard input, framed or as JSON, in the formats that `payload_output.py` writes."""

import asyncio
import base64
import json
import os
import stat
import sys
import threading
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from typing import Any, Final, NamedTuple

from rollbook.api.cli.payload_output import LENGTH
from rollbook.proto.errors import EntryTooLarge, InvalidRequest
from rollbook.proto.wire.frames import FRAME_BYTES_MAX

_READ_BYTES: Final = 256 * 1024
_ARRAY: Final = "write [{…}, {…}] as `log read -o json` does, or use --format ndjson"


class Cutter:
    """Splits a stream of bytes into entries."""

    def __init__(self, frame: str) -> None:
        self._frame = frame
        self._separator = {"lf": b"\n", "lines": b"\n", "nul": b"\0", "ndjson": b"\n"}.get(
            frame, b""
        )
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the entries that end in `chunk`. Raises `EntryTooLarge`."""
        if self._separator:
            first, *others = chunk.split(self._separator)
            self._rest += first
            whole = [bytes(self._rest), *others[:-1]] if others else []
            self._rest[:] = others[-1] if others else self._rest
        else:
            self._rest += chunk
            whole = self._take_counted() if self._frame == "len32" else []
        if len(self._rest) > FRAME_BYTES_MAX:
            raise EntryTooLarge(f"{len(self._rest)} bytes of the input contain no end of an entry")
        return whole

    def _take_counted(self) -> list[bytes]:
        entries: list[bytes] = []
        position = 0
        while (start := position + LENGTH.size) <= len(self._rest):
            (size,) = LENGTH.unpack_from(self._rest, position)
            if start + size > len(self._rest):
                break
            entries.append(bytes(self._rest[start : start + size]))
            position = start + size
        del self._rest[:position]
        return entries

    def end(self) -> list[bytes]:
        """Returns the entries that end with the input."""
        if self._frame == "len32" and self._rest:
            raise InvalidRequest(f"the input ends {len(self._rest)} bytes into an entry")
        return [bytes(self._rest)] if self._rest or self._frame == "whole" else []


class InputRecord(NamedTuple):
    value: bytes
    key: bytes | None = None
    headers: dict[str, bytes] | None = None
    event_time_us: int | None = None


def record_of_json(line: bytes) -> InputRecord:
    """Reads a record in the format of `log read -o ndjson`. Its offset and time are ignored, because they
    belong to another log. Raises `InvalidRequest`.
    """
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _no_record(line, error) from None
    return _record_of(fields, line)


def records_of_json(array: bytes) -> Iterator[InputRecord]:
    """Parses records in the format of `log read -o json`. Raises `InvalidRequest`."""
    try:
        found = json.loads(array)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the input is not JSON: {_why(error)}", next_step=_ARRAY) from None
    if not isinstance(found, list):
        raise InvalidRequest("the input is JSON, but not an array of records", next_step=_ARRAY)
    return (_record_of(each, json.dumps(each).encode()) for each in found)


def _record_of(fields: Any, shown: bytes) -> InputRecord:
    try:
        if not isinstance(fields, dict):
            raise ValueError("it is not an object")
        value = _bytes_of(fields, "value")
        if value is None:
            raise ValueError("it has neither value nor value_base64")
        headers = {name: _plain(text, "headers") for name, text in _object(fields, "headers")}
        for name, text in _object(fields, "headers_base64"):
            if name in headers:
                raise ValueError(f"the header {name[:80]!r} is in headers and in headers_base64")
            headers[name] = _unpacked(text, "headers_base64")
        event_time_us = fields.get("event_time_us")
        if type(event_time_us) not in (int, type(None)):
            raise ValueError("event_time_us is not a whole number")
        key = _bytes_of(fields, "key")
    except ValueError as error:
        raise _no_record(shown, error) from None
    return InputRecord(value, key, headers or None, event_time_us)


def _no_record(shown: bytes, error: Exception) -> InvalidRequest:
    return InvalidRequest(
        f"{shown[:80]!r} is not a record as JSON: {_why(error)}",
        next_step="each line is an object with value or value_base64; `log read -o ndjson` writes such lines",
    )


def _why(error: Exception) -> str:
    match error:
        case UnicodeDecodeError():
            return "it is not UTF-8"
        case json.JSONDecodeError() if not error.doc.strip():
            return "it is empty"
        case json.JSONDecodeError():
            line = f"line {error.lineno}, " if "\n" in error.doc else ""
            said = error.msg.replace("Expecting", "expected", 1).removesuffix(" at")
            return f"{said[0].lower()}{said[1:]} at {line}column {error.colno}"
    return str(error)


def _bytes_of(fields: Mapping[str, Any], name: str) -> bytes | None:
    if (text := fields.get(name)) is not None:
        return _plain(text, name)
    packed = fields.get(f"{name}_base64")
    return None if packed is None else _unpacked(packed, f"{name}_base64")


def _object(fields: Mapping[str, Any], name: str) -> Iterable[tuple[str, Any]]:
    found = fields.get(name, {})
    if not isinstance(found, dict):
        raise ValueError(f"{name} is not an object with names and strings")
    for each in found:
        _plain(each, name)
    return found.items()


def _plain(text: Any, where: str) -> bytes:
    if not isinstance(text, str):
        raise ValueError(f"{where} has {text!r:.40}, which is not text")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise ValueError(
            f"{where} has {half}, which is only half of a surrogate pair; put bytes into {where}_base64"
        ) from None


def _unpacked(text: Any, where: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, TypeError):
        raise ValueError(f"{where} has {text!r:.40}, which is not base64") from None


def input_bytes() -> int:
    """Returns the size of the input, or 0 if it is unknown."""
    status = os.fstat(sys.stdin.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


async def standard_input() -> AsyncIterator[bytes]:
    """Yields standard input. A thread reads it, because reading a terminal or a pipe may block. The thread
    bypasses Python's buffer: if it were blocked when the process ends, it would still hold the buffer's lock.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue(maxsize=4)
    descriptor = sys.stdin.fileno()

    def read() -> None:
        while True:
            chunk: bytes | OSError
            try:
                chunk = os.read(descriptor, _READ_BYTES)
            except OSError as error:
                chunk = error
            putting = chunks.put(chunk)
            try:
                asyncio.run_coroutine_threadsafe(putting, loop).result()
            except (RuntimeError, CancelledError):
                putting.close()
                return  # The loop is closed or closing, so the input is no longer needed.
            if not chunk or isinstance(chunk, OSError):
                return

    threading.Thread(target=read, name="standard-input", daemon=True).start()
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise chunk
        yield chunk
