"""One log server and one bookie as processes, used over HTTP and through the Python client.

with lone_server.running(folder) as site:
    site.ask("/v1/namespaces/default/logs/a", "PUT")
"""

import asyncio
import http.client
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rollbook.proto.cluster.cluster_root import initialise
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.runtime.metastore import open_metadata_store
from tests.support import bookies, processes
from tests.support.processes import Child

PATIENCE_S: Final = 30.0
Answer = tuple[int, dict[str, str], bytes]


@dataclass(frozen=True)
class Site:
    url: str  # For gRPC.
    place: str  # Host and port for HTTP.
    metadata: str
    bookie: Child  # Also serves the metadata store.

    def ask(self, path: str, method: str = "GET", body: bytes = b"", **headers: str) -> Answer:
        """Returns status, headers and body. The body of an event stream is its first event."""
        connection = http.client.HTTPConnection(self.place, timeout=PATIENCE_S)
        try:
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, names)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            if "text/event-stream" not in found.get("content-type", ""):
                return answer.status, found, answer.read()
            lines: list[bytes] = []
            while (line := answer.readline()) and not (line == b"\n" and len(lines) > 2):
                lines.append(line)
            return answer.status, found, b"".join(lines)
        finally:
            connection.close()


@contextmanager
def running(folder: Path, *flags: str, **settings: float) -> Iterator[Site]:
    """`flags` are additional flags of the log server, `settings` are settings of `[log_service]`."""
    url = f"sqlite://{folder}/metadata.db"

    async def make() -> None:
        async with await open_metadata_store(url, create=True) as store:
            await initialise(store, MetadataUrl.parse(url).ledgers_root, random.Random())

    asyncio.run(make())
    wanted = {"ensemble": 1, "write": 1, "ack": 1, **settings}
    with processes.family() as children:
        bookie = bookies.start(children, folder / "bk-1", url, "--log-level", "error")
        bookie.wait_ready(PATIENCE_S)
        server = children.start_module(
            "rollbook.api.cli.main",
            "server",
            "log",
            "--metadata",
            url,
            "--server-name",
            "a",
            "--log-level",
            "error",
            "--listen",
            "127.0.0.1:0",
            "--rest",
            "127.0.0.1:0",
            *flags,
            environment={
                f"ROLLBOOK_LOG_SERVICE_{key.upper()}": str(each) for key, each in wanted.items()
            },
        )
        place = server.line(PATIENCE_S).split()[1].removeprefix("http://")
        yield Site(f"log://{bookies.address_in(server.line(PATIENCE_S))}", place, url, bookie.child)
