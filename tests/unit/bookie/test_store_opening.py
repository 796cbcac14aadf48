"""What is read, and what is concluded, when a store is found again after its process died."""

import asyncio
import random
from itertools import count

import pytest

from rollbook.bookie import journal_reading
from rollbook.bookie.config import StorageConfig
from rollbook.bookie.core.record_format import (
    FILE_HEADER_BYTES,
    EntryRow,
    FoundRecord,
    RecordReader,
    unpack_file_header,
)
from rollbook.bookie.core.torn_tail import scan
from rollbook.bookie.inspection import StoreFiles
from rollbook.bookie.storage import Storage
from rollbook.bookie.store_opening import SHORT_JOURNAL
from rollbook.proto.errors import EntryStateUnknown
from tests.crash.images.step_disk import StepDisk, StepFile, step
from tests.simulation.kernel import Node
from tests.simulation.kernel.filesystem import FileSystem
from tests.support.clocks import StandingClock
from tests.unit.bookie.test_storage import add, entry, tell

CONFIG = StorageConfig(
    "/store/journal", ("/store/ledgers",), journal_file_bytes=256 * 1024, idle_after_ms=20
)
PAYLOAD = b"x" * 6000


@pytest.fixture
def died(monkeypatch: pytest.MonkeyPatch) -> FileSystem:
    """Two journal files with entries of ledger 7, the second hardly begun, and a third made ready."""
    images: list[FileSystem] = []
    may_end, as_ever = asyncio.Event(), Storage.checkpoint

    async def checkpoint(storage: Storage) -> bool:
        await may_end.wait()
        return await as_ever(storage)

    async def story(storage: Storage, node: Node) -> None:
        first = storage.end_of_journal[0]
        for entry_id in count(step=2):  # Two to a record.
            await add(storage, (7, entry_id), (7, entry_id + 1), payload=PAYLOAD)
            if storage.end_of_journal[0] != first:
                break
        await asyncio.sleep(1)  # Until the next file is ready.
        images.append(node.disk.system.copy())
        may_end.set()

    monkeypatch.setattr(Storage, "checkpoint", checkpoint)
    tell(story, config=CONFIG)
    monkeypatch.undo()
    (image,) = images
    return image


def boot(image: FileSystem) -> Storage:
    opening = Storage.open(StepDisk(image), CONFIG, StandingClock(), random.Random(1))
    return step(opening)


def journals(image: FileSystem) -> list[int]:
    found = [
        image.find(f"/store/journal/{name}")
        for name in sorted(image.list_directory("/store/journal"))
        if name.endswith(".journal")
    ]
    assert len(found) == 3
    return [number for number in found if number is not None]


def last_record(contents: bytearray) -> tuple[FoundRecord, list[EntryRow]]:
    """Of a journal file; what its rows say."""
    header = unpack_file_header(bytes(contents))
    assert header
    reader = RecordReader(bytes(contents), header.file_id)
    last = scan(reader).records[-1]
    rows = reader.rows(last)
    assert rows
    return last, rows


def watch_reads(monkeypatch: pytest.MonkeyPatch, number: int) -> list[int]:
    """How much each read of that file brings from now on; the window is small beside the file."""

    async def read_at(file: StepFile, position: int, length: int) -> bytes:
        found = await as_ever(file, position, length)
        if file._number == number:
            read_bytes.append(len(found))
        return found

    read_bytes: list[int] = []
    as_ever = StepFile.read_at
    monkeypatch.setattr(StepFile, "read_at", read_at)
    monkeypatch.setattr(journal_reading, "_WINDOW_BYTES", 4096)
    return read_bytes


def test_prepared_journal_file_is_scanned_once_on_open(
    died: FileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is of the size of all others, and most starts find one."""
    *_, blank = journals(died)
    read_bytes = watch_reads(monkeypatch, blank)
    storage = boot(died)
    assert step(storage.read(7, 0)) == entry(7, 0, PAYLOAD)
    once = CONFIG.journal_file_bytes
    assert once <= sum(read_bytes) < 1.5 * once  # And a beginning or two.


def test_lost_end_of_a_file_with_a_successor_is_unknown(died: FileSystem) -> None:
    """B1: no torn tail, though the first head in the other is damaged, too: there are two proofs, what a
    record there claims, and the gap between their numbers."""
    first, second, _ = journals(died)
    contents = died.files[first].contents
    last, rows = last_record(contents)
    size = len(contents) - last.body_start - 100  # As if it had been torn, with all behind it.
    contents[last.body_start + 100 :] = bytes(size)
    died.files[second].contents[FILE_HEADER_BYTES + 10] ^= 1
    storage = boot(died)
    assert step(storage.read(7, rows[0].first_entry - 1))
    with pytest.raises(EntryStateUnknown):
        step(storage.read(7, rows[0].last_entry))


def test_record_proved_by_a_later_file_is_kept_with_a_damaged_head(
    died: FileSystem,
) -> None:
    """By its tail the first record there is found, and says that all before it was durable. So what is
    damaged is no torn tail, and whatever of it proves itself is still answered."""
    first, second, _ = journals(died)
    contents = died.files[first].contents
    last, rows = last_record(contents)
    contents[last.body_end - 100] ^= 1
    contents[last.end :] = bytes(len(contents) - last.end)
    died.files[second].contents[FILE_HEADER_BYTES + 10] ^= 1
    storage = boot(died)
    assert rows[0].first_entry < rows[0].last_entry
    kept = rows[0].first_entry
    assert step(storage.read(7, kept)) == entry(7, kept, PAYLOAD)
    with pytest.raises(EntryStateUnknown):
        step(storage.read(7, rows[0].last_entry))


def test_doctor_scans_a_truncated_file_in_windows(
    died: FileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal file may be as large as the memory that is left. What is damaged is not read so."""

    async def losses() -> list[tuple[str, str]]:
        store = await StoreFiles.open(StepDisk(died), CONFIG, random.Random(1))
        return [(loss.path, loss.what) async for loss in store.losses()]

    first, *_ = journals(died)
    contents = died.files[first].contents
    last, _ = last_record(contents)
    assert step(losses()) == []
    del contents[last.body_end - 100 :]
    read_bytes = watch_reads(monkeypatch, first)
    path = f"/store/journal/{min(died.list_directory('/store/journal'))}"
    assert step(losses()) == [(path, SHORT_JOURNAL)]
    assert sum(read_bytes) > len(contents) > 3 * max(read_bytes)

    contents[FILE_HEADER_BYTES + 10] ^= 1  # Then its first record has to be looked for.
    assert step(losses()) == [(path, SHORT_JOURNAL)]
