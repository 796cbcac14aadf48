"""Leaders of the example's key-value store are killed and frozen, many times, under load; then the
responses to clients are checked, and the times without a leader reported.

A run of many leaders also fails if those times were too long (`takeover.py`), where only the leader was struck.
"""

import asyncio
import random
import shutil
import sys
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import rollbook
from tests.chaos.cast import Actor, tracebacks
from tests.chaos.kv.checker import violations
from tests.chaos.kv.client import CHANGES, KEYS, READS, Client
from tests.chaos.kv.flawed_node import FLAWS
from tests.chaos.kv.history import Op
from tests.chaos.kv.takeover import TAKEOVER_S, spread, too_slow
from tests.chaos.logs.conductor import free_ports
from tests.support import log_processes
from tests.tally import Tally

NODES: Final = ("node-1", "node-2", "node-3")
SERVERS: Final = ("log-1", "log-2")
WRITERS: Final = 4
READERS: Final = 2
_SNAPSHOT_EVERY: Final = 60
_PATIENCE_S: Final = 60.0
_LED_S: Final = (0.3, 0.9)  # How long a node leads before it is struck.
_AWAY_S: Final = (0.0, 1.0)
_FROZEN_S: Final = (0.1, 0.9)  # How long it stays frozen after another one leads.
_LOOK_AGAIN_S: Final = 0.1
_FREEZES_EVERY: Final = 3
_SERVER_DIES_EVERY: Final = 7  # Every this many strikes the log's owner is killed, too.
_ON_ITS_WAY_NS: Final = 20_000_000  # Responses sent before a strike have arrived by then.
_SHOWN_MAX: Final = 10
_AT_A_TIME: Final = 9

Progress = Callable[[str], Callable[[int, int], None]]


class Struck(NamedTuple):
    at_ns: int
    is_killed: bool  # Otherwise it was stopped and resumed later.
    owner_died: bool = False  # The log server that owned the log was killed, too.


class Run:
    def __init__(
        self, folder: Path, cluster: log_processes.LogProcesses, seed: int, flaw: str
    ) -> None:
        self._chance = random.Random(seed)
        self._flaw = flaw
        self._logs = folder / "logs"
        self._logs.mkdir()
        self._metadata = cluster.metadata
        self._addresses, self._doors = (
            {
                name: f"127.0.0.1:{port}"
                for name, port in zip(names, free_ports(len(names)), strict=True)
            }
            for names in (NODES, SERVERS)
        )
        self._url = "log://" + ",".join(self._doors.values())
        self._servers, self.nodes = (
            {
                name: Actor(
                    name,
                    cluster.children,
                    self._logs,
                    partial(command, name),
                    {},
                    self._on_line,
                )
                for name in names
            }
            for names, command in ((SERVERS, self._server_command), (NODES, self._command))
        )
        self.struck: list[Struck] = []
        self._leader = ""
        self._led_ns: list[int] = []
        self._led = asyncio.Event()
        addresses = list(self._addresses.values())
        self.clients = [
            Client(f"c{number}", addresses, self._chance, kinds)
            for number, kinds in enumerate((*[CHANGES] * WRITERS, *[READS] * READERS))
        ]
        self.auditor = Client("auditor", addresses, self._chance, READS)
        self.head = 0

    def _command(self, name: str, _life: str) -> list[str | Path]:
        flawed = ("tests.chaos.kv.flawed_node", self._flaw)
        module = flawed if self._flaw else ("examples.kv.node",)
        arguments = (self._url, self._addresses[name], str(_SNAPSHOT_EVERY))
        return [sys.executable, "-m", *module, *arguments]

    def _server_command(self, name: str, _life: str) -> list[str | Path]:
        flags = ("--listen", self._doors[name], "--server-name", name, "--log-level", "error")
        command = ("server", "log", "--metadata", self._metadata, *flags)
        return [sys.executable, "-m", "rollbook.api.cli.main", *command]

    def _on_line(self, actor: Actor, line: str) -> None:
        if line.startswith("leads since"):
            self._leader = actor.name
            self._led_ns.append(time.monotonic_ns())
            self._led.set()

    async def conduct(self, strikes: int, report: Callable[[int, int], None]) -> list[str]:
        """Strikes the leaders and returns failures to finish in time."""
        try:
            await self._conduct(strikes, report)
        except TimeoutError:
            return [f"{_PATIENCE_S:g} s of patience were not enough"]
        finally:
            for actor in (*self.nodes.values(), *self._servers.values()):
                actor.kill()
        return []

    async def _conduct(self, strikes: int, report: Callable[[int, int], None]) -> None:
        for actors in (self._servers, self.nodes):
            for actor in actors.values():
                actor.start()
            for actor in actors.values():
                await actor.until_ready(_PATIENCE_S)
        is_over = asyncio.Event()
        working = [asyncio.create_task(client.work(is_over)) for client in self.clients]
        healing: list[asyncio.Task[None]] = []
        for number in range(strikes):
            report(number, strikes)
            async with asyncio.timeout(_PATIENCE_S):
                await self._led.wait()
            await asyncio.sleep(self._chance.uniform(*_LED_S))
            healing.append(self._strike(number % _FREEZES_EVERY != _FREEZES_EVERY - 1))
            if number % _SERVER_DIES_EVERY == _SERVER_DIES_EVERY - 1:
                healing.append(asyncio.create_task(self._kill_owner()))
        report(strikes, strikes)
        await asyncio.gather(*healing)
        for actor in (*self._servers.values(), *self.nodes.values()):
            await actor.until_ready(_PATIENCE_S)
        async with asyncio.timeout(_PATIENCE_S):
            await self._until_truncated()
        is_over.set()
        await asyncio.gather(*working)
        async with asyncio.timeout(_PATIENCE_S):
            await self.auditor.audit(self._newest_keys())

    def _strike(self, is_killed: bool) -> "asyncio.Task[None]":
        node = self.nodes[self._leader]
        self._led.clear()
        self.struck.append(Struck(time.monotonic_ns(), is_killed))
        if is_killed:
            node.kill()
        else:
            node.stop()
        return asyncio.create_task(self._heal(node, is_killed))

    async def _heal(self, node: Actor, is_killed: bool) -> None:
        if is_killed:
            await asyncio.sleep(self._chance.uniform(*_AWAY_S))
            node.start()
            return
        async with asyncio.timeout(_PATIENCE_S):
            await self._led.wait()  # Otherwise it might still lead.
        await asyncio.sleep(self._chance.uniform(*_FROZEN_S))
        node.resume()

    async def _kill_owner(self) -> None:
        """Kills the log server that owns the log."""
        async with rollbook.aio.connect(self._url, wait_s=60) as client:
            (owner,) = await client.lookup(["kv"])
        (name,) = (name for name, door in self._doors.items() if door == owner.address)
        self.struck[-1] = self.struck[-1]._replace(owner_died=True)
        self._servers[name].kill()
        self._servers[name].start()

    async def _until_truncated(self) -> None:
        """WK6: waits for a snapshot, for which a slow machine may have had too little work done."""
        async with rollbook.aio.connect(self._url, wait_s=60) as client:
            log = await client.open("kv")
            while not (head := await log.head_offset()):
                await asyncio.sleep(_LOOK_AGAIN_S)
        self.head = head

    def _newest_keys(self) -> list[str]:
        keys = {op.key: op.called_ns for client in self.clients for op in client.history}
        return sorted(keys, key=keys.__getitem__)[-4 * KEYS :]

    def complaints(self) -> list[str]:
        """Failures of the nodes themselves."""
        actors = (*self.nodes.values(), *self._servers.values())
        ended = [text for actor in actors for text in actor.unasked]
        return ended + tracebacks(self._logs)

    @property
    def history(self) -> list[Op]:
        return [op for each in (*self.clients, self.auditor) for op in each.history]

    def gaps_s(self, moments_ns: list[int], kind: tuple[bool, bool]) -> list[float]:
        """The seconds from each strike to the next of these moments."""
        gaps = []
        for struck in self.struck:
            index = bisect_right(moments_ns, struck.at_ns + _ON_ITS_WAY_NS)
            if struck[1:] == kind and index < len(moments_ns):
                gaps.append((moments_ns[index] - struck.at_ns) / 1e9)
        return sorted(gaps)

    def too_slow(self) -> list[str]:
        """Complaints on strikes that left the log's owner alone: others include its take-over."""
        return [
            f"leaders {name}: {complaint}"
            for kind, name in _KINDS.items()
            if not Struck(0, *kind).owner_died
            if (complaint := too_slow(self.gaps_s(self._led_ns, kind)))
        ]

    def describe(self) -> list[str]:
        history = self.history
        changed_ns = sorted(at_ns for client in self.clients for at_ns in client.changed_ns)
        kinds = Counter(op.do for op in history)
        unknown = sum(not op.is_known for op in history)
        refused = sum(client.refused for client in self.clients)
        told = ", ".join(f"{count:,} {do}" for do, count in sorted(kinds.items()))
        lines = [
            f"{len(history):,} operations on {len({op.key for op in history})} keys: {told}",
            f"{unknown} unknown, {refused:,} refused while nobody led; head of the log at {self.head:,}",
        ]
        for kind, name in _KINDS.items():
            led, changed = self.gaps_s(self._led_ns, kind), self.gaps_s(changed_ns, kind)
            if led and changed:
                within = sum(gap <= TAKEOVER_S for gap in led)
                lines.append(
                    f"{len(led)} leaders {name}: another leads after {spread(led)}, {within} of them "
                    f"within {TAKEOVER_S:g} s; the next change was made after {spread(changed)}"
                )
        return lines


_KINDS: Final = {
    (True, False): "killed",
    (False, False): "frozen",
    (True, True): "killed with the log's owner",
    (False, True): "frozen, and the log's owner killed",
}


def chaos(
    strikes: int, seed: int, progress: Progress, say: Callable[[str], None], flaw: str = ""
) -> Tally:
    run, wrong = _run(strikes, seed, progress("leaders struck"), flaw)
    wrong += run.too_slow()
    for line in run.describe():
        say(line)
    for violation in wrong[:_SHOWN_MAX]:
        say(f"BROKEN: {violation}")
    keys = len({op.key for op in run.history})
    return Tally("keys", passed=max(0, keys - len(wrong)), failed=len(wrong))


def find_planted(strikes: int, seed: int, progress: Progress, say: Callable[[str], None]) -> Tally:
    """Strikes at most `strikes` leaders for each planted flaw, a few runs at a time."""
    tally = Tally("bugs")
    for flaw in FLAWS:
        for struck in range(0, strikes, _AT_A_TIME):
            run, _ = _run(
                _AT_A_TIME, seed + struck, progress(f"leaders that are {flaw}, struck"), flaw
            )
            if found := violations(run.history):
                break
        say(f"{flaw}: {found[0] if found else 'NOT FOUND'}")
        tally.passed += bool(found)
        tally.failed += not found
    return tally


def _run(
    strikes: int, seed: int, report: Callable[[int, int], None], flaw: str
) -> tuple[Run, list[str]]:
    with (
        tempfile.TemporaryDirectory(prefix="rollbook-chaos-kv-") as folder,
        log_processes.running(Path(folder)) as cluster,
    ):
        run = Run(Path(folder), cluster, seed, flaw)
        wrong = asyncio.run(run.conduct(strikes, report))
        wrong += run.complaints()
        if wrong:
            kept = Path(tempfile.mkdtemp(prefix=f"rollbook-chaos-kv-{seed}-"))
            shutil.copytree(Path(folder) / "logs", kept, dirs_exist_ok=True)
            wrong.append(f"what the processes complained about is kept in {kept}")
    wrong += violations(run.history)
    if not run.head:
        wrong.append("nothing was truncated behind a snapshot")
    return run, wrong
