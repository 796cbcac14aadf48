"""Recovery: how fast copies are made, what that costs others, and how fast the index and the auditor are.

Bookies, metadata store, clients and workers are processes of this machine. A ledger that lacks copies names a bookie that
never was beside the one that has all entries. So nothing has to be killed, and ledgers can be made ahead of the turns in
which they are copied.

    copies    a worker's bytes a second, beside a client that only reads the same entries (R), and one that only adds them
              to a bookie from memory, as recoveries add (W). A client that read all first and then wrote it would reach
              1/(1/R + 1/W); a worker has to reach 0.6 of that, with all its marks, locks and swaps.
    stripes   E5 W3: what the kernel received from the sources and sent to the target, by what was owed.
    java      equal ledgers on our bookies, repaired by our worker and by Java's autorecovery in turns.
    writers   appends at a steady rate while copies are made at the default rate, and while none are, in turns.
    index     100,000 ledgers in the embedded store over its socket: CPU of the process that builds the index and
              follows changes, and marks a second of its auditor.
    first     with as many ledgers: from the end of the delay to the first copy that metadata names.
    million   memory of an index of 1,000,000 ledgers, read from a store that makes them up.
"""

import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import structlog

from rollbook.ledger import connect
from rollbook.proto.cluster.cluster_root import initialise
from rollbook.proto.ids import BookieId, EntryId
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.runtime.metastore import open_metadata_store
from rollbook.recovery.config import WorkerConfig
from tests.bench import Figure, compared, judged, parts_of, show_progress
from tests.bench.metastore import OWNER
from tests.interop import toolchain
from tests.interop.cluster import ROLLBOOK
from tests.support import bookies, java, zookeeper
from tests.support.bookies import RunningBookie, cpu_s
from tests.support.processes import Child, Family, family
from tests.tally import missing_piece

KIB: Final = 1024
MIB: Final = 1024 * KIB
_LOST: Final = "127.0.0.1:1"  # Nobody listens there, so Java gives it up at once.
_PATIENCE_S: Final = 600.0
_LOOK_S: Final = 0.002
_REST_S: Final = 0.5  # Between two turns: what bookies do after one.


@dataclass(frozen=True)
class Size:
    """How much of everything; small ones are for tests of this benchmark."""

    ledgers: int = 8  # That are copied in one turn,
    large_bytes: int = 256 * MIB  # and what they have in all, in entries of 64 KiB,
    small_bytes: int = 64 * MIB  # and of 1 KiB.
    stripe_bytes: int = 32 * MIB
    large_java_bytes: int = (
        256 * MIB
    )  # The same beside Java: both work for seconds, so that how soon either of them
    small_java_bytes: int = (
        32 * MIB
    )  # begins counts little. Java takes ten times as long for small entries.
    warm_up: int = 3  # Turns of each side.
    windows: int = 20  # With copies, and as many without.
    window_s: float = 1.0
    appends_per_s: int = 500
    indexed: int = 100_000
    marked: int = 20_000
    changed: int = 5_000
    delay_s: int = 3
    many: int = 1_000_000


FULL: Final = Size()
SMALL: Final = Size(
    ledgers=2, large_bytes=MIB, small_bytes=64 * KIB, stripe_bytes=256 * KIB, large_java_bytes=64 * KIB, small_java_bytes=64 * KIB,
    warm_up=1, windows=2, window_s=0.1, indexed=200, marked=100, changed=20, delay_s=1, many=2_000,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entries:
    """How large the entries of copied ledgers are, and what is asked for with them."""

    name: str
    entry_bytes: int
    java_factor: float

    def total(self, size: Size) -> int:
        return size.large_bytes if self.entry_bytes > KIB else size.small_bytes

    def java_total(self, size: Size) -> int:
        return size.large_java_bytes if self.entry_bytes > KIB else size.small_java_bytes

    def fill(self, total: int, ledgers: int) -> dict[str, int]:
        return {
            "ledgers": ledgers,
            "entries": max(1, total // ledgers // self.entry_bytes),
            "size": self.entry_bytes,
        }


_ENTRIES: Final = (Entries("64 KiB", 64 * KIB, 1.5), Entries("1 KiB", KIB, 5.0))
_SHARE_MIN: Final = 0.6
_OVERHEAD_MAX: Final = 1.1
_RESIDENT_MIB_MAX: Final = 256.0


class BenchFailed(Exception):
    """A worker said why."""


def figures(
    runs: int, size: Size = FULL, *, only: Collection[str] | None = None
) -> Iterator[Figure]:
    """`only`: keys of `PARTS`."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    for name in parts_of(PARTS, only):
        yield from PARTS[name](runs, size)


# --- Processes --------------------------------------------------------------------------------------


class Peer:
    """A process that does jobs (`load/recovery_worker.py`, `load/index_worker.py`)."""

    def __init__(self, children: Family, module: str, url: str) -> None:
        self._child = children.start_module(f"tests.bench.load.{module}", url)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def most_resident_bytes(self) -> int:
        return RunningBookie(self._child).most_resident_bytes

    def run(self, job: str, **arguments: Any) -> Any:
        self.begin(job, **arguments)
        return self.end()

    def begin(self, job: str, **arguments: Any) -> None:
        self._child.say(json.dumps({"do": job, **arguments}))

    def end(self) -> Any:
        answer = json.loads(self._child.line(_PATIENCE_S))
        if "error" in answer:
            raise BenchFailed(answer["error"])
        return answer["value"]


class Site:
    """A cluster; bookies come when they are wanted. The embedded store has a process of its own."""

    def __init__(self, children: Family, folder: Path, url: str) -> None:
        self.children, self.url = children, url
        self.bookies: dict[str, RunningBookie] = {}
        self._folder = folder

    def start_bookie(self, name: str) -> None:
        bookie = bookies.start(
            self.children, self._folder / name, self.url, "--log-level", "error", bookie_id=name
        )
        bookie.wait_ready()
        self.bookies[name] = bookie

    def lose_bookie(self, name: str) -> None:
        """In order, so that nobody waits for its session."""
        bookie = self.bookies.pop(name)
        bookie.terminate()
        bookie.wait()

    def worker(self) -> Peer:
        return Peer(self.children, "recovery_worker", self.url)

    def index_worker(self) -> Peer:
        return Peer(self.children, "index_worker", self.url)


@contextmanager
def _embedded() -> Iterator[tuple[Site, Child]]:
    with tempfile.TemporaryDirectory() as folder, family() as children:
        url = f"sqlite://{folder}/metadata.db"
        owner = children.start(sys.executable, "-c", OWNER, url)
        assert owner.line(_PATIENCE_S) == "ready"
        yield Site(children, Path(folder), url), owner


@contextmanager
def _initialised() -> Iterator[Site]:
    with _embedded() as (site, _):
        asyncio.run(_initialise(site.url))
        yield site


async def _initialise(url: str) -> None:
    async with await open_metadata_store(url) as store:
        await initialise(store, MetadataUrl.parse(url).ledgers_root, random.SystemRandom())


def _rest() -> None:
    os.sync()
    time.sleep(_REST_S)


# --- Copies -----------------------------------------------------------------------------------------


def _copies(runs: int, size: Size) -> Iterator[Figure]:
    resident = 0
    for entries in _ENTRIES:
        with _initialised() as site:
            rates, most_resident = _copy_in_turns(site, entries, runs, size)
        resident = max(resident, most_resident)
        yield from _beside_its_parts(f"copies of {entries.name} entries", rates)
    yield judged("a worker's memory, at its most", "MiB", _RESIDENT_MIB_MAX, [resident / MIB])


def _copy_in_turns(
    site: Site, entries: Entries, runs: int, size: Size
) -> tuple[dict[str, list[float]], int]:
    """MB/s of reading alone, of writing alone, and of copying; and what the worker had in memory at most."""
    site.start_bookie("source")
    reference, worker = site.worker(), site.worker()
    total = entries.total(size)
    fill = entries.fill(total, size.ledgers)
    warm = reference.run("fill", **(fill | {"entries": max(1, fill["entries"] // 8)}), **_ALONE)
    filled = []
    for run in range(runs):
        show_progress("ledgers are filled", run, runs)
        filled.append(reference.run("fill", **fill, **_ALONE)["ids"])
    targets = "target-1", "target-2"
    for name in targets:
        site.start_bookie(name)
    _in_turn(reference, worker, warm["ids"], targets)
    rates: dict[str, list[float]] = {}
    for run, ids in enumerate(filled):
        for what, rate in _in_turn(
            reference, worker, ids, targets[:: -1 if run % 2 else 1]
        ).items():
            rates.setdefault(what, []).append(rate)
    return rates, worker.most_resident_bytes


_ALONE: Final = {"ensemble": 1, "write": 1, "lost": _LOST}


def _in_turn(
    reference: Peer, worker: Peer, ids: Sequence[int], targets: Sequence[str]
) -> dict[str, float]:
    """The two targets have the same to do in the end."""
    to_write, to_copy = targets
    worker.run("mark", ids=ids, lost=_LOST)
    _rest()
    read = reference.run("read", ids=ids)
    _rest()
    written = reference.run("write", ids=ids, target=to_write)
    _rest()
    copied = worker.run("copy", target=to_copy)
    if copied["repaired"] != len(ids):
        raise BenchFailed(f"{copied['repaired']} of {len(ids)} ledgers were repaired")
    return {
        "read": read["bytes"] / read["seconds"] / 1e6,
        "written": read["bytes"] / written["seconds"] / 1e6,
        "copied": read["bytes"] / copied["seconds"] / 1e6,
        "CPU": copied["cpu_s"] / read["bytes"] * 1e9,
    }


def _beside_its_parts(what: str, rates: Mapping[str, Sequence[float]]) -> Iterator[Figure]:
    in_turn = 1 / (1 / median(rates["read"]) + 1 / median(rates["written"]))
    mine = judged(what, "MB/s", _SHARE_MIN * in_turn, rates["copied"])
    yield replace(mine, rival=in_turn, rival_name="reading all and then writing it")
    yield judged("  reading alone", "MB/s", None, rates["read"])
    yield judged("  recovery-adding alone", "MB/s", None, rates["written"])
    yield judged("  CPU of the worker", "s/GB", None, rates["CPU"])


# --- Stripes ----------------------------------------------------------------------------------------


def _stripes(runs: int, size: Size) -> Iterator[Figure]:
    for entries in _ENTRIES:
        found: dict[str, list[float]] = {}
        for run in range(runs):
            show_progress("stripes", run, runs)
            with _initialised() as site:
                for what, value in _copy_stripes(site, entries, size).items():
                    found.setdefault(what, []).append(value)
        what = f"E5 W3, {entries.name} entries"
        yield judged(f"{what}: bytes read by those owed", "x", _OVERHEAD_MAX, found["read"])
        yield judged(f"{what}: bytes written by those owed", "x", _OVERHEAD_MAX, found["written"])
        yield judged("  copied", "MB/s", None, found["rate"])


def _copy_stripes(site: Site, entries: Entries, size: Size) -> dict[str, float]:
    """Of five bookies one goes; the sixth takes its slots."""
    for number in range(5):
        site.start_bookie(f"member-{number}")
    worker = site.worker()
    fill = entries.fill(size.stripe_bytes, size.ledgers)
    ids = worker.run("fill", **fill, ensemble=5, write=3)["ids"]
    lost = "member-2"
    owed = asyncio.run(_count_owed(site.url, ids, lost)) * entries.entry_bytes
    site.start_bookie("target")
    site.lose_bookie(lost)
    worker.run("mark", ids=ids, lost=lost)
    copied = worker.run("copy")
    target = str(site.bookies["target"].address.port)
    return {
        "read": sum(bytes_ for port, (_, bytes_) in copied["moved"].items() if port != target)
        / owed,
        "written": copied["moved"][target][0] / owed,
        "rate": owed / copied["seconds"] / 1e6,
    }


async def _count_owed(url: str, ids: Sequence[int], lost: str) -> int:
    """Entries whose copies on that bookie are to be made again."""
    owed = 0
    async with connect(url) as ledgers:
        for ledger_id in ids:
            metadata = (await ledgers.metadata(ledger_id)).metadata
            (fragment,) = metadata.fragments
            if lost in fragment.ensemble:
                slot = fragment.ensemble.index(BookieId(lost))
                entries = map(EntryId, range((metadata.last_entry or 0) + 1))
                owed += sum(metadata.quorum.holds(slot, entry_id) for entry_id in entries)
    return owed


# --- Java's autorecovery ----------------------------------------------------------------------------


def _java(runs: int, size: Size) -> Iterator[Figure]:
    try:
        toolchain.PROJECT.ensure_built()
        with zookeeper.running([f"maxSessionTimeout={_SESSION_MS}"]) as server:
            for entries in _ENTRIES:
                with zookeeper.tree(server) as tree, tempfile.TemporaryDirectory() as folder:
                    rates = _beside_java(tree, Path(folder), entries, runs, size)
                what = f"copies of {entries.name} entries, as the ledgers come to be whole"
                yield from compared(what, "MB/s", rates, entries.java_factor, None)
    except (java.NoJava, zookeeper.NoZooKeeper) as error:
        how = toolchain.PROJECT.how_to_enable
        print(f"skipped: {missing_piece(java.PIECE, str(error), how)}", file=sys.stderr, flush=True)


def _beside_java(
    tree: zookeeper.ZooKeeperTree, folder: Path, entries: Entries, runs: int, size: Size
) -> dict[str, list[float]]:
    """Two bookies: either has the entries of a ledger, and the other one takes them. The side whose turn it is not
    is asleep.
    """
    url = f"zk+hierarchical://{tree.server.address}{tree.chroot}/ledgers"
    asyncio.run(_initialise(url))
    with family() as children:
        site = Site(children, folder, url)
        for name in ("bookie-1", "bookie-2"):
            site.start_bookie(name)
        maker = site.worker()
        turns = size.warm_up + runs
        fill = entries.fill(entries.java_total(size), size.ledgers)
        maker.run("disable")
        sides = {"ours": _our_worker(site), "Java": _java_worker(children, folder, url)}
        time.sleep(_JVM_STARTS_S)
        for side in sides.values():
            side.stop()
        rates: dict[str, list[float]] = {name: [] for name in sides}
        total = fill["ledgers"] * fill["entries"] * fill["size"]
        for turn in range(turns):
            for name, side in sides.items():
                show_progress("turns beside Java", 2 * turn, 2 * turns)
                # Not ahead of its turn: Java's auditor marks what it finds when it begins.
                ids = maker.run("fill", **fill, **_ALONE)["ids"]
                maker.run("mark", ids=ids, lost=_LOST)
                _rest()
                side.resume()
                time.sleep(_REST_S)
                found = maker.run("await_repaired", ids=ids, lost=_LOST)
                side.stop()
                if turn >= size.warm_up:
                    rates[name].append(total / found["seconds"] / 1e6)
        return rates


_SESSION_MS: Final = 600_000
_JVM_STARTS_S: Final = 10.0  # While nothing is marked: then its auditor has begun.


def _our_worker(site: Site) -> Child:
    """As `rollbook server recovery` runs it, without a limit, as Java's has none."""
    environment = {
        "ROLLBOOK_WORKER_BYTES_PER_S_MAX": str(2**40),
        "ROLLBOOK_SESSION_TIMEOUT_S": "600",
    }
    command = (*ROLLBOOK, "server", "recovery", "--no-auditor", "--metadata", site.url)
    return site.children.start(*command, "--log-level", "error", environment=environment)


def _java_worker(children: Family, folder: Path, url: str) -> Child:
    """Auditor and worker, with Apache's defaults but for a session that outlasts its sleep."""
    config = folder / "java.conf"
    settings = {"metadataServiceUri": url, "zkTimeout": _SESSION_MS, "allowLoopback": "true",
                "advertisedAddress": "127.0.0.1", "httpServerEnabled": "false"}  # fmt: skip
    config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    main_class = "org.apache.bookkeeper.replication.AutoRecoveryMain"
    logged = ("sh", "-c", 'exec "$@" >>"$0" 2>&1', folder / "java.log")
    return children.start(*logged, *toolchain.command(main_class, "--conf", config))


# --- Writers beside copies --------------------------------------------------------------------------


def _writers(_runs: int, size: Size) -> Iterator[Figure]:
    for entries in _ENTRIES:
        with _initialised() as site:
            beside, paused, rates = _append_in_turns(site, entries, size)
        what = f"p99 of appends beside copies of {entries.name} entries at the default rate"
        yield judged(what, "x", 2.0, [median(beside) / median(paused)])
        yield judged("  beside copies", "ms", None, beside)
        yield judged("  while they are paused", "ms", None, paused)
        yield judged("  copied meanwhile", "MB/s", None, rates)


def _append_in_turns(
    site: Site, entries: Entries, size: Size
) -> tuple[list[float], list[float], list[float]]:
    rate = WorkerConfig().bytes_per_s_max
    site.start_bookie("source")
    worker, writer = site.worker(), site.worker()
    total = round(1.1 * rate * size.window_s)  # A little longer than the window.
    fill = entries.fill(total, size.ledgers)
    filled = []
    for window in range(size.windows + 1):
        show_progress("ledgers are filled", window, size.windows)
        filled.append(worker.run("fill", **fill, **_ALONE)["ids"])
    for name in ("target-1", "target-2"):
        site.start_bookie(name)
    append = {"size": KIB, "rate": size.appends_per_s, "seconds": size.window_s}
    writer.run("append", **append)
    beside, paused, rates = [], [], []
    for number, ids in enumerate(filled):
        show_progress("windows", number, len(filled))
        worker.run("mark", ids=ids, lost=_LOST)
        _rest()
        alone = writer.run("append", **append)
        worker.begin("copy", rate=rate)
        found = writer.run("append", **append)
        copied = worker.end()
        if number:  # The first one is to warm up.
            paused.append(alone["p99_ns"] / 1e6)
            beside.append(found["p99_ns"] / 1e6)
            rates.append(total / copied["seconds"] / 1e6)
    return beside, paused, rates


# --- Index and auditor ------------------------------------------------------------------------------

_MEMBERS: Final = 10


def _index(runs: int, size: Size) -> Iterator[Figure]:
    with _embedded() as (site, owner):
        keeper, maker = site.index_worker(), site.index_worker()
        maker.run("initialise", members=_MEMBERS)
        maker.run("populate", members=_MEMBERS, first=0, ledgers=size.indexed, naming=size.marked)
        found: dict[str, list[float]] = {}
        for run in range(runs):
            show_progress("index", run, runs)
            for what, value in _index_once(keeper, maker, owner, size).items():
                found.setdefault(what, []).append(value)
    what = f"index of {size.indexed:,} ledgers"
    yield judged(f"{what}: CPU to build it", "µs/ledger", 150.0, found["build"])
    yield judged("  the store's, to answer", "µs/ledger", None, found["build, store"])
    yield judged("  until it is there", "s", None, found["build, s"])
    yield judged(f"{what}: CPU to follow", "µs/change", 200.0, found["change"])
    yield judged("marks of an audit", "marks/s", 2_000.0, found["marks"])
    yield judged("  CPU of the auditor's process", "µs/mark", None, found["marks, CPU"])


def _index_once(keeper: Peer, maker: Peer, owner: Child, size: Size) -> dict[str, float]:
    owner_s = cpu_s(owner.pid)
    built = keeper.run("index")
    assert built["ledgers"] == size.indexed
    owner_s = cpu_s(owner.pid) - owner_s
    before = keeper.run("spent")
    maker.run("change", members=_MEMBERS, first=size.marked, count=size.changed)
    while (after := keeper.run("spent"))["changes"] < size.changed:
        time.sleep(_LOOK_S)
    maker.run("register", is_there=False)
    audited = keeper.run("audit")
    assert audited["marked"] == size.marked
    maker.run("register", is_there=True)
    maker.run("unmark_all")
    return {
        "build": built["cpu_s"] / size.indexed * 1e6,
        "build, store": owner_s / size.indexed * 1e6,
        "build, s": built["seconds"],
        "change": (after["cpu_s"] - before["cpu_s"]) / size.changed * 1e6,
        "marks": size.marked / audited["seconds"],
        "marks, CPU": audited["cpu_s"] / size.marked * 1e6,
    }


def _first(runs: int, size: Size) -> Iterator[Figure]:
    found = [_first_copy(size) for _ in range(runs)]
    yield judged("from the end of the delay to the first copy", "s", 2.0, found)


def _first_copy(size: Size) -> float:
    """Metadata names a copy once it is durable, so that is what is waited for."""
    with _embedded() as (site, _):
        maker = site.index_worker()
        maker.run("initialise", members=_MEMBERS)
        maker.run("set_delay", seconds=size.delay_s)
        rest = size.indexed - size.marked
        maker.run("populate", members=_MEMBERS, first=size.marked, ledgers=rest, naming=0)
        for name in ("source", "target"):
            site.start_bookie(name)
        small = {"first": 0, "ledgers": size.marked, "size": KIB, "bookie": "source"}
        site.worker().run("fill_small", **small, lost="lost:3181")
        log = Path(site.url.removeprefix("sqlite://")).parent / "recovery.log"
        log.touch()
        command = (*ROLLBOOK, "server", "recovery", "--metadata", site.url)
        site.children.start("sh", "-c", 'exec "$@" 2>>"$0"', log, *command)
        _await_event(log, "ledgers_indexed")
        _await_event(log, "auditor_leads")
        maker.run("register", is_there=False)
        lost_at = time.monotonic()
        _await_event(log, "ledger_seat_replaced")
        return time.monotonic() - lost_at - size.delay_s


def _await_event(log: Path, event: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    wanted = f'"{event}"'
    with log.open(encoding="utf-8") as lines:
        said = ""
        while wanted not in said:
            assert time.monotonic() < deadline, f"the recovery server never said {event}"
            said = (said + lines.read())[-1_000_000:]
            time.sleep(_LOOK_S)


def _million(_runs: int, size: Size) -> Iterator[Figure]:
    with _embedded() as (site, _):
        keeper = site.index_worker()
        keeper.run("initialise", members=1)
        found = keeper.run("million", ledgers=size.many, members=50)
    assert found["ledgers"] == size.many
    yield judged(f"index of {size.many:,} ledgers: memory", "MiB", 200.0, [found["bytes"] / MIB])


PARTS: Final[Mapping[str, Callable[[int, Size], Iterator[Figure]]]] = {
    "copies": _copies,
    "stripes": _stripes,
    "java": _java,
    "writers": _writers,
    "index": _index,
    "first": _first,
    "million": _million,
}
