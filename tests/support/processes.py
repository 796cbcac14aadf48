"""Child processes of tests: started, spoken to by lines, killed or stopped at will, always reaped.

    with processes.family() as children:
        owner = children.start_module("tests.crash.owner", folder)
        assert owner.line() == "ready"
        owner.kill()

A child dies with its family's block, and with the test's own process however that ends (the
kernel sends it SIGKILL). So a child may be stopped, deaf or mad; it never outlives the test.
"""

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from tests.support import servers

REPOSITORY: Final = Path(__file__).parents[2]
LINE_TIMEOUT_S: Final = 60.0
# Only Linux can promise it; elsewhere a child outlives a test that was killed itself.
_DIES_WITH_US: Final = ("setpriv", "--pdeathsig", "KILL", "--") if sys.platform == "linux" else ()


class ChildFailed(Exception):
    """A child ended, or stayed silent, where the test waited for it to speak."""


class Child:
    """One process; its standard input and output are lines for the test."""

    def __init__(
        self,
        command: Sequence[str | Path],
        environment: Mapping[str, str] = {},
        log: Path | None = None,
    ) -> None:
        """`log`: its standard error is appended to that file."""
        logged = ("sh", "-c", 'exec "$@" 2>>"$0"', log) if log else ()
        self._process = (
            servers.ForkedServer(command, environment, log)
            if servers.are_forked(command, environment)
            else subprocess.Popen(
                [*_DIES_WITH_US, *logged, *command],
                cwd=REPOSITORY,
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
            )
        )
        self.pid = self._process.pid
        self._pending = b""

    @property
    def output(self) -> IO[bytes]:
        """For a test that polls many children; `take_lines` reads it."""
        assert self._process.stdout
        return self._process.stdout

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def take_lines(self) -> list[str]:
        """The lines that came; waits for at least some bytes. Empty at the end of the output, too.

        What a dying child could not end with a newline is not a line.
        """
        *lines, self._pending = (self._pending + os.read(self.output.fileno(), 1 << 16)).split(
            b"\n"
        )
        return [line.decode() for line in lines]

    def last_lines(self) -> list[str]:
        """All that is left to read of a child that has ended."""
        assert not self.is_running
        while chunk := os.read(self.output.fileno(), 1 << 16):
            self._pending += chunk
        *lines, self._pending = self._pending.split(b"\n")
        return [line.decode() for line in lines]

    def line(self, timeout_s: float = LINE_TIMEOUT_S) -> str:
        """The next line."""
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self.output, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise ChildFailed(f"{self._process.args!r} said nothing for {timeout_s} s")
                chunk = os.read(self.output.fileno(), 1 << 16)
                if not chunk:
                    raise ChildFailed(f"{self._process.args!r} ended with {self.wait()}")
                self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        return line.decode()

    def say(self, line: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(line.encode() + b"\n")

    def end_input(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()

    def stop(self) -> None:
        """SIGSTOP; returns when it stands still."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone. What it wrote can still be read."""
        self._process.kill()
        self._process.wait()

    def wait(self, timeout_s: float = LINE_TIMEOUT_S) -> int:
        """The exit code; minus the signal's number if one ended it."""
        return self._process.wait(timeout_s)

    def close(self) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()


class Family:
    def __init__(self) -> None:
        self._children: list[Child] = []

    def start(
        self,
        *command: str | Path,
        environment: Mapping[str, str] = {},
        log: Path | None = None,
    ) -> Child:
        child = Child(command, environment, log)
        self._children.append(child)
        return child

    def start_module(
        self, module: str, *arguments: str | Path, environment: Mapping[str, str] = {}
    ) -> Child:
        """`python -m module …`, with our imports."""
        return self.start(sys.executable, "-m", module, *arguments, environment=environment)

    def pids(self) -> list[int]:
        """Of those that run."""
        return [child.pid for child in self._children if child.is_running]

    def forget_ended(self) -> None:
        """Lets go of the pipes of children that ended."""
        for child in [child for child in self._children if not child.is_running]:
            child.close()
            self._children.remove(child)

    def close(self) -> None:
        for child in self._children:
            child.close()


def kill_at_once(children: Iterable[Child]) -> None:
    """As a power cut does: none of them sees another one die and lives on to act on it."""
    for signal_number in (signal.SIGSTOP, signal.SIGKILL):
        for child in children:
            if child.is_running:
                os.kill(child.pid, signal_number)
    for child in children:
        child.kill()


@contextmanager
def family() -> Iterator[Family]:
    children = Family()
    try:
        yield children
    finally:
        children.close()
