"""One bookie process after the other on the same files, and a load that outlives them.

The next process is started while its predecessor still serves, and waits; so what a crash costs is
what the bookie needs to come back.
"""

import asyncio
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rollbook.proto.errors import ConnectionLost
from rollbook.proto.ports import Address
from tests.crash.bookie_judge import Judge
from tests.crash.bookie_load import Load
from tests.support import bookies
from tests.support.bookies import RunningBookie
from tests.support.processes import Child, ChildFailed, Family

PATIENCE_S: Final = bookies.PATIENCE_S
_ENVIRONMENT: Final = {
    "ROLLBOOK_STORAGE_QUEUED_BYTES_MAX": str(384 << 10),  # Must fit in a journal file twice.
    "ROLLBOOK_STORAGE_CACHE_BYTES": str(4 << 20),
    "ROLLBOOK_STORAGE_IDLE_AFTER_MS": "20",
    "ROLLBOOK_BOOKIE_SESSION_TIMEOUT_S": "4",
}


@dataclass(slots=True)
class Outcome:
    """How one run went."""

    crashes: int = 0
    acknowledged: int = 0
    unknown: int = 0
    refused: int = 0
    outages_s: list[float] = field(default_factory=list)  # From each crash to serving again.
    endings_s: list[float] = field(default_factory=list)  # From each SIGTERM to the end.
    violations: list[str] = field(default_factory=list)


class Subject:
    """The bookie under test, in its many lives."""

    def __init__(
        self,
        folder: Path,
        children: Family,
        metadata_url: str,
        *,
        flaw: str = "-",
        journal_file_bytes: int = 1 << 20,  # Small: each life has checkpoints.
    ) -> None:
        self.bookie: RunningBookie
        self._children = children
        self._command = [
            *(sys.executable, "-m", "tests.crash.bookie_server", flaw),
            *bookies.arguments(folder, metadata_url, ledger_dirs=2),
            *("--log-level", "error"),
        ]
        self._environment = {
            **_ENVIRONMENT,
            "ROLLBOOK_STORAGE_JOURNAL_FILE_BYTES": str(journal_file_bytes),
        }
        self._next: Child | None = None
        self._deletions: dict[int, asyncio.Future[None]] = {}

    def prepare(self) -> None:
        """The next process loads what it needs, and waits."""
        if self._next is None:
            self._next = self._children.start(*self._command, environment=self._environment)

    def launch(self) -> RunningBookie:
        """On its way; it may be killed at any moment from now on."""
        self.prepare()
        assert self._next
        self.bookie = RunningBookie(self._next)
        self._next = None
        self.bookie.child.say("go")
        self._children.forget_ended()
        return self.bookie

    def start(self) -> Address:
        address = self.launch().wait_ready(PATIENCE_S)
        self.prepare()
        return address

    async def delete(self, ledger_id: int) -> None:
        loop = asyncio.get_running_loop()
        if not self._deletions:
            loop.add_reader(self.bookie.child.output, self._on_output)
        done = self._deletions[ledger_id] = loop.create_future()
        try:
            self.bookie.child.say(f"delete {ledger_id}")
            async with asyncio.timeout(PATIENCE_S):
                await done
        except BrokenPipeError as error:
            raise ConnectionLost from error
        finally:
            del self._deletions[ledger_id]
            if not self._deletions:
                loop.remove_reader(self.bookie.child.output)

    def _on_output(self) -> None:
        lines = self.bookie.child.take_lines()
        for line in lines:
            word, _, ledger_id = line.partition(" ")
            assert word == "deleted"
            done = self._deletions.get(int(ledger_id))
            if done and not done.done():
                done.set_result(None)
        if not lines and not self.bookie.is_running:
            for done in self._deletions.values():
                if not done.done():
                    done.set_exception(ConnectionLost())


class Rig:
    def __init__(self, subject: Subject, seed: int) -> None:
        self.judge = Judge()
        self.chance = random.Random(seed)
        self.subject = subject
        self.load = Load(self.judge, seed, subject.delete)
        self.outages_s: list[float] = []
        self.endings_s: list[float] = []  # From each SIGTERM to the end.

    @property
    def bookie(self) -> RunningBookie:
        return self.subject.bookie

    async def start(self) -> None:
        """The bookie, and everybody at work on it."""
        started = time.monotonic()
        address = self.subject.start()
        self.outages_s.append(time.monotonic() - started)
        await self.load.begin(address)

    async def let_work(self, adds: int = 300) -> None:
        """Until so many more were acknowledged, and one of everything else; then a while longer."""
        enough = self.judge.outcomes["acknowledged"] + adds
        await self.until(lambda: self.judge.outcomes["acknowledged"] >= enough, "answers")
        await self.load.promise_some()
        await asyncio.sleep(self.chance.uniform(0, 0.05))

    async def until(self, is_true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_true():
            await self.load.check()
            if time.monotonic() > deadline:
                raise ChildFailed(f"waited {PATIENCE_S} s for {what}")
            await asyncio.sleep(0.002)

    async def kill(self) -> None:
        self.bookie.kill()
        await self.load.crash()

    async def finish(self, crashes: int) -> Outcome:
        await self.load.rest()
        await self.load.read_back_everything()
        await self.load.end()
        judge = self.judge
        return Outcome(
            crashes=crashes,
            acknowledged=judge.outcomes["acknowledged"],
            unknown=judge.outcomes["unknown"],
            refused=judge.outcomes["refused"],
            outages_s=self.outages_s,
            endings_s=self.endings_s,
            violations=judge.violations,
        )
