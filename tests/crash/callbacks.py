"""Callbacks of real recovery servers to a receiver, while all of them are killed at random.

There are two servers and one receiver. One of the three is killed at a time and started again,
while bookies change their lifecycle states. Each event has to arrive, in order for each bookie,
with a valid signature; it may arrive again. The metadata store is in the test's own process, so
that it outlives them.
"""

import asyncio
import hashlib
import hmac
import json
import random
import re
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from rollbook.proto.cluster.bookie_lifecycle_nodes import LifecycleNodes
from rollbook.proto.cluster.cluster_root import Cluster, initialise
from rollbook.proto.formats.lifecycle import Lifecycle, LifecycleState
from rollbook.proto.ids import BookieId
from rollbook.proto.ports import MetadataStore
from rollbook.proto.runtime.metastore import open_metadata_store
from rollbook.recovery.callback_nodes import CallbackNodes
from tests.crash import CrashResult
from tests.support import processes

PATIENCE_S: Final = 60.0
_BOOKIES: Final = ("bk-1", "bk-2", "bk-3", "bk-4", "bk-5", "bk-6")
_SERVER: Final = (sys.executable, "-m", "rollbook.api.cli.main", "server", "recovery")
_RECEIVER: Final = """
import http.server, json, os, sys
port, path = int(sys.argv[1]), sys.argv[2]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        with open(path, "a") as file:
            file.write(json.dumps([dict(self.headers), body]) + "\\n")
            file.flush()
            os.fsync(file.fileno())
        self.send_response(204)
        self.end_headers()
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
print("ready", flush=True)
server.serve_forever()
"""


def crash_it(kills: int, power_cuts: int, seed: int, report: Callable[[str], None]) -> CrashResult:
    """Makes no power cuts, which the store's own tests make. Each survived kill counts as passed."""
    with (
        tempfile.TemporaryDirectory(prefix="rb-", dir="/tmp") as folder,
        processes.family() as children,
    ):
        rig = Rig(children, Path(folder), random.Random(seed))
        problem = asyncio.run(rig.run(kills))
    report(f"callbacks: {kills} kills, {rig.arrived} requests for {rig.expected_count} events")
    result = CrashResult("crashes", acknowledged=rig.expected_count)
    if problem:
        report(f"callbacks, seed {seed}: {problem}")
        result.failed = 1
    else:
        result.passed = kills
    return result


class Rig:
    def __init__(self, children: processes.Family, folder: Path, randomness: random.Random) -> None:
        self.arrived = 0
        self._children = children
        self._folder = folder
        self._randomness = randomness
        self._url = f"sqlite://{folder}/m.db"
        self._received = folder / "received"
        self._port = _free_port()
        self._running: dict[str, processes.Child] = {}
        self._expected: dict[str, list[str]] = {bookie: [] for bookie in _BOOKIES}
        self._secret = ""

    @property
    def expected_count(self) -> int:
        return sum(map(len, self._expected.values()))

    async def run(self, kills: int) -> str:
        """Returns an error in the received events, or an empty string."""
        store = await open_metadata_store(self._url, serve=True, create=True)
        async with store:
            cluster = await initialise(store, "/ledgers", self._randomness)
            async with asyncio.timeout(PATIENCE_S):
                for name in ("receiver", "r-1", "r-2"):
                    self._start(name)
                pages = [await self._ready(name) for name in ("receiver", "r-1", "r-2")]
                await self._make_callback(pages[1])
            changing = asyncio.create_task(self._change(store, cluster))
            try:
                for _ in range(kills):
                    async with asyncio.timeout(PATIENCE_S):
                        await self._kill_one(store, cluster)
            finally:
                changing.cancel()
                await asyncio.gather(changing, return_exceptions=True)
            nodes = CallbackNodes(store, cluster)
            async with asyncio.timeout(PATIENCE_S):
                await self._until_queued(store, cluster)
                (callback,) = await nodes.list()
                while await store.children(nodes.queue(callback.id)):
                    await asyncio.sleep(0.05)
            return self._judge()

    async def _kill_one(self, store: MetadataStore, cluster: Cluster) -> None:
        """Kills one process and starts it again; waits until a server leads."""
        victim = self._randomness.choice(sorted(self._running))
        await asyncio.sleep(self._randomness.random() * 0.3)
        self._running[victim].kill()
        self._running[victim].close()
        self._start(victim)
        await self._ready(victim)
        if victim != "receiver":
            await self._until_queued(store, cluster)

    def _start(self, name: str) -> None:
        command: tuple[str, ...]
        if name == "receiver":
            command = (sys.executable, "-c", _RECEIVER, str(self._port), str(self._received))
        else:
            command = (
                *_SERVER,
                "--metadata",
                self._url,
                "--name",
                name,
                "--only-http",
                "--http",
                "127.0.0.1:0",
                "--log-level",
                "error",
                "--callback-hosts",
                f"127.0.0.1:{self._port}",
            )
        environment = {} if name == "receiver" else {"ROLLBOOK_SESSION_TIMEOUT_S": "1"}
        self._running[name] = self._children.start(*command, environment=environment)

    async def _ready(self, name: str) -> str:
        """Returns the first line of a process; a server's line has its address."""
        return await asyncio.to_thread(self._running[name].line)

    async def _make_callback(self, line: str) -> None:
        found = re.search(r"http on ([0-9.:]+)", line)
        assert found, line
        url = f"http://{found[1]}/api/v1/callbacks"
        wanted = {"url": f"http://127.0.0.1:{self._port}/events", "kinds": ["lifecycle"]}

        def ask() -> dict[str, Any]:
            head = {"content-type": "application/json"}
            request = Request(url, json.dumps(wanted).encode(), head, method="POST")
            try:
                with urlopen(request, timeout=40) as answer:
                    return dict(json.load(answer))
            except HTTPError as error:
                return dict(json.load(error))

        while "secret" not in (answer := await asyncio.to_thread(ask)):
            assert answer["reason"] == "METADATA_UNAVAILABLE", answer
        self._secret = answer["secret"]

    async def _change(self, store: MetadataStore, cluster: Cluster) -> None:
        nodes, callbacks = LifecycleNodes(store, cluster), CallbackNodes(store, cluster)
        number = 0
        while True:
            cursor, _ = await callbacks.read_cursor()
            known = cursor.fingerprints if cursor else {}
            quiet = [each for each in _BOOKIES if self._is_queued(each, known)]
            if not quiet:
                await asyncio.sleep(0.05)
                continue
            number += 1
            bookie = BookieId(self._randomness.choice(quiet))
            found = await nodes.read(bookie)
            is_active = found.lifecycle.state is LifecycleState.ACTIVE
            state = LifecycleState.DRAINING if is_active else LifecycleState.ACTIVE
            await nodes.write(found, Lifecycle(state, f"{number:x}", since_ms=number))
            node = await store.get(nodes.path(bookie))
            assert node is not None
            stat = node.stat
            event = f"lifecycle/{bookie}@{stat.created_txn:x}.{stat.version}"
            self._expected[bookie].append(event)
            await asyncio.sleep(self._randomness.random() * 0.2)

    def _is_queued(self, bookie: str, known: Mapping[str, str]) -> bool:
        """Whether the bookie's last event is queued: a state that changes before it is read causes none."""
        ids = self._expected[bookie]
        return not ids or known.get(f"lifecycle/{bookie}", "").endswith(ids[-1])

    async def _until_queued(self, store: MetadataStore, cluster: Cluster) -> None:
        """Waits until a server has queued all earlier events; only then may another process be killed."""
        nodes = CallbackNodes(store, cluster)
        counts = {bookie: len(ids) for bookie, ids in self._expected.items()}
        while True:
            cursor, _ = await nodes.read_cursor()
            known = cursor.fingerprints if cursor else {}
            if all(
                len(ids) > counts[bookie] or self._is_queued(bookie, known)
                for bookie, ids in self._expected.items()
            ):
                return
            await asyncio.sleep(0.05)

    def _judge(self) -> str:
        lines = self._received.read_text().splitlines()
        self.arrived = len(lines)
        seen: dict[str, list[str]] = {bookie: [] for bookie in _BOOKIES}
        for line in lines:
            headers, body = json.loads(line)
            event = json.loads(body)
            signed = f"{headers['rollbook-time']}.{body}".encode()
            expected = hmac.new(self._secret.encode(), signed, hashlib.sha256).hexdigest()
            if headers["rollbook-signature"] != f"v1={expected}":
                return f"{event['id']} has a wrong signature"
            (bookie,) = event["bookies"]
            if event["id"] not in seen[bookie]:
                seen[bookie].append(event["id"])
        for bookie, ids in self._expected.items():
            if seen[bookie] != ids:
                return f"{bookie}: {seen[bookie]} arrived in place of {ids}"
        return ""


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
