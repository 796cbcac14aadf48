"""The action of `rollbook log append`, which appends its arguments or standard input."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Final

from rollbook.api.cli.log.connection import LogAccess
from rollbook.api.cli.log.record_input import (
    Cutter,
    InputRecord,
    input_bytes,
    record_of_json,
    records_of_json,
    standard_input,
)
from rollbook.api.cli.log.writer_epoch_actions import require_exclusive
from rollbook.api.cli.output import tell
from rollbook.api.cli.progress_bars import bar
from rollbook.api.client.async_client import Client
from rollbook.api.client.log import Log
from rollbook.api.client.producer_batch import Submission
from rollbook.api.client.record_accumulator import Tally
from rollbook.api.client.writer import Writer
from rollbook.logservice.ids import ProducerRef, WriterEpoch
from rollbook.logservice.position_syntax import AtTime, parse_position
from rollbook.proto.errors import (
    DuplicateTooOld,
    Interrupted,
    InvalidRequest,
    Outcome,
    ProducerFenced,
    RollbookError,
    WriterHeld,
)

_PLAIN: Final = InputRecord(b"")
_BATCH_RECORDS: Final = (
    # The size of numbered batches. It must never change, because the same input must always make the same
    # batches.
    500
)
_BATCH_BYTES: Final = 128 * 1024
_INTERRUPTED_S: Final = (
    # Seconds to wait for acks after Ctrl-C. Longer: fewer records of unknown outcome, later exits.
    2.0
)


def append_input(
    access: LogAccess,
    log: str,
    values: Sequence[str],
    create: bool,
    holder: str | None,
    steal: bool,
    frame: str,
    key: str | None,
    headers: Sequence[str],
    event_time: str | None,
    producer: str | None,
    expect: int | None,
    output: str,
) -> None:
    each_has = _each_has(key, headers, event_time)
    if each_has != _PLAIN and frame in ("json", "ndjson") and not values:
        raise InvalidRequest(
            f"with {frame}, each record in the input has its own key, headers and time",
            next_step="leave out --key, --header and --event-time",
        )
    source = _Source(values, frame, each_has)

    async def append(client: Client) -> dict[str, Any]:
        opened = await client.open(log, create=create)
        epoch = None if holder is None else await _epoch_for(opened, holder, steal, access.flags)
        if producer is not None or expect is not None:
            return await append_numbered(opened, source, log, producer, expect, epoch)
        async with opened.writer(epoch=epoch) as writer:
            first = await _append_all(writer, source, log)
        tally = writer.tally
        return {
            "log": log,
            "records": tally.acked,
            "first_offset": None if first is None else await first,
            "next_offset": tally.next_offset,
        }

    tell(access.run(append, log), output, "next_offset")


def _each_has(key: str | None, headers: Sequence[str], event_time: str | None) -> InputRecord:
    """Returns the key, the headers and the event time that every record gets. Raises `InvalidRequest`."""
    pairs: dict[str, bytes] = {}
    for each in headers:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise InvalidRequest(
                f"--header {each[:80]!r} is not NAME=VALUE",
                next_step="write --header source=shop",
            )
        if name in pairs:
            raise InvalidRequest(
                f"--header names {name[:80]!r} twice; a record has one value for each name",
                next_step="leave out one of them",
            )
        pairs[name] = os.fsencode(value)
    at = None if event_time is None else parse_position(f"ts:{event_time.removeprefix('ts:')}")
    time_us = at.timestamp_us if isinstance(at, AtTime) else None
    return InputRecord(b"", None if key is None else os.fsencode(key), pairs or None, time_us)


class _Source:
    """The records to append, from the arguments or standard input."""

    def __init__(self, values: Sequence[str], frame: str, each_has: InputRecord) -> None:
        self._values, self._frame, self._each_has = values, frame, each_has

    async def records(self, advance: Callable[[int], None]) -> AsyncIterator[list[InputRecord]]:
        """Yields the records in lists; `advance` receives the number of bytes read. Raises
        `InvalidRequest`, `EntryTooLarge`.
        """
        if self._values:
            yield [self._record_of(os.fsencode(value)) for value in self._values]
            return
        record_of = record_of_json if self._frame == "ndjson" else self._record_of
        cutter = Cutter("whole" if self._frame == "json" else self._frame)
        async for chunk in standard_input():
            yield [record_of(each) for each in cutter.feed(chunk)]
            advance(len(chunk))
        if self._frame == "json":
            yield [record for each in cutter.end() for record in records_of_json(each)]
        else:
            yield [record_of(each) for each in cutter.end()]

    def bar(self, log: str) -> AbstractContextManager[Callable[[int], None]]:
        return bar(log, 0 if self._values else input_bytes())

    def _record_of(self, value: bytes) -> InputRecord:
        return self._each_has._replace(value=value)


async def _epoch_for(log: Log, holder: str, steal: bool, flags: str) -> WriterEpoch:
    """Acquires the writer epoch, so that earlier writers can no longer append. Fences another holder only if
    `steal` is set.
    """
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


async def _append_all(writer: Writer, source: _Source, log: str) -> Submission | None:
    """Appends all records and returns the submission of the first one. An error has the number of acked records
    and the number of records with an unknown outcome.
    """
    first: Submission | None = None
    try:
        with _cancelled_by_sigterm(), source.bar(log) as advance:
            async for records in source.records(advance):
                first = await _send(writer, records, first)
            await writer.flush()
    except asyncio.CancelledError:
        with suppress(TimeoutError):
            async with asyncio.timeout(_INTERRUPTED_S):
                await writer.drain()
        writer.end()
        writer.take_loss()  # The loss is reported by the error below.
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
    """Makes SIGTERM cancel the task, like SIGINT."""
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


async def append_numbered(
    log: Log,
    source: _Source,
    shown: str,
    producer: str | None,
    expect: int | None,
    epoch: int | None,
) -> dict[str, Any]:
    """Appends one batch after the other. The same input makes the same batches, so the log recognises batches that
    it already has.
    """
    numbered = _Numbered(log, producer, expect, epoch)
    tally = numbered.tally
    try:
        with _cancelled_by_sigterm(), source.bar(shown) as advance:
            async for records in source.records(advance):
                for record in records:
                    await numbered.add(record)
            await numbered.send()
    except asyncio.CancelledError:
        numbered.give_up(is_unknown=True)
        raise _counted(Interrupted("interrupted"), tally) from None
    except RollbookError as error:
        numbered.give_up(is_unknown=error.outcome is Outcome.UNKNOWN)
        raise _counted(error, tally) from error.__cause__
    facts = {
        "log": shown,
        "records": tally.acked,
        "first_offset": numbered.first_offset,
        "next_offset": tally.next_offset,
    }
    return facts if producer is None else {**facts, "were_there": numbered.repeated}


class _Numbered:
    def __init__(
        self, log: Log, producer: str | None, expect: int | None, epoch: int | None
    ) -> None:
        self.tally = Tally()
        self.first_offset: int | None = None
        self.repeated = 0  # The number of records that the log already had.
        self._log, self._producer, self._epoch = log, producer, epoch
        self._expects = expect is not None
        self._expected = expect
        self._seq = 0
        self._batch: list[InputRecord] = []
        self._bytes = 0
        self._is_sent = False  # Set once the batch may have reached the server.

    def give_up(self, *, is_unknown: bool) -> None:
        """Counts the records of the last batch. `is_unknown` means that a batch that was sent may have been
        appended.
        """
        if is_unknown and self._is_sent:
            self.tally.in_doubt = len(self._batch)
        else:
            self.tally.not_appended = len(self._batch)

    async def add(self, record: InputRecord) -> None:
        self._batch.append(record)
        self._bytes += len(record.value) + len(record.key or b"")
        if len(self._batch) == _BATCH_RECORDS or self._bytes > _BATCH_BYTES:
            await self.send()

    async def send(self) -> None:
        """Appends the collected records as one batch."""
        if not self._batch:
            return
        values, keys, headers, times = zip(*self._batch, strict=True)
        ref = None
        if self._producer is not None:
            ref = ProducerRef(self._producer.encode(), 0, self._seq)
        self._is_sent = True
        try:
            ack = await self._log.append_many(
                values,
                keys=keys,
                headers=headers,
                event_times=times,
                producer=ref,
                expect=self._expected,
                epoch=self._epoch,
            )
        except ProducerFenced as error:
            error.message = f"a program appends as producer {self._producer!r}"
            error.next_step = "use another name for --producer, or append with that program"
            raise
        except DuplicateTooOld:  # The log has the records, but no longer knows their offset.
            self.repeated += len(self._batch)
            self._expected = None
        else:
            self.first_offset = ack.first_offset if self.first_offset is None else self.first_offset
            self.repeated += len(self._batch) if ack.is_duplicate else 0
            self.tally.next_offset = ack.next_offset
            self._expected = ack.next_offset if self._expects else None
        self.tally.acked += len(self._batch)
        self._seq += 1
        self._batch, self._bytes, self._is_sent = [], 0, False
