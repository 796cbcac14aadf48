"""A real bookie process for crash tests: the command `rollbook`, and what a test may add to it.

    python -m tests.crash.bookie_server FLAW-OR-MINUS ARGUMENT…

It loads everything and waits for the line `go` before it begins, so that the time Python takes to
start is not the bookie's. A flaw (`bookie_flaws.py`) breaks this one process. Once it serves, each
line `delete LEDGER` is answered by `deleted LEDGER` when that is durable: as garbage collection deletes,
which by itself takes its time.
"""

import asyncio
import os
import sys
from unittest import mock

import rollbook.api.cli.server  # noqa: F401  # What the command will need, loaded while it waits.
from rollbook.api.cli.main import main as rollbook_command
from rollbook.bookie.storage import Storage
from tests.crash.bookie_flaws import FLAWS


def _obey(storage: Storage) -> None:
    """Commands of the test, from now on."""
    loop = asyncio.get_running_loop()
    pending = b""
    tasks: dict[asyncio.Task[None], None] = {}

    async def delete(ledger_id: int) -> None:
        await storage.delete(ledger_id)
        os.write(1, b"deleted %d\n" % ledger_id)

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


def main() -> None:
    flaw, arguments = sys.argv[1], sys.argv[2:]
    mock.patch.object(Storage, "start", _start_and_obey).start()
    if flaw != "-":
        FLAWS[flaw]()
    assert os.read(0, 3) == b"go\n"
    sys.argv = ["rollbook", *arguments]
    rollbook_command()


if __name__ == "__main__":
    main()
