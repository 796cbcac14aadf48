"""Leads a run: a cluster, its recovery servers and its writers, a plan of faults, a last drain, an audit, the verdict.

It serves the metadata itself. It makes its requests to recovery as the commands do.
"""

import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from rollbook.proto.cluster.bookie_watcher import BookieWatcher
from rollbook.proto.cluster.cluster_root import Cluster, initialise, open_cluster
from rollbook.proto.cluster.underreplication_marks import Checked, Marks
from rollbook.proto.errors import RollbookError
from rollbook.proto.formats.lifecycle import LifecycleState
from rollbook.proto.ids import BookieId
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.ports import MetadataStore
from rollbook.proto.runtime.clock import SystemClock
from rollbook.proto.runtime.metastore import open_metadata_store
from rollbook.recovery.bookie_decommission import Departures
from rollbook.recovery.drain_task_nodes import DrainTasks
from tests.chaos.cast import Actor, tracebacks
from tests.chaos.checker import Judgement, judge
from tests.chaos.cluster.plan import (
    BOOKIES,
    DELAY_S,
    RECOVERY,
    SESSION_S,
    WRITERS,
    ClusterFaultKind,
    Fault,
    draw,
)
from tests.chaos.evidence import keep
from tests.chaos.history import read_history
from tests.support import bookies
from tests.support.processes import Family, family
from tests.tally import Tally

RECOVERER: Final = "recoverer-1"
AUDITORS: Final = ("auditor-1", "auditor-2")
LEAVING: Final = BOOKIES[0]  # Drained at the end and not resumed.
_PATIENCE_S: Final = 120.0
_POLL_S: Final = 0.2
_SHOWN_MAX: Final = 20
_UNKNOWN_SHARE_MAX: Final = 0.3
_ENVIRONMENT: Final = {
    "ROLLBOOK_BOOKIE_SESSION_TIMEOUT_S": f"{SESSION_S:g}",
    "ROLLBOOK_STORAGE_JOURNAL_FILE_BYTES": str(8 << 20),
    "ROLLBOOK_STORAGE_CACHE_BYTES": str(16 << 20),
    "ROLLBOOK_SESSION_TIMEOUT_S": "2",
    "ROLLBOOK_AUDIT_LOST_BOOKIE_DELAY_S": str(DELAY_S),
    "ROLLBOOK_WORKER_GRACE_S": "3",
    "ROLLBOOK_WORKER_LOCKED_PAUSE_S": "0.5",
    "ROLLBOOK_STEWARD_LOOK_AGAIN_S": "1",
}
_COUNTED: Final = {
    "ledger_seat_replaced": "seats replaced",
    "ledger_repaired": "ledgers repaired",
    "ledger_closed_for_repair": "closed for it",
    "auditor_leads": "auditors",
}
_BRAKED: Final = "audit_braked"
_MUST_NOT_BE: Final = ("ledger_unrecoverable", "recovery_part_failed")

Progress = Callable[[str], Callable[[int, int], None]]


class Conductor:
    def __init__(
        self, folder: Path, url: str, store: MetadataStore, cluster: Cluster, children: Family
    ) -> None:
        self._folder = folder
        self._url = url
        self._children = children
        self.history, self.logs = folder / "history", folder / "logs"
        for path in (self.history, self.logs):
            path.mkdir()
        self._marks, self._tasks = Marks(store, cluster.root), DrainTasks(store, cluster)
        self._departures = Departures(store, cluster, SystemClock(), random.SystemRandom())
        self.actors: dict[str, Actor] = {}
        self.struck: Counter[str] = Counter()
        self._over = asyncio.Event()
        self._errands: dict[asyncio.Task[None], None] = {}
        self._answers: dict[tuple[str, str], asyncio.Future[None]] = {}
        self._writing: dict[str, int] = {}
        self._watcher = BookieWatcher(store, cluster.root)
        self._watching: asyncio.Task[None]
        self.mostly_away = 0  # How often more than half of the bookies were not registered.

    # --- The cast -----------------------------------------------------------------------------

    async def begin(self) -> None:
        for names in (BOOKIES, RECOVERY, (RECOVERER, *WRITERS)):
            await self.cast(names)
        await self._watcher.start()
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        live, was_away = self._watcher.current, False
        while True:
            is_away = 2 * (len(live.writable) + len(live.read_only)) < len(BOOKIES)
            self.mostly_away += is_away and not was_away
            was_away = is_away
            live = await self._watcher.changed(live)

    async def cast(self, names: Iterable[str]) -> None:
        for name in names:
            command = partial(self._command, name)
            self.actors[name] = Actor(
                name, self._children, self.logs, command, _ENVIRONMENT, self._on_line
            )
            self.actors[name].start()
        await self.until_ready(names)

    async def until_ready(self, names: Iterable[str]) -> None:
        for name in names:
            await self.actors[name].until_ready(_PATIENCE_S)

    def _command(self, name: str, life: str) -> list[str | Path]:
        rollbook = (sys.executable, "-m", "rollbook.api.cli.main")
        if name in BOOKIES:
            arguments = bookies.arguments(self._folder / name, self._url, bookie_id=name)
            return [*rollbook, *arguments, "--log-level", "error"]
        if name in RECOVERY:
            return [*rollbook, "server", "recovery", "--metadata", self._url, "--name", name]
        role = name.partition("-")[0]
        module = (sys.executable, "-m", "tests.chaos.cluster.client")
        return [*module, role, self._url, self.history / life, "-"]

    def _on_line(self, actor: Actor, line: str) -> None:
        word, _, rest = line.partition(" ")
        match word:
            case "ledger":
                self._writing[actor.name] = int(rest)
            case "left":
                self.actors[RECOVERER].say(f"recover {rest}")
            case "unsound" | "unreadable":
                print(f"{actor.name}: {line}", file=sys.stderr)
        if (answer := self._answers.pop((actor.name, line), None)) and not answer.done():
            answer.set_result(None)

    async def _ask(self, name: str, question: str, answer: str, timeout_s: float) -> None:
        future = asyncio.get_running_loop().create_future()
        self._answers[name, answer] = future
        self.actors[name].say(question)
        async with asyncio.timeout(timeout_s):
            await future

    # --- Faults -------------------------------------------------------------------------------

    async def suffer(
        self, faults: list[Fault], seconds: float, report: Callable[[int, int], None]
    ) -> None:
        started = time.monotonic()
        tasks = [asyncio.create_task(self._strike(fault, started)) for fault in faults]
        while (passed := time.monotonic() - started) < seconds:
            report(int(passed), int(seconds))
            await asyncio.sleep(min(1.0, seconds - passed))
            for task in tasks:
                if task.done():
                    task.result()
        self._over.set()
        await asyncio.gather(*tasks)
        report(int(seconds), int(seconds))

    async def _rest(self, seconds: float) -> None:
        """Sleeps, at most until the end of the chaos."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()

    async def _strike(self, fault: Fault, started: float) -> None:
        await self._rest(started + fault.at_s - time.monotonic())
        if self._over.is_set():
            return
        if fault.kind is ClusterFaultKind.DRAIN:
            await self._drain_for(BookieId(fault.target), fault.for_s)
            return
        actor = self.actors[fault.target]
        actor.kill()
        if fault.target in self._writing:
            self.actors[RECOVERER].say(f"recover {self._writing.pop(fault.target)}")
        await self._rest(fault.for_s)
        actor.start()
        self.struck[fault.kind.value] += 1

    async def _drain_for(self, bookie: BookieId, for_s: float) -> None:
        try:
            await self._departures.drain([bookie])
        except RollbookError as refused:  # Too few other bookies are writable at the moment.
            self.struck[f"drain refused: {refused.code.reason}"] += 1
            return
        await self._rest(for_s)
        is_over = await self._state(bookie) is LifecycleState.DRAINED
        await self._departures.undrain(bookie)
        self.struck["drained, and kept" if is_over else "drain cancelled"] += 1

    async def _state(self, bookie: BookieId) -> LifecycleState:
        return (await self._departures.status([bookie]))[bookie].lifecycle.state

    # --- The end ------------------------------------------------------------------------------

    async def settle(self) -> list[str]:
        """With all processes up and no writes, drains one last bookie; returns the failures found."""
        await self.until_ready(self.actors)
        await asyncio.gather(
            *(self._ask(name, "finish", "finished", _PATIENCE_S) for name in WRITERS)
        )
        await self._ask(RECOVERER, "close all", "all closed", _PATIENCE_S)
        leaving = BookieId(LEAVING)
        await self._departures.drain([leaving])
        await self._order_audit()
        return [
            *await self._until("every check is completed", self._is_checked),
            *await self._until("no ledger is to be repaired", self._has_no_task),
            *await self._until(f"{leaving} is drained", partial(self._is_drained, leaving)),
        ]

    async def _order_audit(self) -> None:
        self._ordered_ms = time.time_ns() // 1_000_000
        command = ("rollbook.api.cli.main", "recovery", "audit", "--metadata", self._url)
        child = self._children.start_module(*command)
        assert await asyncio.to_thread(child.wait, _PATIENCE_S) == 0

    async def _is_checked(self) -> bool:
        checked_ms = await self._marks.checked_at_ms(Checked.REPLICAS)
        return checked_ms is not None and checked_ms > self._ordered_ms

    async def _has_no_task(self) -> bool:
        for tree in (self._marks, self._tasks):
            async for _ in tree.ids():
                return False
        return True

    async def _is_drained(self, bookie: BookieId) -> bool:
        return await self._state(bookie) is LifecycleState.DRAINED

    async def _until(self, what: str, holds: Callable[[], Awaitable[bool]]) -> list[str]:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while not await holds():
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            return [f"not within {_PATIENCE_S:g} s: {what}"]
        return []

    async def audit(self, timeout_s: float) -> list[str]:
        """Two new clients, without any state, read and check everything. The drained bookie is stopped."""
        leaving = BookieId(LEAVING)
        self.actors[LEAVING].kill()
        verdict = await self._departures.judge([leaving])
        for name in (*WRITERS, *RECOVERY, RECOVERER):
            self.actors[name].kill()
        await self.cast(AUDITORS)
        first, second = AUDITORS
        await asyncio.gather(
            self._ask(first, "audit", "audited", timeout_s),
            self._ask(second, "read", "audited", timeout_s),
        )
        return [] if not verdict.damage.named else [f"{LEAVING} is drained, and not safe to remove"]

    async def end(self) -> list[str]:
        """Failures of the processes themselves."""
        self._watching.cancel()
        await self._watcher.close()
        for actor in self.actors.values():
            actor.kill()
        wrong = [text for actor in self.actors.values() for text in actor.unasked]
        return wrong + tracebacks(self.logs)

    def logged(self) -> Counter[str]:
        """Counts the events in the logs of the recovery servers."""
        events: Counter[str] = Counter()
        for path in self.logs.glob("recovery-*"):
            for line in path.read_text().splitlines():
                with suppress(ValueError, TypeError, KeyError):
                    events[json.loads(line)["event"]] += 1
        return events


async def _conduct(
    conductor: Conductor, seconds: float, seed: int, report: Callable[[int, int], None]
) -> tuple[list[str], float]:
    """Returns the failures, and the seconds until all ledgers were whole."""
    await conductor.begin()
    await conductor.suffer(draw(seed, seconds), seconds, report)
    healed_at = time.monotonic()
    wrong: list[str] = []
    try:
        wrong += await conductor.settle()
        whole_s = time.monotonic() - healed_at
        wrong += await conductor.audit(_PATIENCE_S + 2 * seconds)
    except TimeoutError:
        whole_s = time.monotonic() - healed_at
        wrong.append(f"not everybody had finished {_PATIENCE_S:g} s after healing")
    return wrong + await conductor.end(), whole_s


@asynccontextmanager
async def _conductor(folder: Path, children: Family) -> AsyncIterator[Conductor]:
    url = f"sqlite://{folder}/metadata.db"
    place = MetadataUrl.parse(url)
    async with await open_metadata_store(url, serve=True, create=True) as store:
        await initialise(store, place.ledgers_root, random.SystemRandom())
        cluster = await open_cluster(store, place.ledgers_root, url=place)
        yield Conductor(folder, url, store, cluster, children)


def chaos(seconds: float, seed: int, progress: Progress, say: Callable[[str], None]) -> Tally:
    with (
        tempfile.TemporaryDirectory(prefix="rollbook-chaos-cluster-") as name,
        family() as children,
    ):
        folder = Path(name)

        async def lead() -> tuple[Conductor, list[str], float]:
            async with _conductor(folder, children) as conductor:
                report = progress("seconds of chaos")
                return conductor, *await _conduct(conductor, seconds, seed, report)

        conductor, violations, whole_s = asyncio.run(lead())
        judgement = judge(read_history(conductor.history))
        violations += judgement.violations
        events = conductor.logged()
        violations += [f"{events[each]} times {each}" for each in _MUST_NOT_BE if events[each]]
        # A stalled machine expires the bookies' sessions; each auditor may pause once each time.
        if events[_BRAKED] > len(RECOVERY) * conductor.mostly_away:
            away = f"most bookies were away {conductor.mostly_away} times"
            violations.append(f"{events[_BRAKED]} times {_BRAKED}, and {away}")
        if judgement.unknown_share > _UNKNOWN_SHARE_MAX:
            share = f"{judgement.unknown_share:.0%}"
            violations.append(f"{share} of all appends ended unknown: that proves too little")
        say(_describe(conductor.struck, events, judgement, whole_s))
        for violation in violations[:_SHOWN_MAX]:
            say(f"BROKEN: {violation}")
        if violations:
            say(keep(folder, f"cluster-{seed}"))
    passed = max(0, judgement.ledgers - len(violations))
    return Tally("ledgers", passed=passed, failed=len(violations))


def _describe(
    struck: Counter[str], events: Counter[str], judgement: Judgement, whole_s: float
) -> str:
    done = [f"{count} x {what}" for what, count in sorted(struck.items())]
    made = [f"{events[event]} {what}" for event, what in _COUNTED.items()]
    return (
        f"{', '.join(done)}; {', '.join(made)}; {judgement.acked:,} of {judgement.appended:,} appends "
        f"acknowledged, {judgement.verified_entries:,} entries verified copy by copy; whole after {whole_s:.1f} s"
    )
