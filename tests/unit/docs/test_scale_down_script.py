"""The script in `docs/operations.md` that scales a cluster down over HTTP works while a log is
written.

The test replaces `ssh` by a script that stops the process of the bookie.
"""

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Final

import pytest

import rollbook
from rollbook.ledger.open_client import connect
from tests.support import bookies, curl, pages, processes
from tests.support.ledger_cluster import ProcessCluster
from tests.support.processes import REPOSITORY, Child

_USUAL: Final = "http://127.0.0.1:7500/api/v1"
_NAMES: Final = ("bk-1", "bk-2", "bk-3", "bk-4", "bk-5")
_PAUSE_S: Final = 0.02  # The writer's pause, which leaves CPU time for the other processes.
_QUICK: Final = {
    "ROLLBOOK_WORKER_GRACE_S": "0",
    "ROLLBOOK_WORKER_RETRY_PAUSE_S": "0.01",  # Eight attempts take a second, not ten minutes.
    "ROLLBOOK_WORKER_LOOK_AGAIN_S": "0.5",
    "ROLLBOOK_STEWARD_LOOK_AGAIN_S": "0.2",
}
_SSH: Final = """#!/bin/sh
[ "$2 $3 $4" = "systemctl stop rollbook-bookie" ] || exit 2
pid=$(cat "{folder}/$1.pid") && kill "$pid"
until grep -qsE '^[0-9]+ \\(.*\\) Z' "/proc/$pid/stat" || [ ! -e "/proc/$pid" ]; do sleep 0.05; done
"""


def scripts() -> tuple[str, str]:
    text = (REPOSITORY / "docs" / "operations.md").read_text()
    section = text.partition("\n## A cluster scaled down by curl\n")[2].partition("\n## ")[0]
    removes, fails, _ = re.findall(r"(?ms)^```bash\n(.*?)^```", section)
    return str(removes), str(fails)


class Cluster:
    def __init__(self, children: processes.Family, folder: Path) -> None:
        self.folder = folder
        self.bookies = ProcessCluster(children, folder, _NAMES)
        self.url = self.bookies.url
        for name, bookie in self.bookies.bookies.items():
            (folder / f"{name}.pid").write_text(str(bookie.pid))
        (folder / "ssh").write_text(_SSH.format(folder=folder))
        (folder / "ssh").chmod(0o755)
        (ready,) = re.findall(r"http on ([\d.:]+)", self._start(children, "recovery").line())
        self.api = f"http://{ready}/api/v1"
        self.log = str(bookies.address_in(self._start(children, "log").line()))

    def _start(self, children: processes.Family, server: str) -> Child:
        where = {"recovery": ("--http",), "log": ("--server-name", "log-1", "--listen")}[server]
        return children.start(
            sys.executable,
            "-m",
            "rollbook.api.cli.main",
            "server",
            server,
            "--log-level",
            "error",
            "--metadata",
            self.url,
            *where,
            "127.0.0.1:0",
            environment=_QUICK,
        )

    def run(self, script: str) -> list[str]:
        script = script.replace(_USUAL, self.api)
        return pages.run(["bash", "-c", script], self.folder).splitlines()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    if why := curl.missing_with_jq():
        pytest.skip(why)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with processes.family() as children:
        yield Cluster(children, tmp_path)


def append_until(over: Event, log: rollbook.Log) -> int:
    """Appends one record after the other, and returns how many were acknowledged."""
    count = 0
    while not over.wait(_PAUSE_S):
        log.append(b"%d" % count)
        count += 1
    return count


@pytest.mark.timeout(180)
def test_two_of_five_bookies_are_removed_by_curl_while_a_log_is_written(cluster: Cluster) -> None:
    """BL1 to BL13, BL15 to BL23, BL25 to BL28, BL30, BL32."""
    removes, fails = scripts()
    with rollbook.connect(f"log://{cluster.log}") as client, ThreadPoolExecutor(1) as pool:
        log = client.open("orders", create=rollbook.LogConfig(roll_entries=50))
        over = Event()
        writing = pool.submit(append_until, over, log)
        try:
            told = cluster.run(removes)
        finally:
            over.set()
        count = writing.result()
        assert [record.value for record in log.read(0, count)] == [b"%d" % n for n in range(count)]
    assert told.count("true") == 2
    assert told[-5:] == [
        "bk-1 writable active",
        "bk-2 writable active",
        "bk-3 writable active",
        '["bk-1","bk-2","bk-3"]',
        "[]",
    ]
    asyncio.run(require_sound_copies(cluster.url))
    third = cluster.run(f"{removes.partition('remove bk-4')[0]}\n{fails}")
    refused, _, failed, active = map(json.loads, third)
    assert refused == [409, "DRAIN_BLOCKED"]
    assert failed == ["draining-failed", ["draining", "active", "drained"]]
    assert active["state"] == "active"


async def require_sound_copies(url: str) -> None:
    async with connect(url) as ledgers:
        async for ledger_id in ledgers.list():
            verdict = await ledgers.verify(ledger_id)
            assert verdict.is_sound, verdict
