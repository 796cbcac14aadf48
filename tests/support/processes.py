"""Child processes of tests: tests start, kill and stop them, and exchange lines with them.

    with processes.family() as children:
        owner = children.start_module("tests.crash.owner", folder)
        assert owner.line() == "ready"
        owner.kill()

A child is killed at the end of its family's block, and when the test's process ends for any reason
(the kernel sends SIGKILL). So even a stopped or hanging child never outlives the test.
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
# Only Linux has this; on other systems a child outlives a test that was killed.
_DIES_WITH_US: Final = ("setpriv", "--pdeathsig", "KILL", "--") if sys.platform == "linux" else ()


class ChildFailed(Exception):
    """A child ended or printed nothing while the test waited for a line."""


class Child:
    """One process, which exchanges lines with the test through its standard input and output."""

    def __init__(
        self,
        command: Sequence[str | Path],
        environment: Mapping[str, str] = {},
        log: Path | None = None,
    ) -> None:
        """Standard error is appended to the file `log`."""
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
        """Waits for some bytes and returns the complete lines. Also empty at the end of the output.

        A last line without a newline is dropped.
        """
        *lines, self._pending = (self._pending + os.read(self.output.fileno(), 1 << 16)).split(
            b"\n"
        )
        return [line.decode() for line in lines]

    def last_lines(self) -> list[str]:
        """The unread lines of a child that has ended."""
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
        """Sends SIGSTOP and waits until the process is stopped."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        """Sends SIGKILL and waits until the process is gone. Its output can still be read."""
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
        """Starts `python -m module …` with the import path of the tests."""
        return self.start(sys.executable, "-m", module, *arguments, environment=environment)

    def pids(self) -> list[int]:
        """The pids of the running children."""
        return [child.pid for child in self._children if child.is_running]

    def forget_ended(self) -> None:
        """Closes the pipes of children that have ended."""
        for child in [child for child in self._children if not child.is_running]:
            child.close()
            self._children.remove(child)

    def close(self) -> None:
        for child in self._children:
            child.close()


def kill_at_once(children: Iterable[Child]) -> None:
    """Kills all children together, like a power cut: none of them can react to another's death."""
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
