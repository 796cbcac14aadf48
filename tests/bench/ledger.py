"""Our client on our bookies beside Apache BookKeeper's client on its bookies, in turns, on one machine.

Two clusters of three bookies share one ZooKeeper; while one is measured the other rests. Both clients
run the same jobs with the same sizes, windows and quorums (E3 Qw3 Qa2, CRC32C), each in a process of
its own, and report in the same words (`load/ledger_worker.py`, `java/…/Peer.java`). Java is warmed up
first; what is compared are medians of runs made in turns: ours, V2, V3, ours, …

Targets are factors of the better of Java's two protocols in this very run, besides absolute ones.
"""

import asyncio
import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import structlog

from rollbook.proto.cluster.cluster import open_cluster
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.ids import FIRST_ENTRY, NO_ENTRY, BookieId, LedgerId
from rollbook.proto.metadata import Fragment, LedgerMetadata
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.quorum import Quorum
from rollbook.proto.runtime.metastore import open_metadata_store
from rollbook.proto.wire.digest import DigestType
from tests.bench import Figure, judged, peer
from tests.interop.cluster import ROLLBOOK, Cluster, Make, empty
from tests.support import bookie_client, zookeeper
from tests.support.processes import REPOSITORY, Child

_JOB_TIMEOUT_S: Final = 180.0
_ADDS_MAX: Final = 5_000_000
_CREATION_TOKEN: Final = 4711
KIB: Final = 1024
MIB: Final = 1024 * KIB

Found = Mapping[str, Any]


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    seconds: float = 4.0  # Of each run of adds.
    warm_up_s: float = 10.0
    alone: int = 1_500
    read_entries: int = 200_000
    recovered: int = 10_000
    opened: int = 40
    tailed: int = 3_000


FULL: Final = Size()


class BenchFailed(Exception):
    """A client said why."""


@dataclass
class Side:
    """A cluster and the client that goes with it."""

    name: str
    cluster: Cluster
    clients: tuple[str, ...]
    """What `run` is told; the first is our default, or Java's better one at most things."""
    run: Callable[..., Found]

    def bookies_cpu_s(self) -> float:
        return sum(bookie.cpu_s for bookie in self.cluster.bookies)


def _per_second(found: Found) -> float:
    return float(found["count"] / found["seconds"])


def figures(
    runs: int, size: Size = FULL, *, only: Collection[str] | None = None
) -> Iterator[Figure]:
    """`only`: the keys of `JOBS`; all of them if it is None."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    wanted = [job for name, job in JOBS.items() if only is None or name in only]
    if wanted:
        with _sides() as (ours, java):
            for client in java.clients:
                _add(java, client, size.warm_up_s)
            _add(ours, "v3", size.warm_up_s / 10)
            for job in wanted:
                yield from job(ours, java, runs, size)


def _add(side: Side, client: str, seconds: float, size: int = 100, window: int = 1_000) -> Found:
    return side.run("adds", client, size=size, window=window, count=_ADDS_MAX, seconds=seconds)


def _adds(ours: Side, java: Side, runs: int, size: Size) -> Iterator[Figure]:
    for bytes_, window, factor, target, p99_factor in (
        (100, 1_000, 2.0, 120_000.0, None),
        (KIB, 1_000, 1.5, 75_000.0, 0.5),
        (100, 100, 1.5, None, None),
    ):
        rates: dict[str, list[float]] = {}
        p99s: dict[str, list[float]] = {}
        costs: list[tuple[float, float]] = []
        for _ in range(runs):
            for side, client in ((ours, "v3"), (java, "v2"), (java, "v3")):
                before = side.bookies_cpu_s()
                found = _add(side, client, size.seconds, bytes_, window)
                name = _label(side, client)
                rates.setdefault(name, []).append(_per_second(found))
                p99s.setdefault(name, []).append(found["p99_ns"] / 1e6)
                if side is ours:
                    bookies = side.bookies_cpu_s() - before
                    count = found["count"]
                    costs.append((found["cpu_s"] / count * 1e6, bookies / count * 1e6))
        what = f"adds of {bytes_:,} B, window {window:,}"
        yield from _compared(what, "adds/s", rates, factor, target)
        yield from _compared(f"{what}: p99", "ms", p99s, p99_factor, None)
        client_us, bookies_us = zip(*costs, strict=True)
        limit = 4.0 if bytes_ == 100 and window == 1_000 else None
        yield judged(f"{what}: CPU of our client", "µs/add", limit, client_us)
        yield judged(f"{what}: CPU of our three bookies", "µs/add", None, bookies_us)
    many = [
        _per_second(
            ours.run(
                "adds", "v3", size=100, window=1_000, many=50, count=_ADDS_MAX, seconds=size.seconds
            )
        )
        for _ in range(runs)
    ]
    yield judged("adds of 100 B, window 1,000, by append_many of 50: ours", "adds/s", None, many)


def _alone(ours: Side, java: Side, runs: int, size: Size) -> Iterator[Figure]:
    halves: dict[str, list[float]] = {}
    p99s: dict[str, list[float]] = {}
    for _ in range(runs):
        for side, client in ((ours, "v3"), (java, "v2"), (java, "v3")):
            found = side.run("adds", client, size=100, window=1, count=size.alone, seconds=60)
            halves.setdefault(_label(side, client), []).append(found["p50_ns"] / 1e6)
            p99s.setdefault(_label(side, client), []).append(found["p99_ns"] / 1e6)
    yield from _compared("one add at a time: p50", "ms", halves, 1.0, None)
    yield from _compared("one add at a time: p99", "ms", p99s, 0.5, None)


def _reads(ours: Side, java: Side, runs: int, size: Size) -> Iterator[Figure]:
    """Batches over V2 are the best that Java can do; its V3 reads entry by entry."""
    fill = {"size": KIB, "window": 1_000, "count": size.read_entries, "seconds": 120}
    ledgers = {side.name: side.run("adds", "v2", **fill)["ledger"] for side in (ours, java)}
    rates: dict[str, list[float]] = {}
    for _ in range(runs):
        for side, client in ((ours, "v3"), (java, "v2"), (java, "v3")):
            found = side.run(
                *("read", client),
                ledger=ledgers[side.name],
                batched=client == "v2",
                requests=4,
                entries=500,
                bytes=MIB,
            )
            rate = found["bytes"] / found["seconds"] / 1e6
            rates.setdefault(_label(side, client), []).append(rate)
    yield from _compared("a closed ledger of 1 KiB entries, cached", "MB/s", rates, 1.0, None)


def _recoveries(ours: Side, java: Side, runs: int, size: Size) -> Iterator[Figure]:
    times: dict[str, list[float]] = {}
    clients = ((ours, "v3"), (java, "v3"), (java, "v3-tuned"))
    for _ in range(runs):
        for side, client in clients:
            ledger = asyncio.run(_leave_open(side.cluster, size.recovered))
            found = side.run("recover", client, ledger=ledger)
            if found["last"] != size.recovered - 1:
                raise BenchFailed(f"{side.name} recovered up to {found['last']}")
            times.setdefault(_label(side, client), []).append(found["seconds"])
    what = f"recovery of {size.recovered:,} entries past the LAC"
    _, default, tuned = (median(values) for values in times.values())
    limit = min(0.4, default / 10, tuned / 2)
    yield judged(f"{what}: ours", "s", limit, times[_label(*clients[0])])
    yield judged(f"{what}: Java's defaults", "s", None, times[_label(*clients[1])])
    yield judged(f"{what}: Java tuned", "s", None, times[_label(*clients[2])])

    idle: dict[str, list[float]] = {}
    for _ in range(runs):
        for side, client in ((ours, "v3"), (java, "v2"), (java, "v3")):
            found = side.run("recover_idle", client, size=100, count=size.opened)
            idle.setdefault(_label(side, client), []).append(found["p50_ns"] / 1e6)
    yield from _compared("recovery with nothing to recover: p50", "ms", idle, None, 8.0)


def _tailing(ours: Side, java: Side, runs: int, size: Size) -> Iterator[Figure]:
    times: dict[str, list[float]] = {}
    for _ in range(runs):
        for side, client in ((ours, "v3"), (java, "v3")):
            found = side.run("tail", client, size=100, rate=1_000, count=size.tailed)
            times.setdefault(_label(side, client), []).append(found["p50_ns"] / 1e6)
    yield from _compared("append to tailing reader at 1,000/s: p50", "ms", times, None, 2.0)


def _label(side: Side, client: str) -> str:
    return "ours" if side.name == "ours" else f"Java {client.upper()}"


def _compared(
    what: str,
    unit: str,
    values: Mapping[str, Sequence[float]],
    factor: float | None,
    target: float | None,
) -> Iterator[Figure]:
    """Ours against the best of Java's; then Java's own figures, for whoever reads."""
    others = [median(found) for name, found in values.items() if name != "ours"]
    is_rate = unit.endswith("/s")
    best = max(others) if is_rate else min(others)
    limits = [] if target is None else [target]
    if factor is not None:
        limits.append(factor * best)
    limit = (max(limits) if is_rate else min(limits)) if limits else None
    for name, found in values.items():
        yield judged(f"{what}: {name}", unit, limit if name == "ours" else None, found)


# --- What runs ------------------------------------------------------------------------------------


@contextmanager
def _sides() -> Iterator[tuple[Side, Side]]:
    with (
        zookeeper.running() as server,
        zookeeper.tree(server) as one,
        zookeeper.tree(server) as other,
        tempfile.TemporaryDirectory() as folder,
        _cluster(one, Path(folder, "ours"), Make.ROLLBOOK) as ours,
        _cluster(other, Path(folder, "java"), Make.JAVA) as java,
    ):
        worker = ours.children.start_module("tests.bench.load.ledger_worker", ours.metadata)
        client = peer.Peer(java.children, java.metadata, Path(folder, "peer.log"))
        yield (
            Side("ours", ours, ("v3", "v2"), _OurClient(worker).run),
            Side("java", java, ("v2", "v3"), client.run),
        )


@contextmanager
def _cluster(tree: zookeeper.ZooKeeperTree, folder: Path, make: Make) -> Iterator[Cluster]:
    folder.mkdir()
    with empty(tree, folder, project=peer.PROJECT) as cluster:
        command = [*ROLLBOOK, "cluster", "init", "--metadata", cluster.metadata]
        subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)
        for _ in range(3):
            cluster.add_bookie(make, settings=peer.BOOKIE_SETTINGS if make is Make.JAVA else {})
        cluster.start()
        yield cluster


class _OurClient:
    def __init__(self, child: Child) -> None:
        self._child = child

    def run(self, job: str, client: str, **arguments: Any) -> Found:
        self._child.say(json.dumps({"do": job, "client": client, **arguments}))
        answer = json.loads(self._child.line(_JOB_TIMEOUT_S))
        if "error" in answer:
            raise BenchFailed(answer["error"])
        found: Found = answer["value"]
        return found


async def _leave_open(cluster: Cluster, count: int) -> LedgerId:
    """A ledger as a writer leaves it that dies with all its adds on their way: no entry knows of a
    confirmed one before it, and all of them are with all bookies.
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
