"""Retries a drain that failed because there was no bookie to copy to. Uses real processes."""

import asyncio
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

from rollbook.ledger.open_client import connect
from tests.regressions.defects import defect
from tests.support import processes
from tests.support.ledger_cluster import ProcessCluster

PATIENCE_S = 60.0
MAIN = (sys.executable, "-m", "rollbook.api.cli.main")
ATTEMPTS = 8  # Number of attempts without a target before a drain fails.
LEAVING, LOST = "bk-2", "bk-3"
QUICK = {
    "ROLLBOOK_AUDIT_LOST_BOOKIE_DELAY_S": "0",
    "ROLLBOOK_STEWARD_LOOK_AGAIN_S": "0.1",
    "ROLLBOOK_WORKER_LOOK_AGAIN_S": "0.2",
    "ROLLBOOK_WORKER_RETRY_PAUSE_S": "0.001",
    "ROLLBOOK_WORKER_SETTLE_S": "0.01",
}
FAILED = 5  # The exit code of `bookie drain --wait` for a failed drain.


async def write_ledger(url: str) -> None:
    async with connect(url) as ledgers:
        await ledgers.until_writable(3, PATIENCE_S)
        async with await ledgers.create(ensemble=3, write=3, ack=2) as writer:
            writer.append_many([b"entry"])
            await writer.flush()


def run(url: str, *words: str, code: int = 0) -> str:
    command = [*MAIN, *words, "--metadata", url]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == code, done.stderr
    return done.stdout


def until_marked(url: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not json.loads(run(url, "recovery", "status", "-o", "json"))["ledgers_marked"]:
        time.sleep(0.05)
        assert time.monotonic() < deadline


def count_failures(page: str) -> int:
    shown = urlopen(f"http://{page}/metrics").read().decode()
    found = re.search(r"^rollbook_recovery_failures_total (\S+)$", shown, re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


@defect(
    "retried-drain-fails-after-one-attempt",
    "A failed drain that was tried again failed after one attempt if its ledgers were also marked as short of copies.",
)
def test_retried_drain_makes_all_its_attempts(tmp_path: Path) -> None:
    with processes.family() as children:
        cluster = ProcessCluster(children, tmp_path)
        url = cluster.url
        asyncio.run(write_ledger(url))
        server = children.start(
            *MAIN,
            "server",
            "recovery",
            "--metadata",
            url,
            "--http",
            "127.0.0.1:0",
            environment=QUICK,
        )
        page = server.line(PATIENCE_S).partition("(http on ")[2].strip(" )\n")
        cluster.bookies[LOST].terminate()
        until_marked(url)
        drain = ("bookie", "drain", LEAVING, "--force", "--wait")
        run(url, *drain, code=FAILED)
        before = count_failures(page)
        run(url, *drain, code=FAILED)
        assert count_failures(page) - before >= ATTEMPTS
