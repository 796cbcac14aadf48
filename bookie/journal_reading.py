"""A journal file read back after a stop, a window at a time.

Nearly all of a file are consecutive sound records, and then nothing; they are replayed as they
come, in windows that stay in the processor's cache: a file read whole costs more in fresh pages
of memory than in bytes. Only from the first place that is neither sound nor blank is the rest
read together, since its meaning depends on what follows (`scan`).
"""

from array import array
from dataclasses import dataclass
from typing import Final

from rollbook.bookie.core.record_format import (
    FILE_HEADER_BYTES,
    FileHeader,
    FoundRecord,
    RecordReader,
    align,
    is_blank,
)
from rollbook.bookie.core.replay import Replayed, replay_record, replay_scan
from rollbook.bookie.core.torn_tail import scan, sound_run
from rollbook.proto.ports import File

# The most that is read past the page cache at a time.
_WINDOW_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ReadBack:
    replayed: Replayed
    rotten_places: int
    end: int  # The position of the next record.
    next_sequence: int
    is_ended: bool
    unproven_at: int  # Nothing proves that bytes from here to `end` are durable.
    is_blank: bool  # Whether no record was ever written to the file.


async def read_back(
    file: File,
    header: FileHeader,
    first_sequence: int,
    durable_through: int,
    *,
    is_blank: bool = False,
) -> ReadBack:
    """Reads the file back. `is_blank`: it is known to be blank; otherwise that is checked."""
    size, position, sequence = await file.size(), FILE_HEADER_BYTES, first_sequence
    replayed, starts, last_synced = Replayed(), array("Q"), 0
    is_ended, window = False, _WINDOW_BYTES
    while not is_ended and position < size:
        reader = RecordReader(await file.read_at(position, window), header.file_id, position)
        run = sound_run(reader, position, sequence)
        for record, body in run.records:
            starts.append(record.position)
            last_synced = record.last_synced
            replay_record(replayed, record, body)
        if run.records:
            position, sequence, is_ended = run.end, run.next_sequence, run.is_ended
            window = _WINDOW_BYTES
        elif position + window < size and reader.may_start_at(position):
            window *= 2  # A record may be longer than the window.
        else:
            break
    replayed.flush()

    def unproven_at(proven: int) -> int:
        place = max(0, proven + 1 - first_sequence)
        return starts[place] if place < len(starts) else align(position)

    if is_ended or is_blank or await is_blank_from(file, position):
        proven = max(last_synced, durable_through)
        if is_ended or sequence > durable_through:
            return ReadBack(
                replayed,
                0,
                align(position),
                sequence,
                is_ended,
                unproven_at(proven),
                is_blank=not starts and not is_ended,
            )
    rest = RecordReader(await file.read_at(position, size - position), header.file_id, position)
    found = scan(
        rest,
        start=position,
        first_sequence=sequence,
        durable_through=max(last_synced, durable_through),
    )
    replay_scan(replayed, rest, found)
    return ReadBack(
        replayed,
        len(found.rot),
        found.end,
        found.next_sequence,
        found.is_ended,
        found.unproven_at if found.proven >= sequence else unproven_at(found.proven),
        is_blank=False,
    )


async def first_record(file: File, header: FileHeader) -> FoundRecord | None:
    """The first record with a sound head or trailer.

    If the beginning of the file is damaged, everything before the next sound record is held at once,
    perhaps the whole file.
    """
    size, length = await file.size(), _WINDOW_BYTES
    while True:
        contents = await file.read_at(FILE_HEADER_BYTES, length)
        reader = RecordReader(contents, header.file_id, FILE_HEADER_BYTES)
        found = reader.next_after(FILE_HEADER_BYTES, 0)
        if found or FILE_HEADER_BYTES + length >= size:
            return found
        length *= 2  # The beginning is damaged, or the first record's trailer is further on.


async def is_blank_from(file: File, start: int) -> bool:
    """Whether nothing was ever written from `start` on."""
    for at in range(start, await file.size(), _WINDOW_BYTES):
        if not is_blank(await file.read_at(at, _WINDOW_BYTES), 0):
            return False
    return True


async def write_again(file: File, start: int, end: int) -> None:
    """Makes durable what was read there and may not be (B3): every byte is written again, then synced.

    A process that died, unlike a machine, leaves unsynced data: it can be read, and lost later.
    A sync alone would do if there was none before. But after a failed one the system takes the
    pages for clean, and another sync skips them.
    """
    # The header may be unsynced as well.
    start = 0 if start <= FILE_HEADER_BYTES else start
    for at in range(start, end, _WINDOW_BYTES):
        contents = await file.read_at(at, min(_WINDOW_BYTES, end - at))
        await file.write_at(at, [contents])
    await file.sync()
