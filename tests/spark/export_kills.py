"""Kills an export repeatedly (`python -m tests spark --export-kills N`) while a log grows.

The export is restarted and killed with its JVM. The log's retention keeps almost nothing, so it
truncates as much as the protected cursor allows. At the end, the table over archive and log has all
acknowledged records. An audit finds no damage, and then finds one flipped byte.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import rollbook
from rollbook.api.client.sync import SyncClient
from rollbook.logservice.log_config import LogConfig
from rollbook.proto.quorum import Quorum
from tests.regressions import lone_server
from tests.spark.pipes import Pipes
from tests.tally import Tally

LOG: Final = "kills/orders"
_CONFIG: Final = LogConfig(quorum=Quorum(1, 1, 1), roll_entries=20, retention_bytes=1024)
_BATCH: Final = 50
_PAUSE_S: Final = 0.1
_STEP_S: Final = 300.0  # Time-out until an export has archived something.


class _Appends(threading.Thread):
    """Appends until it is stopped; `acknowledged` is the number of acknowledged records."""

    def __init__(self, client: SyncClient) -> None:
        super().__init__(daemon=True)
        self._log = client.open(LOG, create=_CONFIG)
        self.acknowledged = 0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(_PAUSE_S):
            first = self.acknowledged
            ack = self._log.append_many([b"v%d" % n for n in range(first, first + _BATCH)])
            assert ack.first_offset == first
            self.acknowledged = int(ack.next_offset)


def run(
    kills: int, seed: int, progress: Callable[[int, int], None], say: Callable[[str], None]
) -> Tally:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="rb-export-") as name:
        folder = Path(name)
        (folder / "site").mkdir()
        with (
            lone_server.running(folder / "site", sweep_interval_s=0.1) as site,
            rollbook.connect(site.url) as client,
        ):
            appends = _Appends(client)
            pipes = Pipes(site, client, folder / "archive", LOG)
            pipes.export()  # Protects the log from here on.
            appends.start()
            for number in range(kills):
                progress(number, kills)
                _kill_one(site.url, folder, pipes, chance)
            progress(kills, kills)
            appends.over.set()
            appends.join()
            return _judge(pipes, client, appends.acknowledged, say)


def _kill_one(url: str, folder: Path, pipes: Pipes, chance: random.Random) -> None:
    """Kills an export at a random time after it has archived something."""
    command = (
        sys.executable,
        "-m",
        "rollbook.api.cli.main",
        "spark",
        "export",
        LOG,
        "--server",
        url,
        "--archive",
        pipes.archive.path,
        "--every",
        "10ms",
        "--step-bytes",
        "20K",
        "--report",
        str(folder / "report"),
        "--master",
        "local[2]",
    )
    before = _archived(pipes)
    errors = folder / "errors"
    with errors.open("wb") as to:  # An unread pipe would block the export.
        export = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=to, start_new_session=True
        )
    due_s = time.monotonic() + _STEP_S
    try:
        while _archived(pipes) == before:
            assert export.poll() is None, errors.read_text(errors="replace")
            assert time.monotonic() < due_s, "nothing was archived"
            time.sleep(0.05)
        time.sleep(chance.uniform(0, 1.5))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(export.pid, signal.SIGKILL)
        export.wait()


def _archived(pipes: Pipes) -> int:
    chain = pipes.archive.chain(LOG)
    return chain.next if chain else 0


def _judge(
    pipes: Pipes, client: SyncClient, acknowledged: int, say: Callable[[str], None]
) -> Tally:
    wrong: list[str] = []
    head = client.open(LOG).head_offset()
    if head > _archived(pipes):
        wrong.append(f"the log was truncated up to {head}, and archived up to {_archived(pipes)}")
    if not head:
        wrong.append("retention has truncated nothing")
    expected = [(n, b"v%d" % n) for n in range(acknowledged)]
    if pipes.rows() != expected:
        wrong.append("the table over archive and log is not what was acknowledged")
    _until_free(pipes)
    pipes.export()
    if pipes.rows() != expected:
        wrong.append("the table is not what was acknowledged once all is archived")
    wrong += [f"an audit finds {each.kind}: {each.what}" for each in pipes.audit().findings]
    named = dict.fromkeys(
        file.path for chain in (pipes.archive.chain(LOG),) if chain for file in chain.files
    )
    found = [
        os.path.relpath(path, pipes.archive.path)
        for path in Path(pipes.archive.path).rglob("*.parquet")
    ]
    if sorted(found) != sorted(named):
        wrong.append(f"{len(found)} files, of which manifests name {len(named)}")
    path = Path(pipes.archive.path, sorted(named)[len(named) // 2])
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    if "file_changed" not in pipes.kinds(offline=True):
        wrong.append("a flipped byte was not found")
    for each in wrong:
        say(each)
    say(f"{acknowledged:,} records, {len(named)} files, the log begins at {head:,}")
    return Tally("records", passed=acknowledged, failed=len(wrong))


def _until_free(pipes: Pipes) -> None:
    """Waits for the archive's lock, which a killed process may hold for a moment."""
    from rollbook.proto.errors import ArchiveHeld

    due_s = time.monotonic() + lone_server.PATIENCE_S
    while True:
        try:
            with pipes.archive.held():
                return
        except ArchiveHeld:
            assert time.monotonic() < due_s
            time.sleep(0.1)
