"""The actions of `rollbook ledger append|read`, which write standard input to a ledger and print its entries."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import click

from rollbook.api.cli.ledger.connection import LedgerAccess, custom_of, password_of
from rollbook.api.cli.log.record_input import Cutter, input_bytes, standard_input
from rollbook.api.cli.output import tell
from rollbook.api.cli.payload_output import as_json, as_text, framed, print_bytes
from rollbook.api.cli.progress_bars import bar
from rollbook.ledger.ledgers import Ledgers
from rollbook.ledger.reader import LedgerReader
from rollbook.ledger.writer import LedgerWriter
from rollbook.proto.errors import InvalidRequest, RollbookError
from rollbook.proto.ids import EntryId
from rollbook.proto.wire.digest import DigestType, Entry

_PIECE_BYTES: Final = 1024 * 1024
_PIECE_ENTRIES: Final = 500
_PREVIEW_CHARS: Final = 80


def append_input(
    access: LedgerAccess,
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
                with bar(f"ledger {writer.ledger_id}", input_bytes()) as advance:
                    await _append_chunks(writer, frame, advance)
        except asyncio.CancelledError:
            last_entry = writer.metadata.last_entry
            click.echo(f"interrupted: ledger {writer.ledger_id} ends at {last_entry}", err=True)
            raise
        except RollbookError as error:
            # Confirmed entries stay in the ledger, so the error names the last one.
            confirmed = writer.last_add_confirmed
            error.ids = {"ledger_id": writer.ledger_id, "last_confirmed": confirmed, **error.ids}
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
    async for chunk in standard_input():
        await _append_all(writer, cutter.feed(chunk))
        advance(len(chunk))
    await _append_all(writer, cutter.end())
    await writer.flush()


async def _append_all(writer: LedgerWriter, payloads: Sequence[bytes]) -> None:
    """Appends the entries in pieces, because the window and the size of one append are bounded."""
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
    """Retrieves the future's error, so that asyncio does not report it: `flush` raises it."""
    if not future.cancelled():
        future.exception()


def read_entries(
    access: LedgerAccess,
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
        raise InvalidRequest(
            "--follow has no end and shows only confirmed entries: leave out --last and --unconfirmed"
        )
    if unconfirmed and last is None:
        raise InvalidRequest(
            "--unconfirmed needs --last, because the end of unconfirmed entries is unknown"
        )

    async def read(ledgers: Ledgers) -> None:
        left = limit if limit is not None else sys.maxsize
        async with await ledgers.open(ledger_id, password_of(password)) as reader:
            printer = _EntryPrinter(output, frame)
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


class _EntryPrinter:
    """Prints entries as they arrive, in any output format."""

    def __init__(self, output: str, frame: str) -> None:
        self._output = output
        self._frame = frame
        self._count = 0
        if output == "table":
            click.echo(f"{'ENTRY_ID':>10}  {'BYTES':>8}  PAYLOAD")

    def show(self, entries: Sequence[Entry]) -> None:
        if self._output == "raw":
            print_bytes(framed((entry.payload for entry in entries), self._frame))
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

    def end(self) -> None:
        if self._output == "json":
            click.echo("\n]" if self._count else "[]")


def _line(entry: Entry) -> str:
    text = as_text(entry.payload)
    if len(text) > _PREVIEW_CHARS:
        text = text[: _PREVIEW_CHARS - 1] + "…"
    return f"{entry.entry_id:>10}  {len(entry.payload):>8}  {text}\n"


def _fields(entry: Entry) -> dict[str, Any]:
    return {
        "entry_id": entry.entry_id,
        "bytes": len(entry.payload),
        **as_json("payload", entry.payload),
    }
