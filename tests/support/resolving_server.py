"""Runs `rollbook` where names that end in `.invalid` resolve to this machine.

This emulates the network of a compose file: servers resolve each other's names, and clients on the
host do not.
"""

import re
import socket
from typing import Any

import grpc

_INSIDE = re.compile(r"[\w.-]+\.invalid\b")
_resolve = socket.getaddrinfo
_connect = grpc.aio.insecure_channel


def _resolve_inside(host: Any, *rest: Any, **named: Any) -> Any:
    return _resolve(
        _INSIDE.sub("127.0.0.1", host) if isinstance(host, str) else host, *rest, **named
    )


def _connect_inside(target: str, *rest: Any, **named: Any) -> Any:
    return _connect(_INSIDE.sub("127.0.0.1", target), *rest, **named)


if __name__ == "__main__":
    socket.getaddrinfo = _resolve_inside
    grpc.aio.insecure_channel = _connect_inside
    from rollbook.api.cli.main import main

    main()
