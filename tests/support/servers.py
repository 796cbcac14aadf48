"""Runs `rollbook server …` and `rollbook dev` as children without the half second that imports
take.

A process that has imported the modules of servers forks for each server. The server is still a
child of the tests: they wait for it, stop it and get its exit code, and it dies with them. Chaos
tests and benchmarks, which do not run in pytest, start servers like users do.
"""

import atexit
import ctypes
import functools
import gc
import importlib
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import IO, Final

from tests.support.commands import become

_MAIN: Final = "rollbook.api.cli.main"
_REPOSITORY: Final = Path(__file__).parents[2]
_PRELOADED: Final = (
    "rollbook.api.cli.server.log",
    "rollbook.api.cli.server.log_rest",
    "rollbook.api.cli.server.bookie",
    "rollbook.api.cli.server.recovery",
    "rollbook.api.rest.bookie_admin_server",
    "rollbook.proto.runtime.metastore.embedded_owner",
    "rollbook.api.cli.dev.run",
)
_REQUEST_BYTES_MAX: Final = 1 << 17
_READ_LATE: Final = ("NO_COLOR", "PATH")
_STDERR: Final = 2
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


def are_forked(command: Sequence[str | Path], environment: Mapping[str, str]) -> bool:
    """Whether the command is a server whose environment is read only by its code after the start."""
    is_main = tuple(command[:3]) == (sys.executable, "-m", _MAIN)
    is_server = is_main and tuple(command[3:4]) in (("server",), ("dev",))
    ours = all(name.startswith("ROLLBOOK_") or name in _READ_LATE for name in environment)
    # Benchmarks measure starts and memory, and chaos tests use starts as faults.
    is_test = "PYTEST_CURRENT_TEST" in os.environ
    return is_test and is_server and ours and sys.platform == "linux"


class ForkedServer:
    """The part of `subprocess.Popen` that tests need."""

    def __init__(
        self, command: Sequence[str | Path], environment: Mapping[str, str], log: Path | None
    ) -> None:
        self.args = command
        self.returncode: int | None = None
        their_input, our_end = os.pipe()
        our_output, their_output = os.pipe()
        try:
            words = [str(each) for each in command[3:]]
            with log.open("ab") if log else nullcontext() as file:
                files = [their_input, their_output, file.fileno() if file else _STDERR]
                self.pid = _forge().fork(words, {**os.environ, **environment}, files)
        finally:
            os.close(their_input)
            os.close(their_output)
        self.stdin: IO[bytes] = io.FileIO(our_end, "wb")
        self.stdout: IO[bytes] = io.FileIO(our_output, "rb")
        self._ends = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
                os.close(self._ends)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.poll() is None:
            poller = select.poll()
            poller.register(self._ends, select.POLLIN)
            if not poller.poll(None if timeout is None else 1000 * timeout):
                raise subprocess.TimeoutExpired([str(each) for each in self.args], timeout or 0.0)
        found = self.poll()
        assert found is not None
        return found

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@functools.cache
def _forge() -> "_Forge":
    forge = _Forge()
    atexit.register(forge.close)
    return forge


class _Forge:
    """Starts one server at a time."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            command = [sys.executable, "-m", "tests.support.servers", str(number)]
            self._process = subprocess.Popen(command, pass_fds=[number], cwd=_REPOSITORY)

    def fork(
        self, words: Sequence[str], environment: Mapping[str, str], files: Sequence[int]
    ) -> int:
        request = json.dumps([words, dict(environment), os.getpid()]).encode()
        assert len(request) < _REQUEST_BYTES_MAX
        with self._turn:
            # Until this is reset, orphaned descendants become children of this process.
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)
            try:
                socket.send_fds(self._line, [request], files)
                pid = int(self._line.recv(64))
            finally:
                _prctl(_PR_SET_CHILD_SUBREAPER, 0)
        return pid

    def close(self) -> None:
        self._line.close()
        self._process.wait()


def _prctl(option: int, value: int) -> None:
    assert ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0


# --- The process that forks ---------------------------------------------------------------------


def _serve(line: socket.socket) -> None:
    """Returns when the tests have ended, and in each forked process, which then runs its server."""
    while True:
        request, files, _, _ = socket.recv_fds(line, _REQUEST_BYTES_MAX, 3)
        if not request:
            sys.exit()
        words, environment, tests = json.loads(request)
        told, tell = os.pipe()
        between = os.fork()
        if not between:
            between = os.getpid()
            if pid := os.fork():
                os.write(tell, b"%d" % pid)
                os._exit(0)
            os.close(told)
            line.close()
            _await_parent(between, tests)
            os.close(tell)  # From now on it dies with the tests, so they may stop it.
            become(files, words, environment)
            return
        os.close(tell)
        os.waitpid(between, 0)  # From now on its child is a child of the tests.
        with open(told, "rb") as pid_of_child:
            # Reads to the end: the child is then bound to its new parent.
            line.send(pid_of_child.read())
        for each in files:
            os.close(each)


def _await_parent(before: int, parent: int) -> None:
    """Makes this process die with its new parent."""
    while (now := os.getppid()) == before:
        time.sleep(0.001)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if now != parent or os.getppid() != parent:
        os._exit(1)  # The parent died before that.


if __name__ == "__main__":
    from rollbook.api.cli import main

    for name in _PRELOADED:
        with suppress(ImportError):  # The product may be older than these tests.
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # Excludes loaded modules from garbage collections of the servers.
    _serve(socket.socket(fileno=int(sys.argv[1])))
    main.main()
