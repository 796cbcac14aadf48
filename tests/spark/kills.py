"""Kills processes of a streaming query that copies logs (`python -m tests spark --kills N`).

The query reads source logs, transforms the records and writes them to a target log. Processes are
killed when the query reaches a stage. The seed chooses the stage and the victim:

    driver    the JVM and the program; the process at the stage dies with them or runs on briefly
    worker    the Python process at the stage: of a task, of the source or of the sink's commit
    owner     the log server that owns a source log or the target log
    bookie    one of three; each record is on two

The number of partitions and the size of batches change with each start of the query. At the end,
the target must have each record of each source log once and in order, and its offsets must have
no hole.
"""

import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import rollbook
from rollbook.api.client.sync import SyncClient
from rollbook.logservice.log_config import LogConfig
from rollbook.proto.quorum import Quorum
from tests.spark.struck import FLAW, FOLDER, STAGES, Strike, disarm, has_struck
from tests.support import bookies, log_processes
from tests.support.log_processes import LogProcesses
from tests.support.processes import Child, ChildFailed
from tests.tally import Tally

VICTIMS: Final = ("driver", "worker", "owner", "bookie")
SERVERS: Final = ("a", "b")
SOURCES: Final = ("kills/source-0", "kills/source-1", "kills/source-2")
TARGET: Final = "kills/target"
_SINK_FROM: Final = STAGES.index("write")
_RECORDS: Final = 90  # Appended to each source log before each run.
_QUORUM: Final = Quorum(2, 2, 2)
_SOURCE: Final = LogConfig(quorum=_QUORUM)
_TARGET: Final = LogConfig(quorum=_QUORUM, batch_records_max=40)  # Each batch has several blocks.
_START_S: Final = 180.0
_RUN_S: Final = 240.0
_TRIES: Final = 3
_SHOWN_MAX: Final = 5

Progress = Callable[[int, int], None]
Say = Callable[[str], None]


def run(kills: int, seed: int, progress: Progress, say: Say, flaw: str = "") -> Tally:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="rb-kills-") as folder, ExitStack() as stack:
        cluster = stack.enter_context(log_processes.running(Path(folder)))
        for name in SERVERS:
            cluster.start_server(name)
        client = stack.enter_context(rollbook.connect(cluster.url))
        scene = Scene(cluster, client, Path(folder), chance, flaw)
        for number, (stage, victim) in enumerate(plan(kills, chance)):
            progress(number, kills)
            scene.strike(stage, victim)
        progress(kills, kills)
        scene.finish()
        for line in scene.lines():
            say(line)
        return judge(client, scene.missed, say)


def plan(kills: int, chance: random.Random) -> list[tuple[str, str]]:
    """Victims take turns; each is killed at every stage before a stage repeats."""
    stages, victims = list(STAGES), list(VICTIMS)
    chance.shuffle(stages)
    chance.shuffle(victims)
    shift = len(stages) // len(victims) + 1
    return [
        (stages[(turn + which * shift) % len(stages)], victims[which])
        for turn, which in (divmod(number, len(victims)) for number in range(kills))
    ]


class Scene:
    def __init__(
        self,
        cluster: LogProcesses,
        client: SyncClient,
        folder: Path,
        chance: random.Random,
        flaw: str,
    ) -> None:
        self._cluster, self._client, self._folder = cluster, client, folder
        self._chance, self._flaw = chance, flaw
        self._strikes = folder / "strikes"
        self._strikes.mkdir()
        self._logs = [client.open(name, create=_SOURCE) for name in SOURCES]
        client.open(TARGET, create=_TARGET)
        self._driver: Child | None = None
        self._jvm = 0
        self._lives = self._runs = self._failures = 0
        self._numbers = count()
        self._struck: Counter[tuple[str, str]] = Counter()
        self._partitions: Counter[int] = Counter()
        self.missed: list[str] = []

    def strike(self, stage: str, victim: str) -> None:
        passage = self._chance.randrange(2)
        for _ in range(_TRIES):
            self._append()
            driver = self._running_driver()
            number = self._chance.randrange(len(self._cluster.bookies))
            server = self._owner_for(stage)
            pids = {
                "driver": [self._jvm, driver.pid],
                "worker": [],
                "owner": [self._cluster.servers[server].pid],
                "bookie": [self._cluster.bookies[number].pid],
            }[victim]
            is_fatal = victim == "worker" or (victim == "driver" and self._chance.random() < 0.5)
            Strike(stage, passage, pids, is_fatal).arm(self._strikes)
            self._run(driver, partial(self._revive, victim, server, number))
            if has_struck(self._strikes):
                self._struck[stage, victim] += 1
                disarm(self._strikes)
                return
            passage = 0
        disarm(self._strikes)
        self.missed.append(f"{victim} at {stage!r}: not come to in {_TRIES} runs")

    def finish(self) -> None:
        """Runs the query without kills; the first run may fail because of the last victim."""
        for _ in range(_TRIES):
            said = self._run(self._running_driver(), lambda: None)
            if said == "done":
                return
        self.missed.append(f"the query does not end: {said}")

    def lines(self) -> list[str]:
        width = max(map(len, STAGES))
        found = [f"{'':{width}}  " + "  ".join(f"{victim:>6}" for victim in VICTIMS)]
        for stage in STAGES:
            numbers = (self._struck[stage, victim] or "-" for victim in VICTIMS)
            found.append(f"{stage:{width}}  " + "  ".join(f"{number:>6}" for number in numbers))
        stages = len({stage for stage, _ in self._struck})
        layouts = ", ".join(str(number) for number in sorted(self._partitions))
        done = (
            f"{self._struck.total()} kills at {stages} of {len(STAGES)} stages; {self._lives} drivers; {self._runs} runs, "
            f"of which {self._failures} failed; {layouts} partitions"
        )
        return [*found, done]

    def _append(self) -> None:
        for log in self._logs:
            numbers = [next(self._numbers) for _ in range(_RECORDS)]
            log.append_many([f"{log.name} {number}".encode() for number in numbers])

    def _owner_for(self, stage: str) -> str:
        """Returns the name of the server whose death affects the stage."""
        is_sink = STAGES.index(stage) >= _SINK_FROM
        (found,) = self._client.lookup([TARGET if is_sink else self._chance.choice(SOURCES)])
        servers = self._cluster.servers
        owners = [name for name in SERVERS if servers[name].address == found.address]
        return owners[0] if owners else self._chance.choice(SERVERS)

    def _running_driver(self) -> Child:
        if self._driver is None:
            self._lives += 1
            to_file = ("sh", "-c", 'exec "$@" 2>>"$0"', self._folder / "driver.log")
            environment = {FOLDER: str(self._strikes), FLAW: self._flaw}
            self._driver = self._cluster.children.start(
                *to_file,
                sys.executable,
                "-m",
                "tests.spark.struck_driver",
                self._folder / f"driver-{self._lives}",
                environment=environment,
            )
            self._jvm = int(self._driver.line(_START_S).removeprefix("ready "))
        return self._driver

    def _run(self, driver: Child, on_struck: Callable[[], None]) -> str:
        """Returns what the driver reports of a run; empty if the driver died."""
        self._runs += 1
        partitions = self._chance.randint(1, 5)
        self._partitions[partitions] += 1
        options = {
            "prefix": "kills/source-",
            "startingOffsets": "earliest",
            "minPartitions": str(partitions),
            "maxOffsetsPerTrigger": str(self._chance.randint(90, 150)),
        }
        where = {"endpoint": self._cluster.url, "folder": str(self._folder)}
        try:
            driver.say(json.dumps({**where, **options}))
            said = self._answer(driver, on_struck)
        except (ChildFailed, BrokenPipeError):
            driver.kill()
            self._cluster.children.forget_ended()
            self._driver = None
            said = ""
        self._failures += said != "done"
        return said

    def _answer(self, driver: Child, on_struck: Callable[[], None]) -> str:
        due_s = time.monotonic() + _RUN_S
        is_revived = False
        while True:
            if not is_revived and has_struck(self._strikes):
                on_struck()
                is_revived = True
            try:
                said = driver.line(0.1)
            except ChildFailed:
                if time.monotonic() > due_s or not driver.is_running:
                    raise
            else:
                if not is_revived and has_struck(self._strikes):
                    on_struck()
                return said

    def _revive(self, victim: str, server: str, number: int) -> None:
        """Restarts the victim after a pause, in which other servers may take over."""
        cluster = self._cluster
        if victim == "owner":
            cluster.servers[server].child.wait()
            time.sleep(self._chance.uniform(0, 2))
            cluster.start_server(server)
        elif victim == "bookie":
            cluster.bookies[number].wait()
            time.sleep(self._chance.uniform(0, 2))
            name = f"bk-{number + 1}"
            bookie = bookies.start(
                cluster.children,
                self._folder / name,
                cluster.metadata,
                "--log-level",
                "error",
                bookie_id=name,
            )
            bookie.wait_ready()
            cluster.bookies[number] = bookie


def judge(client: SyncClient, missed: Sequence[str], say: Say) -> Tally:
    """Compares the source logs and the target log, read with the Python client."""
    tally = Tally("records", failed=len(missed))
    wrong = list(missed)
    copied: dict[str, list[str]] = {name: [] for name in SOURCES}
    for number, record in enumerate(client.open(TARGET).read()):
        if record.offset != number:
            wrong.append(f"record {number} of {TARGET} has offset {record.offset}")
        text = record.value.decode()
        copied[text.split()[1]].append(text.removeprefix("seen "))
    for name in SOURCES:
        records = list(client.open(name).read())
        wanted = [record.value.decode() for record in records]
        if [record.offset for record in records] != list(range(len(records))):
            wrong.append(f"the offsets of {name} have a hole")
        found = copied[name]
        often, once = Counter(found), Counter(wanted)
        lost, more = once - often, often - once
        wrong += [f"{each} is not in {TARGET}" for each in lost.elements()]
        wrong += [f"{each} is in {TARGET} once too often" for each in more.elements()]
        if not lost and not more and found != wanted:
            wrong.append(f"records of {name} are in another order in {TARGET}")
        tally.passed += len(wanted) - lost.total()
    for text in wrong[:_SHOWN_MAX]:
        say(text)
    tally.failed = len(wrong)
    return tally
