"""A server that only reads files and sends: the minimum for any bookie.

    python -m tests.bench.load.bare_server REQUEST_BYTES REPLY_BYTES FILE…

The response to any request is the next bytes of the files, one file after the other, with one
`pread` and one `sendall`, without checks or frames. It serves one connection at a time, each from
the beginning of the files, and skips the end of a file that does not fill a response. Prints its
port.
"""

import os
import socket
import sys
from collections.abc import Iterator, Sequence

from tests.bench.load.bare import connections


def _answers(paths: Sequence[str], size: int) -> Iterator[bytes]:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            for at in range(0, os.fstat(descriptor).st_size - size + 1, size):
                yield os.pread(descriptor, size, at)
        finally:
            os.close(descriptor)


def _main(request_bytes: int, reply_bytes: int, paths: Sequence[str]) -> None:
    for connection in connections():
        answers = _answers(paths, reply_bytes)
        while connection.recv(request_bytes, socket.MSG_WAITALL):
            connection.sendall(next(answers))


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
