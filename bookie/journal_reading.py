"""Reads a journal file back after a stop, a window at a time.

Nearly every file consists of consecutive sound records, followed by blank space. The records are
replayed in order, in windows that fit into the processor's cache. To read the file as a whole would
be slower, because fresh pages of memory for it cost more than reading its bytes. From the first
place that is neither sound nor blank, the rest of the file is read as a whole, since its meaning
depends on what follows (`scan`).
"""

from array import array
from dataclasses import dataclass, field
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

# The maximum number of bytes that are read at a time without the page cache.
_WINDOW_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ReadBack:
    replayed: Replayed
    rotten_places: int
    end: int  # The position of the next record.
    next_sequence: int
    is_ended: bool
    unproven_at: int  # No record proves that bytes from here to `end` are durable.
    is_blank: bool  # Whether no record was ever written to the file.


async def read_back(
    file: File,
    header: FileHeader,
    first_sequence: int,
    durable_through: int,
    *,
    is_blank: bool = False,
) -> ReadBack:
    """Reads the file back. `is_blank` says that the file is known to be blank; otherwise that is
    checked.

    Sound records are read first. If the rest is not blank, it is searched for more records.
    """
    size = await file.size()
    sound = await _read_sound(file, size, header, first_sequence)
    proven, end = max(sound.last_synced, durable_through), sound.end
    has_all = sound.is_ended or sound.next_sequence > durable_through
    if (sound.is_ended or is_blank or await is_blank_from(file, end)) and has_all:
        return ReadBack(
            sound.replayed,
            0,
            align(end),
            sound.next_sequence,
            sound.is_ended,
            sound.unproven_at(proven),
            is_blank=not sound.starts and not sound.is_ended,
        )
    rest = RecordReader(await file.read_at(end, size - end), header.file_id, end)
    found = scan(
        rest,
        start=end,
        first_sequence=sound.next_sequence,
        durable_through=proven,
    )
    replay_scan(sound.replayed, rest, found)
    return ReadBack(
        sound.replayed,
        len(found.rot),
        found.end,
        found.next_sequence,
        found.is_ended,
        found.unproven_at
        if found.proven >= sound.next_sequence
        else sound.unproven_at(found.proven),
        is_blank=False,
    )


@dataclass(slots=True)
class _SoundRecords:
    """The sound records from the start of a file up to the first place without one."""

    first_sequence: int
    next_sequence: int
    end: int = FILE_HEADER_BYTES
    is_ended: bool = False
    last_synced: int = 0
    replayed: Replayed = field(default_factory=Replayed)
    starts: "array[int]" = field(default_factory=lambda: array("Q"))

    def unproven_at(self, proven: int) -> int:
        """Returns where the first record after sequence `proven` begins."""
        place = max(0, proven + 1 - self.first_sequence)
        return self.starts[place] if place < len(self.starts) else align(self.end)


async def _read_sound(
    file: File, size: int, header: FileHeader, first_sequence: int
) -> _SoundRecords:
    found = _SoundRecords(first_sequence, first_sequence)
    window = _WINDOW_BYTES
    while not found.is_ended and found.end < size:
        data = await file.read_at(found.end, window)
        reader = RecordReader(data, header.file_id, found.end)
        run = sound_run(reader, found.end, found.next_sequence)
        for record, body in run.records:
            found.starts.append(record.position)
            found.last_synced = record.last_synced
            replay_record(found.replayed, record, body)
        if run.records:
            found.end, found.next_sequence = run.end, run.next_sequence
            found.is_ended = run.is_ended
            window = _WINDOW_BYTES
        elif found.end + window < size and reader.may_start_at(found.end):
            window *= 2  # A record may be longer than the window.
        else:
            break
    found.replayed.flush()
    return found


async def first_record(file: File, header: FileHeader) -> FoundRecord | None:
    """Returns the first record with a sound head or trailer.

    If the beginning of the file is damaged, everything before the next sound record is in memory at
    once, perhaps the whole file.
    """
    size, length = await file.size(), _WINDOW_BYTES
    while True:
        contents = await file.read_at(FILE_HEADER_BYTES, length)
        reader = RecordReader(contents, header.file_id, FILE_HEADER_BYTES)
        found = reader.next_after(FILE_HEADER_BYTES, 0)
        if found or FILE_HEADER_BYTES + length >= size:
            return found
        length *= 2  # The beginning is damaged, or the first record's trailer comes later.


async def is_blank_from(file: File, start: int) -> bool:
    """Returns whether nothing was ever written from `start` on."""
    for at in range(start, await file.size(), _WINDOW_BYTES):
        if not is_blank(await file.read_at(at, _WINDOW_BYTES), 0):
            return False
    return True


async def write_again(file: File, start: int, end: int) -> None:
    """Makes these bytes durable, if they are not yet (B3): writes all of them again, then syncs.

    If only the process died and not the machine, unsynced data can be read now and be lost later.
    A sync alone would be enough if no sync had failed before. But after a failed sync the system
    considers the pages clean, and another sync skips them.
    """
    # The header may not be synced either.
    start = 0 if start <= FILE_HEADER_BYTES else start
    for at in range(start, end, _WINDOW_BYTES):
        contents = await file.read_at(at, min(_WINDOW_BYTES, end - at))
        await file.write_at(at, [contents])
    await file.sync()
