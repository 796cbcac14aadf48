"""Memory of a bookie with its default budgets: a real process under steady load.

Ten thousand open ledgers get a thousand entries of 1 KB each, over 16 connections that write to
their ledgers in turn. This is the worst case for compressing the index and for checkpoints. The
peak resident memory counts. `--gib`, a small disk or a machine that needs more than five minutes
make the ledgers shorter, not fewer; the figure says how much was written.

The second part is a crowd: idle connections and slow readers. A client adds at a steady pace to the
bookie with the crowd, while the crowd connects and requests everything at once, and after that.
Then it alternates every second with a bookie without a crowd, so that changes of the machine affect
both. The crowd has the lowest CPU priority, because its own CPU time is not a cost of the bookie.

The third part has packed blocks in a log, which unpack to gigabytes (`tests/hostile/packed.py`):
the memory of a consumer that reads them, and of a log server that unpacks them or checks a message
of them.

The fourth part is the state of a log's producers in its owner: with one batch each, as after single
appends and keys, and with eight; and the memory of logs with many producers within one budget.
"""

import itertools
import shutil
import tempfile
import time
import tracemalloc
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

from rollbook.logservice.core.producer_memory_budget import ProducerMemory
from rollbook.logservice.core.producers import AppendedBatch as ProducerBatch
from rollbook.logservice.core.producers import Producers
from rollbook.logservice.ids import Offset, ProducerRef
from rollbook.proto.ids import EntryId, LedgerId
from tests.bench import Figure, judged, parts_of, show_progress
from tests.bench.load import generator
from tests.bench.load.generator import Result
from tests.bench.load.victim import Victim, victim
from tests.bench.load.work import FrameBatch, add_batches, entry_bytes
from tests.hostile.packed import BOMB_BYTES, PackedCost, cost_of_packed
from tests.support import log_processes, processes

PARTS: Final = ("ledgers", "crowd", "packed", "producers")
CONNECTIONS: Final = 16
BATCH_BYTES: Final = 64 * 1024
WINDOW: Final = 2
PACED_BATCH_BYTES: Final = 3_000  # 20 adds of 100 B.
PACED_INTERVAL_S: Final = 0.016  # In all 20,000 adds a second.
KIB: Final = 1024
MIB: Final = 1024 * 1024
_PACKED_MIB_MAX: Final = 64.0
_TURNS_AT_ONCE: Final = 4  # Of all ledgers: this many adds are made before they are sent.
_ROOM: Final = 2.5  # Bytes on disk for each byte of entries, at worst and for a moment.
_FILLING_S_MAX: Final = 300.0
_RUSH_MS_MAX: Final = 100.0  # Of 2,000 requests for 4 MiB each, in one moment.
_WINDOWS: Final = (
    4  # With each crowd, and as many without: a slow moment of the disk is in one of many.
)
_CROWD_GONE_S: Final = 1.0  # Until the bookie has closed what it leaves.
_CROWD_S_MAX: Final = 120.0  # Until it is there, on a busy machine.


@dataclass(frozen=True)
class Size:
    """Amounts of work; small sizes are for tests of this benchmark."""

    ledgers: int = 10_000
    entries: int = 1_000  # Of 1 KB, in each ledger.
    idle: int = 1_000
    slow: int = 100
    read_entries: int = 20_000  # Of 1 KB, which the slow readers ask for.
    paced_adds: int = 160_000
    bomb_bytes: int = BOMB_BYTES
    producers: int = 8192  # As many as a log remembers.
    producer_logs: int = 64


FULL: Final = Size()
SMALL: Final = Size(
    ledgers=64, entries=8, idle=20, slow=5, read_entries=200, paced_adds=3_200, bomb_bytes=4096, producers=500,
    producer_logs=4,
)  # fmt: skip


def figures(
    runs: int,
    size: Size = FULL,
    *,
    gib: float | None = None,
    only: Collection[str] | None = None,
) -> Iterator[Figure]:
    """`only`: some of `PARTS`."""
    wanted = parts_of(PARTS, only)
    if gib is not None:
        entries = int(gib * 1024 * MIB / (size.ledgers * entry_bytes(1_000)))
        size = replace(size, entries=max(1, entries))
    if "ledgers" in wanted:
        yield from _open_ledgers(size)
    if "crowd" in wanted:
        yield from _crowd(runs, size)
    if "packed" in wanted:
        yield from _packed(runs, size)
    if "producers" in wanted:
        yield from _producers(size)


# --- Open ledgers -------------------------------------------------------------------------------


def _open_ledgers(size: Size) -> Iterator[Figure]:
    size = _that_fits(size)
    with victim() as bookie:
        at_rest = bookie.bookie.resident_bytes
        seconds, entries, deadline = 0.0, 0, time.monotonic() + _FILLING_S_MAX
        while entries < size.entries and time.monotonic() < deadline:
            show_progress("entries in each ledger", entries, size.entries)
            turns = min(_TURNS_AT_ONCE, size.entries - entries)
            seconds += _run(bookie.address, _turns(size.ledgers, entries, turns)).seconds
            entries += turns
        show_progress("", 1, 1)
        grown = bookie.bookie.most_resident_bytes
    added = size.ledgers * entries * entry_bytes(1_000)
    name = f"{size.ledgers:,} ledgers, {added / (1024 * MIB):,.1f} GiB"
    yield judged(f"{name}: most resident", "MiB", 1024.0, [grown / MIB])
    yield judged(f"{name}: at the start", "MiB", None, [at_rest / MIB])
    yield judged(f"{name}: rate", "adds/s", None, [size.ledgers * entries / seconds])


def _that_fits(size: Size) -> Size:
    """Reduces the size to the room on disk; the figure's name says how much is written."""
    room = shutil.disk_usage(tempfile.gettempdir()).free / _ROOM
    return replace(
        size, entries=max(1, min(size.entries, int(room / (size.ledgers * entry_bytes(1_000)))))
    )


def _turns(ledgers: int, first: int, turns: int) -> list[list[FrameBatch]]:
    each = ledgers // CONNECTIONS
    return [
        add_batches(
            range(1 + at * each, 1 + (at + 1) * each),
            each * turns,
            1_000,
            BATCH_BYTES,
            first_entry=first,
        )
        for at in range(CONNECTIONS)
    ]


def _run(address: tuple[str, int], work: Sequence[Sequence[FrameBatch]]) -> Result:
    return _all_well(generator.run(address, work, window=WINDOW))


def _all_well(result: Result) -> Result:
    if result.successes != result.entries:
        raise AssertionError(f"{result.successes} of {result.entries} were answered well")
    return result


# --- The crowd ----------------------------------------------------------------------------------


def _crowd(runs: int, size: Size) -> Iterator[Figure]:
    found_ms: dict[str, list[float]] = {"without": [], "rush": [], "with": []}
    short = replace(size, paced_adds=size.paced_adds // 8)
    ledger_ids = itertools.count(2)
    with victim() as calm, victim() as crowded, processes.family() as family:
        for bookie in (calm, crowded):
            _run(bookie.address, [add_batches([1], size.read_entries, 1_000, BATCH_BYTES)])
            _paced(bookie, size, ledger_ids)  # The first one warms up.
        before = crowded.bookie.resident_bytes
        crowded.bookie.forget_peak()
        for run in range(runs):
            show_progress("crowds", run, runs)
            words = (*map(str, crowded.address), str(size.idle), str(size.slow), "1")
            crowd = family.start_module("tests.bench.load.crowd", *words, str(size.read_entries))
            found_ms["rush"].append(_paced(crowded, size, ledger_ids))
            assert crowd.line(_CROWD_S_MAX) == "there"
            for _ in range(_WINDOWS):
                crowd.stop()
                found_ms["without"].append(_paced(calm, short, ledger_ids))
                crowd.resume()
                found_ms["with"].append(_paced(crowded, short, ledger_ids))
            assert crowd.is_running
            crowd.end_input()
            crowd.wait()
            family.forget_ended()
            time.sleep(_CROWD_GONE_S)
        show_progress("", runs, runs)
        grown = crowded.bookie.most_resident_bytes - before
    name = f"{size.idle:,} idle connections, {size.slow:,} slow readers"
    ratio = median(found_ms["with"]) / median(
        found_ms["without"]
    )  # One slow window makes no pair's.
    yield judged("adds alone, p99", "ms", None, found_ms["without"])
    yield judged(f"{name}: p99 of adds", "ms", None, found_ms["with"])
    yield judged(f"{name}: p99 by that alone", "times", 1.3, [ratio])
    yield judged(f"{name}: p99 in their rush", "ms", _RUSH_MS_MAX, found_ms["rush"])
    yield judged(f"{name}: most that memory grew", "MiB", None, [grown / MIB])


def _paced(bookie: Victim, size: Size, ledger_ids: "itertools.count[int]") -> float:
    work = [
        add_batches([next(ledger_ids)], size.paced_adds // CONNECTIONS, 100, PACED_BATCH_BYTES)
        for _ in range(CONNECTIONS)
    ]
    result = generator.run(bookie.address, work, interval_s=PACED_INTERVAL_S)
    return _all_well(result).percentile_us(99) / 1e3


# --- Packed blocks ------------------------------------------------------------------------------


def _packed(runs: int, size: Size) -> Iterator[Figure]:
    costs = list[PackedCost]()
    for run in range(runs):
        show_progress("packed blocks", run, runs)
        with (
            tempfile.TemporaryDirectory() as folder,
            log_processes.running(Path(folder)) as cluster,
        ):
            costs.append(cost_of_packed(cluster.start_server("log-1"), size.bomb_bytes))
    show_progress("", runs, runs)
    name = f"{costs[0].stored_bytes / KIB:,.0f} KiB that unpack to {costs[0].unpacked_bytes / MIB:,.0f} MiB"
    by_name = {
        "a consumer that reads them grows by": [cost.consumer_bytes for cost in costs],
        "a server that takes them apart, by": [cost.taken_apart_bytes for cost in costs],
        "a server that checks a hundred of them, by": [cost.appended_bytes for cost in costs],
    }
    for what, grown in by_name.items():
        yield judged(f"{name}: {what}", "MiB", _PACKED_MIB_MAX, [each / MIB for each in grown])
    waited_ms = [1000 * cost.others_waited_s for cost in costs]
    yield judged(f"{name}: others' slowest call beside that check", "ms", None, waited_ms)


# --- Producers ----------------------------------------------------------------------------------


def _producers(size: Size) -> Iterator[Figure]:
    for batches, target in ((1, 256.0), (8, None)):
        before = _allocated()
        known = Producers()
        _append_as(known, size.producers, batches)
        each = (_allocated() - before) / size.producers
        yield judged(f"memory of a producer with batches, {batches}", "B", target, [each])
    budget_bytes = size.producer_logs * size.producers * 100
    before, budget, logs = _allocated(), ProducerMemory(budget_bytes), list[Producers]()
    for _ in range(size.producer_logs):
        logs.append(Producers())
        budget.add(logs[-1])
        _append_as(logs[-1], size.producers, 1)
    grown, name = _allocated() - before, f"{size.producer_logs} logs full of producers"
    most = 1.25 * budget_bytes / MIB
    yield judged(f"{name}, {budget_bytes / MIB:.0f} MiB for them", "MiB", most, [grown / MIB])


def _append_as(known: Producers, count: int, batches: int) -> None:
    for number in range(count):
        producer_id = b"%016d" % number
        for seq in range(batches):
            offset = Offset(1_000_000 + number * batches + seq)
            place = (LedgerId(1_000_000), EntryId(number * batches + seq))
            batch = ProducerBatch(
                offset, Offset(offset + 1), 1_700_000_000_000_000 + offset, *place
            )
            known.on_batch(ProducerRef(producer_id, 0, seq), batch, 3_000_000_000 + number)


def _allocated() -> int:
    """Bytes allocated by Python in this process since the first call."""
    if not tracemalloc.is_tracing():
        tracemalloc.start()
    return tracemalloc.get_traced_memory()[0]
