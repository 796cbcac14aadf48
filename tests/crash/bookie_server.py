"""Real bookie processes for crash tests: the command `rollbook`, and deletions for tests.

    python -m tests.crash.bookie_server FLAW-OR-MINUS ARGUMENT…

It loads all modules once. Then each line `go` forks a process that runs `rollbook ARGUMENT…`, one
at a time; it prints `pid N` and, at its end, `ended STATUS`, with waitpid's exit code. So a test
does not wait for Python to load. A flaw (`bookie_flaws.py`) is planted in these processes.

The bookie writes to the same standard output. It answers each line `delete LEDGER` with
`deleted LEDGER` when the deletion is durable. Garbage collection would take longer to delete.
"""

import asyncio
import ctypes
import gc
import os
import signal
import sys
from typing import Final
from unittest import mock

import rollbook.api.cli.server.bookie  # noqa: F401  # The command will need these.
from rollbook.api.cli.main import main as rollbook_command
from rollbook.bookie.storage import Storage
from rollbook.proto.errors import BookieFailed
from tests.crash.bookie_flaws import FLAWS

_PR_SET_PDEATHSIG: Final = 1
_DELETE_AGAIN_S: Final = 0.05


def _obey(storage: Storage) -> None:
    """Obeys the test's commands from now on."""
    loop = asyncio.get_running_loop()
    pending = b""
    tasks: dict[asyncio.Task[None], None] = {}

    async def delete(ledger_id: int) -> None:
        while True:
            try:
                await storage.delete(ledger_id)
            except BookieFailed:
                return  # It is about to end.
            except OSError:  # The disk is full; there will be room again.
                await asyncio.sleep(_DELETE_AGAIN_S)
            else:
                break
        _say(f"deleted {ledger_id}")

    def on_input() -> None:
        nonlocal pending
        chunk = os.read(0, 65536)
        if not chunk:
            loop.remove_reader(0)
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            word, _, ledger_id = line.partition(b" ")
            assert word == b"delete"
            task = loop.create_task(delete(int(ledger_id)))
            tasks[task] = None
            task.add_done_callback(tasks.pop)

    loop.add_reader(0, on_input)


_start = Storage.start


def _start_and_obey(self: Storage) -> None:
    _start(self)
    _obey(self)


def _say(line: str) -> None:
    """Writes the line in one call, since two processes share the pipe."""
    os.write(1, line.encode() + b"\n")


def _lines() -> list[bytes]:
    """Waits for lines; returns none at the end of the input."""
    return os.read(0, 65536).splitlines()


def main() -> None:
    flaw, arguments = sys.argv[1], sys.argv[2:]
    mock.patch.object(Storage, "start", _start_and_obey).start()
    if flaw != "-":
        FLAWS[flaw]()
    gc.collect()
    gc.freeze()
    while lines := _lines():
        if b"go" not in lines:  # Otherwise the line was meant for a bookie that has died.
            continue
        child = os.fork()
        if not child:
            # The bookie must not outlive this process, and thus not the test.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            sys.argv = ["rollbook", *arguments]
            rollbook_command()
            return
        _say(f"pid {child}")
        _, status = os.waitpid(child, 0)
        _say(f"ended {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main()
