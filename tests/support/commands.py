"""Runs `rollbook …` as a user does, without the half second that its imports take.

A process that has imported the modules of commands forks for each command and reports how it ended.
A command has its own environment, input, outputs and exit code, as if it had been started. Which
modules it imports, and when, is not tested with this. The process ends with the tests.

    done = commands.run("ledger", "ls", environment={"ROLLBOOK_METADATA": url})
"""

import atexit
import functools
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

PATIENCE_S: Final = 60.0
_REQUEST_BYTES_MAX: Final = 1 << 17
_PRELOADED: Final = (
    "rollbook.api.cli.cluster.actions",
    "rollbook.api.cli.ledger.actions",
    "rollbook.api.cli.recovery.heal_bookie",
    "rollbook.proto.runtime.metastore.embedded_owner",
    "rollbook.api.cli.log.actions",
    "rollbook.api.client.async_client",
)


def run(
    *arguments: str,
    stdin: bytes = b"",
    environment: Mapping[str, str] = {},
    timeout_s: float = PATIENCE_S,
) -> subprocess.CompletedProcess[bytes]:
    """`environment` is added to that of the tests. Raises `subprocess.TimeoutExpired`."""
    return _forge().run(arguments, stdin, {**os.environ, **environment}, timeout_s)


@functools.cache
def _forge() -> "_Forge":
    forge = _Forge()
    atexit.register(forge.close)
    return forge


class _Forge:
    """Runs one command at a time."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            command = [sys.executable, "-m", "tests.support.commands", str(number)]
            self._process = subprocess.Popen(command, pass_fds=[number])

    def run(
        self,
        arguments: Sequence[str],
        stdin: bytes,
        environment: Mapping[str, str],
        timeout_s: float,
    ) -> subprocess.CompletedProcess[bytes]:
        request = json.dumps([arguments, environment]).encode()
        assert len(request) < _REQUEST_BYTES_MAX
        with self._turn, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            its_input, feed = os.pipe()
            files = [its_input, output.fileno(), errors.fileno()]
            socket.send_fds(self._line, [request], files)
            os.close(its_input)
            pid = int(self._line.recv(64))
            # The command need not read all input.
            with suppress(BrokenPipeError), open(feed, "wb") as pipe:
                pipe.write(stdin)
            self._line.settimeout(timeout_s)
            try:
                status = int(self._line.recv(64))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                self._line.settimeout(None)
                self._line.recv(64)
                raise subprocess.TimeoutExpired(["rollbook", *arguments], timeout_s) from None
            finally:
                self._line.settimeout(None)
            output.seek(0)
            errors.seek(0)
            return subprocess.CompletedProcess(arguments, status, output.read(), errors.read())

    def close(self) -> None:
        self._line.close()
        self._process.wait()


# --- The process that forks ---------------------------------------------------------------------


def _serve(line: socket.socket) -> None:
    """Returns when the tests have ended, and in each forked process, which then runs its command."""
    while True:
        request, files, _, _ = socket.recv_fds(line, _REQUEST_BYTES_MAX, 3)
        if not request:
            sys.exit()
        pid = os.fork()
        if not pid:
            line.close()
            become(files, *json.loads(request))
            return
        for each in files:
            os.close(each)
        line.send(b"%d" % pid)
        _, status = os.waitpid(pid, 0)
        line.send(b"%d" % os.waitstatus_to_exitcode(status))


def become(files: Sequence[int], words: Sequence[str], environment: dict[str, str]) -> None:
    """Turns this process into that of a command: sets its files, arguments and environment."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    # In a separate process the product would set this when gRPC is loaded, too.
    loaded = {name: value for name, value in os.environ.items() if name.startswith("GRPC_")}
    os.environ.clear()
    os.environ.update(loaded | environment)
    sys.argv = ["rollbook", *words]


if __name__ == "__main__":
    from rollbook.api.cli import main

    for name in _PRELOADED:
        with suppress(ImportError):  # The product may be older than these tests.
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # Excludes loaded modules from garbage collections of the commands.
    _serve(socket.socket(fileno=int(sys.argv[1])))
    main.main()
