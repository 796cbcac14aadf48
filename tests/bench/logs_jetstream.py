"""NATS JetStream as a peer: three nodes, three replicas, every write synced before it is acked.

By default JetStream syncs every two minutes. That is shown, too, with separate nodes.

The server is built from its Go module; its Python client has its own virtual environment.
"""

import json
import shutil
import urllib.request
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.bench.ledger import Found, OurClient
from tests.bench.logs_peers import CannotBeHad, LogSide, cache, fetch, python_with
from tests.support.bookies import cpu_s
from tests.support.processes import Child, Family, family
from tests.support.zookeeper import free_port

SERVER: Final = "github.com/nats-io/nats-server/v2@v2.15.0"
CLIENT: Final = "nats-py==2.16.0"
_NODES: Final = ("node-1", "node-2", "node-3")
_HEALTH_S: Final = 5.0
_FILE_BYTES_MAX: Final = 64 << 30


class JetStreamSide(LogSide):
    def __init__(
        self,
        name: str,
        children: Family,
        folder: Path,
        server: Path,
        python: Path,
        *,
        synced: bool,
    ) -> None:
        self.name = name
        self.is_synced = synced
        self._sync = "always" if synced else "2m"
        version, client = SERVER.rpartition("@")[2], CLIENT.replace("==", " ")
        self.about = f"nats-server {version}, three nodes, R3, sync {self._sync}; {client}"
        self._children = children
        self._folder = folder
        self._server = server
        self._ports = {name: free_port() for name in _NODES}
        self._routes = {name: free_port() for name in _NODES}
        self._monitors = {name: free_port() for name in _NODES}
        self._nodes = {name: self._start(name) for name in _NODES}
        url = ",".join(f"nats://127.0.0.1:{port}" for port in self._ports.values())
        command = (python, "-m", "tests.bench.load.jetstream_worker", url)
        self._client = OurClient(children.start(*command))

    def run(self, job: str, **arguments: Any) -> Found:
        return self._client.run(job, "", **arguments)

    def cpu_s(self) -> Mapping[str, float]:
        return {"three servers": sum(cpu_s(node.pid) for node in self._nodes.values())}

    def pids(self) -> Collection[int]:
        running = [node.pid for node in self._nodes.values() if node.is_running]
        return [*running, self._client.pid]

    def ailing_replica(self) -> str | None:
        """A node is healthy once all its streams have a leader and keep up with it."""
        for name, port in self._monitors.items():
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=_HEALTH_S)
            except OSError as error:
                return f"{name} is not healthy: {error}"
        return None

    @contextmanager
    def spare(self) -> Iterator[Mapping[str, int]]:
        yield {name: node.pid for name, node in self._nodes.items()}
        for name, node in self._nodes.items():
            if not node.is_running:
                self._nodes[name] = self._start(name)
        self.wait_ready()

    def _start(self, name: str) -> Child:
        config = self._folder / f"{name}.conf"
        settings = {
            "server_name": name,
            "listen": f"127.0.0.1:{self._ports[name]}",
            "http": f"127.0.0.1:{self._monitors[name]}",
            "log_file": str(self._folder / f"{name}.log"),
            "jetstream": {
                "store_dir": str(self._folder / name),
                "max_file_store": _FILE_BYTES_MAX,
                "sync_interval": self._sync,
            },
            "cluster": {
                "name": "bench",
                "listen": f"127.0.0.1:{self._routes[name]}",
                "routes": [f"nats://127.0.0.1:{port}" for port in self._routes.values()],
            },
        }
        config.write_text(json.dumps(settings))
        return self._children.start(self._server, "-c", config)


@contextmanager
def jetstream(folder: Path) -> Iterator[Sequence[LogSide]]:
    server, python = _server(), python_with("jetstream-client", CLIENT)
    with family() as children:

        def side(name: str, *, synced: bool) -> JetStreamSide:
            home = folder / ("synced" if synced else "unsynced")
            home.mkdir()
            started = JetStreamSide(name, children, home, server, python, synced=synced)
            started.wait_ready()
            return started

        yield [side("JetStream", synced=True), side("JetStream, not synced", synced=False)]


def _server() -> Path:
    folder = cache("jetstream")
    server = folder / SERVER.rpartition("@")[2] / "nats-server"
    if not server.exists():
        if not shutil.which("go"):
            raise CannotBeHad("its server is built from source, and there is no `go`")
        fetch(["go", "install", SERVER], {"GOBIN": str(server.parent)})
    return server
