"""Three working clients of a metadata store, and the judge, which gets every line they print.

The caller causes the failures in between (`embedded_store.py`, `test_zookeeper.py`). At the end
`finish` compares the store with what was promised: writes (`judge.py`), the nodes that each client
knows from its watch, and ephemeral nodes, which live sessions keep and dead ones lose.
"""

import asyncio
import json
import random
import selectors
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rollbook.proto.ports import MetadataStore
from rollbook.proto.runtime.metastore import open_metadata_store
from tests.crash.judge import Judge
from tests.crash.load import FOLDERS, LIVE, WATCHED, prepare
from tests.support.processes import Child, ChildFailed, Family

CLIENTS: Final = 3
SESSION_TIMEOUT_S: Final = 5.0
PATIENCE_S: Final = 30.0  # Time-out of every wait, on a busy machine.

_LOAD_BEFORE_A_CRASH: Final = 30  # Operations acknowledged since the last crash.
_CALM_S_MAX: Final = 0.1
_STRAGGLERS_S: Final = 0.002
_LOOK_AGAIN_S: Final = 0.2
_READS_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one run."""

    crashes: int
    acknowledged: int
    unknown: int
    refused: int
    # Seconds from each crash to the next response.
    outages_s: list[float] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


class Rig:
    def __init__(
        self, url: str, children: Family, seed: int, session_timeout_s: float = SESSION_TIMEOUT_S
    ) -> None:
        self.judge = Judge()
        self.chance = random.Random(seed)
        self._url = url
        self._session_timeout_s = session_timeout_s
        self._children = children
        self._clients: dict[str, Child] = {}
        self._generation = 0
        self._said: dict[str, Any] = {}  # Each client's last line that is not for the judge.
        self._selector = selectors.DefaultSelector()
        self._sleepers: dict[str, float] = {}  # The time at which each paused client resumes.
        self._outages_s: list[float] = []

    # --- Clients --------------------------------------------------------------------------------

    @property
    def clients(self) -> list[Child]:
        return list(self._clients.values())

    def prepare(self) -> None:
        asyncio.run(self._prepare())

    def start_clients(self) -> None:
        self._generation += 1
        for number in range(1, CLIENTS + 1):
            name = f"{self._generation}-{number}"
            arguments = self._url, name, str(self._session_timeout_s)
            client = self._clients[name] = self._children.start_module(
                "tests.crash.load", *arguments
            )
            self._selector.register(client.output, selectors.EVENT_READ, name)

    def bury_clients(self) -> None:
        """Removes killed clients; lines they printed before still count."""
        self._sleepers.clear()
        for name, client in self._clients.items():
            self._selector.unregister(client.output)
            self._hear(name, client.last_lines())
        self._clients.clear()

    def let_work(self) -> None:
        """Waits until every client works and has done some work, and then for a random time."""
        self._wait_for_acknowledged(1)
        self.listen_until(lambda: self._all_said("ready"), "all clients to be ready")
        self._wait_for_acknowledged(_LOAD_BEFORE_A_CRASH)
        self.listen(self.chance.uniform(0, _CALM_S_MAX))

    def let_one_sleep(self, for_s: float) -> None:
        """Pauses one client from now on for `for_s` seconds, without waiting."""
        name = self.chance.choice(sorted(self._clients))
        self._clients[name].stop()
        self._sleepers[name] = time.monotonic() + for_s

    def let_recover(self) -> None:
        """Waits after a crash until the first response, and records the time that took."""
        started = time.monotonic()
        while self._listen_once(_STRAGGLERS_S):
            pass  # These are responses from before the crash.
        self._wait_for_acknowledged(1)
        self._outages_s.append(time.monotonic() - started)

    def _wait_for_acknowledged(self, count: int) -> None:
        enough = self.judge.outcomes["acknowledged"] + count
        self.listen_until(lambda: self.judge.outcomes["acknowledged"] >= enough, "answers")

    # --- Listening ------------------------------------------------------------------------------

    def listen(self, for_s: float) -> None:
        deadline = time.monotonic() + for_s
        while (left := deadline - time.monotonic()) > 0:
            self._listen_once(left)

    def listen_until(self, is_true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_true():
            self._listen_once(0.01)
            if time.monotonic() > deadline:
                raise ChildFailed(f"waited {PATIENCE_S} s for {what}")

    def _listen_once(self, timeout_s: float) -> bool:
        """Reads pending lines; returns whether there were any."""
        for name in [name for name, until in self._sleepers.items() if time.monotonic() > until]:
            del self._sleepers[name]
            self._clients[name].resume()
        speaking = self._selector.select(timeout_s)
        for key, _ in speaking:
            client = self._clients[key.data]
            lines = client.take_lines()
            if not lines and not client.is_running:
                raise ChildFailed(f"client {key.data} ended by itself")
            self._hear(key.data, lines)
        return bool(speaking)

    def _hear(self, name: str, lines: list[str]) -> None:
        for line in lines:
            if line.startswith(('["ready"', '["finished"', '["mirror"')):
                self._said[name] = json.loads(line)
            else:
                self.judge.on_line(name, line)

    def _say(self, word: str) -> None:
        for client in self._clients.values():
            client.say(word)

    def _all_said(self, word: str) -> bool:
        return all(self._said.get(name, [""])[0] == word for name in self._clients)

    # --- The end --------------------------------------------------------------------------------

    def finish(self, crashes: int) -> Outcome:
        self._say("finish")
        self.listen_until(lambda: self._all_said("finished"), "the clients to finish")
        store = asyncio.run(self._read_everything())
        violations = self.judge.verdict(store)
        violations += self._compare_mirrors(
            {path: value for path, (value, _) in store.items() if path.startswith(f"{WATCHED}/")}
        )
        violations += self._compare_live(sorted(self._clients))
        for client in self._clients.values():
            self._selector.unregister(client.output)
            client.end_input()
            if client.wait(PATIENCE_S):
                violations.append("a client could not end its session")
        violations += self._compare_live([])
        outcomes = self.judge.outcomes
        return Outcome(
            crashes,
            outcomes["acknowledged"],
            outcomes["unknown"],
            outcomes["refused"],
            self._outages_s,
            violations,
        )

    def _compare_mirrors(self, store: dict[str, str]) -> list[str]:
        """Each client's nodes known from events must finally equal the store's."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self._said.clear()
            self._say("mirror")
            self.listen_until(lambda: self._all_said("mirror"), "the clients' mirrors")
            wrong = {name: said[1] for name, said in self._said.items() if said[1] != store}
            if not wrong:
                return []
            if self.judge.violations or time.monotonic() > deadline:
                return [_difference(name, mirror, store) for name, mirror in wrong.items()]
            self.listen(_LOOK_AGAIN_S)

    def _compare_live(self, expected: list[str]) -> list[str]:
        """Compares ephemeral nodes; dead clients may keep theirs until their session expires."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := asyncio.run(self._names_below(LIVE))) != expected:
            if self.judge.violations or time.monotonic() > deadline:
                return [f"{found} have ephemeral nodes, and {expected} have sessions"]
            self.listen(_LOOK_AGAIN_S)
        return []

    # --- Our own look at the store --------------------------------------------------------------

    async def _prepare(self) -> None:
        async with await open_metadata_store(self._url) as store:
            await prepare(store)

    async def _names_below(self, path: str) -> list[str]:
        async with await open_metadata_store(self._url) as store:
            await store.sync()
            return await store.children(path)

    async def _read_everything(self) -> dict[str, tuple[str, int]]:
        async with await open_metadata_store(self._url) as store:
            await store.sync()
            return await read_tree(store, FOLDERS)


async def read_tree(store: MetadataStore, folders: Sequence[str]) -> dict[str, tuple[str, int]]:
    """The value and version of every folder and of every node below it."""
    nodes: dict[str, tuple[str, int]] = {}
    waiting = list(folders)
    while waiting:
        some, waiting = waiting[:_READS_AT_ONCE], waiting[_READS_AT_ONCE:]
        for path, node in zip(some, await asyncio.gather(*map(store.get, some)), strict=True):
            if node is None:
                continue  # Lost, which the judge will notice, or an expired ephemeral node.
            nodes[path] = (node.value.decode(), node.stat.version)
            if node.stat.children:
                waiting += [f"{path}/{name}" for name in await store.children(path)]
    return nodes


def _difference(client: str, mirror: dict[str, str], store: dict[str, str]) -> str:
    extra = sorted(mirror.keys() - store.keys())
    missing = sorted(store.keys() - mirror.keys())
    return f"{client} was told of {extra[:5]}, which are not there, and not of {missing[:5]}"
