"""The actions of `rollbook log export` and `import`. A command that was interrupted continues where it stopped
when it is run again.

An import appends each block at its expected offset, so no record is appended twice even if responses are
lost: the target has exactly the file's records.
"""

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, BinaryIO, Final

from rollbook.api.cli.log.connection import LogAccess
from rollbook.api.cli.log.export_format import (
    ExportedBlock,
    ExportedLog,
    is_ended,
    pack_end,
    pack_frame,
    pack_head,
    read_frames,
    read_head,
)
from rollbook.api.cli.output import tell
from rollbook.api.cli.progress_bars import bar_of_shares
from rollbook.api.client.async_client import Client
from rollbook.api.client.core.retries_and_outcomes import again
from rollbook.api.client.log import Log
from rollbook.api.client.producer_numbering import PRODUCER_ID_BYTES
from rollbook.api.client.reader import RecordBatch, batches_of
from rollbook.logservice.core.record_block import Block, Record, pack_block
from rollbook.logservice.ids import ProducerRef
from rollbook.proto.errors import (
    BlockCorrupt,
    Interrupted,
    InvalidRequest,
    NoSuchLog,
    OffsetMismatch,
    Outcome,
    RollbookError,
    Truncated,
)

_ITS_OWN: Final = "import into a new log: use another name and --create"
_REPEAT: Final = "records that are there already are not appended again"
_AGAIN: Final = f"import the file again, while nothing else appends: {_REPEAT}"


def export_log(access: LogAccess, log: str, file: str, output: str) -> None:
    async def export(client: Client) -> dict[str, Any]:
        opened = await client.open(log)
        # Opens the file after the log, so that a missing log leaves no file.
        with _opened(file) as found:
            first, start, end = _whole_part(found, ExportedLog(str(opened.name), opened.uid))
            tail = await opened.tail_offset()
            head = await opened.head_offset()
            if start is None:
                first = start = head
            if start < head and first is not None:
                raise Truncated(
                    f"the file lacks records from offset {start} on, which have been truncated",
                    head=head,
                    next_step="export to another file",
                )
            found.seek(end)
            found.truncate()  # Removes the end mark or an incomplete frame.
            if not end:
                found.write(pack_head(ExportedLog(str(opened.name), opened.uid)))
            with bar_of_shares(log) as on_progress:
                async for batch in opened.read_batches(start, tail):
                    found.writelines(
                        pack_frame(block, base, records)
                        for block, base, records in _blocks_of(batch)
                    )
                    on_progress(batch.next_offset - start, tail - start)
            found.write(pack_end(max(start, tail)))
            found.flush()
            os.fsync(found.fileno())
            return {
                "log": str(opened.name),
                "file": file,
                "first_offset": first,
                "next_offset": max(start, tail),
                "bytes": found.tell(),
            }

    tell(access.run(export, log), output, "next_offset")


def _opened(file: str) -> BinaryIO:
    """Raises `InvalidRequest`."""
    if os.path.exists(file) and not os.path.isfile(file):
        raise InvalidRequest(
            f"cannot write {file}: it is not a regular file, and an export must read the file again",
            next_step="name a file on a disk",
        )
    try:
        return open(file, "r+b" if os.path.exists(file) else "w+b")  # The caller closes the file.
    except OSError as error:
        raise InvalidRequest(
            f"cannot write {file}: {error.strerror}", next_step="name another file"
        ) from None


def _readable(file: str) -> BinaryIO:
    """Raises `InvalidRequest`."""
    try:
        return open(file, "rb")  # The caller closes the file.
    except OSError as error:
        raise InvalidRequest(
            f"cannot read {file}: {error.strerror}", next_step="rollbook log export --help"
        ) from None


def _whole_part(file: BinaryIO, origin: ExportedLog) -> tuple[int | None, int | None, int]:
    """Returns the offset of the file's first record, the offset after its last record, and the position where its
    last block ends. Raises `InvalidRequest`, `BlockCorrupt`.
    """
    has = read_head(file)
    if has is None:
        return None, None, 0
    if has.uid != origin.uid:
        raise InvalidRequest(
            f"the file has records of another log, {has.log}, with the uid {has.uid}",
            next_step="name another file",
        )
    end, first, following = file.tell(), None, None
    for frame in read_frames(file):
        first = frame.first_offset if first is None else first
        end, following = frame.end, frame.next_offset
    return first, following, end


def _blocks_of(batch: RecordBatch) -> Iterator[tuple[bytes, int, int]]:
    """Yields the batch's blocks. If the batch has only some records of a block, they are packed into a new block."""
    for block in batch.blocks:
        start = max(block.base_offset, batch.base_offset)
        end = min(block.next_offset, batch.next_offset)
        if (start, end) == (block.base_offset, block.next_offset):
            yield block.data, start, end - start
        else:
            records = block.records()[start - block.base_offset : end - block.base_offset]
            yield _packed(records), start, end - start


def _packed(records: list[Record]) -> bytes:
    _, values, keys, headers, _, times = zip(*records, strict=True)
    return pack_block(values, keys=keys, headers=headers, event_times=times)


def import_log(
    access: LogAccess, log: str, file: str, create: bool, incomplete: bool, output: str
) -> None:
    with _readable(file) as found:
        if not incomplete and not found.seekable():
            raise InvalidRequest(
                f"cannot look for the end mark of {file}, because it is not a regular file",
                next_step="name a file on a disk; --incomplete imports the records that arrive",
            )
        if read_head(found) is None:
            raise InvalidRequest(f"{file} has no records", next_step="rollbook log export --help")
        if not incomplete and not is_ended(found):
            raise InvalidRequest(
                f"{file} has no end mark: its export was interrupted, or the file was truncated",
                next_step="run the export again; --incomplete imports the records in the file",
            )

        async def load(client: Client) -> dict[str, Any]:
            progress = _Import()
            with progress.in_errors():
                opened = await _log_of(client, log, create, progress)
                was_there = await opened.tail_offset("barrier")
                with bar_of_shares(log) as on_progress:
                    head = await opened.head_offset()
                    # The first comparison opens the reader, so that an empty log is not read.
                    reader = opened.bounded_events(head, was_there)
                    async with aclosing(batches_of(reader)) as batches:
                        stored = _StoredRecords(opened, head, batches)
                        tail = await _append_all(
                            opened, found, stored, was_there, progress, on_progress
                        )
            return {
                "log": str(opened.name),
                "records": tail - was_there,
                "were_there": was_there,
                "next_offset": tail,
            }

        facts = access.run(load, log)
    tell(facts, output, "next_offset")


async def _log_of(client: Client, log: str, create: bool, progress: "_Import") -> Log:
    try:
        return await client.open(log)
    except NoSuchLog:
        if not create:
            raise
    opened = await client.open(log, create=True)
    progress.has_created = True
    return opened


class _Import:
    """The progress of an import."""

    def __init__(self) -> None:
        self.has_created = False
        self.appended = 0  # The number of acknowledged records.
        self.sent = 0  # The number of records in the unacknowledged append.
        self.next_offset: int | None = None

    @contextmanager
    def in_errors(self) -> Iterator[None]:
        """Adds the progress of the import to errors that are raised in the context."""
        try:
            yield
        except asyncio.CancelledError:
            if not self._has_changed(Outcome.UNKNOWN):
                raise
            raise self._with_counts(Interrupted("the import was interrupted")) from None
        except OSError as error:
            if self.sent:
                raise
            raise self._with_counts(
                InvalidRequest(f"cannot read the file: {error.strerror or error}")
            ) from error
        except RollbookError as error:
            raise self._with_counts(error) from error.__cause__

    def _has_changed(self, outcome: Outcome) -> bool:
        may_have = self.sent and outcome is not Outcome.NOT_APPLIED
        return bool(self.has_created or self.appended or may_have)

    def _with_counts(self, error: RollbookError) -> RollbookError:
        # Something else, such as another import, appends to the log.
        if isinstance(error, OffsetMismatch) and not error.next_step:
            error.next_step = _AGAIN
        if not self._has_changed(error.outcome):
            return error
        partial = again(error, Outcome.UNKNOWN)
        partial.ids |= {
            "created": self.has_created,
            "appended": self.appended,
            "in_doubt": 0 if error.outcome is Outcome.NOT_APPLIED else self.sent,
            "next_offset": self.next_offset,
        }
        # The error is about the file, not the log.
        if isinstance(error, BlockCorrupt) and error.next_step:
            partial.next_step = f"{error.next_step}, and import that: {_REPEAT}"
        elif not error.next_step:
            partial.next_step = _AGAIN
        return partial


async def _append_all(
    log: Log,
    file: BinaryIO,
    stored: "_StoredRecords",
    tail: int,
    progress: _Import,
    on_progress: Callable[[int, int], None],
) -> int:
    """Appends the records that the log lacks. Returns the log's tail. Raises `OffsetMismatch`,
    `BlockCorrupt`.
    """
    size = os.fstat(file.fileno()).st_size
    producer = os.urandom(PRODUCER_ID_BYTES)
    first: int | None = None
    # `end` is the offset after the last record that was read from the file; `seq` counts the appended blocks.
    end, seq = 0, 0
    for frame in read_frames(file):
        first = frame.first_offset if first is None else first
        at = frame.first_offset - first
        end = at + frame.records
        if end <= tail:
            await stored.require_same(frame, at)
            on_progress(frame.end, size)
            continue
        ref = ProducerRef(producer, 0, seq)
        progress.sent = frame.records
        ack = await log.append_block(frame.block, producer=ref, expect=at)
        progress.sent = 0
        progress.appended += frame.records
        progress.next_offset = tail = ack.next_offset
        seq += 1
        on_progress(frame.end, size)
    if tail > end:
        raise OffsetMismatch(
            f"{log.name} has more records than the file: {tail} instead of {end}",
            next_step=_ITS_OWN,
        )
    return tail


class _StoredRecords:
    """Compares the log's records with the file's frames. The frames must be in order, so the log is read only
    once.
    """

    def __init__(self, log: Log, head: int, batches: AsyncIterator[RecordBatch]) -> None:
        self._log, self._head, self._batches = log, head, batches
        # The records of the last batch that are not compared yet.
        self._read: deque[Record] = deque()

    async def require_same(self, frame: ExportedBlock, start: int) -> None:
        """Checks that the log has the frame's records from `start` on. Raises `OffsetMismatch`."""
        if start < self._head:  # Truncated records cannot be compared.
            return
        for offset, wanted in enumerate(Block(frame.block).records(), start):
            found = await self._at(offset)
            if found is None or _content(found) != _content(wanted):
                raise OffsetMismatch(
                    f"{self._log.name} differs from the file from offset {offset} on",
                    next_step=_ITS_OWN,
                )

    async def _at(self, offset: int) -> Record | None:
        """Returns the log's record at `offset`, or None if the log lacks it. Drops earlier records."""
        while not self._read or self._read[-1].offset < offset:
            batch = await anext(self._batches, None)
            if batch is None:
                return None
            self._read = deque(batch.records())
        while self._read[0].offset < offset:
            self._read.popleft()
        return self._read.popleft() if self._read[0].offset == offset else None


def _content(record: Record) -> tuple[Any, ...]:
    """Returns a record without its offset and time, which the log assigns."""
    return record.value, record.key, dict(record.headers), record.event_time_us
