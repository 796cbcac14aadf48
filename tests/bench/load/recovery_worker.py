"""Fills ledgers, reads them, writes them to another bookie, and repairs them, in a separate
process.

    python -m tests.bench.load.recovery_worker METADATA_URL

A ledger of `fill` with `lost` has all its entries on one bookie, and its metadata also name the
lost bookie, which a worker has to replace. Jobs are the methods of `_Worker`.
"""

import asyncio
import random
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import structlog

from rollbook.ledger import Ledgers
from rollbook.ledger.config import ClientConfig
from rollbook.ledger.ledgers import credentials
from rollbook.proto.cluster.cluster_root import open_cluster
from rollbook.proto.cluster.underreplication_marks import Marks
from rollbook.proto.ids import FIRST_ENTRY, NO_ENTRY, BookieId, LedgerId
from rollbook.proto.metadata import Fragment
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.ports import Address, MetadataStore, ProtocolFactory
from rollbook.proto.quorum import Quorum
from rollbook.proto.runtime.clock import SystemClock
from rollbook.proto.runtime.gc_tuning import calm_collector
from rollbook.proto.runtime.malloc_tuning import keep_freed_memory
from rollbook.proto.runtime.metastore import open_metadata_store
from rollbook.proto.runtime.network import SocketTransport
from rollbook.proto.wire.digest import Entry, LedgerDigest, ledger_key
from rollbook.recovery.config import WorkerConfig
from rollbook.recovery.drain_task_nodes import DrainTasks
from rollbook.recovery.recovery_adds import Restorer
from rollbook.recovery.repair_failure_nodes import Failures
from rollbook.recovery.worker import Worker
from tests.bench.load import jobs
from tests.bench.load.index_worker import create_all, metadata_of
from tests.bench.load.jobs import Found, Job

MIB: Final = 1024 * 1024
_CHUNK_BYTES: Final = MIB
_UNACKED_BYTES_MAX: Final = 8 * MIB
_AT_ONCE: Final = 64
_PATIENCE_S: Final = 60.0
_LOOK_S: Final = 0.005
_TCP_INFO_BYTES: Final = 136
_ACKED_AT, _RECEIVED_AT = 120, 128  # In the kernel's `tcp_info`.


class CountingTransport(SocketTransport):
    """Reads from the kernel what was sent and received on open connections."""

    def __init__(self) -> None:
        super().__init__()
        self._ports: dict[asyncio.Transport, int] = {}

    async def connect(
        self, factory: ProtocolFactory, address: Address, timeout_s: float
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        transport, protocol = await super().connect(factory, address, timeout_s)
        self._ports[transport] = address.port
        return transport, protocol

    def counts(self) -> dict[asyncio.Transport, tuple[int, int]]:
        """Bytes sent and received so far."""
        return {line: _counts_of(line) for line in self._ports if not line.is_closing()}

    def moved(self, before: Mapping[asyncio.Transport, tuple[int, int]]) -> dict[int, list[int]]:
        """Bytes sent and received since `before`, by the bookie's port."""
        moved: dict[int, list[int]] = {}
        for line, counts in self.counts().items():
            known = before.get(line, (0, 0))
            of_port = moved.setdefault(self._ports[line], [0, 0])
            for index in range(2):
                of_port[index] += counts[index] - known[index]
        return moved


def _counts_of(line: asyncio.Transport) -> tuple[int, int]:
    connection = line.get_extra_info("socket")
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    sent, received = info[_ACKED_AT:_RECEIVED_AT], info[_RECEIVED_AT:]
    return int.from_bytes(sent, sys.byteorder), int.from_bytes(received, sys.byteorder)


class _Worker:
    def __init__(
        self, ledgers: Ledgers, store: MetadataStore, transport: CountingTransport
    ) -> None:
        self._ledgers = ledgers
        self._store = store
        self._transport = transport
        self._marks = Marks(store, ledgers.cluster.root)
        self._own = DrainTasks(store, ledgers.cluster), Failures(store, ledgers.cluster)

    async def run(self, job: Job) -> Found:
        found: Found = await getattr(self, job["do"])(job)
        return found

    # --- Ledgers ------------------------------------------------------------------------------

    async def fill(self, job: Job) -> Found:
        """Fills ledgers. Metadata names `lost` next to the one bookie that has all entries."""
        ids = []
        await self._ledgers.until_writable(job["ensemble"], _PATIENCE_S)
        for _ in range(job["ledgers"]):
            quorum = {"ensemble": job["ensemble"], "write": job["write"], "ack": job["write"]}
            async with await self._ledgers.create(**quorum) as writer:
                await self._append_all(writer, job["entries"], job["size"])
            ids.append(writer.ledger_id)
            if job.get("lost"):
                await self._name(writer.ledger_id, BookieId(job["lost"]))
        return {"ids": ids}

    async def _append_all(self, writer: Any, entries: int, size: int) -> None:
        burst = max(1, _CHUNK_BYTES // size)
        for first in range(0, entries, burst):
            payloads = [
                number.to_bytes(8) * (size // 8)
                for number in range(first, min(first + burst, entries))
            ]
            await writer.ready(len(payloads), size * len(payloads))
            writer.append_many(payloads)
        await writer.flush()

    async def _name(self, ledger_id: LedgerId, lost: BookieId) -> None:
        stored = await self._ledgers.metadata(ledger_id, fresh=True)
        (bookie,) = stored.metadata.fragments[0].ensemble
        metadata = replace(
            stored.metadata,
            quorum=Quorum(2, 2, 2),
            fragments=(Fragment(FIRST_ENTRY, (bookie, lost)),),
        )
        await self._ledgers.nodes.update(stored, metadata)

    async def fill_small(self, job: Job) -> Found:
        """Creates ledgers with one entry, with ids from `first` on, on the bookie."""
        bookie, lost = BookieId(job["bookie"]), BookieId(job["lost"])
        ids = range(job["first"], job["first"] + job["ledgers"])
        made = (metadata_of(each, (bookie, lost), length=job["size"]) for each in ids)
        await create_all(self._store, self._ledgers.cluster, made)

        async def write(ledger_id: int) -> None:
            metadata = metadata_of(ledger_id, (bookie, lost), length=job["size"])
            payload = bytes(job["size"])
            entry = Entry(LedgerId(ledger_id), FIRST_ENTRY, NO_ENTRY, len(payload), payload)
            await self._write(metadata, bookie, [entry])

        await _many_at_once(map(write, ids))
        return {}

    # --- What copying is compared with --------------------------------------------------------

    async def read(self, job: Job) -> Found:
        """Only reads all entries of all ledgers."""
        stopwatch = jobs.Stopwatch()
        sizes = await asyncio.gather(*(self._read(each) for each in job["ids"]))
        return stopwatch.read() | {"bytes": sum(sizes)}

    async def _read(self, ledger_id: int, keep: Callable[[list[Entry]], Any] = len) -> int:
        size = 0
        async with await self._ledgers.open(ledger_id) as reader, reader.read() as stream:
            while run := await stream.next_run():
                size += sum(len(entry.payload) for entry in run)
                keep(run)
        return size

    async def write(self, job: Job) -> Found:
        """Writes the same entries from memory, like a recovery adds them to a bookie."""
        loaded: list[tuple[Any, list[Entry]]] = []
        size = 0
        for ledger_id in job["ids"]:
            entries: list[Entry] = []
            size += await self._read(ledger_id, entries.extend)
            loaded.append(((await self._ledgers.metadata(ledger_id)).metadata, entries))
        stopwatch = jobs.Stopwatch()
        target = BookieId(job["target"])
        await asyncio.gather(*(self._write(metadata, target, each) for metadata, each in loaded))
        return stopwatch.read() | {"bytes": size}

    async def _write(self, metadata: Any, target: BookieId, entries: list[Entry]) -> None:
        password, kind = credentials(metadata, None, None)
        restorer = Restorer(
            target,
            LedgerDigest(kind, password, metadata.ledger_id),
            ledger_key(password),
            self._ledgers.bookies,
            self._ledgers.config,
            is_urgent=False,
        )
        try:
            burst = max(1, _CHUNK_BYTES * len(entries) // (metadata.length or 1))
            for first in range(0, len(entries), burst):
                await restorer.put(entries[first : first + burst], _UNACKED_BYTES_MAX)
            await restorer.flush()
        finally:
            restorer.close()

    # --- Copying ------------------------------------------------------------------------------

    async def mark(self, job: Job) -> Found:
        await self._marks.prepare()
        lost = BookieId(job["lost"])
        await asyncio.gather(*(self._marks.mark(each, [lost], 1) for each in job["ids"]))
        return {}

    async def copy(self, job: Job) -> Found:
        """Repairs the marked ledgers, with `rate` bytes per second or as fast as possible."""
        config = WorkerConfig(bytes_per_s_max=job["rate"]) if job.get("rate") else _UNHELD
        target = BookieId(job["target"]) if job.get("target") else None
        worker = Worker(
            self._ledgers,
            self._store,
            SystemClock(),
            config,
            name="bench",
            local_bookie=target,
            marks=self._marks,
        )
        for tree in (self._marks, *self._own):
            await tree.prepare()
        before = self._transport.counts()
        stopwatch = jobs.Stopwatch()
        await worker.work_once()
        found = stopwatch.read()
        moved = self._transport.moved(before)
        return found | {"repaired": worker.stats.repaired, "moved": moved}

    async def await_repaired(self, job: Job) -> Found:
        """Waits for another process to repair until no ledger names the lost bookie.

        Returns when all locks are free.
        """
        stopwatch = jobs.Stopwatch()
        waiting = list(job["ids"])
        lost = BookieId(job["lost"])
        await self._marks.enable()
        while waiting:
            stored = await self._ledgers.metadata(waiting[-1], fresh=True)
            if stored.metadata.names(lost):
                await asyncio.sleep(_LOOK_S)
            else:
                waiting.pop()
        found = stopwatch.read()
        while await self._marks.locked() or [each async for each in self._marks.ids()]:
            await asyncio.sleep(_LOOK_S)
        await self._marks.disable()
        return found

    async def disable(self, _job: Job) -> Found:
        await self._marks.prepare()
        await self._marks.disable()
        return {}

    # --- A steady writer ----------------------------------------------------------------------

    async def append(self, job: Job) -> Found:
        """Appends `rate` entries per second; returns the latency of each."""
        latencies: list[int] = []
        payload = bytes(job["size"])
        await self._ledgers.until_writable(3, _PATIENCE_S)
        async with await self._ledgers.create(ensemble=3, write=3, ack=2) as writer:
            await writer.append(payload)
            start, count = time.perf_counter(), round(job["seconds"] * job["rate"])
            for number in range(count):
                await asyncio.sleep(max(0.0, start + number / job["rate"] - time.perf_counter()))
                future = writer.append(payload)
                _time(future, latencies)
            await writer.flush()
        return jobs.percentiles(latencies) | {"count": count}


def _time(future: "asyncio.Future[Any]", latencies: list[int]) -> None:
    since_ns = time.perf_counter_ns()
    future.add_done_callback(lambda _: latencies.append(time.perf_counter_ns() - since_ns))


_UNHELD: Final = WorkerConfig(bytes_per_s_max=2**40)


async def _many_at_once(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    remaining = iter(works)

    async def work() -> None:
        for each in remaining:
            await each

    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))


async def _serve() -> None:
    url = MetadataUrl.parse(sys.argv[1])
    clock, transport = SystemClock(), CountingTransport()
    async with await open_metadata_store(url) as store:
        cluster = await open_cluster(store, url.ledgers_root, url=url)
        async with Ledgers(
            transport, store, cluster, clock, random.Random(), ClientConfig()
        ) as ledgers:
            await jobs.serve(_Worker(ledgers, store, transport).run)


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    keep_freed_memory()
    calm_collector()
    asyncio.run(_serve())
