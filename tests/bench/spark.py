"""Logs in Spark, beside Spark's own source and sink of Kafka and beside a generator of the same Arrow batches.

One SparkSession measures all sides in turns; a round has as many jobs as fit into `--seconds`.
Reads have two partitions. Our cluster is one log server and three bookies, with three copies and
two acks; Kafka's has the three nodes of `bench logs`. CPU is that of all servers, of the JVM and of
its Python workers.
"""

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Final

import rollbook
from rollbook.api import spark as rollbook_spark
from rollbook.api.client.sync import SyncClient, SyncLog
from rollbook.api.spark.archive_folder import Archive
from rollbook.api.spark.pipelines.connection import Way
from rollbook.api.spark.pipelines.export import ExportOptions, export
from rollbook.api.spark.pipelines.job_report import Report
from rollbook.api.spark.pipelines.log_selection import selection_of
from rollbook.logservice.log_config import LogConfig
from tests.bench import Figure, judged, parts_of, show_progress
from tests.bench.load.spark_sources import PARTITIONS, Clock, Generated
from tests.bench.logs_kafka import KafkaNodes, class_path
from tests.bench.logs_peers import CannotBeHad
from tests.spark import session
from tests.support import bookies, log_processes
from tests.support.log_processes import LogProcesses
from tests.support.processes import Family

_CONNECTOR: Final = Path(__file__).parent / "kafka" / "connector.xml"
_MIB: Final = 1024 * 1024
_LOG: Final = LogConfig(tail_cache_bytes=512 * _MIB)
_FROM_BOOKIES: Final = replace(_LOG, tail_cache_bytes=0)
_WARM_UP: Final = 5  # Jobs of each side before its first round, or as many as a round takes.
_PATIENCE_S: Final = 120.0
_TRIGGERS: Final = 10  # Before those that count: until the JVM has compiled what it will.
_numbers = count()


@dataclass(frozen=True)
class Size:
    """Amounts of work; small sizes are for tests of this benchmark."""

    small: int = 3_000_000  # Records of 100 B,
    large: int = 300_000  # and of 1 KiB.
    single: int = 100_000  # Blocks of one record.
    written: int = 500_000  # Rows of one job into a sink.
    idle: int = 10_000  # Logs.
    seconds: float = 15.0  # For latencies.


FULL: Final = Size()
SMALL: Final = Size(150_000, 30_000, 5_000, 50_000, 300, 5.0)
_SMALL_BELOW_S: Final = 1.0


@dataclass
class Round:
    rows: int = 0
    seconds: float = 0.0  # Spent on the rows.
    cpu_s: dict[str, float] = field(default_factory=dict)


@dataclass
class Side:
    """One way to do the work."""

    name: str
    job: Callable[[], tuple[int, float]]  # Rows, and the seconds that they took.
    servers: Callable[[], float] = lambda: 0.0
    rounds: list[Round] = field(default_factory=list)

    @property
    def rates(self) -> list[float]:
        return [each.rows / each.seconds for each in self.rounds]

    def cpu(self) -> str:
        """CPU of the median round, in µs per row."""
        found = []
        for who in ("servers", "JVM", "Python"):
            values = [each.cpu_s[who] / each.rows * 1e6 for each in self.rounds]
            found.append(f"{median(values):.2f}")
        return " + ".join(found)


# --- Processes ----------------------------------------------------------------------------------


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(int(fields[1]), []).append(int(entry))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        mine = children.get(waiting.pop(), [])
        found += mine
        waiting += mine
    return found


def _cpu_with_reaped_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


class Rig:
    """The session, our cluster, and Kafka's if it is available."""

    def __init__(self, stack: ExitStack, folder: Path, size: Size) -> None:
        self.folder, self.size, self._stack = folder, size, stack
        os.environ["ROLLBOOK_LOG_SERVICE_TAIL_MEMORY_BYTES"] = str(1024 * _MIB)
        try:
            self.cluster: LogProcesses = stack.enter_context(log_processes.running(folder))
            self.server = self.cluster.start_server("a")
        finally:
            del os.environ["ROLLBOOK_LOG_SERVICE_TAIL_MEMORY_BYTES"]
        self.client: SyncClient = stack.enter_context(rollbook.connect(self.cluster.url))
        self.kafka: KafkaNodes | None = None
        settings = {
            "spark.driver.memory": "2g",
            "spark.driver.extraJavaOptions": "-XX:+UseParallelGC -XX:-UsePerfData",
            "spark.sql.shuffle.partitions": "2",
        }
        try:
            servers, connector = class_path(), class_path(_CONNECTOR)
            from tests.support.processes import family

            children: Family = stack.enter_context(family())
            self.kafka = KafkaNodes(children, folder, servers)
            settings["spark.driver.extraClassPath"] = connector
        except CannotBeHad as error:
            print(f"  without Kafka: {error}", file=sys.stderr, flush=True)
        self.spark: Any = stack.enter_context(session.running(folder / "spark", **settings))
        self.jvm = int(self.spark._jvm.java.lang.ProcessHandle.current().pid())
        rollbook_spark.register(self.spark)
        self.spark.dataSource.register(Generated)
        self.spark.dataSource.register(Clock)

    def our_servers_s(self) -> float:
        return self.server.cpu_s + sum(each.cpu_s for each in self.cluster.bookies)

    def kafka_s(self) -> float:
        assert self.kafka
        return self.kafka.cpu_s()

    def python_s(self) -> float:
        """With those that ended."""
        living = sum(map(_cpu_with_reaped_s, _descendants(self.jvm)))
        return living + _cpu_with_reaped_s(self.jvm) - self.jvm_s()

    def jvm_s(self) -> float:
        return bookies.cpu_s(self.jvm)

    def checkpoint(self) -> str:
        return str(self.folder / f"checkpoint-{next(_numbers)}")

    # --- Data -----------------------------------------------------------------------------------

    def log(self, name: str, rows: int, size: int, config: LogConfig) -> SyncLog:
        log = self.client.open(name, create=config)
        batch = max(min(_MIB // size, 10_000), 1)
        value = bytes(size)
        for first in range(0, rows, batch):
            log.append_many([value] * min(batch, rows - first))
        return log

    def singles(self, name: str, rows: int, size: int) -> SyncLog:
        import asyncio

        log = self.client.open(name, create=_LOG)
        thread, inside = log.inside()

        async def fill() -> None:
            left = iter(range(rows))

            async def some() -> None:
                for _ in left:
                    await inside.append(bytes(size))

            await asyncio.gather(*(some() for _ in range(512)))

        thread.run(fill())
        return log

    def topic(self, name: str, rows: int, size: int, *, is_synced: bool = True) -> str:
        """Creates a topic with one partition on three nodes; data for readers is written without
        syncs.
        """
        assert self.kafka
        jvm = self.spark._jvm
        settings = jvm.java.util.HashMap()
        settings.put("bootstrap.servers", self.kafka.servers)
        topic = jvm.org.apache.kafka.clients.admin.NewTopic(name, 1, 3)
        if not is_synced:
            configs = jvm.java.util.HashMap()
            configs.put("flush.messages", str(2**62))
            topic.configs(configs)
        topics = jvm.java.util.ArrayList()
        topics.add(topic)
        due_s = time.monotonic() + _PATIENCE_S
        while True:
            admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
            try:
                admin.createTopics(topics).all().get()
                break
            except Exception as error:  # Py4J's: nodes that have not found each other yet.
                if "TopicExists" in str(error):
                    break
                if time.monotonic() > due_s:
                    raise
                time.sleep(0.5)
            finally:
                admin.close()
        if rows:
            self.to_kafka(name, rows, size)
        return name

    def to_kafka(self, topic: str, rows: int, size: int) -> None:
        assert self.kafka
        self.generated(rows, size).select("key", "value").write.format("kafka").options(
            **{
                "kafka.bootstrap.servers": self.kafka.servers,
                "kafka.acks": "all",
                "kafka.batch.size": str(_MIB),
                "kafka.linger.ms": "5",
                "kafka.max.request.size": str(8 * _MIB),
                "topic": topic,
            }
        ).save()

    # --- Frames ---------------------------------------------------------------------------------

    def generated(self, rows: int, size: int) -> Any:
        return self.spark.read.format("generated").options(rows=str(rows), size=str(size)).load()

    def ours(self, log: str, **options: str) -> Any:
        wanted = {"endpoint": self.cluster.url, "log": log, "minPartitions": str(PARTITIONS)}
        return self.spark.read.format("rollbook").options(**wanted, **options).load()

    def of_kafka(self, topic: str) -> Any:
        found = self.spark.read.format("kafka").options(**self._kafka_options(topic)).load()
        return found.select("topic", "offset", "timestamp", "key", "value")

    def _kafka_options(self, topic: str) -> dict[str, str]:
        assert self.kafka
        return {
            "kafka.bootstrap.servers": self.kafka.servers,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "minPartitions": str(PARTITIONS),
        }

    def stream(self, name: str, **options: str) -> Any:
        return self.spark.readStream.format(name).options(**options).load()

    def our_stream(self, log: str, rows: int) -> Any:
        return self.stream(
            "rollbook",
            endpoint=self.cluster.url,
            log=log,
            startingOffsets="earliest",
            minPartitions=str(PARTITIONS),
            maxOffsetsPerTrigger=str(rows // 3),
        )

    def kafka_stream(self, topic: str, rows: int) -> Any:
        options = {**self._kafka_options(topic), "maxOffsetsPerTrigger": str(rows // 3)}
        return self.stream("kafka", **options).select(
            "topic", "offset", "timestamp", "key", "value"
        )

    # --- Jobs -----------------------------------------------------------------------------------

    def job(self, frame: Callable[[], Any], rows: int) -> Callable[[], tuple[int, float]]:
        """A batch read, from `load()` on."""

        def run() -> tuple[int, float]:
            started_s = time.monotonic()
            frame().write.format("noop").mode("overwrite").save()
            return rows, time.monotonic() - started_s

        return run

    def available_now(self, frame: Callable[[], Any]) -> Callable[[], tuple[int, float]]:
        """A stream's triggers; that a query starts is not counted."""

        def run() -> tuple[int, float]:
            query = (
                frame()
                .writeStream.format("noop")
                .option("checkpointLocation", self.checkpoint())
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            shown = [json.loads(each.json) for each in query.recentProgress]
            rows = sum(each["numInputRows"] for each in shown)
            spent_ms = sum(
                each["durationMs"]["triggerExecution"] for each in shown if each["numInputRows"]
            )
            return rows, spent_ms / 1000

        return run


# --- Rounds -------------------------------------------------------------------------------------


def _measure(rig: Rig, sides: Sequence[Side], runs: int, seconds: float, what: str) -> str:
    """In turns. The least and the highest load average of the rounds."""
    loads = []
    for side in sides:
        due_s = time.monotonic() + seconds
        for _ in range(_WARM_UP):
            side.job()
            if time.monotonic() > due_s:
                break
    for number in range(runs):
        for side in sides:
            show_progress(what, number, runs)
            loads.append(os.getloadavg()[0])
            side.rounds.append(_round(rig, side, seconds))
    return f"load {min(loads):.1f}-{max(loads):.1f}"


def _round(rig: Rig, side: Side, seconds: float) -> Round:
    found = Round()
    before = (side.servers(), rig.jvm_s(), rig.python_s())
    due_s = time.monotonic() + seconds
    while time.monotonic() < due_s:
        rows, spent_s = side.job()
        found.rows += rows
        found.seconds += spent_s
    after = (side.servers(), rig.jvm_s(), rig.python_s())
    for who, first, last in zip(("servers", "JVM", "Python"), before, after, strict=True):
        found.cpu_s[who] = last - first
    return found


def _compared(
    rig: Rig,
    what: str,
    sides: Sequence[Side],
    targets: Mapping[str, float],
    runs: int,
    seconds: float,
    least: float = 0.0,
) -> Iterator[Figure]:
    """Our side comes first.

    `targets` are factors of each peer's rate; `least` is rows per second.
    """
    load = _measure(rig, sides, runs, seconds, what)
    ours, *others = sides
    mine = median(ours.rates)
    for side in sides:
        name = f"{what}: {side.name}; CPU µs/row {side.cpu()}; {load}"
        yield judged(name, "rows/s", least or None if side is ours else None, side.rates)
    for side in others:
        if side.name in targets:
            wanted = targets[side.name]
            ratio = mine / median(side.rates)
            yield Figure(f"{what}: ours / {side.name}", ratio, "x/s", wanted, ratio >= wanted)


# --- Parts --------------------------------------------------------------------------------------


def _small(rig: Rig, runs: int, seconds: float) -> Iterator[Figure]:
    rows = rig.size.small
    rig.log("small", rows, 100, _LOG)
    batch = [Side("ours", rig.job(lambda: rig.ours("small"), rows), rig.our_servers_s)]
    stream = [
        Side("ours", rig.available_now(lambda: rig.our_stream("small", rows)), rig.our_servers_s)
    ]
    if rig.kafka:
        rig.topic("small", rows, 100, is_synced=False)
        batch.append(Side("Kafka", rig.job(lambda: rig.of_kafka("small"), rows), rig.kafka_s))
        streamed = rig.available_now(lambda: rig.kafka_stream("small", rows))
        stream.append(Side("Kafka", streamed, rig.kafka_s))
    batch.append(Side("generator", rig.job(lambda: rig.generated(rows, 100), rows)))
    made = {"rows": str(rows), "size": "100"}
    stream.append(Side("generator", rig.available_now(lambda: rig.stream("generated", **made))))
    targets = {"Kafka": 2.0, "generator": 0.6}
    yield from _compared(rig, "batch, 100 B", batch, targets, runs, seconds)
    yield from _compared(rig, "AvailableNow, 100 B", stream, targets, runs, seconds)


def _large(rig: Rig, runs: int, seconds: float) -> Iterator[Figure]:
    rows = rig.size.large
    rig.log("large", rows, 1024, _LOG)
    sides = [Side("ours", rig.job(lambda: rig.ours("large"), rows), rig.our_servers_s)]
    if rig.kafka:
        rig.topic("large", rows, 1024, is_synced=False)
        sides.append(Side("Kafka", rig.job(lambda: rig.of_kafka("large"), rows), rig.kafka_s))
    sides.append(Side("generator", rig.job(lambda: rig.generated(rows, 1024), rows)))
    targets = {"Kafka": 1.5, "generator": 0.6}
    yield from _compared(rig, "batch, 1 KiB from memory", sides, targets, runs, seconds)
    rig.log("replayed", rows, 1024, _FROM_BOOKIES)
    sides = [Side("ours", rig.job(lambda: rig.ours("replayed"), rows), rig.our_servers_s)]
    if rig.kafka:
        sides.append(Side("Kafka", rig.job(lambda: rig.of_kafka("large"), rows), rig.kafka_s))
    yield from _compared(rig, "batch, 1 KiB from bookies", sides, {"Kafka": 1.0}, runs, seconds)


def _one_record_blocks(rig: Rig, runs: int, seconds: float) -> Iterator[Figure]:
    rows = rig.size.single
    log = rig.singles("single", rows, 100)

    def values() -> tuple[int, float]:
        started_s = time.monotonic()
        found = 0
        for batch in log.read_batches():
            for block in batch.blocks:
                found += len(block.values())
        return found, time.monotonic() - started_s

    sides = [
        Side("ours", rig.job(lambda: rig.ours("single"), rows), rig.our_servers_s),
        Side("values() of the client", values, rig.our_servers_s),
    ]
    targets = {"values() of the client": 0.7}
    yield from _compared(rig, "one-record blocks, 100 B", sides, targets, runs, seconds)


def _sink(rig: Rig, runs: int, seconds: float) -> Iterator[Figure]:
    rows = rig.size.written
    rig.client.open("written", create=_FROM_BOOKIES)

    def ours() -> tuple[int, float]:
        started_s = time.monotonic()
        frame = rig.generated(rows, 100).select("key", "value")
        frame.write.format("rollbook").options(endpoint=rig.cluster.url, log="written").mode(
            "append"
        ).save()
        return rows, time.monotonic() - started_s

    def kafka(topic: str) -> Callable[[], tuple[int, float]]:
        def run() -> tuple[int, float]:
            started_s = time.monotonic()
            rig.to_kafka(topic, rows, 100)
            return rows, time.monotonic() - started_s

        return run

    sides = [Side("ours", ours, rig.our_servers_s)]
    if rig.kafka:
        for name, is_synced in (("Kafka", True), ("Kafka, not synced", False)):
            topic = rig.topic(name.replace(", ", "-").replace(" ", "-"), 0, 0, is_synced=is_synced)
            sides.append(Side(name, kafka(topic), rig.kafka_s))
    yield from _compared(rig, "sink, 100 B", sides, {"Kafka": 1.0}, runs, seconds, least=200_000.0)


def _export(rig: Rig, runs: int, seconds: float) -> Iterator[Figure]:
    rows = rig.size.small
    if not rig.client.lookup(["small"]):
        rig.log("small", rows, 100, _LOG)

    def exported() -> tuple[int, float]:
        number = next(_numbers)
        wanted = ExportOptions(selection_of(("small",)), cursor=f"archive-{number}")
        archive = Archive(str(rig.folder / f"archive-{number}"))
        started_s = time.monotonic()
        way, report = Way({"endpoint": rig.cluster.url}), Report("export")
        export(rig.spark, archive, way, wanted, report, lambda *_: None)
        spent_s = time.monotonic() - started_s
        shutil.rmtree(archive.path)
        return rows, spent_s

    sides = [
        Side("to Parquet", exported, rig.our_servers_s),
        Side("noop", rig.job(lambda: rig.ours("small"), rows), rig.our_servers_s),
    ]
    yield from _compared(rig, "export, 100 B", sides, {"noop": 0.5}, runs, seconds)


def _latency(rig: Rig, runs: int, seconds: float) -> Iterator[Figure]:
    log = rig.client.open("fresh", create=_LOG)
    path = rig.folder / "latencies"
    stream = rig.stream("rollbook", endpoint=rig.cluster.url, log="fresh")
    query = (
        stream.writeStream.format("clock")
        .options(path=str(path), checkpointLocation=rig.checkpoint())
        .start()
    )
    try:
        due_s = time.monotonic() + _PATIENCE_S
        while not path.exists() and time.monotonic() < due_s:
            _append_for(0.5, [log])
        _append_for(rig.size.seconds / 2, [log])  # Until the JVM has compiled it.
        skipped = len(path.read_text().split())
        load = os.getloadavg()[0]
        _append_for(rig.size.seconds, [log])
        time.sleep(1)
    finally:
        query.stop()
    waited = sorted(int(each) / 1000 for each in path.read_text().split()[skipped:])
    p95 = waited[len(waited) * 95 // 100]
    name = f"append to a sink in Python, p50 of {len(waited)} (p95 {p95:.0f} ms); load {load:.1f}"
    yield judged(name, "ms", 200.0, [median(waited)])


def _append_for(seconds: float, logs: Sequence[SyncLog]) -> None:
    """Five records every 20 ms."""
    due_s = time.monotonic() + seconds
    for number in count():
        if time.monotonic() >= due_s:
            return
        logs[number % len(logs)].append_many([b"x" * 100] * 5)
        time.sleep(0.02)


def _idle(rig: Rig, runs: int, seconds: float) -> Iterator[Figure]:
    found: dict[int, float] = {}
    for number in (1, rig.size.idle):
        prefix = f"idle{number}"
        busy = [rig.client.open(f"{prefix}/busy-{each}", create=_LOG) for each in range(10)]
        for log in busy:
            log.append(b"x")
        _make_logs(rig, prefix, number)
        opened = _opened(rig)
        stream = rig.stream("rollbook", endpoint=rig.cluster.url, prefix=f"{prefix}/")
        query = (
            stream.writeStream.format("noop").option("checkpointLocation", rig.checkpoint()).start()
        )
        try:
            due_s = time.monotonic() + _PATIENCE_S
            while len(_triggers_ms(query)) < _TRIGGERS and time.monotonic() < due_s:
                _append_for(1.0, busy)
            _append_for(rig.size.seconds / 2, busy)
            times = _triggers_ms(query)
            found[number] = median(times[len(times) // 2 :])
            yield judged(f"a trigger with {number:,} idle logs, p50", "ms", None, [found[number]])
            time.sleep(2)
            before = rig.jvm_s() + rig.python_s() + time.process_time(), rig.server.cpu_s
            time.sleep(rig.size.seconds)
            after = rig.jvm_s() + rig.python_s() + time.process_time(), rig.server.cpu_s
            load = os.getloadavg()[0]
            for who, first, last in zip(("driver", "server"), before, after, strict=True):
                share = 100 * (last - first) / rig.size.seconds
                what = f"{who} of an idle query over {number:,} logs; load {load:.1f}"
                yield judged(what, "% of a core", 2.0, [share])
            yield judged(
                f"logs opened by it, of {number:,} idle ones", "logs", 0.0, [_opened(rig) - opened]
            )
        finally:
            query.stop()
    few, many = sorted(found)
    more = found[many] - found[few]
    yield judged(f"a trigger's p50 with {many:,} idle logs, above one", "ms", 50.0, [more])


def _triggers_ms(query: Any) -> list[float]:
    """Of those that had records."""
    shown = [json.loads(each.json) for each in query.recentProgress]
    return [each["durationMs"]["triggerExecution"] for each in shown if each["numInputRows"]]


def _opened(rig: Rig) -> float:
    stats = rig.client.stats().stats
    return next(value for name, value in stats.items() if name.endswith("logs_opened_total"))


def _make_logs(rig: Rig, prefix: str, number: int) -> None:
    import asyncio

    thread, client = rig.client.inside()

    async def make() -> None:
        left = iter(range(number))

        async def some() -> None:
            for each in left:
                await client.open(f"{prefix}/idle-{each:05}", _LOG)

        await asyncio.gather(*(some() for _ in range(32)))

    thread.run(make())


PARTS: Final[Mapping[str, Callable[[Rig, int, float], Iterator[Figure]]]] = {
    "small": _small,
    "large": _large,
    "one-record-blocks": _one_record_blocks,
    "sink": _sink,
    "export": _export,
    "latency": _latency,
    "idle": _idle,
}


def figures(
    runs: int, only: Collection[str] | None = None, seconds: float = 3.0, size: Size | None = None
) -> Iterator[Figure]:
    """Below a second a round, all is small."""
    parts = parts_of(PARTS, only)
    if reason := session.why_not():
        sys.exit(reason)
    sizes = size or (FULL if seconds >= _SMALL_BELOW_S else SMALL)
    with tempfile.TemporaryDirectory(prefix="rb-spark-") as folder, ExitStack() as stack:
        rig = Rig(stack, Path(folder), sizes)
        for name in parts:
            yield from PARTS[name](rig, runs, seconds)
