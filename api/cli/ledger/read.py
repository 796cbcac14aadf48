"""The action of `rollbook ledger read`, which prints the entries of a ledger."""

import json
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import click

from rollbook.api.cli.ledger.connection import LedgerAccess, password_of
from rollbook.api.cli.payload_output import as_json, as_text, framed, print_bytes
from rollbook.ledger.ledgers import Ledgers
from rollbook.ledger.reader import LedgerReader
from rollbook.proto.errors import InvalidRequest
from rollbook.proto.ids import EntryId
from rollbook.proto.wire.digest import Entry

_PREVIEW_CHARS: Final = 80


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
