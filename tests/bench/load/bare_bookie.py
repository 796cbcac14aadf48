"""A bookie that only keeps and counts: none written in Python that syncs what it acks could do less.

    python -m tests.bench.load.bare_bookie FILE

Reads adds of version 3, all of a connection as long as its first one, writes whatever has come behind what came
before, syncs, and says the answer to that first add as often as there are whole adds. Nothing is looked at, checked,
indexed or kept apart. The file is written and synced beforehand, and begun again where it ends: no write finds a
block or a page that is new. One blocking thread, one connection after the other. Prints its port.
"""

import os
import socket
import sys
from struct import unpack
from typing import Final

from rollbook.proto.wire.adds import Adds
from rollbook.proto.wire.frames import LENGTH_BYTES
from rollbook.proto.wire.request_decoder import RequestDecoder
from tests.bench.load.bare import connections

_FILE_BYTES: Final = 64 * 1024 * 1024
_CHUNK_BYTES: Final = 1024 * 1024


def _main(path: str) -> None:
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    for position in range(0, _FILE_BYTES, _CHUNK_BYTES):
        os.pwrite(file, bytes(_CHUNK_BYTES), position)
    os.fsync(file)
    for connection in connections():
        _serve(connection, file)


def _serve(connection: socket.socket, file: int) -> None:
    frame = _first_frame(connection)
    answer = _answer_to(frame)
    room = memoryview(bytearray(_CHUNK_BYTES))
    heard = answered = position = 0
    while count := connection.recv_into(room):
        if position + count > _FILE_BYTES:
            position = 0
        os.pwrite(file, room[:count], position)
        os.fdatasync(file)
        position += count
        heard += count
        whole = heard // len(frame)
        connection.sendall(answer * (whole - answered))
        answered = whole


def _first_frame(connection: socket.socket) -> bytes:
    """Which stays where it is."""
    peek = socket.MSG_PEEK | socket.MSG_WAITALL
    (size,) = unpack(">I", connection.recv(LENGTH_BYTES, peek))
    return connection.recv(LENGTH_BYTES + size, peek)


def _answer_to(frame: bytes) -> bytes:
    (adds,) = RequestDecoder().feed(frame)
    assert isinstance(adds, Adds)
    return b"".join(group.pack_replies() for group in adds.groups)


if __name__ == "__main__":
    _main(sys.argv[1])
