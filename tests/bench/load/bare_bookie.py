"""A bookie that only writes, syncs and counts: the minimum for a bookie written in Python.

    python -m tests.bench.load.bare_bookie FILE

Reads adds of version 3 that all have the length of the connection's first one, appends them to the
file, syncs, and repeats the response to the first add for each complete add. It decodes, checks and
indexes nothing. The file is written and synced in advance and reused from its beginning, so that no
write needs a new block or page. One blocking thread serves one connection after the other. Prints
its port.
"""

import os
import socket
import sys
from struct import unpack
from typing import Final

from rollbook.proto.wire.add_columns import Adds
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
    """Reads the first frame without consuming it."""
    peek = socket.MSG_PEEK | socket.MSG_WAITALL
    (size,) = unpack(">I", connection.recv(LENGTH_BYTES, peek))
    return connection.recv(LENGTH_BYTES + size, peek)


def _answer_to(frame: bytes) -> bytes:
    (adds,) = RequestDecoder().feed(frame)
    assert isinstance(adds, Adds)
    return b"".join(group.pack_replies() for group in adds.groups)


if __name__ == "__main__":
    _main(sys.argv[1])
