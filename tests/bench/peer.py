"""Apache BookKeeper as a peer: three bookies and a client, on JVMs.

It has the settings of a user who wants speed: storage in RocksDB (`DbLedgerStorage`), journal
flushes as soon as its queue is empty, no throttle in the client, and full JIT compilation.
Time-outs are long, because there is no fourth bookie: a ledger ends with the first add that one of
the three refuses. Everything else is Apache's default. Each job's figures come from the client's
process.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.support.java import JavaProject
from tests.support.processes import Child, ChildFailed, Family

_FOLDER: Final = Path(__file__).parent / "java"
_JOB_TIMEOUT_S: Final = 180.0
PROJECT: Final = JavaProject(
    _FOLDER,
    (
        "-Xms1g",
        "-Xmx1g",
        "-XX:MaxDirectMemorySize=1g",
        "-XX:+UseParallelGC",
        "-Dio.netty.leakDetectionLevel=disabled",
        f"-Dlog4j2.configurationFile={_FOLDER / 'logging.xml'}",
    ),
    downloads_mb=140,
)
# Longer than it sleeps while others are measured: with its session lost it took half a minute to work
# again. A ZooKeeper gives as much of it as it allows.
SESSION_MS: Final = 600_000
BOOKIE: Final = "org.apache.bookkeeper.server.Main"
BOOKIE_SETTINGS: Final = {
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "journalFlushWhenQueueEmpty": "true",
    # While one half of its write cache is on its way to a slow disk and the other is full, a bookie
    # lets adds wait so long. Then it refuses them, without a word in its log.
    "dbStorage_maxThrottleTimeMs": "60000",
    # This many adds may wait for a bookie's writing thread, and the next one is refused as "too many requests",
    # without a word, too. A client that asks for two acks of three holds back for nobody's third: a bookie
    # that stands still for a sixth of a second while the others take 60,000 adds a second is there.
    "maxPendingAddRequestsPerThread": "0",  # As many as there are.
    "zkTimeout": str(SESSION_MS),
}
_CLIENT_SETTINGS: Final[Mapping[str, str | int]] = {
    "throttle": 0,
    "zkTimeout": SESSION_MS,
    "addEntryTimeoutSec": 60,
    "readEntryTimeoutSec": 60,
    "clientTcpUserTimeoutMillis": 60_000,
}
PROTOCOLS: Final[Mapping[str, Mapping[str, str | int]]] = {
    "v2": {"useV2WireProtocol": "true"},
    "v3": {"useV2WireProtocol": "false"},
    "v3-tuned": {  # For recoveries: what the default leaves slow.
        "useV2WireProtocol": "false",
        "recoveryReadBatchSize": 100,
        "enableParallelRecoveryRead": "true",
    },
}


class PeerFailed(Exception):
    """The Java client failed; the message has its reason."""


class Peer:
    """One JVM with a client of each protocol."""

    def __init__(self, children: Family, metadata: str, log_path: Path) -> None:
        self._children = children
        self._metadata = metadata
        self._log_path = log_path
        self._child = self._start()

    def run(self, job: str, client: str, **arguments: Any) -> Mapping[str, Any]:
        """Raises `PeerFailed`, after which it can be called again."""
        try:
            return _ask(self._child, job, client, **arguments)
        except (ChildFailed, BrokenPipeError) as error:
            # What it may still say would answer something else.
            self._child.kill()
            self._child = self._start()
            raise PeerFailed(str(error)) from error

    def _start(self) -> Child:
        logged = ("sh", "-c", 'exec "$@" 2>>"$0"', str(self._log_path))
        child = self._children.start(*logged, *PROJECT.command("Peer"))
        for name, properties in PROTOCOLS.items():
            everything = {"metadataServiceUri": self._metadata, **_CLIENT_SETTINGS, **properties}
            _ask(child, "connect", name, properties=everything)
        return child


def _ask(child: Child, job: str, client: str, **arguments: Any) -> Mapping[str, Any]:
    child.say(json.dumps({"do": job, "client": client, **arguments}))
    answer = json.loads(child.line(_JOB_TIMEOUT_S))
    if "error" in answer:
        raise PeerFailed(answer["error"])
    found: Mapping[str, Any] = answer["value"]
    return found
