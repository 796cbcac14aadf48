"""Restart time of a bookie: a real process, killed without any checkpoint.

The bookie wrote the journal under load: adds over eight connections, in batches of 64 KiB, to some
ledgers or to a thousand, with one or several adds per ledger in turn. "Replay" is opening the
storage. It has targets for 1 GiB of entries. Less is written here, unless `--gib` says how much,
and the time is scaled up, including its constant part. The time from start to ready also includes
Python, the cluster and the registration. The files are in the page cache, as after a crash of the
process.
"""

import itertools
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from tests.bench import Figure, judged, show_progress
from tests.bench.load import generator
from tests.bench.load.work import add_batches, entry_bytes
from tests.support import bookies, processes
from tests.support.bookies import RunningBookie

CONNECTIONS: Final = 8
BATCH_BYTES: Final = 64 * 1024
WINDOW: Final = 2
KIB: Final = 1024
MIB: Final = 1024 * KIB
_SLICE_BYTES: Final = 64 * MIB  # Of adds that are made before they are sent.
_LAUNCHER: Final = "tests.bench.load.opened"
_SETTINGS: Final = {
    "ROLLBOOK_STORAGE_WAITING_FILES_MAX": "1000",
    "ROLLBOOK_SPACE_GC_INTERVAL_S": "86400",
    "ROLLBOOK_SPACE_SCRUB_INTERVAL_S": "86400",
}


@dataclass(frozen=True)
class Size:
    """Amounts of work; small sizes are for tests of this benchmark."""

    journal_bytes: int = 128 * MIB  # Of small entries; four times as much of large ones.
    logs: int = 1_000
    shapes: int = 5


FULL: Final = Size()
SMALL: Final = Size(journal_bytes=MIB // 4, logs=3, shapes=1)


class Shape(NamedTuple):
    name: str
    payload_bytes: int
    ledgers: int
    in_a_row: int  # Adds of one ledger, until it is the next one's turn.
    version: int
    target_s: float | None


_SHAPES: Final = (
    Shape("1 KB", 1_000, 8, 1, 2, 3.0),
    Shape("1 KB, version 3", 1_000, 8, 1, 3, 3.0),
    Shape("100 B", 100, 8, 1, 2, 12.0),
    Shape("100 B, 1,000 ledgers", 100, 1_000, 1, 2, 12.0),
    Shape("100 B, 1,000 ledgers, ten in a row, version 3", 100, 1_000, 10, 3, 12.0),
)


def figures(runs: int, size: Size = FULL, *, gib: float | None = None) -> Iterator[Figure]:
    for shape in _SHAPES[: size.shapes]:
        share = 4 if shape.payload_bytes >= 1_000 else 1
        wanted = share * size.journal_bytes if gib is None else int(gib * 1024 * MIB)
        yield from _replays(runs, shape, wanted)
    yield from _many_logs(runs, size)


class Files:
    """A bookie's files, and the processes that use them one after the other."""

    def __init__(self, folder: Path, family: processes.Family, settings: Mapping[str, str]) -> None:
        self.folder = folder
        self.bookie: RunningBookie  # From `start` on.
        self._family = family
        self._settings = {**_SETTINGS, **settings}
        self._metadata_url = f"sqlite://{folder}/metadata.db"
        command = [sys.executable, "-m", "rollbook.api.cli.main", "cluster", "init", "--metadata"]
        subprocess.run([*command, self._metadata_url], check=True, stdout=subprocess.DEVNULL)
        bookies.give_out_ids(self._metadata_url)

    def start(self, keep: str) -> tuple[float, float]:
        """Returns how long it took to open the storage, and from its start until it was ready."""
        began = time.perf_counter()
        words = bookies.arguments(self.folder, self._metadata_url)
        child = self._family.start_module(
            _LAUNCHER, keep, *words, "--log-level=error", environment=self._settings
        )
        self.bookie = RunningBookie(child)
        opened_s = float(child.line(bookies.PATIENCE_S))
        self.bookie.wait_ready()
        return opened_s, time.perf_counter() - began

    def stop(self) -> None:
        self.bookie.kill()
        self._family.forget_ended()

    def add(self, shape: Shape, entries_bytes: int, batch_bytes: int = BATCH_BYTES) -> int:
        """Returns how many entries that were."""
        address = self.bookie.address.host, self.bookie.address.port
        each = shape.ledgers // CONNECTIONS
        turn = each * shape.in_a_row  # Adds of a connection until all its ledgers had some.
        turn_bytes = turn * CONNECTIONS * entry_bytes(shape.payload_bytes)
        turns, step = max(1, entries_bytes // turn_bytes), max(1, _SLICE_BYTES // turn_bytes)
        for first in range(0, turns, step):
            show_progress(f"writing {shape.name}", first, turns)
            count = min(step, turns - first)
            work = [
                add_batches(
                    range(1 + at * each, 1 + (at + 1) * each),
                    count * turn,
                    shape.payload_bytes,
                    batch_bytes,
                    version=shape.version,
                    first_entry=first * shape.in_a_row,
                    in_a_row=shape.in_a_row,
                )
                for at in range(CONNECTIONS)
            ]
            result = generator.run(address, work, window=WINDOW)
            if result.successes != result.entries:
                raise AssertionError(f"{result.successes} of {result.entries} were answered well")
        show_progress("", turns, turns)
        return turns * turn * CONNECTIONS


@contextmanager
def _files(settings: Mapping[str, str] = {}) -> Iterator[Files]:
    folder = Path(tempfile.mkdtemp(prefix="rollbook-bench-"))
    try:
        with processes.family() as family:
            yield Files(folder, family, settings)
    finally:
        shutil.rmtree(folder)


def _replays(runs: int, shape: Shape, wanted: int) -> Iterator[Figure]:
    with _files() as files:
        files.start("journal")
        entries = files.add(shape, wanted)
        times = [_again(files, "journal") for _ in range(runs)]
    opened_s, ready_s = zip(*times, strict=True)
    scale = 1024 * MIB / (entries * entry_bytes(shape.payload_bytes))
    name = f"{shape.name}: replay of 1 GiB"
    name += f", as of {1024 / scale:,.0f} MiB" if scale > 1.01 else ""
    yield judged(name, "s", shape.target_s, [each * scale for each in opened_s])
    yield judged(
        f"{shape.name}: per entry", "µs", None, [each / entries * 1e6 for each in opened_s]
    )
    yield judged(f"{shape.name}: from start to ready", "s", None, ready_s)


def _again(files: Files, keep: str) -> tuple[float, float]:
    files.stop()
    return files.start(keep)


def _many_logs(runs: int, size: Size) -> Iterator[Figure]:
    """Small ones, so that it is their number that counts: a hundred ledgers in each of them."""
    settings = {"ROLLBOOK_STORAGE_JOURNAL_FILE_BYTES": str(256 * KIB)}
    shape = Shape("1 KB for many logs", 1_000, 104, 1, 2, None)
    with _files(settings) as files:
        files.start("nothing")
        for _ in itertools.takewhile(lambda _: _logs(files) < size.logs, itertools.count()):
            files.add(shape, 4 * MIB, 4 * KIB)  # Half a journal file may be under way.
        times = [_again(files, "nothing") for _ in range(runs)]
        logs = _logs(files)
    opened_s, ready_s = zip(*times, strict=True)
    yield judged(f"{logs:,} entry logs: opening", "s", None, opened_s)
    yield judged(f"{logs:,} entry logs: from start to ready", "s", None, ready_s)


def _logs(files: Files) -> int:
    return len(list(files.folder.rglob("*.log")))
