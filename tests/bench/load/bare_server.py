"""A server that only reads and sends: no bookie that it is compared with could do less.

    python -m tests.bench.load.bare_server REQUEST_BYTES REPLY_BYTES FILE…

The answer to a request, whatever it says, are the next bytes of the files, one file behind the other, by one
`pread` and one `sendall`: not looked at, not framed, not counted against anything. One connection at a time, each
of them from the files' beginning on; what is left of a file and makes no whole answer is passed over. Prints
its port.
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
