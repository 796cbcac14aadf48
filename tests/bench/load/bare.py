"""The minimal frame of a bare server."""

import socket
from collections.abc import Iterator


def connections() -> Iterator[socket.socket]:
    """Accepts connections one after the other, at a loopback port that it prints."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        while True:
            connection, _ = listening.accept()
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                yield connection
