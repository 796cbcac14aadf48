"""Successive bookie processes on the same files, and a load that outlives them."""

import asyncio
import os
import random
import select
import signal
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
from tests.support.processes import ChildFailed, Family

PATIENCE_S: Final = bookies.PATIENCE_S
_ENVIRONMENT: Final = {
    "ROLLBOOK_STORAGE_QUEUED_BYTES_MAX": str(384 << 10),  # Twice this must fit in a journal file.
    "ROLLBOOK_STORAGE_CACHE_BYTES": str(4 << 20),
    "ROLLBOOK_STORAGE_IDLE_AFTER_MS": "20",
    "ROLLBOOK_BOOKIE_SESSION_TIMEOUT_S": "4",
}


@dataclass(slots=True)
class Outcome:
    """The result of one run."""

    crashes: int = 0
    acknowledged: int = 0
    unknown: int = 0
    refused: int = 0
    # Seconds from each crash until the bookie serves.
    outages_s: list[float] = field(default_factory=list)
    # Seconds from each SIGTERM until the bookie has ended.
    endings_s: list[float] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)  # Bytes that each power cut forgot.


class Subject:
    """The bookie under test: one life at a time."""

    def __init__(
        self,
        folder: Path,
        children: Family,
        metadata_url: str,
        *,
        flaw: str = "-",
        journal_file_bytes: int = 1 << 20,  # Small, so that each life has checkpoints.
    ) -> None:
        self.pid = 0
        self._launcher = children.start_module(
            "tests.crash.bookie_server",
            flaw,
            *bookies.arguments(folder, metadata_url, ledger_dirs=2),
            "--log-level",
            "error",
            environment={
                **_ENVIRONMENT,
                "ROLLBOOK_STORAGE_JOURNAL_FILE_BYTES": str(journal_file_bytes),
            },
        )
        self._status: int | None = None
        self._address: Address | None = None
        self._deletions: dict[int, asyncio.Future[None]] = {}

    # --- Its life -----------------------------------------------------------------------------

    def launch(self) -> None:
        """Launches the bookie, which may be killed at any moment from now on."""
        self.pid, self._status, self._address = 0, None, None
        self._launcher.say("go")
        self._hear_until(lambda: self.pid > 0, "a process to begin")

    def start(self) -> Address:
        self.launch()
        self._hear_until(lambda: self._address is not None, "the bookie to be ready")
        assert self._address
        return self._address

    def kill(self) -> None:
        """Sends SIGKILL and waits until the bookie is gone."""
        self.strike()
        self.wait()

    def strike(self) -> None:
        """Sends SIGKILL; the bookie is gone once its disk returns from pending requests."""
        self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def stop(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self.is_running:  # Its pid cannot be reused yet, since the launcher waits for it.
            os.kill(self.pid, number)

    @property
    def is_running(self) -> bool:
        self._hear_all()
        return self._status is None

    def wait(self) -> int:
        """The exit code; minus the signal's number if one ended it."""
        self._hear_until(lambda: self._status is not None, "the bookie to end", may_end=True)
        assert self._status is not None
        return self._status

    def _hear_until(self, is_true: Callable[[], bool], what: str, *, may_end: bool = False) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_true():
            if self._status is not None and not may_end:
                raise ChildFailed(f"waited for {what}, and it ended with {self._status}")
            left = deadline - time.monotonic()
            if left <= 0 or not self._can_hear(left):
                raise ChildFailed(f"waited {PATIENCE_S} s for {what}")
            self._hear()

    def _hear_all(self) -> None:
        """Reads all lines sent so far; there may be none."""
        while self._can_hear(0):
            self._hear()

    def _can_hear(self, timeout_s: float) -> bool:
        return bool(select.select([self._launcher.output], [], [], timeout_s)[0])

    def _hear(self) -> None:
        lines = self._launcher.take_lines()
        if not lines and not self._launcher.is_running:
            raise ChildFailed("the launcher of bookies ended")
        for line in lines:
            word, _, rest = line.partition(" ")
            match word:
                case "pid":
                    self.pid = int(rest)
                case "ended":
                    self._status = int(rest)
                    for done in self._deletions.values():
                        if not done.done():
                            done.set_exception(ConnectionLost())
                case "deleted":
                    done_one = self._deletions.get(int(rest))
                    if done_one and not done_one.done():
                        done_one.set_result(None)
                case _:
                    self._address = bookies.address_in(line)

    # --- Deletions ----------------------------------------------------------------------------

    async def delete(self, ledger_id: int) -> None:
        """Raises `ConnectionLost` if the bookie dies first."""
        loop = asyncio.get_running_loop()
        if not self._deletions:
            loop.add_reader(self._launcher.output, self._hear_all)
        done = self._deletions[ledger_id] = loop.create_future()
        try:
            if not self.is_running:
                raise ConnectionLost
            self._launcher.say(f"delete {ledger_id}")
            async with asyncio.timeout(PATIENCE_S):
                await done
        finally:
            del self._deletions[ledger_id]
            if not self._deletions:
                loop.remove_reader(self._launcher.output)


class Rig:
    def __init__(self, subject: Subject, seed: int) -> None:
        self.judge = Judge()
        self.chance = random.Random(seed)
        self.subject = subject
        self.load = Load(self.judge, seed, subject.delete)
        self.outages_s: list[float] = []
        self.endings_s: list[float] = []  # Seconds from each SIGTERM until the bookie has ended.
        self.dropped: list[int] = []

    async def start(self) -> None:
        """Starts the bookie and its load."""
        started = time.monotonic()
        address = self.subject.start()
        self.outages_s.append(time.monotonic() - started)
        await self.load.begin(address)

    async def let_work(self, adds: int = 300) -> None:
        """Waits for `adds` more acknowledged adds, a fence and a deletion, and then a little longer."""
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
        self.subject.kill()
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
            dropped=self.dropped,
        )
