"""What `rollbook log append|read|tail` do: standard input to records, records to standard output."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from rollbook.api.cli.ledger_access import as_text, bar, print_bytes
from rollbook.api.cli.log_access import LogAccess
from rollbook.api.cli.output import tell, time_of
from rollbook.api.cli.record_format import Write, compile_format
from rollbook.api.cli.record_input import Cutter, as_json, framed, input_bytes, standard_input
from rollbook.api.client.client import Client
from rollbook.api.client.reader import RecordBatch
from rollbook.api.client.writer import Writer
from rollbook.logservice.core.block import Record
from rollbook.logservice.ids import parse_position

_PREVIEW_CHARS: Final = 80


def append_input(
    access: LogAccess,
    log: str,
    values: Sequence[str],
    create: bool,
    holder: str | None,
    frame: str,
    output: str,
) -> None:
    async def append(client: Client) -> dict[str, Any]:
        opened = await client.open(log, create=create)
        epoch = None
        if holder is not None:  # It stays the writer, so that no older one comes back.
            epoch = (await opened.acquire_writer(holder, "steal")).writer_epoch
        appended = _Appended()
        async with opened.writer(epoch=epoch) as writer:
            if values:
                await appended.send(writer, [os.fsencode(value) for value in values])
            else:
                with bar(log, input_bytes()) as advance:
                    await _append_chunks(writer, appended, frame, advance)
            await writer.flush()
        return await appended.facts(log)

    tell(access.run(append, log), output, "next_offset")


class _Appended:
    """The first and the last of what was submitted."""

    def __init__(self) -> None:
        self.count = 0
        self._ends: list[Any] = []

    async def send(self, writer: Writer, values: Sequence[bytes]) -> None:
        for value in values:
            submission = await writer.send(value)
            self._ends[1 if self._ends else 0 :] = [submission]
        self.count += len(values)

    async def facts(self, log: str) -> dict[str, Any]:
        offsets = [await each for each in self._ends] or [None]
        last = offsets[-1]
        return {
            "log": log,
            "records": self.count,
            "first_offset": offsets[0],
            "next_offset": None if last is None else last + 1,
        }


async def _append_chunks(
    writer: Writer, appended: _Appended, frame: str, advance: Callable[[int], None]
) -> None:
    cutter = Cutter(frame)
    async for chunk in standard_input():
        await appended.send(writer, cutter.feed(chunk))
        advance(len(chunk))
    await appended.send(writer, cutter.end())


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
            batches = opened.tail_batches(position, skip_truncated=skip_truncated)
        else:
            batches = opened.read_batches(position, end)
        printer = _Printer(output, frame, write)
        left = sys.maxsize if limit is None else limit
        async for batch in batches:
            left -= printer.show(batch, left)
            if left <= 0:
                break
        printer.end()

    access.run(read, log)


class _Printer:
    """Records as they come, whatever the dress."""

    def __init__(self, output: str, frame: str, write: Write | None) -> None:
        self._output = output
        self._frame = frame
        self._write = write
        self._has_begun = False

    def show(self, batch: RecordBatch, limit: int) -> int:
        """How many there were, up to `limit`."""
        if self._output == "raw" and self._write is None:
            values = batch.values()[:limit]
            print_bytes(framed(values, self._frame))
            return len(values)
        records = batch.records()[:limit]
        if self._write is not None:
            print_bytes(b"".join(map(self._write, records)))
            return len(records)
        for record in records:
            self._show(record)
        sys.stdout.flush()
        return len(records)

    def _show(self, record: Record) -> None:
        if self._output == "table":
            if not self._has_begun:
                click.echo(f"{'OFFSET':>10}  {'TIME':<23}  RECORD")
            click.echo(_line(record))
        elif self._output == "json":
            click.echo(
                f"{',' if self._has_begun else '['}\n  {json.dumps(_fields(record))}", nl=False
            )
        else:
            click.echo(json.dumps(_fields(record)))
        self._has_begun = True

    def end(self) -> None:
        if self._output == "json" and self._write is None:
            click.echo("\n]" if self._has_begun else "[]")


def _line(record: Record) -> str:
    text = as_text(record.value)
    if record.key is not None:
        text = f"{as_text(record.key)}: {text}"
    if len(text) > _PREVIEW_CHARS:
        text = text[: _PREVIEW_CHARS - 1] + "…"
    return f"{record.offset:>10}  {time_of(record.timestamp_us):<23}  {text}"


def _fields(record: Record) -> dict[str, Any]:
    fields: dict[str, Any] = {"offset": record.offset, "timestamp_us": record.timestamp_us}
    if record.key is not None:
        fields |= as_json("key", record.key)
    if record.headers:
        fields["headers"] = {name: as_text(value) for name, value in record.headers.items()}
    if record.event_time_us is not None:
        fields["event_time_us"] = record.event_time_us
    return fields | as_json("value", record.value)
