"""Disk space of a real bookie process after deletions, and its behaviour when the disk is full.

Space: many ledgers are filled, and nine of ten are deleted in the metadata, while adds to the
others continue. The figure is the size of the bookie's directories, including journal, catalog and
reserve, per byte of remaining entries. Every remaining entry must be read back.

Disk: a small disk is filled until the bookie refuses entries; then space is freed.
"""

import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rollbook.proto.cluster.cluster_root import initialise, open_cluster
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.errors import BookieReadOnly, Overloaded
from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.metadata import Fragment, LedgerMetadata, draw_creation_token
from rollbook.proto.ports import Address
from rollbook.proto.quorum import Quorum
from rollbook.proto.runtime.metastore import open_metadata_store
from rollbook.proto.wire.add_columns import AddReplies
from rollbook.proto.wire.messages import EntryRead, ReadReply
from tests.bench import Figure, judged
from tests.support import bookies, forgetful, processes
from tests.support.bookie_client import BookieClient, LedgerWriter, connect
from tests.support.entries import pack_entry

MIB: Final = 1024 * 1024
PATIENCE_S: Final = 600.0
KEPT_ONE_IN: Final = 10
_BATCH: Final = 64  # Adds that are sent at once.
_TRICKLE_S: Final = 0.02


@dataclass(frozen=True)
class Size:
    """Amounts of work; small sizes are for tests of this benchmark."""

    ledgers: int = 1_000
    entries: int = 1_000  # Of each, of 1 KB.
    payload_bytes: int = 1_000
    journal_file_bytes: int = 8 * MIB
    reserve_bytes: int = 4 * MIB
    disk_bytes: int = 96 * MIB
    waste_max: float = 1.3  # Of what lies on the disk to what is wanted.
    window: int = 1024  # Adds that wait for their answer.
    gc_s: float = 2.0  # Between two scans.


FULL: Final = Size()
SMALL: Final = Size(
    40,
    100,
    1_000,
    journal_file_bytes=MIB // 2,
    reserve_bytes=MIB // 8,
    disk_bytes=8 * MIB,
    waste_max=8.0,  # Journal and catalog outweigh so few entries.
    window=64,
    gc_s=0.5,
)


def figures(_runs: int, size: Size = FULL) -> list[Figure]:
    """Runs once, because the final state counts and not the speed."""
    found = asyncio.run(reclaim(size))
    if why := forgetful.why_not():
        print(f"skipped: a full disk: {why}; to enable: {forgetful.HOW_TO_ENABLE}")
    else:
        found += asyncio.run(fill_a_disk(size))
    return found


def _environment(size: Size, **more: object) -> dict[str, str]:
    settings = {
        "STORAGE_JOURNAL_FILE_BYTES": size.journal_file_bytes,
        "STORAGE_QUEUED_BYTES_MAX": size.journal_file_bytes // 4,
        "SPACE_RESERVE_BYTES": size.reserve_bytes,
        "SPACE_GC_INTERVAL_S": size.gc_s,
        "SPACE_GC_QUARANTINE_S": size.gc_s,
        "SPACE_GC_BRAKE_SHARE": 0.95,
        "SPACE_MINOR_COMPACTION_INTERVAL_S": 2 * size.gc_s,
        "SPACE_MAJOR_COMPACTION_INTERVAL_S": 7 * size.gc_s,
        "SPACE_DISK_CHECK_INTERVAL_S": 1,
        "SPACE_DISK_USAGE_THRESHOLD": 0.98,
        **more,
    }
    return {f"ROLLBOOK_{name}": str(value) for name, value in settings.items()}


# --- Load -----------------------------------------------------------------------------------------


class Writer:
    """Adds on one connection with a window, and remembers the acknowledged entries."""

    def __init__(self, client: BookieClient, size: Size) -> None:
        self.acked: dict[int, int] = {}  # Entries of each ledger, from 0 on without a gap.
        self.refused = 0
        self._client = client
        self._payload_bytes = size.payload_bytes
        self._window = size.window
        self._ledgers: dict[int, LedgerWriter] = {}
        self._sent: dict[int, int] = {}
        self._waiting = 0
        self._answered = asyncio.Event()
        client.on_adds = self._on_adds

    async def add(self, ledger_id: int, count: int) -> None:
        """Sends adds when the window has room."""
        await self.settle(self._window - count)
        packer = self._ledgers.get(ledger_id)
        if packer is None:
            packer = self._ledgers[ledger_id] = self._client.ledger(ledger_id)
        first = self._sent.get(ledger_id, 0)
        self._client.send(
            b"".join(
                packer.pack(
                    entry_id, entry_id - 1, payload(ledger_id, entry_id, self._payload_bytes)
                )
                for entry_id in range(first, first + count)
            )
        )
        self._sent[ledger_id] = first + count
        self._waiting += count

    async def settle(self, waiting_max: int = 0) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self._waiting > waiting_max:
                self._answered.clear()
                await self._answered.wait()

    def forget_refused(self) -> None:
        """The next adds begin where the acknowledged ones end."""
        self._sent = dict(self.acked)

    def _on_adds(self, replies: AddReplies) -> None:
        self._waiting -= len(replies.entry_ids)
        self._answered.set()
        ledger_id, entry_ids = replies.ledger_id, replies.entry_ids
        if replies.error is None:
            if min(entry_ids) <= self.acked.get(ledger_id, 0):  # Else one before it was refused.
                self.acked[ledger_id] = max(entry_ids) + 1
        else:
            assert replies.error in (BookieReadOnly, Overloaded), replies.error
            self.refused += len(entry_ids)

    def live_bytes(self, ledger_ids: "range | list[int]") -> int:
        return sum(self.acked.get(each, 0) for each in ledger_ids) * (self._payload_bytes + 36)


def payload(ledger_id: int, entry_id: int, size: int) -> bytes:
    """A unique payload that is fast to create."""
    return (ledger_id * 1_000_003 + entry_id).to_bytes(8) + _NOISE[: size - 8]


_NOISE: Final = random.Random(1).randbytes(64 * 1024)


async def lost_entries(
    client: BookieClient, writer: Writer, ledger_ids: list[int], size: int
) -> int:
    """The number of acknowledged entries that are not read back as they were written."""
    lost = 0
    for ledger_id in ledger_ids:
        digest = client.ledger(ledger_id).digest
        for start in range(0, writer.acked.get(ledger_id, 0), _BATCH):
            ids = range(start, min(start + _BATCH, writer.acked[ledger_id]))
            asked = [client.ask(EntryRead(LedgerId(ledger_id), EntryId(each))) for each in ids]
            for entry_id, reply in zip(ids, await asyncio.gather(*asked), strict=True):
                assert isinstance(reply, ReadReply)
                expected = pack_entry(
                    digest,
                    EntryId(entry_id),
                    EntryId(entry_id - 1),
                    0,
                    payload(ledger_id, entry_id, size),
                )
                lost += reply.body != expected
    return lost


# --- Sites ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Site:
    bookie: bookies.RunningBookie
    client: BookieClient
    writer: Writer
    ledgers: LedgerNodes
    folder: Path


@asynccontextmanager
async def site(folder: Path, metadata: Path, size: Size) -> AsyncIterator[Site]:
    url = f"sqlite://{metadata}/metadata.db"
    async with await open_metadata_store(url, create=True, visit=True) as store:
        await initialise(store, "/ledgers", random.Random(1))
    with processes.family() as children:
        environment = _environment(size)
        bookie = bookies.start(children, folder, url, "--log-level=error", environment=environment)
        address: Address = await asyncio.to_thread(bookie.wait_ready)
        async with await open_metadata_store(url) as store:
            cluster = await open_cluster(store, "/ledgers")
            ledgers = LedgerNodes(store, cluster.root, cluster.layout)
            async with await connect(address, version=2) as client:
                yield Site(bookie, client, Writer(client, size), ledgers, folder)


async def create(ledgers: LedgerNodes, ledger_id: int) -> None:
    await ledgers.create(
        LedgerMetadata(
            LedgerId(ledger_id),
            Quorum(1, 1, 1),
            (Fragment(EntryId(0), (BookieId("bk-1"),)),),
            created_ms=1,
            creation_token=draw_creation_token(random.Random(ledger_id)),
        )
    )


def disk_bytes(folder: Path) -> int:
    """The disk space of the folder's files."""
    found = 0
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                found += path.stat().st_blocks * 512
        except FileNotFoundError:
            pass  # Gone meanwhile.
    return found


# --- Space comes back -----------------------------------------------------------------------------


async def reclaim(size: Size) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="rollbook-space-") as scratch:
        folder, metadata = Path(scratch) / "bookie", Path(scratch) / "metadata"
        metadata.mkdir()
        async with site(folder, metadata, size) as at:
            return await _delete_most(at, size)


async def _delete_most(at: Site, size: Size) -> list[Figure]:
    everything = range(size.ledgers)
    kept = [each for each in everything if each % KEPT_ONE_IN == 0]
    for start in range(0, size.ledgers, _BATCH):
        await asyncio.gather(
            *(create(at.ledgers, each) for each in everything[start : start + _BATCH])
        )
    for start in range(0, size.entries, _BATCH):
        for ledger_id in everything:
            await at.writer.add(ledger_id, min(_BATCH, size.entries - start))
    await at.writer.settle()
    full = disk_bytes(at.folder)
    began = time.monotonic()
    for ledger_id in everything:
        if ledger_id % KEPT_ONE_IN:
            await at.ledgers.delete(LedgerId(ledger_id))
    slowest_s, waste, count = 0.0, float("inf"), 0
    while waste > size.waste_max and time.monotonic() - began < PATIENCE_S:
        sent = time.monotonic()
        await at.writer.add(kept[count % len(kept)], 1)
        await at.writer.settle()
        slowest_s = max(slowest_s, time.monotonic() - sent)
        count += 1
        await asyncio.sleep(_TRICKLE_S)
        if count % 25 == 0:
            waste = disk_bytes(at.folder) / at.writer.live_bytes(kept)
    elapsed = time.monotonic() - began
    lost = await lost_entries(at.client, at.writer, kept, size.payload_bytes)
    assert at.bookie.is_running
    return [
        Figure("on disk when full", full / MIB, "MiB", None, None),
        Figure("wanted after deletions", at.writer.live_bytes(kept) / MIB, "MiB", None, None),
        judged("on disk for each byte wanted", "", size.waste_max, [waste]),
        Figure("until it was so little", elapsed, "s", None, None),
        Figure("slowest of the adds meanwhile", slowest_s * 1000, "ms", None, None),
        judged("wanted entries that were lost", "", 0, [lost]),
    ]


# --- A full disk ----------------------------------------------------------------------------------


async def fill_a_disk(size: Size) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="rollbook-space-") as scratch, ExitStack() as stack:
        metadata = Path(scratch) / "metadata"
        metadata.mkdir()
        disk = stack.enter_context(forgetful.mount(Path(scratch)))
        disk.limit_free(size.disk_bytes)
        folder = disk.path / "bookie"
        async with site(folder, metadata, size) as at:
            await create(at.ledgers, 1)
            while not at.writer.refused:
                await at.writer.add(1, _BATCH)
            await at.writer.settle()
            filled = at.writer.acked[1] * (size.payload_bytes + 36)
            await asyncio.sleep(5)  # It stays so.
            at.writer.forget_refused()
            at.writer.refused = 0
            await at.writer.add(1, 1)
            await at.writer.settle()
            assert at.writer.refused == 1, "a full bookie took an entry"
            at.writer.forget_refused()
            disk.limit_free(2 * size.disk_bytes)
            began = time.monotonic()
            acked = at.writer.acked[1]
            while at.writer.acked[1] == acked and time.monotonic() - began < PATIENCE_S:
                await at.writer.add(1, 1)
                await at.writer.settle()
                at.writer.forget_refused()
                await asyncio.sleep(_TRICKLE_S)
            back_s = time.monotonic() - began
            lost = await lost_entries(at.client, at.writer, [1], size.payload_bytes)
            assert at.bookie.is_running
    return [
        Figure("taken by a disk before it was full", filled / MIB, "MiB", None, None),
        judged("room again, until entries were taken again", "s", 60.0, [back_s]),
        judged("entries lost by a full disk", "", 0, [lost]),
    ]
