"""Log servers and bookies as separate processes, on the embedded store.

    with log_processes.running(folder) as cluster:
        cluster.start_server("log-1")
        … cluster.url, cluster.servers["log-1"].pid

The bookies start first, so that one of them serves the metadata store, and not a log server that
tests kill.
"""

import asyncio
import random
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rollbook.proto.addresses import parse_address
from rollbook.proto.cluster.cluster_root import initialise
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.runtime.metastore import open_metadata_store
from tests.support import bookies
from tests.support.bookies import RunningBookie
from tests.support.processes import Child, Family, family

BOOKIES: Final = 3
_QUIET: Final = ("--log-level", "error")


class RunningLogServer:
    def __init__(self, child: Child, address: str) -> None:
        self.child = child
        self.address = address

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def cpu_s(self) -> float:
        return bookies.cpu_s(self.child.pid)


class LogProcesses:
    def __init__(self, children: Family, metadata: str, running: list[RunningBookie]) -> None:
        self.children = children
        self.metadata = metadata
        self.bookies = running
        self.servers: dict[str, RunningLogServer] = {}

    @property
    def url(self) -> str:
        """The URL that clients connect to."""
        return "log://" + ",".join(each.address for each in self.servers.values())

    def start_server(self, name: str, says: Path | None = None) -> RunningLogServer:
        """Returns when it serves. A restarted server gets its earlier port.

        `says` is the file for its complete log.
        """
        before = self.servers.get(name)
        listen = before.address if before else "127.0.0.1:0"
        child = self.children.start(
            sys.executable,
            "-m",
            "rollbook.api.cli.main",
            "server",
            "log",
            *(() if says else _QUIET),
            "--metadata",
            self.metadata,
            "--listen",
            listen,
            "--server-name",
            name,
            log=says,
        )
        address = str(bookies.address_in(child.line(bookies.PATIENCE_S)))
        self.servers[name] = RunningLogServer(child, address)
        return self.servers[name]

    def start_inside(self, name: str) -> RunningLogServer:
        """Like `start_server`, but it advertises `NAME.invalid`, which clients cannot resolve.

        Clients connect to `RunningLogServer.address`, as if the port were published.
        """
        before = self.servers.get(name)
        port = parse_address(before.address, "server").port if before else _free_port()
        child = self.children.start(
            sys.executable,
            "-m",
            "tests.support.resolving_server",
            "server",
            "log",
            *_QUIET,
            "--metadata",
            self.metadata,
            "--server-name",
            name,
            "--insecure",
            "--listen",
            f"0.0.0.0:{port}",
            "--advertise",
            f"{name}.invalid:{port}",
        )
        child.line(bookies.PATIENCE_S)
        self.servers[name] = RunningLogServer(child, f"127.0.0.1:{port}")
        return self.servers[name]

    def pid_of(self, address: str) -> int:
        return next(each.pid for each in self.servers.values() if each.address == address)


@contextmanager
def running(folder: Path) -> Iterator[LogProcesses]:
    """Yields a cluster with running bookies and no log server."""
    url = f"sqlite://{folder}/metadata.db"
    asyncio.run(_initialise(url))
    with family() as children:
        names = [f"bk-{number + 1}" for number in range(BOOKIES)]
        found = [
            bookies.start(children, folder / name, url, *_QUIET, bookie_id=name) for name in names
        ]
        bookies.serving(found)
        yield LogProcesses(children, url, found)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


async def _initialise(url: str) -> None:
    async with await open_metadata_store(url, create=True) as store:
        await initialise(store, MetadataUrl.parse(url).ledgers_root, random.SystemRandom())
