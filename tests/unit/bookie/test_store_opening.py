"""Opening of a store after its process died."""

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
    """Two journal files with entries of ledger 7, the second just begun, and a prepared third one."""
    images: list[FileSystem] = []
    may_end, as_ever = asyncio.Event(), Storage.checkpoint

    async def checkpoint(storage: Storage) -> bool:
        await may_end.wait()
        return await as_ever(storage)

    async def story(storage: Storage, node: Node) -> None:
        first = storage.end_of_journal[0]
        for entry_id in count(step=2):  # Two entries in each record.
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
    """The last record of a journal file, and its rows."""
    header = unpack_file_header(bytes(contents))
    assert header
    reader = RecordReader(bytes(contents), header.file_id)
    last = scan(reader).records[-1]
    rows = reader.rows(last)
    assert rows
    return last, rows


def watch_reads(monkeypatch: pytest.MonkeyPatch, number: int) -> list[int]:
    """Collects the size of each read of that file; the window is smaller than the file."""

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
    """It is as large as the other files, and most starts find one."""
    *_, blank = journals(died)
    read_bytes = watch_reads(monkeypatch, blank)
    storage = boot(died)
    assert step(storage.read(7, 0)) == entry(7, 0, PAYLOAD)
    once = CONFIG.journal_file_bytes
    assert once <= sum(read_bytes) < 1.5 * once  # Its beginning may be read once or twice more.


def test_lost_end_of_a_file_with_a_successor_is_unknown(died: FileSystem) -> None:
    """B1: it is no torn tail, although the first record head in the next file is damaged too. A claim
    in that file, and the gap between sequence numbers, prove that it was durable."""
    first, second, _ = journals(died)
    contents = died.files[first].contents
    last, rows = last_record(contents)
    # Zeros the record from here on, and everything after it.
    size = len(contents) - last.body_start - 100
    contents[last.body_start + 100 :] = bytes(size)
    died.files[second].contents[FILE_HEADER_BYTES + 10] ^= 1
    storage = boot(died)
    assert step(storage.read(7, rows[0].first_entry - 1))
    with pytest.raises(EntryStateUnknown):
        step(storage.read(7, rows[0].last_entry))


def test_record_proved_by_a_later_file_is_kept_with_a_damaged_head(
    died: FileSystem,
) -> None:
    """The first record there is found by its tail and claims that all before it was durable. So the
    damaged record is no torn tail, and its entries with a valid CRC are still returned."""
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
    """A journal file may be as large as the free memory, so it must not be read as a whole."""

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

    contents[FILE_HEADER_BYTES + 10] ^= 1  # Now its first record has to be searched for.
    assert step(losses()) == [(path, SHORT_JOURNAL)]
