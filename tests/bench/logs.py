"""Compares named logs (client → gRPC → log server → three bookies, each a process) with other
services.

All sides run the same jobs (`load/logs_jobs.py`) in turns, with the same sizes and windows, three
copies, and acks only after the record is synced to disk.

While one side is measured, the others are stopped (`stillness`). Targets are factors of the best
peer in the same run, in addition to absolute ones.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import structlog

from rollbook import __version__
from tests.bench import Figure, compared, judged, parts_of
from tests.bench.ledger import Found, OurClient
from tests.bench.load.jobs import SHARES
from tests.bench.logs_jetstream import jetstream
from tests.bench.logs_kafka import kafka
from tests.bench.logs_peers import CannotBeHad, LogSide
from tests.bench.stillness import awake, lie_down
from tests.support import log_processes
from tests.support.log_processes import LogProcesses

KIB: Final = 1024
_RECORDS_MAX: Final = 50_000_000
_AT_ONCE: Final = 64  # Of one log they share entries.
_MAKE_PIECE: Final = 250
_WARM_UP: Final = 300  # Appends, until a server has loaded all that it ever will,
_SETTLE_S: Final = 2.0  # and has looked after what it found.


@dataclass(frozen=True)
class Size:
    """Amounts of work."""

    seconds: float = 4.0  # Of each run of appends.
    alone: int = 1_500
    tailed: int = 500
    replayed_bytes: int = 100_000_000
    logs: int = 1_000
    after_kill_s: float = 4.0
    silent_readers: int = 20
    tail_slice_bytes: int = 1_000_000_000
    tail_slices: int = 10
    more_logs: tuple[int, ...] = (1, 100, 1_000, 10_000)
    more_segments: tuple[int, ...] = (1, 10, 100, 1_000)


FULL: Final = Size()


class OurSide(LogSide):
    """One log server, and a second one only for kills of the first."""

    name = "ours"
    about = f"rollbook {__version__}, a log server and three bookies, E3 Qw3 Qa2, defaults"

    def __init__(self, cluster: LogProcesses) -> None:
        self._cluster = cluster
        cluster.start_server("log-1")
        self._client = self._hire()

    def restart(self) -> int:
        """Replaces the server by a new one with empty caches; returns its pid."""
        self._cluster.servers["log-1"].child.kill()
        server = self._cluster.start_server("log-1")
        self._client = self._hire()
        return server.pid

    def _hire(self) -> OurClient:
        """Starts a client that knows all current servers."""
        url = self._cluster.url
        return OurClient(self._cluster.children.start_module("tests.bench.load.logs_worker", url))

    def run(self, job: str, **arguments: Any) -> Found:
        return self._client.run(job, "", **arguments)

    def pids(self) -> Collection[int]:
        return self._cluster.children.pids()

    def cpu_s(self) -> Mapping[str, float]:
        return {
            "the log server": sum(each.cpu_s for each in self._cluster.servers.values()),
            "three bookies": sum(each.cpu_s for each in self._cluster.bookies),
        }

    @contextmanager
    def spare(self) -> Iterator[Mapping[str, int]]:
        self._cluster.start_server("log-2")
        servers = self._cluster.servers
        usual, self._client = self._client, self._hire()
        yield {each.address: each.pid for each in servers.values()}
        self._client = usual
        for name, each in list(servers.items()):
            if name == "log-1" and not each.child.is_running:
                self._cluster.start_server(name)
            elif name == "log-2":
                each.child.kill()
                del servers[name]


OpenPeer = Callable[[Path], AbstractContextManager[Sequence[LogSide]]]
PEERS: Final[Mapping[str, OpenPeer]] = {"Kafka": kafka, "JetStream": jetstream}
Work = Callable[[Sequence[LogSide], int, Size], Iterator[Figure]]


def figures(
    runs: int, size: Size = FULL, *, only: Collection[str] | None = None
) -> Iterator[Figure]:
    """`only`: keys of `JOBS`."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    wanted = parts_of(JOBS, only)
    with sides_of({} if all(name in OURS_ALONE for name in wanted) else PEERS) as sides:
        for side in sides:
            print(f"{side.name}: {side.about}", file=sys.stderr)
        for side in sides:
            lie_down(side)
        for name in wanted:
            if name in OURS_ALONE:
                with awake(sides[0]):
                    yield from JOBS[name](sides[:1], runs, size)
            else:
                taking_part = [side for side in sides if side.is_synced or name in UNSYNCED]
                yield from JOBS[name](taking_part, runs, size)


def _in_turns(sides: Sequence[LogSide]) -> Iterator[LogSide]:
    for side in sides:
        with awake(side):
            yield side


@contextmanager
def sides_of(peers: Mapping[str, OpenPeer]) -> Iterator[Sequence[LogSide]]:
    """Yields our side first, then the available peers."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sides: list[LogSide] = []
        for name, open_peer in peers.items():
            home = folder / name
            home.mkdir()
            try:
                sides += stack.enter_context(open_peer(home))
            except CannotBeHad as reason:
                print(f"blocked: {name}: {reason}", file=sys.stderr)
        home = folder / "ours"
        home.mkdir()
        ours = OurSide(stack.enter_context(log_processes.running(home)))
        yield [ours, *sides]


class _Runs:
    """Results of alternating runs, by measurement and then by side."""

    def __init__(
        self,
        sides: Sequence[LogSide],
        runs: int,
        measure: Callable[[LogSide, int], Mapping[str, float]],
    ) -> None:
        self._found: dict[str, dict[str, list[float]]] = {}
        self._aside = [side.name for side in sides if not side.is_synced]
        for number in range(runs):
            for side in _in_turns(sides):
                for what, value in measure(side, number).items():
                    self._found.setdefault(what, {}).setdefault(side.name, []).append(value)

    def compared(
        self,
        key: str,
        what: str,
        unit: str,
        *,
        factor: float | None = None,
        target: float | None = None,
    ) -> Iterator[Figure]:
        values = self._found[key]
        figures = compared(what, unit, values, factor, target, aside=self._aside)
        for name, figure in zip(values, figures, strict=True):
            yield replace(figure, spread=self._spread(name) if key == "p50" else ())

    def _spread(self, name: str) -> Sequence[float]:
        return [median(self._found[_at(share)][name]) for share in SHARES]

    def costs(self, what: str, unit: str) -> Iterator[Figure]:
        """CPU of each side's processes, without targets."""
        for key, values in self._found.items():
            if key.startswith("CPU"):
                for name, found in values.items():
                    yield judged(f"{what}: {key}: {name}", unit, None, found)


def _costing(side: LogSide, job: str, **arguments: Any) -> tuple[Found, dict[str, float]]:
    """Runs a job; also returns the CPU of each process per record, in µs."""
    before = side.cpu_s()
    found = side.run(job, **arguments)
    after = side.cpu_s()
    count = max(1, found["count"])
    costs = {f"CPU of {each}": (after[each] - before[each]) / count * 1e6 for each in after}
    return found, {"CPU of the client": found["cpu_s"] / count * 1e6, **costs}


def _ms(found: Found) -> dict[str, float]:
    spread = zip(SHARES, found["spread_ns"], strict=True)
    told = {name: found[f"{name}_ns"] / 1e6 for name in ("p50", "p99", "p999")}
    return told | {_at(share): ns / 1e6 for share, ns in spread}


def _at(share: float) -> str:
    return f"at {share}"


def _flood(
    sides: Sequence[LogSide], runs: int, size: Size, *, record_bytes: int, unit: str, target: float
) -> Iterator[Figure]:
    def measure(side: LogSide, _: int) -> Mapping[str, float]:
        job = {"size": record_bytes, "count": _RECORDS_MAX, "seconds": size.seconds}
        found, costs = _costing(side, "flood", log=side.new_log("flood"), **job)
        rate = found["count"] / found["seconds"]
        return {"rate": rate, "MB": rate * record_bytes / 1e6, **_ms(found), **costs}

    for side in _in_turns(sides):  # Nobody's first run counts.
        measure(side, 0)
    found = _Runs(sides, runs, measure)
    what = f"one pipelined writer, {record_bytes:,} B"
    key = "rate" if unit == "records/s" else "MB"
    yield from found.compared(key, what, unit, factor=2.0, target=target)
    yield from found.compared("p50", f"{what}: p50", "ms")
    yield from found.compared("p99", f"{what}: p99", "ms")
    yield from found.costs(what, "µs/record")


def _small(sides: Sequence[LogSide], runs: int, size: Size) -> Iterator[Figure]:
    return _flood(sides, runs, size, record_bytes=100, unit="records/s", target=550_000.0)


def _large(sides: Sequence[LogSide], runs: int, size: Size) -> Iterator[Figure]:
    return _flood(sides, runs, size, record_bytes=KIB, unit="MB/s", target=80.0)


def _alone(sides: Sequence[LogSide], runs: int, size: Size) -> Iterator[Figure]:
    def measure(side: LogSide, _: int) -> Mapping[str, float]:
        job = {"log": side.new_log("alone"), "size": 100, "count": size.alone}
        found, costs = _costing(side, "alone", **job)
        return {**_ms(found), **costs}

    found = _Runs(sides, runs, measure)
    what = "one append at a time"
    yield from found.compared("p50", f"{what}: p50", "ms", factor=1.0, target=1.4)
    yield from found.compared("p99", f"{what}: p99", "ms", factor=1.0, target=3.0)
    yield from found.compared("p999", f"{what}: p99.9", "ms")
    yield from found.costs(what, "µs/record")


def _tailing(sides: Sequence[LogSide], runs: int, size: Size) -> Iterator[Figure]:
    def measure(side: LogSide, _: int) -> Mapping[str, float]:
        job = {"size": 100, "rate": 100, "count": size.tailed}
        return _ms(side.run("tailing", log=side.new_log("tailing"), **job))

    found = _Runs(sides, runs, measure)
    what = "append to consumer's callback at 100/s"
    yield from found.compared("p50", f"{what}: p50", "ms", target=2.0)
    yield from found.compared("p99", f"{what}: p99", "ms", target=4.0)


def _replay(
    sides: Sequence[LogSide], runs: int, size: Size, *, record_bytes: int, megabytes: bool
) -> Iterator[Figure]:
    """Peers create an object for each record; both of our ways are compared with that."""
    filled: dict[str, tuple[str, int]] = {}

    def fill(side: LogSide) -> tuple[str, int]:
        log = side.new_log("replay")
        job = {"size": record_bytes, "count": size.replayed_bytes // record_bytes, "seconds": 120}
        return log, side.run("flood", log=log, **job)["count"] + 1  # And the first.

    def measure(side: LogSide, _: int) -> Mapping[str, float]:
        # The system keeps what others wrote. Our server loses its logs as it sleeps, and with them its memory.
        if isinstance(side, OurSide) or side.name not in filled:
            filled[side.name] = fill(side)
        log, count = filled[side.name]
        rates = {}
        for how in ("values", "records"):
            found, costs = _costing(side, "replay", log=log, how=how, count=count)
            rates[how] = found["count"] / found["seconds"]
            rates[f"{how} MB"] = found["bytes"] / found["seconds"] / 1e6
            rates |= {f"{each}, {how}": cost for each, cost in costs.items()}
        return rates

    found = _Runs(sides, runs, measure)
    what = f"replay of {record_bytes:,} B by one reader"
    names = {"values": "batches of values", "records": "one Record each"}
    unit = "MB/s" if megabytes else "records/s"
    targets = {"values": 1_500_000.0, "records": 800_000.0}
    for how, name in names.items():
        target = targets[how]
        if megabytes:
            target = 400.0
        key = f"{how} MB" if megabytes else how
        yield from found.compared(key, f"{what}, {name}", unit, factor=1.5, target=target)
    yield from found.costs(what, "µs/record")

    ours = sides[0]
    assert isinstance(ours, OurSide)
    rates = []
    with awake(ours):
        for _ in range(runs):
            log, count = fill(ours)
            ours.restart()  # It remembers nothing: the bookies have it.
            again = ours.run("replay", log=log, how="values", count=count)
            rates.append(again["bytes" if megabytes else "count"] / again["seconds"])
    told = [rate / 1e6 if megabytes else rate for rate in rates]
    yield judged(f"{what}, {names['values']}, from the bookies: ours", unit, None, told)


def _replay_small(sides: Sequence[LogSide], runs: int, size: Size) -> Iterator[Figure]:
    return _replay(sides, runs, size, record_bytes=100, megabytes=False)


def _replay_large(sides: Sequence[LogSide], runs: int, size: Size) -> Iterator[Figure]:
    return _replay(sides, runs, size, record_bytes=KIB, megabytes=True)


def _many_logs(sides: Sequence[LogSide], runs: int, size: Size) -> Iterator[Figure]:
    logs = {side.name: _make_logs(side, "many", size.logs) for side in _in_turns(sides)}

    def measure(side: LogSide, _: int) -> Mapping[str, float]:
        job = {"logs": logs[side.name], "size": 100, "window": size.logs, "seconds": size.seconds}
        side.run("round_robin", count=size.logs, **job)  # After a sleep each may be opened again.
        found, costs = _costing(side, "round_robin", count=_RECORDS_MAX, **job)
        return {"rate": found["count"] / found["seconds"], **costs}

    found = _Runs(sides, runs, measure)
    what = f"{size.logs:,} logs in turn, single records, one stream"
    yield from found.compared("rate", what, "appends/s", target=10_000.0)
    yield from found.costs(what, "µs/append")


def _failover(sides: Sequence[LogSide], runs: int, size: Size) -> Iterator[Figure]:
    def measure(side: LogSide, _: int) -> Mapping[str, float]:
        with side.spare() as pids:
            job = {"size": 100, "seconds": size.after_kill_s, "pids": dict(pids)}
            return side.run("failover", log=side.new_log("failover"), **job)

    found = _Runs(sides, runs, measure)
    what = "kill -9 of the owner under load"
    yield from found.compared("gap_s", f"{what}: longest gap", "s", target=2.0)
    yield from found.compared("to_opened_s", f"{what}: until the next one has it", "s")
    yield from found.compared("to_ack_s", f"{what}: from there to its first ack", "s")


def _silent_readers(sides: Sequence[LogSide], runs: int, size: Size) -> Iterator[Figure]:
    """Memory of silent readers in a new server, because an older one has free memory to reuse."""
    (ours,) = sides
    assert isinstance(ours, OurSide)
    log = ours.new_log("silent")
    ours.run("flood", log=log, size=KIB, count=size.replayed_bytes // KIB, seconds=120)
    found = []
    for _ in range(runs):
        growth_mib = _begun_anew(ours, log)
        ours.run("stare", log=log, readers=size.silent_readers, seconds=size.seconds)
        found.append(growth_mib())
    what = f"{size.silent_readers} readers that never read: memory of the log server, at most"
    yield judged(what, "MiB", 64.0, found)


def _long_tail(sides: Sequence[LogSide], _runs: int, size: Size) -> Iterator[Figure]:
    """Cost of readers in addition to appends.

    Runs once and with one bookie, because it writes much.
    """
    (ours,) = sides
    assert isinstance(ours, OurSide)
    grown = {}
    for has_readers in (False, True):
        log = ours.new_log("long-tail")
        ours.run("thin", log=log)
        growth_mib = _begun_anew(ours, log)
        if has_readers:
            ours.run("attend", log=log)
        flood = {"log": log, "size": KIB, "count": size.tail_slice_bytes // KIB, "seconds": 120}
        records = sum(ours.run("flood", **flood)["count"] for _ in range(size.tail_slices))
        if has_readers:
            ours.run("followed", count=records)
        grown[has_readers] = growth_mib()
    what = f"{records * KIB / 1e9:.3g} GB, appended"
    yield judged(
        f"{what}, followed by one and unread by another: memory of the log server, beyond that without",
        "MiB",
        64.0,
        [grown[True] - grown[False]],
    )
    yield judged(f"{what}, without readers: what it grows by", "MiB", None, [grown[False]])


def _begun_anew(ours: OurSide, log: str) -> Callable[[], float]:
    """Starts and warms up a server; the returned function gives its peak growth since then."""
    pid = ours.restart()
    ours.run("alone", log=log, size=100, count=_WARM_UP)
    time.sleep(_SETTLE_S)
    before = resident_mib(pid, "VmRSS")
    return lambda: resident_mib(pid, "VmHWM") - before


def resident_mib(pid: int, name: str) -> float:
    """A value of `/proc/PID/status`: VmRSS is the current memory, VmHWM the peak."""
    (line,) = (
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if name in line
    )
    return int(line.split()[1]) / 1024


def _per_log(sides: Sequence[LogSide], runs: int, size: Size) -> Iterator[Figure]:
    (ours,) = sides
    logs = _make_logs(ours, "per-log", 1)
    yield from _steps(
        (ours, runs, size),
        {count: f"{count:,} logs" for count in size.more_logs},
        lambda count: logs.extend(_make_logs(ours, "per-log", count - len(logs))),
        (logs[:1], logs),
        at_once=1,
        beside=(_AT_ONCE,),
    )


def _per_segment(sides: Sequence[LogSide], runs: int, size: Size) -> Iterator[Figure]:
    (ours,) = sides
    (plain, log), segments = _make_logs(ours, "per-segment", 2), 1

    def grow(count: int) -> None:
        nonlocal segments
        ours.run("roll", log=log, count=count - segments)
        segments = count

    what = {count: f"{count:,} segments" for count in size.more_segments}
    yield from _steps((ours, runs, size), what, grow, ([plain], [log]), at_once=_AT_ONCE)


def _steps(
    how: tuple[LogSide, int, Size],
    what: Mapping[int, str],
    grow: Callable[[int], object],
    logs: tuple[Sequence[str], Sequence[str]],
    *,
    at_once: int,
    beside: Sequence[int] = (),
) -> Iterator[Figure]:
    """CPU of the log server and its bookies for the second of both `logs`, which grow; flat means: no more
    than a fifth above the first, which does not, measured in turns with it: a machine's speed drifts.

    With many at once; and `beside` that with others, without a target.
    """
    side, runs, size = how
    for count, name in what.items():
        grow(count)
        for each in (at_once, *beside):
            job = {"size": 100, "count": _RECORDS_MAX, "seconds": size.seconds / 2, "at_once": each}
            costs: tuple[list[float], list[float]] = [], []
            for _ in range(runs):
                for some, found in zip(logs, costs, strict=True):
                    cost = _costing(side, "steps", logs=some, **job)[1]
                    found.append(sum(cost.values()) - cost["CPU of the client"])
            said = f"cost of an append, {each} at once"
            yield judged(f"{said}, {name}", "µs", None, costs[1])
            target = 1.2 if each == at_once else None
            ratios = [grown / small for small, grown in zip(*costs, strict=True)]
            yield judged(f"{said}, {name} by one, in turns", "times", target, ratios)


def _make_logs(side: LogSide, prefix: str, count: int) -> list[str]:
    logs = [side.new_log(prefix) for _ in range(count)]
    for start in range(0, count, _MAKE_PIECE):
        side.run("make", logs=logs[start : start + _MAKE_PIECE])
    return logs


JOBS: Final[Mapping[str, Work]] = {
    "small": _small,
    "large": _large,
    "alone": _alone,
    "tailing": _tailing,
    "replay-small": _replay_small,
    "replay-large": _replay_large,
    "many-logs": _many_logs,
    "failover": _failover,
    "silent-readers": _silent_readers,
    "long-tail": _long_tail,
    "per-log": _per_log,
    "per-segment": _per_segment,
}
OURS_ALONE: Final = ("silent-readers", "long-tail", "per-log", "per-segment")
UNSYNCED: Final = ("small", "large", "alone", "tailing")
"""Where it matters whether an ack means a sync."""
