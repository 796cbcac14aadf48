"""Apache Kafka as a peer, with every batch synced to disk by every replica before it is acked.

Three KRaft nodes are controllers and brokers. There are three replicas with two in-sync, `acks=all`
from idempotent producers, and `log.flush.interval.messages=1`. By default an ack of Kafka only
means that the batch is in the memory of two machines. That is shown, too, as a side whose acks are
not synced.

The server comes from Maven Central; its two Python clients have their own virtual environments. All
sides share one cluster, because only one of them is measured at a time.
"""

import hashlib
import os
import re
import shutil
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.bench.ledger import Found, OurClient
from tests.bench.logs_peers import CannotBeHad, LogSide, cache, fetch, python_with
from tests.support.bookies import cpu_s
from tests.support.processes import Child, Family, family
from tests.support.zookeeper import free_port

_CONFLUENT: Final = "confluent-kafka==2.16.1"
_AIOKAFKA: Final = "aiokafka==0.14.0"
_PROJECT: Final = Path(__file__).parent / "kafka" / "pom.xml"
_SERVER: Final = "kafka.Kafka"
_FORMAT: Final = "kafka.tools.StorageTool"
_NODES: Final = (1, 2, 3)
_HEAP: Final = "512m"
_JVM: Final = (  # As Kafka's own scripts start it, but for the heap.
    "-server",
    f"-Xms{_HEAP}",
    f"-Xmx{_HEAP}",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
)
_SETTINGS: Final[Mapping[str, str | int]] = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "log.flush.interval.messages": 1,
    "auto.create.topics.enable": "false",
}
_WARM_UP: Final[Sequence[dict[str, Any]]] = (  # Until the JVMs have compiled what they will.
    {"job": "flood", "size": 100, "count": 10**9, "seconds": 6.0},
    {"job": "flood", "size": 1024, "count": 10**9, "seconds": 4.0},
    {"job": "alone", "size": 100, "count": 500},
)


class KafkaNodes:
    """The processes; node `n` is number `n - 1` of whatever is a list."""

    def __init__(self, children: Family, folder: Path, class_path: str) -> None:
        self._children = children
        self._folder = folder
        self._java = ("java", *_JVM, "-cp", class_path)
        self._ports = {node: free_port() for node in _NODES}
        self._controllers = {node: free_port() for node in _NODES}
        self._cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        with ThreadPoolExecutor(len(_NODES)) as threads:  # Each takes a while to start its JVM.
            list(threads.map(self._format, _NODES))
        self._running = {node: self._start(node) for node in _NODES}

    @property
    def servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    @property
    def pids(self) -> Mapping[str, int]:
        return {str(node): child.pid for node, child in self._running.items()}

    def cpu_s(self) -> float:
        return sum(map(cpu_s, self.pids.values()))

    def start_killed(self) -> None:
        for node, child in self._running.items():
            if not child.is_running:
                self._running[node] = self._start(node)

    def complaints(self) -> str:
        """The last log lines of the nodes."""
        said = [self._log(node).read_text().strip() for node in _NODES]
        return next((each.splitlines()[-1] for each in said if each), "its nodes say nothing")

    def _format(self, node: int) -> None:
        voters = ",".join(f"{each}@127.0.0.1:{port}" for each, port in self._controllers.items())
        mine = f"PLAINTEXT://127.0.0.1:{self._ports[node]}"
        settings = {
            **_SETTINGS,
            "node.id": node,
            "listeners": f"{mine},CONTROLLER://127.0.0.1:{self._controllers[node]}",
            "advertised.listeners": mine,
            "controller.quorum.voters": voters,
            "log.dirs": self._folder / f"node-{node}",
        }
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        self._config(node).write_text(text)
        where = ("--cluster-id", self._cluster_id, "--config", self._config(node))
        fetch([*self._java, _FORMAT, "format", *where])

    def _start(self, node: int) -> Child:
        to_file = ("sh", "-c", 'exec "$@" >>"$0" 2>&1', self._log(node))
        return self._children.start(*to_file, *self._java, _SERVER, self._config(node))

    def _config(self, node: int) -> Path:
        return self._folder / f"node-{node}.properties"

    def _log(self, node: int) -> Path:
        return self._folder / f"node-{node}.log"


class KafkaSide(LogSide):
    def __init__(
        self, name: str, about: str, nodes: KafkaNodes, client: OurClient, *, synced: bool
    ) -> None:
        self.name = name
        self.is_synced = synced
        self.about = about
        self._nodes = nodes
        self._client = client

    def run(self, job: str, **arguments: Any) -> Found:
        return self._client.run(job, "", **arguments)

    def cpu_s(self) -> Mapping[str, float]:
        return {"three servers": self._nodes.cpu_s()}

    def pids(self) -> Collection[int]:
        return [*self._nodes.pids.values(), self._client.pid]

    def ailing_replica(self) -> str | None:
        count = self.run("lagging")["count"]
        return f"{count} logs have no leader, or a replica that is not in sync" if count else None

    @contextmanager
    def spare(self) -> Iterator[Mapping[str, int]]:
        yield self._nodes.pids
        self._nodes.start_killed()
        self.wait_ready()

    def complaints(self) -> str:
        return self._nodes.complaints()

    def warm_up(self) -> None:
        for job in _WARM_UP:
            self.run(**job, log=self.new_log("warm-up"))


@contextmanager
def kafka(folder: Path) -> Iterator[Sequence[LogSide]]:
    jars, python = class_path(), python_with("kafka-clients", _CONFLUENT, _AIOKAFKA)
    with family() as children:
        nodes = KafkaNodes(children, folder, jars)

        def side(name: str, worker: str, package: str, *, synced: bool = True) -> KafkaSide:
            kind = "synced" if synced else "unsynced"
            flush = "log.flush.interval.messages=1" if synced else "flushed as by default"
            durable = f"RF 3, min ISR 2, acks=all, idempotent, {flush}"
            about = (
                f"{_about(jars)}, {durable}; {package.replace('==', ' ')}, linger 5 ms in floods"
            )
            module = f"tests.bench.load.{worker}"
            client = OurClient(children.start(python, "-m", module, nodes.servers, kind))
            started = KafkaSide(name, about, nodes, client, synced=synced)
            started.wait_ready()
            return started

        # In this order: the first one's client waits for the servers, the second one's gives up.
        sides = [
            side("Kafka", "confluent_worker", _CONFLUENT),
            side("Kafka by aiokafka", "aiokafka_worker", _AIOKAFKA),
            side("Kafka, not synced", "confluent_worker", _CONFLUENT, synced=False),
        ]
        sides[0].warm_up()  # The servers are the same for all of them.
        yield sides


def _about(class_path: str) -> str:
    version = re.search(r"kafka_2\.13-([\d.]+)\.jar", class_path)
    assert version, class_path
    return f"Kafka {version[1]}, three KRaft nodes with heaps of {_HEAP}"


def class_path(project: Path = _PROJECT) -> str:
    """Maven's class path of the server or of another project, cached by version of the project
    file.
    """
    if not shutil.which("java"):
        raise CannotBeHad("its servers run on Java 17 or later, and there is no `java`")
    digest = hashlib.sha256(project.read_bytes()).hexdigest()[:16]
    found = cache("kafka") / f"class-path-{digest}"
    if not found.exists() or not all(map(os.path.exists, found.read_text().split(":"))):
        if not shutil.which("mvn"):
            raise CannotBeHad("its servers come from Maven Central, and there is no `mvn`")
        quietly = ("--batch-mode", "--quiet", "-Dstyle.color=never")
        fetch(
            [
                "mvn",
                *quietly,
                "-f",
                project,
                "dependency:build-classpath",
                f"-Dmdep.outputFile={found}",
            ]
        )
    return found.read_text()
