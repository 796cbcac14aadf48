"""Performance of one bookie: a real process on loopback, with real syncs.

Adds are sent as fast as they are answered, over eight connections, in batches of 64 KiB, two of
them in flight on each. Responses are counted by length and decoded after the measurement. The
generator is one process that sends prebuilt bytes; its own limit is in the table.

CPU is that of the whole bookie process, including kernel and checkpoints. The CPU of each step is
measured in separate runs (`tests/bench/load/timed.py`).
"""

import itertools
import mmap
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from statistics import mean, median
from typing import Final, NamedTuple

from rollbook.proto.runtime.logging_setup import configure_logs
from tests.bench import Figure, judged, parts_of
from tests.bench.bare_disk import bare_journal
from tests.bench.load import generator
from tests.bench.load.generator import Result
from tests.bench.load.held_disk import CannotHold, reads_held_to
from tests.bench.load.victim import Victim, victim
from tests.bench.load.work import (
    FrameBatch,
    add_batches,
    batch_read_batches,
    entry_bytes,
    read_batches,
)
from tests.support import bookies, processes

CONNECTIONS: Final = 8
BATCH_BYTES: Final = 64 * 1024
WINDOW: Final = 2
PACED_CONNECTIONS: Final = 16
PACED_BATCH_BYTES: Final = 3_000  # 20 adds of 100 B.
PACED_INTERVAL_S: Final = 0.008  # 40,000 adds per second in total.
GC_INTERVAL_S: Final = 1
OLD_LEDGERS: Final = 1_000_000  # The first id of earlier ledgers.
KIB: Final = 1024
MIB: Final = 1024 * KIB
HELD_BYTES_PER_S: Final = 1_000_000_000
_SECTOR_BYTES: Final = 512  # The journal bytes of a single add.
_SINK: Final = "tests.bench.load.sink"
_BARE_SERVER: Final = "tests.bench.load.bare_server"


@dataclass(frozen=True)
class Size:
    """Amounts of work; small sizes are for tests of this benchmark."""

    adds: int = 400_000  # Of 100 B; fewer in proportion of larger ones.
    alone: int = 1_000
    cold_bytes: int = 256 * MIB
    written_bytes: int = 128 * MIB
    paced_adds: int = 160_000
    old_bytes: int = 96 * MIB
    ledgers: int = 1_000  # Where they are many.


FULL: Final = Size()
SMALL: Final = Size(
    adds=4_000,
    alone=20,
    cold_bytes=2 * MIB,
    written_bytes=MIB,
    paced_adds=3_200,
    old_bytes=MIB,
    ledgers=96,
)


Part = Callable[[int, Size], Iterator[Figure]]


def figures(
    runs: int, size: Size = FULL, *, only: Collection[str] | None = None
) -> Iterator[Figure]:
    """`only`: keys of `PARTS`."""
    wanted = parts_of(PARTS, only)
    configure_logs(level="error")
    for name in wanted:
        yield from PARTS[name](runs, size)


# --- Adds ---------------------------------------------------------------------------------------


class Shape(NamedTuple):
    name: str
    payload_bytes: int
    ledgers: int  # Of each connection.
    version: int
    adds_per_s: float | None
    cpu_us: float | None

    def work(self, size: Size, ledger_ids: Iterator[int]) -> list[list[FrameBatch]]:
        entries = max(1, size.adds * 100 // (max(100, self.payload_bytes // 3) * CONNECTIONS))
        return [
            add_batches(
                list(itertools.islice(ledger_ids, self.ledgers)),
                entries,
                self.payload_bytes,
                BATCH_BYTES,
                version=self.version,
            )
            for _ in range(CONNECTIONS)
        ]


def _shapes(size: Size) -> tuple[Shape, ...]:
    each = size.ledgers // CONNECTIONS
    return (
        Shape("adds of 100 B", 100, 1, 2, 250_000, 2.5),
        Shape("adds of 1 KB", 1_000, 1, 2, 80_000, None),
        Shape("adds of 100 B, version 3", 100, 1, 3, None, None),
        Shape(f"adds of 100 B, {each * CONNECTIONS} ledgers in turn", 100, each, 2, None, None),
    )


def adds(runs: int, size: Size) -> Iterator[Figure]:
    for shape in _shapes(size):
        rates: list[float] = []
        costs_us: list[float] = []
        ledger_ids = itertools.count(1)
        with victim() as bookie:
            for run in range(runs + 1):
                work = shape.work(size, ledger_ids)
                cpu_s = bookie.bookie.cpu_s
                result = _run(bookie.address, work)
                if run:  # The first one warms up.
                    rates.append(result.entries_per_s)
                    costs_us.append((bookie.bookie.cpu_s - cpu_s) / result.entries * 1e6)
        yield judged(shape.name, "adds/s", shape.adds_per_s, rates)
        yield judged(f"{shape.name}: CPU", "µs/add", shape.cpu_us, costs_us)
    work = _shapes(size)[0].work(size, itertools.count(1))
    yield judged("the generator alone, adds of 100 B", "adds/s", None, _into_a_sink(work, runs))


def _run(address: tuple[str, int], work: Sequence[Sequence[FrameBatch]]) -> Result:
    result = generator.run(address, work, window=WINDOW)
    _require_success(result)
    return result


def _require_success(result: Result) -> None:
    if result.successes != result.entries:
        raise AssertionError(f"{result.successes} of {result.entries} were answered well")


def _into_a_sink(work: Sequence[Sequence[FrameBatch]], runs: int) -> list[float]:
    """Sends to a sink that answers every frame with as many bytes as a bookie."""
    first = work[0][0]
    sizes = [str(n // first.entries) for n in (len(first.frames), first.reply_bytes)]
    with processes.family() as family:
        address = "127.0.0.1", int(family.start_module(_SINK, *sizes).line())
        return [generator.run(address, work, window=WINDOW).entries_per_s for _ in range(runs)]


def where_it_goes(runs: int, size: Size) -> Iterator[Figure]:
    shape = _shapes(size)[0]
    spent_us: dict[str, list[float]] = {}
    ledger_ids = itertools.count(1)
    with victim(is_timed=True) as bookie:
        for _ in range(runs):
            work = shape.work(size, ledger_ids)
            cpu_s = bookie.bookie.cpu_s
            bookie.times()
            entries = _run(bookie.address, work).entries
            times, cpu_s = bookie.times(), bookie.bookie.cpu_s - cpu_s
            steps = {**times.spent_s, "the rest": cpu_s - sum(times.spent_s.values())}
            for step, seconds in steps.items():
                spent_us.setdefault(step, []).append(seconds / entries * 1e6)
    for step, values in spent_us.items():
        yield judged(f"{shape.name}: {step}", "µs/add", None, values)


# --- One add at a time --------------------------------------------------------------------------


def alone(runs: int, size: Size) -> Iterator[Figure]:
    """Single adds, in turns with a plain synced write of the same size on the same file system."""
    adds_us: list[float] = []
    syncs_us: list[float] = []
    with victim() as bookie, ExitStack() as stack:
        bare = stack.enter_context(bare_journal(bookie.folder / "bare", _SECTOR_BYTES))
        client = stack.enter_context(socket.create_connection(bookie.address))
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for run in range(runs):
            times = [
                (_ask(client, batch), bare())
                for batch in add_batches([1 + run], size.alone, 100, 1)
            ]
            adds_us.append(median(add_s for add_s, _ in times) * 1e6)
            syncs_us.append(median(sync_s for _, sync_s in times) * 1e6)
    ratios = [add_us / sync_us for add_us, sync_us in zip(adds_us, syncs_us, strict=True)]
    yield judged("one add of 100 B alone, p50", "µs", None, adds_us)
    yield judged("a bare write and sync of its size, p50", "µs", None, syncs_us)
    yield judged("one add alone, by the bare write", "times", 2.0, ratios)


def _ask(client: socket.socket, batch: FrameBatch) -> float:
    began = time.perf_counter()
    client.sendall(batch.frames)
    missing = batch.reply_bytes
    while missing:
        missing -= len(client.recv(missing))
    return time.perf_counter() - began


# --- Reads --------------------------------------------------------------------------------------


def cached_reads(runs: int, size: Size) -> Iterator[Figure]:
    entries, ledgers = size.adds // CONNECTIONS, range(1, 5)
    with victim() as bookie:
        _run(bookie.address, [add_batches([each], entries, 100, BATCH_BYTES) for each in ledgers])
        kinds = (
            ("cached reads of 100 B, 1,000 in a BATCH_READ", batch_read_batches, 1_000, 300_000),
            ("cached reads of 100 B, 100 single ones sent together", read_batches, 100, None),
        )
        for name, make, at_once, target in kinds:
            work = [make(each, entries, 100, at_once) for each in ledgers]
            rates = [_run(bookie.address, work).entries_per_s for _ in range(runs)]
            yield judged(name, "entries/s", target, rates)


class _Cold(NamedTuple):
    """Seconds a byte of entries."""

    took_s: float
    cpu_s: float  # Of the server,
    generator_cpu_s: float


def cold_reads(runs: int, size: Size) -> Iterator[Figure]:
    yield from _cold_reads(
        runs, "cold reads of 16 KiB in order", 16 * KIB, 1 / 0.6, size.cold_bytes
    )
    yield from _cold_reads(runs, "cold reads of 1 KB in order", 1_000, None, size.cold_bytes)


def cold_reads_held(runs: int, size: Size) -> Iterator[Figure]:
    """Cold reads from a disk of known rate, because a virtual disk may be cached in memory."""
    what = f"cold reads of 16 KiB in order, the disk held to {HELD_BYTES_PER_S // 10**6:,} MB/s"
    try:
        with reads_held_to(HELD_BYTES_PER_S, Path(tempfile.gettempdir())):
            # As much as makes the first moments, which are not held, count for little.
            yield from _cold_reads(runs, what, 16 * KIB, 1 / 0.6, 4 * size.cold_bytes)
    except CannotHold as error:
        print(f"{what}: not measured: {error}", file=sys.stderr)


def _cold_reads(
    runs: int, what: str, payload_bytes: int, times_max: float | None, cold_bytes: int
) -> Iterator[Figure]:
    """Reads one ledger from its first entry on, in turns with plain readers of the same files.

    Each run has the order bookie, readers, readers, bookie, so that caches below the machine and a
    slower disk affect both sides equally.

    The disk's rate is that of a plain reader, which reads like `cat`, in the same run. Also shown
    are a reader with O_DIRECT, which on a virtual machine measures a cache or quota below it, and a
    bare server, which shows the limit of this machine, generator and language without verification.
    The bookie's own cache is small here, so that it keeps nothing from the previous run.
    """
    entries = cold_bytes // payload_bytes
    cold: list[_Cold] = []
    bare: list[_Cold] = []
    files_s: list[tuple[float, float]] = []
    with victim({"ROLLBOOK_STORAGE_CACHE_BYTES": str(8 * MIB)}) as bookie:
        _run(bookie.address, [add_batches([1], entries, payload_bytes, BATCH_BYTES)])
        work = [batch_read_batches(1, entries, payload_bytes, MIB // payload_bytes)]
        for _ in range(runs):
            ours = [_read_cold(bookie, work, entry_bytes(payload_bytes))]
            theirs = [_read_files(bookie)]
            bare.append(_read_barely(bookie))
            theirs.append(_read_files(bookie))
            ours.append(_read_cold(bookie, work, entry_bytes(payload_bytes)))
            cold.append(_Cold(*map(mean, zip(*ours, strict=True))))
            plain_s, direct_s = map(mean, zip(*theirs, strict=True))
            files_s.append((plain_s, direct_s))
    ours_s = [each.took_s for each in cold]
    bare_s = [each.took_s for each in bare]
    yield _rate(what, ours_s)
    readers = ("a plain reader of the files", times_max), ("one past the page cache", None)
    for (reader, target), theirs_s in zip(readers, zip(*files_s, strict=True), strict=True):
        yield _rate(f"{what}: {reader}", theirs_s)
        ratios = [ours / theirs for ours, theirs in zip(ours_s, theirs_s, strict=True)]
        yield judged(f"{what}: time by {reader}", "times", target, ratios)
    server = f"{what}: a bare server of the files"
    yield _rate(server, bare_s)
    ratios = [ours / theirs for ours, theirs in zip(ours_s, bare_s, strict=True)]
    yield judged(f"{what}: time by a bare server", "times", None, ratios)
    yield judged(f"{server}: CPU", "s/GB", None, [1e9 * each.cpu_s for each in bare])
    yield judged(f"{what}: CPU", "s/GB", None, [1e9 * each.cpu_s for each in cold])
    generator_cpu_s = [1e9 * each.generator_cpu_s for each in cold]
    yield judged(f"{what}: CPU of the generator", "s/GB", None, generator_cpu_s)


def _read_cold(bookie: Victim, work: Sequence[Sequence[FrameBatch]], each_bytes: int) -> _Cold:
    bookie.drop_caches()
    cpu_s = bookie.bookie.cpu_s
    result = _run(bookie.address, work)
    cpu_s, size = bookie.bookie.cpu_s - cpu_s, result.entries * each_bytes
    return _Cold(result.seconds / size, cpu_s / size, result.cpu_s / size)


def _read_barely(bookie: Victim) -> _Cold:
    """Reads all files from a bare server in responses of 1 MiB, like from the bookie."""
    request, paths = b"give", bookie.files()
    answers = sum(path.stat().st_size // MIB for path in paths)
    bookie.drop_caches()
    with processes.family() as family:
        words = (str(len(request)), str(MIB), *map(str, paths))
        server = family.start_module(_BARE_SERVER, *words)
        address = "127.0.0.1", int(server.line())
        cpu_s = bookies.cpu_s(server.pid)
        result = generator.run(address, [[FrameBatch(request, MIB, 1)] * answers], window=WINDOW)
        cpu_s, size = bookies.cpu_s(server.pid) - cpu_s, answers * MIB
        return _Cold(result.seconds / size, cpu_s / size, result.cpu_s / size)


def _read_files(bookie: Victim) -> tuple[float, float]:
    return _read_plainly(bookie), _read_plainly(bookie, os.O_DIRECT)


def _rate(name: str, seconds: Sequence[float]) -> Figure:
    return judged(name, "MB/s", None, [1e-6 / each for each in seconds])


def _read_plainly(bookie: Victim, flags: int = 0) -> float:
    """Returns seconds per byte."""
    bookie.drop_caches()
    chunk = mmap.mmap(-1, MIB)  # Aligned, as O_DIRECT wants it.
    began, size = time.perf_counter(), 0
    for path in bookie.files():
        descriptor = os.open(path, os.O_RDONLY | flags)
        try:
            while count := os.readv(descriptor, [chunk]):
                size += count
        finally:
            os.close(descriptor)
    return (time.perf_counter() - began) / size


# --- Bytes on disk ------------------------------------------------------------------------------


def written(_runs: int, size: Size) -> Iterator[Figure]:
    """One run each, because bytes hardly vary.

    Journal files are small, so that few are unfinished.
    """
    each = size.ledgers // CONNECTIONS
    shapes = (
        ("entries of 16 KiB", 16 * KIB, 1, CONNECTIONS, 1.15),
        ("one ledger of 1 KB entries", 1_000, 1, 1, 1.3),
        (f"{each * CONNECTIONS} ledgers of 100 B in turn", 100, each, CONNECTIONS, None),
    )
    for name, payload_bytes, ledgers, connections, target in shapes:
        entries = size.written_bytes // (entry_bytes(payload_bytes) * connections)
        with victim({"ROLLBOOK_STORAGE_JOURNAL_FILE_BYTES": str(16 * MIB)}) as bookie:
            before = bookie.bookie.written_bytes
            ids = itertools.count(1)
            work = [
                add_batches(
                    list(itertools.islice(ids, ledgers)), entries, payload_bytes, BATCH_BYTES
                )
                for _ in range(connections)
            ]
            added = _run(bookie.address, work).entries * entry_bytes(payload_bytes)
            written = _when_quiet(lambda: bookie.bookie.written_bytes) - before
        yield judged(f"written for {name}", "bytes/byte", target, [written / added])


def _when_quiet(read: Callable[[], int]) -> int:
    """Waits until the value has not changed for a while."""
    last, now = -1, read()
    while now != last:
        time.sleep(0.5)
        last, now = now, read()
    return now


# --- While others are at work -------------------------------------------------------------------


def beside_checkpoints(runs: int, size: Size) -> Iterator[Figure]:
    """Adds to a bookie with small journal files, and to one whose first file never fills."""
    settings = [{"ROLLBOOK_STORAGE_JOURNAL_FILE_BYTES": str(each * MIB)} for each in (16, 1024)]
    with ExitStack() as stack:
        busy, calm = (stack.enter_context(victim(each)) for each in settings)
        yield from _in_turns(runs, size, "checkpoints", busy, calm, lambda _: None)


def beside_collection(runs: int, size: Size) -> Iterator[Figure]:
    """Adds to a bookie after a fifth of its old ledgers was deleted, and to one without deletions.

    All entry logs contain entries of old ledgers, so that each of them is rewritten in each run.
    """
    both = {"ROLLBOOK_STORAGE_JOURNAL_FILE_BYTES": str(16 * MIB)}
    eager = {
        "ROLLBOOK_SPACE_GC_INTERVAL_S": str(GC_INTERVAL_S),
        "ROLLBOOK_SPACE_GC_QUARANTINE_S": "0",
        "ROLLBOOK_SPACE_GC_BRAKE_SHARE": "1",
        "ROLLBOOK_SPACE_MAJOR_COMPACTION_THRESHOLD": "0.9",
        "ROLLBOOK_SPACE_MAJOR_COMPACTION_INTERVAL_S": "86400",
    }
    old = range(OLD_LEDGERS, OLD_LEDGERS + size.ledgers)
    entries = size.old_bytes // 1_000
    with ExitStack() as stack:
        busy = stack.enter_context(victim(both | eager, has_pages=True))
        calm = stack.enter_context(victim(both))
        for bookie in (busy, calm):
            bookie.create_ledgers([*range(1, 1 + runs * size.ledgers), *old])
            _run(bookie.address, [add_batches(old, entries, 1_000, BATCH_BYTES)])
        doomed = iter(old)

        def delete_some(bookie: Victim) -> None:
            if bookie is busy:
                bookie.delete_ledgers(list(itertools.islice(doomed, len(old) // (runs + 1))))
                time.sleep(2 * GC_INTERVAL_S)  # Two scans have to agree; the second is forced.
                bookie.compact()

        before = [each.bookie.written_bytes for each in (busy, calm)]
        yield from _in_turns(runs, size, "compaction and GC", busy, calm, delete_some)
        by_busy, by_calm = (
            each.bookie.written_bytes - written
            for each, written in zip((busy, calm), before, strict=True)
        )
    yield judged("written by compaction beside these adds", "MB", None, [(by_busy - by_calm) / MIB])


def _in_turns(
    runs: int,
    size: Size,
    what: str,
    busy: Victim,
    calm: Victim,
    prepare: Callable[[Victim], None],
) -> Iterator[Figure]:
    """Paced adds to many ledgers, while the other side is stopped.

    The sides alternate in going first.
    """
    each = size.ledgers // PACED_CONNECTIONS
    p99s_ms: dict[Victim, list[float]] = {busy: [], calm: []}
    for run in range(runs):
        firsts = range(1 + run * size.ledgers, 1 + (run + 1) * size.ledgers, each)
        entries = size.paced_adds // PACED_CONNECTIONS
        work = [
            add_batches(range(first, first + each), entries, 100, PACED_BATCH_BYTES)
            for first in firsts[:PACED_CONNECTIONS]
        ]
        for bookie, other in permutations((busy, calm) if run % 2 == 0 else (calm, busy)):
            other.bookie.stop()
            prepare(bookie)
            result = generator.run(bookie.address, work, interval_s=PACED_INTERVAL_S)
            other.bookie.resume()
            _require_success(result)
            p99s_ms[bookie].append(result.percentile_us(99) / 1e3)
    ratios = [one / other for one, other in zip(*p99s_ms.values(), strict=True)]
    yield judged(f"adds beside {what}, p99", "ms", None, p99s_ms[busy])
    yield judged(f"adds without {what}, p99", "ms", None, p99s_ms[calm])
    yield judged(f"p99 with {what} by that without", "times", 2.0, ratios)


PARTS: Final[Mapping[str, Part]] = {
    "adds": adds,
    "where-it-goes": where_it_goes,
    "alone": alone,
    "cached-reads": cached_reads,
    "cold-reads": cold_reads,
    "cold-reads-held": cold_reads_held,
    "written": written,
    "checkpoints": beside_checkpoints,
    "compaction": beside_collection,
}
