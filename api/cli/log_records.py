"""What `rollbook log append|read|tail` do: standard input to records, records to standard output."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import click

from rollbook.api.cli.ledger_access import as_text, bar, print_bytes
from rollbook.api.cli.log_access import LogAccess
from rollbook.api.cli.log_owning import require_exclusive
from rollbook.api.cli.output import tell, time_of
from rollbook.api.cli.record_format import Write, compile_format
from rollbook.api.cli.record_input import (
    Cutter,
    InputRecord,
    as_json,
    framed,
    input_bytes,
    record_of_json,
    standard_input,
)
from rollbook.api.client.batches import Submission
from rollbook.api.client.client import Client
from rollbook.api.client.gathering import Tally
from rollbook.api.client.log import Log
from rollbook.api.client.reader import RecordBatch, batches_of
from rollbook.api.client.writer import Writer
from rollbook.logservice.core.block import Record
from rollbook.logservice.ids import WriterEpoch, parse_position
from rollbook.logservice.words import Gap
from rollbook.proto.errors import (
    Interrupted,
    Outcome,
    RollbookError,
    WriterHeld,
)

_PREVIEW_CHARS: Final = 80
_INTERRUPTED_S: Final = (
    2.0  # Longer: fewer records in doubt, and a longer wait for who pressed Ctrl-C.
)


def append_input(
    access: LogAccess,
    log: str,
    values: Sequence[str],
    create: bool,
    holder: str | None,
    steal: bool,
    frame: str,
    output: str,
) -> None:
    async def append(client: Client) -> dict[str, Any]:
        opened = await client.open(log, create=create)
        epoch = None if holder is None else await _epoch_for(opened, holder, steal, access.flags)
        async with opened.writer(epoch=epoch) as writer:
            first = await _append_all(writer, values, log, frame)
        tally = writer.tally
        return {
            "log": log,
            "records": tally.acked,
            "first_offset": None if first is None else await first,
            "next_offset": tally.next_offset,
        }

    tell(access.run(append, log), output, "next_offset")


async def _epoch_for(log: Log, holder: str, steal: bool, flags: str) -> WriterEpoch:
    """It stays the writer, so that no older one comes back; another one is fenced only if that was asked for."""
    require_exclusive(log, flags)
    try:
        return (await log.acquire_writer(holder, "steal" if steal else "fail")).writer_epoch
    except WriterHeld as error:
        if error.ids.get("holder") != holder:
            error.next_step = (
                f"rollbook log writer show {log.name}{flags}; --steal fences that writer"
            )
            raise
    return (await log.acquire_writer(holder, "steal")).writer_epoch


async def _append_all(
    writer: Writer, values: Sequence[str], log: str, frame: str
) -> Submission | None:
    """The first record. However it ends early, the error says how many records are acknowledged, and which may be."""
    try:
        with _cancelled_by_sigterm():
            if values:
                records = [InputRecord(os.fsencode(value)) for value in values]
                first = await _send(writer, records, None)
            else:
                with bar(log, input_bytes()) as advance:
                    first = await _send_chunks(writer, frame, advance)
            await writer.flush()
    except asyncio.CancelledError:
        with suppress(TimeoutError):
            async with asyncio.timeout(_INTERRUPTED_S):
                await writer.drain()
        writer.end()
        writer.take_loss()  # It is said here.
        raise _counted(Interrupted("interrupted"), writer.tally) from None
    except RollbookError as error:
        await writer.drain()
        writer.take_loss()
        raise _counted(error, writer.tally) from error.__cause__
    return first


def _counted(error: RollbookError, tally: Tally) -> RollbookError:
    error.ids |= {
        "acknowledged": tally.acked,
        "in_doubt": tally.in_doubt,
        "not_appended": tally.not_appended,
        "next_offset": tally.next_offset,
    }
    if tally.in_doubt:
        error.outcome = Outcome.UNKNOWN
    else:
        error.outcome = Outcome.APPLIED if not tally.not_appended else Outcome.NOT_APPLIED
    return error


@contextmanager
def _cancelled_by_sigterm() -> Iterator[None]:
    """As SIGINT does it."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def _send(
    writer: Writer, records: Iterable[InputRecord], first: Submission | None
) -> Submission | None:
    for value, key, headers, event_time_us in records:
        submission = await writer.send(value, key=key, headers=headers, event_time_us=event_time_us)
        first = first or submission
    return first


async def _send_chunks(
    writer: Writer, frame: str, advance: Callable[[int], None]
) -> Submission | None:
    cutter, first = Cutter(frame), None
    record_of = record_of_json if frame == "ndjson" else InputRecord
    async for chunk in standard_input():
        first = await _send(writer, map(record_of, cutter.feed(chunk)), first)
        advance(len(chunk))
    return await _send(writer, map(record_of, cutter.end()), first)


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
        batches = batches_of(reader, _say_skipped)
        printer = _Printer(output, frame, write)
        left = sys.maxsize if limit is None else limit
        async for batch in batches:
            left -= printer.show(batch, left)
            if left <= 0:
                break
        printer.end()

    access.run(read, log)


def _say_skipped(gap: Gap) -> None:
    sys.stdout.flush()
    count = gap.end - gap.start
    click.echo(f"skipped: {count} records from {gap.start} on were truncated", err=True)


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
        for name, value in record.headers.items():
            ((kind, text),) = as_json("headers", value).items()
            fields.setdefault(kind, {})[name] = text
    if record.event_time_us is not None:
        fields["event_time_us"] = record.event_time_us
    return fields | as_json("value", record.value)
