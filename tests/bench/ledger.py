"""Compares Rollbook's client and bookies with Apache BookKeeper's, in turns, on one machine.

Two clusters of three bookies share one ZooKeeper; while one is measured, the other is stopped
(`stillness`). Both clients run the same jobs with the same sizes, windows and quorums (E3 Qw3 Qa2,
CRC32C), each in its own process, and report the same fields (`load/ledger_worker.py`,
`java/…/Peer.java`). Java is warmed up first. The medians of alternating runs are compared: ours,
V2, V3, ours, …

Adds have a fourth side, "bare Python" (`ledger_bare`): the limit of a Python client without checks,
index and futures. It is only shown and sets no target.

A failed run of Java is repeated, and Java's output goes to standard error. If it fails again, the
figure is that of the other runs, and its name says so.

Targets are factors of the better of Java's two protocols in the same run, in addition to absolute
ones.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import structlog

from rollbook.proto.cluster.cluster_root import open_cluster
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.ids import FIRST_ENTRY, NO_ENTRY, BookieId, LedgerId
from rollbook.proto.metadata import Fragment, LedgerMetadata
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.quorum import Quorum
from rollbook.proto.runtime.metastore import open_metadata_store
from rollbook.proto.wire.digest import DigestType
from tests.bench import Figure, compared, judged, ledger_bare, parts_of, peer
from tests.bench.stillness import awake, lie_down
from tests.interop.cluster import ROLLBOOK, Cluster, Make, empty
from tests.support import bookie_client, zookeeper
from tests.support.processes import REPOSITORY, Child

_BARE: Final = "bare Python"
_JOB_TIMEOUT_S: Final = 180.0
_WAKE_UP_S: Final = 1.0
_ATTEMPTS: Final = 3  # At a run that Java fails at.
_ADDS_MAX: Final = 5_000_000
_CREATION_TOKEN: Final = 4711
_COMPLAINTS: Final = 20  # Of each process of Java's, if one fails.
KIB: Final = 1024
MIB: Final = 1024 * KIB

Found = Mapping[str, Any]


@dataclass(frozen=True)
class Size:
    """Amounts of work."""

    seconds: float = 4.0  # Of each run of adds.
    warm_up_s: float = 10.0
    alone: int = 1_500
    read_entries: int = 200_000
    recovered: int = 10_000
    opened: int = 40
    tailed: int = 3_000


FULL: Final = Size()


class BenchFailed(Exception):
    """A client failed; the message has its reason."""


@dataclass
class Side:
    """A cluster and its client."""

    name: str
    cluster: Cluster | ledger_bare.BareCluster
    clients: tuple[str, ...]
    """Arguments of `run`; the first is our default, or Java's better one at most things."""
    run: Callable[..., Found]

    def pids(self) -> Collection[int]:
        return self.cluster.children.pids()

    def ailment(self) -> str | None:
        """All three bookies take adds, of each of its clients."""
        try:
            for client in self.clients:
                _add(self, client, _WAKE_UP_S)
        except (BenchFailed, peer.PeerFailed) as error:
            return str(error)
        return None

    def bookies_cpu_s(self) -> float:
        return sum(bookie.cpu_s for bookie in self.cluster.bookies)


class Sides(NamedTuple):
    ours: Side
    java: Side
    bare: Side  # At adds.


def _per_second(found: Found) -> float:
    return float(found["count"] / found["seconds"])


def figures(
    runs: int, size: Size = FULL, *, only: Collection[str] | None = None
) -> Iterator[Figure]:
    """`only`: keys of `JOBS`."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    wanted = parts_of(JOBS, only)
    with _sides() as sides:
        for client in sides.java.clients:
            with suppress(peer.PeerFailed):  # It has said why.
                _add(sides.java, client, size.warm_up_s)
        lie_down(sides.java)
        _add(sides.ours, "v3", size.warm_up_s * len(sides.java.clients))  # As long as Java in all.
        lie_down(sides.ours)
        lie_down(sides.bare)
        for name in wanted:
            yield from JOBS[name](sides, runs, size)


def _add(side: Side, client: str, seconds: float, size: int = 100, window: int = 1_000) -> Found:
    return side.run("adds", client, size=size, window=window, count=_ADDS_MAX, seconds=seconds)


def _in_turns(
    sides: Sides,
    runs: int,
    measure: Callable[[Side, str], Mapping[str, float]],
    java_clients: Sequence[str] = ("v2", "v3"),
    *,
    with_bare: bool = False,
) -> dict[str, dict[str, list[float]]]:
    """Results by name of the measurement and then by client."""
    turns = [(sides.ours, "v3"), *((sides.java, client) for client in java_clients)]
    turns += [(sides.bare, "bare")] if with_bare else []
    found: dict[str, dict[str, list[float]]] = {}
    failed: Counter[str] = Counter()
    for _ in range(runs):
        for side, client in turns:
            label = _label(side, client)
            with awake(side):
                measured = _patiently(measure, side, client)
            failed[label] += not measured
            for what, value in measured.items():
                found.setdefault(what, {}).setdefault(label, []).append(value)
    return {what: _told(values, failed, runs) for what, values in found.items()}


def _patiently(
    measure: Callable[[Side, str], Mapping[str, float]], side: Side, client: str
) -> Mapping[str, float]:
    """Returns None if the peer fails every time."""
    for _ in range(_ATTEMPTS):
        with suppress(peer.PeerFailed):  # It has said why.
            return measure(side, client)
    return {}


def _client_of(label: str) -> str:
    return label.partition(",")[0]


def _told(
    values: Mapping[str, list[float]], failed: Mapping[str, int], runs: int
) -> dict[str, list[float]]:
    return {
        f"{label}, but for {failed[label]} of {runs} runs" if failed[label] else label: each
        for label, each in values.items()
    }


_beside: Final = partial(compared, aside=[_BARE])


def _adds(
    sides: Sides,
    runs: int,
    size: Size,
    *,
    bytes_: int = 100,
    window: int = 1_000,
    factor: float = 2.0,
    target: float | None = 120_000.0,
    p99_factor: float | None = None,
    cpu_us_max: float | None = 4.0,
) -> Iterator[Figure]:
    def measure(side: Side, client: str) -> dict[str, float]:
        before = side.bookies_cpu_s()
        found = _add(side, client, size.seconds, bytes_, window)
        bookies_s, count = side.bookies_cpu_s() - before, found["count"]
        return {
            "rate": _per_second(found),
            "p99": found["p99_ns"] / 1e6,
            "client": found["cpu_s"] / count * 1e6,
            "bookies": bookies_s / count * 1e6,
        }

    found = _in_turns(sides, runs, measure, with_bare=True)
    what = f"adds of {bytes_:,} B, window {window:,}"
    yield from _beside(what, "adds/s", found["rate"], factor, target)
    yield from _beside(f"{what}: p99", "ms", found["p99"], p99_factor, None)
    yield from _beside(f"{what}: CPU of the client", "µs/add", found["client"], None, cpu_us_max)
    yield from _beside(f"{what}: CPU of three bookies", "µs/add", found["bookies"], None, None)


def _large_adds(sides: Sides, runs: int, size: Size) -> Iterator[Figure]:
    return _adds(
        sides,
        runs,
        size,
        bytes_=KIB,
        factor=1.5,
        target=75_000.0,
        p99_factor=0.5,
        cpu_us_max=None,
    )


def _few_adds(sides: Sides, runs: int, size: Size) -> Iterator[Figure]:
    return _adds(sides, runs, size, window=100, factor=1.5, target=None, cpu_us_max=None)


def _many_adds(sides: Sides, runs: int, size: Size) -> Iterator[Figure]:
    job = {"size": 100, "window": 1_000, "many": 50, "count": _ADDS_MAX, "seconds": size.seconds}
    with awake(sides.ours):
        rates = [_per_second(sides.ours.run("adds", "v3", **job)) for _ in range(runs)]
    yield judged("adds of 100 B, window 1,000, by append_many of 50: ours", "adds/s", None, rates)


def _alone(sides: Sides, runs: int, size: Size) -> Iterator[Figure]:
    def measure(side: Side, client: str) -> dict[str, float]:
        found = side.run("adds", client, size=100, window=1, count=size.alone, seconds=60)
        return {"p50": found["p50_ns"] / 1e6, "p99": found["p99_ns"] / 1e6}

    found = _in_turns(sides, runs, measure, with_bare=True)
    yield from _beside("one add at a time: p50", "ms", found["p50"], 1.0, None)
    yield from _beside("one add at a time: p99", "ms", found["p99"], 0.5, None)


def _reads(sides: Sides, runs: int, size: Size) -> Iterator[Figure]:
    """Batches over V2 are the best that Java can do; its V3 reads entry by entry."""
    fill = {"size": KIB, "window": 1_000, "count": size.read_entries, "seconds": 120}
    ledgers: dict[str, int] = {}

    def measure(side: Side, client: str) -> dict[str, float]:
        if side.name not in ledgers:
            ledgers[side.name] = side.run("adds", "v2", **fill)["ledger"]
        found = side.run(
            "read",
            client,
            ledger=ledgers[side.name],
            batched=client == "v2",
            requests=4,
            entries=500,
            bytes=MIB,
        )
        return {"rate": found["bytes"] / found["seconds"] / 1e6}

    found = _in_turns(sides, runs, measure)
    what = "a closed ledger of 1 KiB entries, cached, 4 requests open"
    yield from compared(what, "MB/s", found["rate"], 1.0, None)


def _recoveries(sides: Sides, runs: int, size: Size) -> Iterator[Figure]:
    def measure(side: Side, client: str) -> dict[str, float]:
        assert isinstance(side.cluster, Cluster)
        ledger = asyncio.run(_leave_open(side.cluster, size.recovered))
        found = side.run("recover", client, ledger=ledger)
        if found["last"] != size.recovered - 1:
            raise BenchFailed(f"{side.name} recovered up to {found['last']}")
        return {"s": found["seconds"]}

    times = _in_turns(sides, runs, measure, ("v3", "v3-tuned"))["s"]
    what = f"recovery of {size.recovered:,} entries past the LAC"
    tenths = [median(each) / 10 for label, each in times.items() if _client_of(label) == "Java V3"]
    yield from compared(what, "s", times, 0.5, min([0.4, *tenths]))


def _openings(sides: Sides, runs: int, size: Size) -> Iterator[Figure]:
    def measure(side: Side, client: str) -> dict[str, float]:
        found = side.run("recover_idle", client, size=100, count=size.opened)
        return {"p50": found["p50_ns"] / 1e6}

    found = _in_turns(sides, runs, measure)
    what = "opening a ledger with nothing to recover: p50"
    yield from compared(what, "ms", found["p50"], None, 8.0)


def _tailing(sides: Sides, runs: int, size: Size) -> Iterator[Figure]:
    """Only version 3 has long polls."""

    def measure(side: Side, client: str) -> dict[str, float]:
        found = side.run("tail", client, size=100, rate=1_000, count=size.tailed)
        return {"p50": found["p50_ns"] / 1e6}

    times = _in_turns(sides, runs, measure, ("v3",))["p50"]
    yield from compared("append to tailing reader at 1,000/s: p50", "ms", times, None, 2.0)


JOBS: Final[Mapping[str, Callable[[Sides, int, Size], Iterator[Figure]]]] = {
    "adds": _adds,
    "large-adds": _large_adds,
    "few-adds": _few_adds,
    "many-adds": _many_adds,
    "alone": _alone,
    "reads": _reads,
    "recoveries": _recoveries,
    "openings": _openings,
    "tailing": _tailing,
}


def _label(side: Side, client: str) -> str:
    return f"Java {client.upper()}" if side.name == "java" else side.name


# --- What runs ------------------------------------------------------------------------------------


@contextmanager
def _sides() -> Iterator[Sides]:
    with (
        zookeeper.running([f"maxSessionTimeout={peer.SESSION_MS}"]) as server,
        zookeeper.tree(server) as one,
        zookeeper.tree(server) as other,
        tempfile.TemporaryDirectory() as folder,
        cluster_of(one, Path(folder, "ours"), Make.ROLLBOOK) as ours,
        cluster_of(other, Path(folder, "java"), Make.JAVA) as java,
        ledger_bare.running(Path(folder, "bare")) as bare,
    ):
        worker = ours.children.start_module("tests.bench.load.ledger_worker", ours.metadata)
        peer_log = Path(folder, "peer.log")
        client = peer.Peer(java.children, java.metadata, peer_log)
        logs = [peer_log, *(bookie.log_path for bookie in java.bookies)]

        def run_java(job: str, name: str, **arguments: Any) -> Found:
            try:
                return client.run(job, name, **arguments)
            except peer.PeerFailed as error:
                told = f"Java's {name} failed at {job}: {error}\n{_complaints_in(logs)}"
                print(told, file=sys.stderr, flush=True)
                raise

        yield Sides(
            Side("ours", ours, ("v3", "v2"), OurClient(worker).run),
            Side("java", java, ("v2", "v3"), run_java),
            Side(_BARE, bare, ("bare",), OurClient(bare.start_client()).run),
        )


def _complaints_in(logs: Sequence[Path]) -> str:
    """The first complaint of every kind in each log, because the logs are deleted with their
    folder.
    """
    found: list[str] = []
    for log in logs:
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        kinds: dict[str, str] = {}
        for line in lines:
            if " WARN " in line or " ERROR " in line:
                _, _, message = line.partition(" ")
                kinds.setdefault(message.partition(" {")[0], line)
        found += [f"{log.parent.name}/{log.name}:", *list(kinds.values())[-_COMPLAINTS:]]
    return "\n".join(found)


@contextmanager
def cluster_of(
    tree: zookeeper.ZooKeeperTree, folder: Path, make: Make, bookies: int = 3
) -> Iterator[Cluster]:
    folder.mkdir()
    with empty(tree, folder, project=peer.PROJECT) as cluster:
        command = [*ROLLBOOK, "cluster", "init", "--metadata", cluster.metadata]
        subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)
        for _ in range(bookies):
            cluster.add_bookie(make, settings=peer.BOOKIE_SETTINGS if make is Make.JAVA else {})
        cluster.start()
        yield cluster


class OurClient:
    def __init__(self, child: Child) -> None:
        self._child = child

    @property
    def pid(self) -> int:
        return self._child.pid

    def run(self, job: str, client: str, **arguments: Any) -> Found:
        self._child.say(json.dumps({"do": job, "client": client, **arguments}))
        answer = json.loads(self._child.line(_JOB_TIMEOUT_S))
        if "error" in answer:
            raise BenchFailed(answer["error"])
        found: Found = answer["value"]
        return found


async def _leave_open(cluster: Cluster, count: int) -> LedgerId:
    """Leaves a ledger like a writer that died with all adds in flight.

    All bookies have all entries, and no entry has a last confirmed entry.
    """
    url = MetadataUrl.parse(cluster.metadata)
    async with await open_metadata_store(url) as store:
        found = await open_cluster(store, url.ledgers_root)
        nodes = LedgerNodes(store, found.root, found.layout)
        ensemble = tuple(BookieId(bookie.bookie_id) for bookie in cluster.bookies)

        def make(ledger_id: LedgerId) -> LedgerMetadata:
            return LedgerMetadata(
                ledger_id,
                Quorum(3, 3, 2),
                (Fragment(FIRST_ENTRY, ensemble),),
                digest_type=DigestType.CRC32C,
                password=bookie_client.PASSWORD,
                created_ms=1,
                creation_token=_CREATION_TOKEN,
            )

        ledger_id = (await nodes.create_new(make)).metadata.ledger_id
    for bookie in cluster.bookies:
        async with await bookie_client.connect(bookie.address) as client:
            await _send_all(client, ledger_id, count)
    return ledger_id


async def _send_all(client: bookie_client.BookieClient, ledger_id: LedgerId, count: int) -> None:
    acked = asyncio.Event()
    waiting = count

    def on_adds(replies: Any) -> None:
        nonlocal waiting
        assert replies.error is None, replies
        waiting -= len(replies.entry_ids)
        if not waiting:
            acked.set()

    client.on_adds = on_adds
    writer = client.ledger(ledger_id)
    for start in range(0, count, 500):
        stop = min(start + 500, count)
        client.send(
            b"".join(writer.pack(each, NO_ENTRY, b"x" * 100) for each in range(start, stop))
        )
        await client.drain()
    async with asyncio.timeout(_JOB_TIMEOUT_S):
        await acked.wait()
