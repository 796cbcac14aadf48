"""Replicas of a counter that share one set of logs in memory."""

from typing import Any

from rollbook.api.wal.aio import StateMachine
from tests.unit.api.client.conftest import Site, site
from tests.unit.api.grpc.fake_core import FakeLog

__all__ = ["Counter", "replica", "site", "the_log"]


class Counter:
    """Sums its commands; `all` has each command, in order."""

    def __init__(self) -> None:
        self.total = 0
        self.all: list[bytes] = []
        self.restored = 0

    def apply(self, command: bytes) -> int:
        self.total += int(command)
        self.all.append(command)
        return self.total

    def snapshot(self) -> bytes:
        return b" ".join(self.all)

    def restore(self, snapshot: bytes) -> None:
        self.all = snapshot.split()
        self.total = sum(map(int, self.all))
        self.restored += 1


def replica(site: Site, counter: Counter, holder: str, **settings: Any) -> StateMachine:
    """A replica with a client of its own, which becomes the last of `site.clients`."""
    return StateMachine(site.client("a"), "counter", counter, holder=holder, **settings)


def the_log(site: Site, name: str = "counter") -> FakeLog:
    (found,) = [log for key, log in site.cluster.logs.items() if key.name == name]
    return found
