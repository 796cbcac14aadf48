"""Apache BookKeeper as its users run it, to be measured beside us: three bookies and a client, on JVMs.

What is set is what a user who wants speed sets: storage in RocksDB (`DbLedgerStorage`), the journal
flushed whenever it has nothing more to take, no throttle in the client, and compilers at full power.
Everything else is Apache's default. Each job's figures come from the client's own process.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.support.java import JavaProject
from tests.support.processes import Child, Family

_FOLDER: Final = Path(__file__).parent / "java"
_JOB_TIMEOUT_S: Final = 180.0
PROJECT: Final = JavaProject(
    _FOLDER,
    (
        *("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g", "-XX:+UseParallelGC"),
        "-Dio.netty.leakDetectionLevel=disabled",
        f"-Dlog4j2.configurationFile={_FOLDER / 'logging.xml'}",
    ),
    downloads_mb=140,
)
BOOKIE: Final = "org.apache.bookkeeper.server.Main"
BOOKIE_SETTINGS: Final = {
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "journalFlushWhenQueueEmpty": "true",
}
_CLIENT_SETTINGS: Final[Mapping[str, str | int]] = {
    "throttle": 0,
    "zkTimeout": 10_000,
    # Else one hiccup of a busy machine ends a ledger: there is no fourth bookie.
    "addEntryTimeoutSec": 60,
    "readEntryTimeoutSec": 60,
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
    """The Java client said why."""


class Peer:
    """One JVM with a client of each protocol."""

    def __init__(self, children: Family, metadata: str, log_path: Path) -> None:
        logged = ("sh", "-c", 'exec "$@" 2>>"$0"', str(log_path))
        self._child: Child = children.start(*logged, *PROJECT.command("Peer"))
        for name, properties in PROTOCOLS.items():
            everything = {"metadataServiceUri": metadata, **_CLIENT_SETTINGS, **properties}
            self.run("connect", name, properties=everything)

    def run(self, job: str, client: str, **arguments: Any) -> Mapping[str, Any]:
        self._child.say(json.dumps({"do": job, "client": client, **arguments}))
        answer = json.loads(self._child.line(_JOB_TIMEOUT_S))
        if "error" in answer:
            raise PeerFailed(answer["error"])
        found: Mapping[str, Any] = answer["value"]
        return found
