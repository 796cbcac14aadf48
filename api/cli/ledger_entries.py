"""What `rollbook ledger append|read` do: standard input to entries, entries to standard output."""

import asyncio
import base64
import json
import os
import stat
import struct
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import click

from rollbook.api.cli.ledger_access import (
    Access,
    as_text,
    bar,
    custom_of,
    password_of,
    print_bytes,
    tell,
)
from rollbook.ledger.ledgers import Ledgers
from rollbook.ledger.reader import LedgerReader
from rollbook.ledger.writer import LedgerWriter
from rollbook.proto.errors import EntryTooLarge, InvalidRequest
from rollbook.proto.ids import EntryId
from rollbook.proto.wire.digest import DigestType, Entry
from rollbook.proto.wire.frames import FRAME_BYTES_MAX

_READ_BYTES: Final = 256 * 1024
_PIECE_BYTES: Final = 1024 * 1024
_PIECE_ENTRIES: Final = 500
_PREVIEW_CHARS: Final = 80


def append_input(
    access: Access,
    ledger_id: int | None,
    ensemble: int,
    write: int,
    ack: int,
    digest: str,
    custom: Sequence[str],
    password: str | None,
    frame: str,
    output: str,
) -> None:
    async def append(ledgers: Ledgers) -> dict[str, Any]:
        if ledger_id is None:
            writer = await ledgers.create(
                ensemble=ensemble,
                write=write,
                ack=ack,
                digest=DigestType[digest.upper()],
                password=(password or "").encode(),
                custom=custom_of(custom),
            )
        else:
            writer = await ledgers.claim(ledger_id, password_of(password))
        try:
            async with writer:
                with bar(f"ledger {writer.ledger_id}", _input_bytes()) as advance:
                    await _append_chunks(writer, frame, advance)
        except asyncio.CancelledError:
            last_entry = writer.metadata.last_entry
            click.echo(f"interrupted: ledger {writer.ledger_id} ends at {last_entry}", err=True)
            raise
        metadata = writer.metadata
        return {
            "ledger_id": metadata.ledger_id,
            "last_entry": metadata.last_entry,
            "length": metadata.length,
            "state": metadata.state.value,
        }

    tell(access.run(append), output, "ledger_id")


async def _append_chunks(writer: LedgerWriter, frame: str, advance: Callable[[int], None]) -> None:
    cutter = Cutter(frame)
    async for chunk in _standard_input():
        await _append_all(writer, cutter.feed(chunk))
        advance(len(chunk))
    await _append_all(writer, cutter.end())
    await writer.flush()


async def _append_all(writer: LedgerWriter, payloads: Sequence[bytes]) -> None:
    """Not all at once: the window is bounded, and so is one append to it."""
    start = 0
    while start < len(payloads):
        end, size = start, 0
        while end < len(payloads) and end - start < _PIECE_ENTRIES:
            size += len(payloads[end])
            if size > _PIECE_BYTES and end > start:
                break
            end += 1
        piece = payloads[start:end]
        await writer.ready(len(piece), sum(map(len, piece)))
        writer.append_many(piece).add_done_callback(_look)
        start = end


def _look(future: "asyncio.Future[range]") -> None:
    """`flush` tells of failures."""
    if not future.cancelled():
        future.exception()


class Cutter:
    """A stream of bytes into entries."""

    def __init__(self, frame: str) -> None:
        self._frame = frame
        self._mark = {"lf": b"\n", "nul": b"\0"}.get(frame, b"")
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """Those that end in it. Raises `EntryTooLarge`."""
        if self._mark:
            first, *others = chunk.split(self._mark)
            self._rest += first
            whole = [bytes(self._rest), *others[:-1]] if others else []
            self._rest[:] = others[-1] if others else self._rest
        else:
            self._rest += chunk
            whole = self._take_counted() if self._frame == "len32" else []
        if len(self._rest) > FRAME_BYTES_MAX:
            raise EntryTooLarge(f"the input has no end of an entry in {len(self._rest)} bytes")
        return whole

    def _take_counted(self) -> list[bytes]:
        entries: list[bytes] = []
        position = 0
        while position + 4 <= len(self._rest):
            (size,) = struct.unpack_from(">I", self._rest, position)
            if position + 4 + size > len(self._rest):
                break
            entries.append(bytes(self._rest[position + 4 : position + 4 + size]))
            position += 4 + size
        del self._rest[:position]
        return entries

    def end(self) -> list[bytes]:
        """What the end of the input ends, too."""
        if self._frame == "len32" and self._rest:
            raise InvalidRequest(f"the input ends {len(self._rest)} bytes into an entry")
        return [bytes(self._rest)] if self._rest or self._frame == "whole" else []


def _input_bytes() -> int:
    """0 if nobody knows."""
    status = os.fstat(sys.stdin.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


async def _standard_input() -> AsyncIterator[bytes]:
    """Read by a thread, since a terminal or a pipe may keep us waiting; without its buffer, whose
    lock a waiting thread would hold when the process ends.
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
            try:
                asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()
            except (RuntimeError, asyncio.CancelledError):
                return  # Nobody listens any more.
            if not chunk or isinstance(chunk, OSError):
                return

    threading.Thread(target=read, name="standard-input", daemon=True).start()
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise chunk
        yield chunk


def read_entries(
    access: Access,
    ledger_id: int,
    first: int,
    last: int | None,
    limit: int | None,
    follow: bool,
    unconfirmed: bool,
    password: str | None,
    frame: str,
    output: str,
) -> None:
    if follow and (unconfirmed or last is not None):
        raise InvalidRequest("--follow has no end, and only shows what is confirmed")
    if unconfirmed and last is None:
        raise InvalidRequest("--unconfirmed needs --last: nobody knows where it ends")

    async def read(ledgers: Ledgers) -> None:
        left = limit if limit is not None else sys.maxsize
        async with await ledgers.open(ledger_id, password_of(password)) as reader:
            printer = _Printer(output, frame)
            async for entries in _runs(reader, first, last, follow, unconfirmed):
                printer.show(entries[:left])
                left -= len(entries)
                if left <= 0:
                    break
            printer.end()

    access.run(read)


async def _runs(
    reader: LedgerReader, first: int, last: int | None, follow: bool, unconfirmed: bool
) -> AsyncIterator[list[Entry]]:
    start = EntryId(first)
    if follow:
        async for news in reader.follow(start):
            if news.entries:
                yield list(news.entries)
        return
    if unconfirmed and last is not None:
        stream = reader.read_unconfirmed(start, EntryId(last))
    else:
        stream = reader.read(start, None if last is None else EntryId(last))
    async with stream:
        while entries := await stream.next_run():
            yield entries


class _Printer:
    """Entries as they come, whatever the dress."""

    def __init__(self, output: str, frame: str) -> None:
        self._output = output
        self._frame = frame
        self._count = 0
        if output == "table":
            click.echo(f"{'ENTRY_ID':>10}  {'BYTES':>8}  PAYLOAD")

    def show(self, entries: Sequence[Entry]) -> None:
        if self._output == "raw":
            print_bytes(b"".join(map(self._framed, entries)))
        elif self._output == "table":
            click.echo("".join(map(_line, entries)), nl=False)
        else:
            for entry in entries:
                text = json.dumps(_fields(entry))
                if self._output == "json":
                    text = ("[\n  " if not self._count else ",\n  ") + text
                    click.echo(text, nl=False)
                else:
                    click.echo(text)
                self._count += 1
        sys.stdout.flush()

    def _framed(self, entry: Entry) -> bytes:
        payload = entry.payload
        match self._frame:
            case "lf":
                return payload + b"\n"
            case "nul":
                return payload + b"\0"
            case "len32":
                return struct.pack(">I", len(payload)) + payload
        return payload

    def end(self) -> None:
        if self._output == "json":
            click.echo("\n]" if self._count else "[]")


def _line(entry: Entry) -> str:
    text = as_text(entry.payload)
    if len(text) > _PREVIEW_CHARS:
        text = text[: _PREVIEW_CHARS - 1] + "…"
    return f"{entry.entry_id:>10}  {len(entry.payload):>8}  {text}\n"


def _fields(entry: Entry) -> dict[str, Any]:
    fields: dict[str, Any] = {"entry_id": entry.entry_id, "bytes": len(entry.payload)}
    try:
        return {**fields, "payload": entry.payload.decode()}
    except UnicodeDecodeError:
        return {**fields, "payload_base64": base64.b64encode(entry.payload).decode()}
