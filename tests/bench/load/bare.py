"""What a bare server has around what it does: nothing that a process could do without."""

import socket
from collections.abc import Iterator


def connections() -> Iterator[socket.socket]:
    """One after the other, for ever, at a port of the loopback that is printed."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        while True:
            connection, _ = listening.accept()
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                yield connection
