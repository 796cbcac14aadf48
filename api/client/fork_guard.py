"""Detects a process that was forked from one that had used a client.

gRPC does not work in such a process: its threads are gone, and their locks stay locked, so that a
call hangs or ends the process. Therefore a client raises at once there. (`multiprocessing` forks by
default on Linux up to Python 3.13.)

Closing the clients before the fork does not help: gRPC's threads end when the last of its channels
is freed, and a closed client, or a cycle of garbage, may still hold one. In a test, children were
forked after `close` and then connected: while the parent still held the closed client, 8 of 8
crashed or hung; after the parent had dropped it and collected garbage, 0 of 11 did (grpcio 1.85,
Linux). The two cases cannot be distinguished cheaply here.
"""

import os
from typing import NoReturn

from rollbook.proto.errors import ClientClosed


class _Process:
    is_used = False
    is_forked = False  # Whether this process was forked from one that had used a client.

    def on_forked(self) -> None:
        self.is_forked = self.is_used


_process = _Process()
if hasattr(os, "register_at_fork"):  # Windows has no fork.
    os.register_at_fork(after_in_child=_process.on_forked)


def on_used() -> None:
    """Notes that this process has created a client. Raises `ClientClosed`."""
    require_own_process()
    _process.is_used = True


def is_own_process() -> bool:
    """Returns whether objects of clients belong to this process."""
    return not _process.is_forked


def require_own_process() -> None:
    """Raises `ClientClosed`."""
    if _process.is_forked:
        raise ClientClosed(
            "this process was forked from one that has used a client, and clients do not work in it",
            next_step='start it with multiprocessing.get_context("spawn"), or do not connect before it forks',
        )


class BelongsToProcess:
    """The base of objects that cannot be passed to a pool of processes."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} belongs to its process: pass the URL and the log's name, and connect there"
        )
