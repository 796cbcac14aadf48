"""The processes of a run: bookies and clients that are restarted many times; each process has its own
files for the responses it gets (`history/`) and for its log (`logs/`)."""

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.support.processes import Child, Family

_PAUSE_S: Final = 0.3  # Pause before a process that could not start is started again.
# Redirects stderr to a file; exec keeps the process id.
_LOGGED: Final = ("sh", "-c", 'exec 2>>"$0"; exec "$@"')


class Actor:
    """A named bookie or client, across its restarts."""

    def __init__(
        self,
        name: str,
        children: Family,
        logs: Path,
        command: Callable[[str], Sequence[str | Path]],
        environment: Mapping[str, str],
        on_line: Callable[["Actor", str], None],
    ) -> None:
        """`command` returns the command line for a process of this name and number."""
        self.name = name
        self.lives = 0
        self.unasked: list[str] = []  # Ends that the run did not cause.
        self.refusals = 0  # Ends before it was ready, because a dependency was unavailable.
        self._children = children
        self._logs = logs
        self._command = command
        self._environment = environment
        self._on_line = on_line
        self._child: Child | None = None
        self._is_stopped = False
        self._ready = asyncio.Event()
        self._starting: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Does nothing if it runs: on a slow machine faults overlap, and another one may have restarted it."""
        if self._starting is not None:
            self._starting.cancel()
            self._starting = None
        if self._child is not None:
            return
        self.lives += 1
        life = f"{self.name}-{self.lives}"
        self._child = self._children.start(
            *_LOGGED, self._logs / life, *self._command(life), environment=self._environment
        )
        asyncio.get_running_loop().add_reader(self._child.output, self._hear)

    async def until_ready(self, timeout_s: float) -> None:
        async with asyncio.timeout(timeout_s):
            await self._ready.wait()

    def kill(self) -> None:
        """Kills it with SIGKILL; only `start` starts it again."""
        if self._starting is not None:
            self._starting.cancel()
            self._starting = None
        if self._child is not None:
            self._let_go().close()

    def stop(self) -> None:
        if self._child is not None and self._child.is_running:
            self._child.stop()
            self._is_stopped = True

    def resume(self) -> None:
        if self._child is not None and self._is_stopped:
            self._child.resume()
        self._is_stopped = False

    def say(self, line: str) -> None:
        """Sends a line; it is lost if the process is dead."""
        if self._child is not None:
            with suppress(BrokenPipeError):
                self._child.say(line)

    def _let_go(self) -> Child:
        child, self._child = self._child, None
        assert child is not None
        asyncio.get_running_loop().remove_reader(child.output)
        self._ready.clear()
        self._is_stopped = False
        return child

    def _hear(self) -> None:
        assert self._child is not None
        lines = self._child.take_lines()
        for line in lines:
            if not self._ready.is_set():
                self._ready.set()  # The first line of each process means that it is ready.
            self._on_line(self, line)
        if not lines and not self._child.is_running:
            self._on_end()

    def _on_end(self) -> None:
        was_ready = self._ready.is_set()
        child = self._let_go()
        status = child.wait()
        child.close()
        if was_ready:
            self.unasked.append(f"{self.name} ended by itself, with {status}")
        else:
            self.refusals += 1
        loop = asyncio.get_running_loop()
        self._starting = loop.call_later(_PAUSE_S, self.start)


def bookie_command(prefix: Sequence[str], arguments: Sequence[str]) -> list[str | Path]:
    return [*prefix, sys.executable, "-m", "rollbook.api.cli.main", *arguments]


def client_command(
    prefix: Sequence[str], role: str, url: str, history: Path, flaw: str
) -> list[str | Path]:
    return [*prefix, sys.executable, "-m", "tests.chaos.client", role, url, history, flaw]


def tracebacks(logs: Path) -> list[str]:
    """Unexpected exceptions: the last line of each traceback."""
    found = []
    for path in sorted(logs.iterdir()):
        lines = path.read_text(errors="replace").splitlines()
        for number, line in enumerate(lines):
            if line.startswith("Traceback"):
                rest = (each for each in lines[number + 1 :] if each[:1].strip())
                found.append(f"{path.name}: {next(rest, line)}")
    return found
