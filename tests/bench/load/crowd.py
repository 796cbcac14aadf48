"""A crowd of connections to a bookie: idle ones, and readers that read their responses slowly.

    python -m tests.bench.load.crowd HOST PORT IDLE SLOW LEDGER ENTRIES

Slow readers request as much as possible, and read a few KiB several times per second, at
independent moments. The program prints `there` when all have connected and sent requests, and the
first responses have arrived. It ends with its standard input, and has the lowest CPU priority.
"""

import os
import random
import select
import socket
import sys
import time
from typing import Final

from rollbook.proto.ids import EntryId, LedgerId
from rollbook.proto.wire import v2
from rollbook.proto.wire.messages import BatchRead

_ASKED_AT_ONCE: Final = 20
_BYTES_MAX: Final = 4 * 1024 * 1024
_TAKEN_BYTES: Final = 16 * 1024
_STEP_S: Final = 0.2
_RUSH_STEPS: Final = 20


def _requests(ledger_id: int, entries: int, chance: random.Random) -> bytes:
    return b"".join(
        v2.pack_request(
            BatchRead(
                LedgerId(ledger_id), EntryId(chance.randrange(entries)), at, 10**6, _BYTES_MAX
            )
        )
        for at in range(_ASKED_AT_ONCE)
    )


def _take_some(readers: list[socket.socket]) -> None:
    """Lasts `_STEP_S`, or longer if the CPU is busy."""
    for reader in readers:
        time.sleep(_STEP_S / len(readers))
        try:
            if not reader.recv(_TAKEN_BYTES):
                sys.exit("the bookie hung up on a reader that takes some")
        except BlockingIOError:
            pass


def main(host: str, port: str, idle: str, slow: str, ledger_id: str, entries: str) -> None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    chance = random.Random(1)
    address = host, int(port)
    kept = [socket.create_connection(address) for _ in range(int(idle))]
    readers = []
    for _ in range(int(slow)):
        reader = socket.create_connection(address)
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _TAKEN_BYTES)
        reader.sendall(_requests(int(ledger_id), int(entries), chance))
        reader.setblocking(False)
        readers.append(reader)
    for _ in range(_RUSH_STEPS):
        _take_some(readers)
    os.write(1, b"there\n")
    while not select.select([0], [], [], 0)[0]:
        _take_some(readers)
    for connection in (*kept, *readers):
        connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
