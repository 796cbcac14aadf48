"""Kills recovery servers again and again while operations run.

Run as `python -m tests rest --of cluster --kills N`. In each round an operation begins: a drain,
the recovery of a killed bookie, or the verification of a ledger. A server is killed at a random
moment: the one that got the request, the steward that runs the operation, or a worker. A caller
whose response was lost repeats the request at any server with the same key. At the end:

    each operation     began once for its key (OP2), is known to every server, and is done (OP4)
    ended operations   never change again, at any server (OP1)
    each ledger        has all its copies, and they are sound
"""

import asyncio
import http.client
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from rollbook.ledger.open_client import connect
from tests.support import processes
from tests.support.ledger_cluster import ProcessCluster
from tests.support.processes import Child, Family
from tests.support.zookeeper import free_port
from tests.tally import Tally

_BOOKIES: Final = ("bk-1", "bk-2", "bk-3", "bk-4", "bk-5")
_STORE_OWNER: Final = "bk-1"  # The first bookie serves the embedded store.
_SERVERS: Final = {"door": ("--only-http",), "first": (), "second": ()}
_LEDGERS: Final = 12
_ENTRIES: Final = [b"%01000d" % number for number in range(30)]
_RATE: Final = 300_000  # Bytes per second, so that each operation takes a second or slightly more.
_SESSION_S: Final = "2"
# Maximum: hits the request, or the operation.
_BEFORE_KILL_S: Final = (0.02, 1.5)
_PATIENCE_S: Final = 120.0
_LASTING: Final = re.compile("[0-9a-f]{32}")
_PAUSE_S: Final = 0.1
_QUICK: Final = {
    "ROLLBOOK_SESSION_TIMEOUT_S": _SESSION_S,
    "ROLLBOOK_WORKER_GRACE_S": "0",
    "ROLLBOOK_WORKER_LOOK_AGAIN_S": "0.5",
    "ROLLBOOK_WORKER_LOCKED_PAUSE_S": "0.2",
    "ROLLBOOK_STEWARD_LOOK_AGAIN_S": "0.2",
}

Progress = Callable[[int, int], None]
Say = Callable[[str], None]


def run(kills: int, seed: int, progress: Progress, say: Say) -> Tally:
    tally = Tally("operations")
    with (
        tempfile.TemporaryDirectory(prefix="rb-operations-") as folder,
        processes.family() as children,
    ):
        site = _Site(children, Path(folder))
        ids = asyncio.run(_write_ledgers(site.cluster.url))
        site.ask("PUT", "recovery/rate", {"bytes_per_s": _RATE})
        chance = random.Random(seed)
        killed: Counter[str] = Counter()
        for number in range(kills):
            killed[_round(site, number, ids, chance)] += 1
            progress(number + 1, kills)
        for operation_id, wrong in site.judge().items():
            if wrong:
                tally.failed += 1
                say(f"{operation_id}: {wrong}")
            else:
                tally.passed += 1
        for text in asyncio.run(_shortages(site.cluster.url, ids)):
            tally.failed += 1
            say(text)
        of_kinds = Counter(each["kind"] for each in site.ended.values())
        say(f"killed: {dict(killed)}; operations: {dict(of_kinds)}; lost replies: {site.lost}")
    return tally


class _Site:
    """Five bookies and three servers with HTTP, one of which neither votes nor copies."""

    def __init__(self, children: Family, folder: Path) -> None:
        self.cluster = ProcessCluster(
            children, folder, _BOOKIES, {"ROLLBOOK_SESSION_TIMEOUT_S": _SESSION_S}
        )
        self.begun: dict[str, str] = {}  # Operations by key.
        self.ended: dict[str, dict[str, Any]] = {}  # First ended state of each.
        self.changed: dict[str, str] = {}
        self.lost = 0  # Lost responses.
        self._children = children
        self._ports = {name: free_port() for name in _SERVERS}
        self._running: dict[str, Child] = {}
        for name in _SERVERS:
            self.start(name)

    def start(self, name: str) -> None:
        """Returns when the server is ready."""
        child = self._children.start(
            sys.executable,
            "-m",
            "rollbook.api.cli.main",
            "server",
            "recovery",
            "--metadata",
            self.cluster.url,
            "--name",
            name,
            "--log-level",
            "error",
            "--http",
            f"127.0.0.1:{self._ports[name]}",
            *_SERVERS[name],
            environment=_QUICK,
        )
        child.line(_PATIENCE_S)
        self._running[name] = child

    def kill(self, name: str) -> None:
        self._running[name].kill()

    def ask(self, method: str, path: str, body: Any = None, key: str = "", at: str = "") -> Any:
        """Sends a request to server `at`, or to one after the other until one answers."""
        deadline = time.monotonic() + _PATIENCE_S
        names = [at] if at else random.sample(list(_SERVERS), len(_SERVERS))
        while True:
            for name in names:
                try:
                    return _send(self._ports[name], method, path, body, key)
                except HTTPError as error:
                    if error.code != 503:
                        raise AssertionError(f"{method} {path}: {error.read()!r}") from error
                except (URLError, OSError, http.client.HTTPException):
                    self.lost += 1
            assert time.monotonic() < deadline, f"no answer: {method} {path}"
            time.sleep(_PAUSE_S)

    def begin(self, path: str, body: Any, key: str) -> str:
        found = str(self.ask("POST", path, body, key)["id"])
        self.begun[key] = found
        return found

    def look(self, operation_id: str, at: str = "") -> dict[str, Any]:
        found: dict[str, Any] = self.ask("GET", f"operations/{operation_id}", at=at)
        if found["ended_ms"] is not None:
            first = self.ended.setdefault(operation_id, found)
            if found != first:
                self.changed[operation_id] = f"it ended as {first}, and then as {found}"
        return found

    def wait(self, operation_id: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while self.look(operation_id)["ended_ms"] is None:
            assert time.monotonic() < deadline, f"it never ended: {self.look(operation_id)}"
            time.sleep(_PAUSE_S)

    def judge(self) -> dict[str, str]:
        """What is wrong with each operation and ledger; empty if nothing."""
        found = {}
        for operation_id in self.begun.values():
            states = {self.look(operation_id, at=name)["state"] for name in _SERVERS}
            wrong = "" if states == {"done"} else f"it is {', '.join(sorted(states))}"
            found[operation_id] = self.changed.get(operation_id, wrong)
        listed = self.ask("GET", "operations?limit=1000")["operations"]
        for each in listed:
            # Reactivations of bookies are local operations of one server, whose ids are names.
            if _LASTING.fullmatch(each["id"]) and each["id"] not in found:
                found[each["id"]] = f"nobody asked for it: {each}"
        return found


def _send(port: int, method: str, path: str, body: Any, key: str) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"} | ({"idempotency-key": key} if key else {})
    url = f"http://127.0.0.1:{port}/api/v1/{path}"
    request = Request(url, data, headers, method=method)
    with urlopen(request, timeout=_PATIENCE_S) as answer:
        return json.load(answer)


def _round(site: _Site, number: int, ids: list[int], chance: random.Random) -> str:
    """Runs a round; returns the role of the killed server."""
    kind = chance.choice(("drain", "drain", "recover", "recover", "verify"))
    bookie = chance.choice([name for name in _BOOKIES if name != _STORE_OWNER])
    path, body = {
        "drain": ("bookies:drain", {"bookies": [bookie]}),
        "recover": ("recovery/bookies", {"bookies": [bookie]}),
        "verify": (f"ledgers/{chance.choice(ids)}:verify", None),
    }[kind]
    if kind == "recover":
        site.cluster.bookies[bookie].kill()
        _until_state(site, bookie, "down")
    steward = str(site.ask("GET", "recovery")["steward"] or "first")
    victim = steward if chance.random() < 0.5 else chance.choice(list(_SERVERS))
    with ThreadPoolExecutor(1) as pool:
        beginning = pool.submit(site.begin, path, body, f"round-{number}")
        time.sleep(chance.uniform(0, chance.choice(_BEFORE_KILL_S)))
        site.kill(victim)
        site.start(victim)
        operation_id = beginning.result()
    assert site.begin(path, body, f"round-{number}") == operation_id, "a key has one operation"
    site.wait(operation_id)
    if kind == "drain":
        site.ask("PUT", f"bookies/{bookie}/lifecycle", {"state": "active"})
    elif kind == "recover":
        site.cluster.start(bookie)
    if kind != "verify":
        _until_state(site, bookie, "writable")
    return "steward" if victim == steward else "door" if victim == "door" else "other"


def _until_state(site: _Site, bookie: str, state: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while (found := site.ask("GET", f"bookies/{bookie}"))["state"] != state:
        assert time.monotonic() < deadline, found
        time.sleep(_PAUSE_S)


async def _write_ledgers(url: str) -> list[int]:
    ids: list[int] = []
    async with connect(url) as ledgers:
        await ledgers.until_writable(len(_BOOKIES), _PATIENCE_S)
        for _ in range(_LEDGERS):
            async with await ledgers.create() as writer:
                writer.append_many(_ENTRIES)
                await writer.flush()
                ids.append(writer.ledger_id)
    return ids


async def _shortages(url: str, ids: list[int]) -> list[str]:
    found = []
    async with connect(url) as ledgers:
        for ledger_id in ids:
            verdict = await ledgers.verify(ledger_id)
            if not verdict.is_sound or verdict.entries != len(_ENTRIES):
                found.append(f"ledger {ledger_id}: {verdict}")
    return found
