"""Leads a run: a cluster, its clients, a plan of faults, healing, seals, an audit, the verdict.

    python -m tests.chaos.logs.conductor FOLDER SECONDS SEED

Says `progress DONE TOTAL WHAT` and at last `result JSON`. It serves the metadata itself.
"""

import asyncio
import json
import random
import socket
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from rollbook.logservice.config import LogServiceConfig
from rollbook.proto.cluster.cluster_root import initialise
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.runtime.logging_setup import configure_logs
from rollbook.proto.runtime.metastore import open_metadata_store
from tests.chaos.cast import Actor, tracebacks
from tests.chaos.evidence import keep
from tests.chaos.logs.checker import Freeze, judge
from tests.chaos.logs.history import read_history
from tests.chaos.logs.plan import BOOKIES, SERVERS, Fault, LogFaultKind, draw
from tests.chaos.logs.report import Struck, describe
from tests.support import bookies
from tests.support.processes import Family, family

WRITERS: Final = ("writer-1", "writer-2")
RACERS: Final = ("racer-1", "racer-2")
TAILERS: Final = ("tailer-1", "tailer-2")
STEWARD: Final = "steward-1"
AUDITOR: Final = "auditor-1"
CLIENTS: Final = (*WRITERS, *RACERS, *TAILERS, STEWARD)
UNKNOWN_SHARE_MAX: Final = 0.3
LEASE_S: Final = LogServiceConfig.lease_s

_PATIENCE_S: Final = 120.0
_STOPS: Final = (LogFaultKind.STOP_SERVER, LogFaultKind.STOP_SERVER_LONG, LogFaultKind.STOP_BOOKIE)
_ENVIRONMENT: Final = {
    "ROLLBOOK_BOOKIE_SESSION_TIMEOUT_S": "4",
    "ROLLBOOK_STORAGE_JOURNAL_FILE_BYTES": str(8 << 20),
    "ROLLBOOK_STORAGE_CACHE_BYTES": str(16 << 20),
    "ROLLBOOK_LOG_SERVICE_TAIL_MEMORY_BYTES": str(1 << 20),  # So small that readers fall behind it.
}


def say(line: str) -> None:
    print(line, flush=True)


class Conductor:
    def __init__(self, folder: Path, url: str, children: Family) -> None:
        self._folder = folder
        self._url = url
        self._children = children
        self._ports = dict(zip(SERVERS, free_ports(len(SERVERS)), strict=True))
        self._logs_url = "log://" + ",".join(f"127.0.0.1:{port}" for port in self._ports.values())
        self.history, self._logs = folder / "history", folder / "logs"
        for path in (self.history, self._logs):
            path.mkdir()
        self.actors: dict[str, Actor] = {}
        self.lives: dict[str, str] = {}  # Log server -> the id of its current process.
        self.struck: list[Struck] = []
        self.freezes: list[Freeze] = []
        self._over = asyncio.Event()
        self._finished: dict[str, asyncio.Event] = {}

    # --- The cast -----------------------------------------------------------------------------

    async def begin(self) -> None:
        for names in (BOOKIES, SERVERS, CLIENTS):
            self.cast(names)
            await self.until_ready(names)

    def cast(self, names: Iterable[str]) -> None:
        for name in names:
            self.actors[name] = Actor(
                name,
                self._children,
                self._logs,
                partial(self._command, name),
                _ENVIRONMENT,
                self._on_line,
            )
            self._finished[name] = asyncio.Event()
            self.actors[name].start()

    async def until_ready(self, names: Iterable[str]) -> None:
        for name in names:
            await self.actors[name].until_ready(_PATIENCE_S)

    def _command(self, name: str, life: str) -> list[str | Path]:
        python = (sys.executable, "-m")
        if name in BOOKIES:
            arguments = bookies.arguments(self._folder / name, self._url, bookie_id=name)
            return [*python, "rollbook.api.cli.main", *arguments, "--log-level", "error"]
        if name in SERVERS:
            listen = f"127.0.0.1:{self._ports[name]}"
            flags = ("--listen", listen, "--server-name", name, "--log-level", "error")
            command = ("server", "log", "--metadata", self._url)
            return [*python, "rollbook.api.cli.main", *command, *flags]
        role = name.partition("-")[0]
        path = self.history / life
        return [*python, "tests.chaos.logs.client", role, self._logs_url, path]

    def _on_line(self, actor: Actor, line: str) -> None:
        if line == "finished":
            self._finished[actor.name].set()
        elif line.startswith("ready: log server "):
            self.lives[actor.name] = line.split()[3]

    async def finish(self, *names: str) -> None:
        for name in names:
            self.actors[name].say("finish")
        for name in names:
            async with asyncio.timeout(_PATIENCE_S):
                await self._finished[name].wait()

    # --- Faults -------------------------------------------------------------------------------

    async def suffer(self, faults: list[Fault], seconds: float) -> None:
        started = time.monotonic()
        tasks = [asyncio.create_task(self._strike(fault, started)) for fault in faults]
        while (passed := time.monotonic() - started) < seconds:
            say(f"progress {int(passed)} {int(seconds)} seconds of chaos")
            await asyncio.sleep(min(1.0, seconds - passed))
        self._over.set()
        await asyncio.gather(*tasks)
        say(f"progress {int(seconds)} {int(seconds)} seconds of chaos")

    async def _rest(self, seconds: float) -> None:
        """Sleeps, at most until the end of the chaos."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()

    async def _strike(self, fault: Fault, started: float) -> None:
        await self._rest(started + fault.at_s - time.monotonic())
        if self._over.is_set():
            return
        actor, server_id = self.actors[fault.target], self.lives.get(fault.target, "")
        if fault.kind in _STOPS:
            began = time.monotonic_ns()
            actor.stop()
            stood = time.monotonic_ns()
            await asyncio.sleep(
                fault.for_s
            )  # Even if the chaos is over: the server has to miss its lease.
            thawed = time.monotonic_ns()
            actor.resume()
            self.freezes.append(Freeze(server_id, stood, thawed))
        else:
            began = time.monotonic_ns()
            actor.kill()
            await self._rest(fault.for_s)
            actor.start()
        self.struck.append(Struck(fault.kind, fault.target, server_id, began, time.monotonic_ns()))

    # --- The end ------------------------------------------------------------------------------

    async def audit(self) -> None:
        """Seals and audits every log, with all processes up and no more writes."""
        await self.until_ready(self.actors)
        await self.finish(*WRITERS, *RACERS, STEWARD)
        self.cast([AUDITOR])
        await self.until_ready([AUDITOR])
        await self.finish(AUDITOR, *TAILERS)

    def end(self) -> list[str]:
        """Failures of the processes themselves."""
        for actor in self.actors.values():
            actor.kill()
        wrong = [text for actor in self.actors.values() for text in actor.unasked]
        return wrong + tracebacks(self._logs)


def free_ports(count: int) -> list[int]:
    """Ports that are free now; a restarted server uses its own again."""
    with socket.socket() as first, socket.socket() as second, socket.socket() as third:
        sockets = (first, second, third)[:count]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


async def conduct(folder: Path, seconds: float, seed: int, children: Family) -> dict[str, Any]:
    url = f"sqlite://{folder}/metadata.db"
    async with await open_metadata_store(url, serve=True, create=True) as store:
        await initialise(store, MetadataUrl.parse(url).ledgers_root, random.SystemRandom())
        conductor = Conductor(folder, url, children)
        await conductor.begin()
        wall_ns = time.time_ns() - time.monotonic_ns()
        await conductor.suffer(draw(seed, seconds, CLIENTS), seconds)
        healed_at, late = time.monotonic(), []
        try:
            await conductor.audit()
        except TimeoutError:
            late.append(f"not everybody had finished {_PATIENCE_S:g} s after healing")
        settled_s = time.monotonic() - healed_at
        wrong = conductor.end()
    events = list(read_history(conductor.history))
    judgement = judge(events, conductor.freezes, LEASE_S, wall_ns)
    violations = [*late, *judgement.violations, *wrong]
    if judgement.unknown_share > UNKNOWN_SHARE_MAX:
        share = f"{judgement.unknown_share:.0%}"
        violations.append(f"{share} of all appends ended unknown: that proves too little")
    return {
        "violations": violations,
        "logs": len({event.log for event in events}),
        "lines": describe(judgement, conductor.struck, settled_s),
    }


def main() -> None:
    folder, seconds, seed = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    configure_logs(level="error", as_json=False)
    with family() as children:
        result = asyncio.run(conduct(folder, seconds, seed, children))
    if result["violations"]:
        result["lines"].append(keep(folder, f"logs-{seed}"))
    say(f"result {json.dumps(result)}")


if __name__ == "__main__":
    main()
