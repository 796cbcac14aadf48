"""The actions of `rollbook log read|tail`, which print records."""

import json
import sys
from typing import Any, Final

import click

from rollbook.api.cli.log.connection import LogAccess
from rollbook.api.cli.log.record_format import Write, compile_format
from rollbook.api.cli.output import time_of
from rollbook.api.cli.payload_output import as_json, as_text, framed, print_bytes
from rollbook.api.client.async_client import Client
from rollbook.api.client.log import Log
from rollbook.api.client.reader import EventReader, RecordBatch, batches_of
from rollbook.logservice.core.record_block import Record
from rollbook.logservice.ids import parse_offset
from rollbook.logservice.messages import Gap, LogTail
from rollbook.logservice.position_syntax import AtOffset, Earliest, Position, parse_position
from rollbook.proto.errors import ReaderStalled, RollbookError, Truncated

_PREVIEW_CHARS: Final = 80


def print_records(
    access: LogAccess,
    log: str,
    start: str,
    end: int | None,
    limit: int | None,
    frame: str,
    output: str,
    template: str | None,
    follows: bool,
    skip_truncated: bool = False,
) -> None:
    position = parse_position(start)
    write = None
    if template is not None:
        write = compile_format(template, on_terminal=sys.stdout.isatty())

    async def read(client: Client) -> None:
        opened = await client.open(log)
        if follows:
            reader = opened.events(position, skip_truncated=skip_truncated)
        else:
            reader = opened.bounded_events(position, end)
        printer = _RecordPrinter(output, frame, write, sys.maxsize if limit is None else limit)
        try:
            await _print_all(reader, printer)
        except ReaderStalled as stalled:
            if follows or reader.position is not None:
                raise
            await _print_closed(opened, position, end, printer, stalled)
        printer.end()
        if output == "table" and write is None and not printer.has_begun:
            _say_none(log, start, await opened.state_of_tail())

    access.run(read, log)


async def _print_all(reader: EventReader, printer: "_RecordPrinter") -> None:
    async for batch in batches_of(reader, _say_skipped):
        printer.show(batch)
        if not printer.left:
            return


async def _print_closed(
    log: Log, position: Position, end: int | None, printer: "_RecordPrinter", stalled: ReaderStalled
) -> None:
    """Prints the part of the range that is in closed segments. This needs neither the log's owner nor the log's
    end.

    Raises `stalled` if the range has more records, or if the position depends on the log's end.
    """
    try:
        segments = await log.segments()
    except RollbookError:
        raise stalled from stalled.__cause__
    ends = [each.next_offset for each in segments if each.next_offset is not None]
    if isinstance(position, Earliest) and ends and segments[0].base_offset is not None:
        start = AtOffset(segments[0].base_offset)
    elif isinstance(position, AtOffset) and ends:
        start = position
    else:
        raise stalled
    if start.offset >= ends[-1]:
        raise stalled
    until = ends[-1] if end is None else min(ends[-1], parse_offset(end))
    try:
        await _print_all(log.bounded_events(start, until), printer)
    except Truncated as error:  # The log was truncated within its first segment.
        head = error.ids.get("head")
        if not isinstance(position, Earliest) or not isinstance(head, int):
            raise
        await _print_all(log.bounded_events(head, max(head, until)), printer)
    if printer.left and (end is None or end > until):
        printer.end()
        stalled.message = (
            f"the records from {until} on cannot be read now, because the end of the log is unknown: "
            f"{stalled.message}"
        )
        raise stalled


def _say_none(log: str, start: str, tail: LogTail) -> None:
    """Reports that there are no records, since an empty table could look like a failure."""
    if tail.head == tail.tail:
        said = (
            f"{log} is empty"
            if not tail.tail
            else f"{log} is empty: its {tail.tail} records are truncated"
        )
    else:
        said = f"no records from {start} on: {log} has offsets {tail.head} to {tail.tail - 1}"
    click.echo(said, err=True)


def _say_skipped(gap: Gap) -> None:
    sys.stdout.flush()
    count = gap.end - gap.start
    click.echo(f"skipped: {count} records from {gap.start} on were truncated", err=True)


class _RecordPrinter:
    """Prints records as they arrive, in any output format."""

    def __init__(self, output: str, frame: str, write: Write | None, limit: int) -> None:
        self.left = limit  # The number of records that are still to be printed.
        self._output = output
        self._frame = frame
        self._write = write
        self.has_begun = False

    def show(self, batch: RecordBatch) -> None:
        """Prints the records of the batch, up to the limit."""
        wanted = min(self.left, len(batch))
        self.left -= wanted
        if self._output == "raw" and self._write is None:
            print_bytes(framed(batch.values()[:wanted], self._frame))
            return
        records = batch.records()[:wanted]
        if self._write is not None:
            print_bytes(b"".join(map(self._write, records)))
            return
        for record in records:
            self._show(record)
        sys.stdout.flush()

    def _show(self, record: Record) -> None:
        if self._output == "table":
            if not self.has_begun:
                click.echo(f"{'OFFSET':>10}  {'TIME':<24}  RECORD")
            click.echo(_line(record))
        elif self._output == "json":
            click.echo(
                f"{',' if self.has_begun else '['}\n  {json.dumps(_fields(record))}", nl=False
            )
        else:
            click.echo(json.dumps(_fields(record)))
        self.has_begun = True

    def end(self) -> None:
        if self._output == "json" and self._write is None:
            click.echo("\n]" if self.has_begun else "[]")


def _line(record: Record) -> str:
    text = as_text(record.value)
    if record.key is not None:
        text = f"{as_text(record.key)}: {text}"
    if len(text) > _PREVIEW_CHARS:
        text = text[: _PREVIEW_CHARS - 1] + "…"
    return f"{record.offset:>10}  {time_of(record.timestamp_us):<24}  {text}"


def _fields(record: Record) -> dict[str, Any]:
    fields: dict[str, Any] = {"offset": record.offset, "timestamp_us": record.timestamp_us}
    if record.key is not None:
        fields |= as_json("key", record.key)
    if record.headers:
        for name, value in record.headers.items():
            ((kind, text),) = as_json("headers", value).items()
            fields.setdefault(kind, {})[name] = text
    if record.event_time_us is not None:
        fields["event_time_us"] = record.event_time_us
    return fields | as_json("value", record.value)
