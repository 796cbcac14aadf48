"""Leads a run: a cluster and its users, a plan of faults, healing, closing, an audit, the verdict.

    python -m tests.chaos.conductor FOLDER SECONDS SEED CLOSED-WITHIN-S FLAW-OR-MINUS cut|whole

Says `progress DONE TOTAL WHAT` and at last `result JSON`. With `cut` it has its own network namespace
and routes between those of the other processes.
"""

import asyncio
import json
import math
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tests.chaos.cast import Actor, bookie_command, client_command, tracebacks
from tests.chaos.checker import judge
from tests.chaos.evidence import keep
from tests.chaos.history import read_history
from tests.chaos.network import Loopback, Namespaces, Network
from tests.chaos.plan import (
    NEEDS_DISK,
    NEEDS_NETWORK,
    NEEDS_ZOOKEEPER,
    ZOOKEEPER,
    Cast,
    Fault,
    FaultKind,
    draw,
)
from tests.chaos.report import Struck, describe
from tests.support import bookies, forgetful, zookeeper
from tests.support.forgetful import ForgetfulDisk
from tests.support.processes import Family, family

BOOKIES: Final = ("bk-1", "bk-2", "bk-3", "bk-4", "bk-5")
WRITERS: Final = ("writer-1", "writer-2", "writer-3")
RECOVERERS: Final = ("recoverer-1", "recoverer-2")
TAILERS: Final = ("tailer-1", "tailer-2")
AUDITORS: Final = ("auditor-1", "auditor-2")
SLOW: Final = "bk-1"
UNKNOWN_SHARE_MAX: Final = 0.3

_PATIENCE_S: Final = 120.0
_TAILED_SHARE: Final = 0.7
_DUEL_SHARE: Final = 0.6
_LEFT_LYING_S: Final = (
    60.0  # In the last seconds of a long run ledgers are left open, and closed after it.
)
_PORT: Final = 3181
_ENVIRONMENT: Final = {
    "ROLLBOOK_BOOKIE_INSECURE": "true",  # Only this run uses that network.
    "ROLLBOOK_BOOKIE_SESSION_TIMEOUT_S": "4",
    "ROLLBOOK_STORAGE_JOURNAL_FILE_BYTES": str(8 << 20),
    "ROLLBOOK_STORAGE_CACHE_BYTES": str(16 << 20),
}


def say(line: str) -> None:
    print(line, flush=True)


class Conductor:
    def __init__(
        self,
        folder: Path,
        seed: int,
        flaw: str,
        children: Family,
        network: Network,
        server: zookeeper.LocalZooKeeper | None,
        disk: ForgetfulDisk | None,
    ) -> None:
        self.chance = random.Random(seed)
        self.struck: list[Struck] = []
        self._flaw = flaw
        self._folder = folder
        self._children = children
        self._network = network
        self._server = server
        self._disk = disk
        self._url = f"zk://{server.address}/ledgers" if server else f"sqlite://{folder}/metadata.db"
        self._history, self._logs = folder / "history", folder / "logs"
        for path in (self._history, self._logs):
            path.mkdir()
        self.actors: dict[str, Actor] = {}
        self._writing: dict[str, int] = {}  # Writer -> its ledger.
        self._over = asyncio.Event()
        self._lie_from = math.inf  # From this time on no ledger is recovered.
        self.open_at_healing = 0
        self._zookeeper_turn = asyncio.Lock()  # A start may take longer than planned.
        self._errands: dict[asyncio.Task[None], None] = {}
        self._answers: dict[tuple[str, str], asyncio.Future[None]] = {}

    # --- The cast -----------------------------------------------------------------------------

    async def begin(self) -> None:
        command = ("rollbook.api.cli.main", "cluster", "init", "--metadata", self._url)
        assert self._children.start_module(*command).wait(_PATIENCE_S) == 0
        self._cast(BOOKIES, self._bookie)
        await self._until_ready(BOOKIES)
        self._cast((*RECOVERERS, *TAILERS, *WRITERS), self._client)
        await self._until_ready((*RECOVERERS, *TAILERS, *WRITERS))

    def _cast(self, names: Iterable[str], make: Callable[[str], Actor]) -> None:
        for name in names:
            self.actors[name] = make(name)
            self.actors[name].start()

    async def _until_ready(self, names: Iterable[str]) -> None:
        for name in names:
            await self.actors[name].until_ready(_PATIENCE_S)

    def _bookie(self, name: str) -> Actor:
        disk = self._disk.path if self._disk and name == SLOW else self._folder
        port = _PORT if self._network.can_cut else 0
        arguments = bookies.arguments(
            disk / name, self._url, bookie_id=name, listen=f"{self._network.address(name)}:{port}"
        )
        command = bookie_command(self._network.prefix(name), [*arguments, "--log-level", "error"])
        return self._actor(name, lambda _life: command)

    def _client(self, name: str) -> Actor:
        prefix, role = self._network.prefix(name), name.partition("-")[0]
        return self._actor(
            name,
            lambda life: client_command(prefix, role, self._url, self._history / life, self._flaw),
        )

    def _actor(self, name: str, command: Callable[[str], Any]) -> Actor:
        return Actor(name, self._children, self._logs, command, _ENVIRONMENT, self._on_line)

    # --- Lines from clients ------------------------------------------------------------------------

    def _on_line(self, actor: Actor, line: str) -> None:
        word, _, rest = line.partition(" ")
        match word:
            case "ledger":
                self._writing[actor.name] = int(rest)
                if self.chance.random() < _TAILED_SHARE:
                    self.actors[self.chance.choice(TAILERS)].say(f"tail {rest}")
            case "left":
                self._recover_soon(int(rest))
            case "open":
                self.open_at_healing = self.open_at_healing or int(rest)
            case "progress" if actor.name == AUDITORS[0]:
                say(f"{line} ledgers read")
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

    def _recover_soon(self, ledger_id: int) -> None:
        """Asks one recoverer, or two against each other."""
        if time.monotonic() > self._lie_from:
            return

        async def recover() -> None:
            await self._rest(self.chance.uniform(0, 2))
            for name in self.chance.sample(RECOVERERS, self.chance.choice((1, 1, 2))):
                self.actors[name].say(f"recover {ledger_id}")

        self._begin_errand(recover())

    def _begin_errand(self, errand: Any) -> None:
        task = asyncio.create_task(errand)
        self._errands[task] = None
        task.add_done_callback(self._errands.pop)

    async def _rest(self, seconds: float) -> None:
        """Sleeps, at most until the end of the chaos."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()

    # --- Faults -------------------------------------------------------------------------------

    def kinds(self) -> list[FaultKind]:
        """The fault kinds that are possible on this machine."""
        impossible = (
            *(() if self._network.can_cut else NEEDS_NETWORK),
            *(() if self._disk else NEEDS_DISK),
            *(() if self._server else NEEDS_ZOOKEEPER),
        )
        return [kind for kind in FaultKind if kind not in impossible]

    async def suffer(self, faults: list[Fault], seconds: float) -> None:
        started = time.monotonic()
        self._lie_from = started + max(seconds - _LEFT_LYING_S, seconds / 2)
        tasks = [asyncio.create_task(self._strike(fault, started)) for fault in faults]
        while (passed := time.monotonic() - started) < seconds:
            say(f"progress {int(passed)} {int(seconds)} seconds of chaos")
            await asyncio.sleep(min(1.0, seconds - passed))
            for task in tasks:
                if task.done():
                    task.result()
        self._over.set()
        await asyncio.gather(*tasks, *self._errands)
        say(f"progress {int(seconds)} {int(seconds)} seconds of chaos")

    async def _strike(self, fault: Fault, started: float) -> None:
        await self._rest(started + fault.at_s - time.monotonic())
        if self._over.is_set():
            return
        async with self._fault(fault):
            began = time.monotonic_ns()
            await self._rest(fault.for_s)
        self.struck.append(Struck(fault.kind, began, time.monotonic_ns()))

    @asynccontextmanager
    async def _fault(self, fault: Fault) -> AsyncIterator[None]:
        match fault.kind:
            case FaultKind.STOP_ZOOKEEPER | FaultKind.STOP_ZOOKEEPER_LONG:
                assert self._server
                async with self._zookeeper_turn:
                    self._server.pause()
                    yield
                    self._server.resume()
            case FaultKind.KILL_ZOOKEEPER:
                assert self._server
                async with self._zookeeper_turn:
                    self._server.kill()
                    yield
                    await asyncio.to_thread(self._server.start)
            case FaultKind.SLOW_DISK:
                assert self._disk
                self._disk.slow_sync(self.chance.choice((0.02, 0.2, 1.5)))
                yield
                self._disk.slow_sync(0)
            case FaultKind.CUT | FaultKind.CUT_ONE_WAY | FaultKind.ISOLATE | FaultKind.LOSE_SESSION:
                numbers = [self._network.cut(*pair) for pair in self._pairs(fault)]
                yield
                for number in numbers:
                    self._network.mend(number)
            case (
                FaultKind.STOP_BOOKIE
                | FaultKind.STOP_LONG
                | FaultKind.STOP_WRITER
                | FaultKind.STOP_READER
            ):
                self.actors[fault.target].stop()
                if fault.kind is FaultKind.STOP_WRITER:
                    self._duel(fault.target)
                yield
                self.actors[fault.target].resume()
            case _:
                targets = BOOKIES if fault.kind is FaultKind.KILL_ALL else (fault.target,)
                for target in targets:
                    self.actors[target].kill()
                if fault.kind is FaultKind.POWER_CUT:
                    assert self._disk
                    self._disk.forget(
                        keep=self.chance.choice((0.0, 0.5)), seed=self.chance.randrange(1 << 30)
                    )
                if fault.target in self._writing:
                    self._recover_soon(self._writing.pop(fault.target))
                yield
                for target in targets:
                    self.actors[target].start()

    def _pairs(self, fault: Fault) -> list[tuple[str, str]]:
        if fault.kind is FaultKind.ISOLATE:
            others = [ZOOKEEPER, *(name for name in self.actors if name != fault.target)]
        else:
            others = [fault.other]
        pairs = [(fault.target, other) for other in others]
        if fault.kind is not FaultKind.CUT_ONE_WAY:
            pairs += [(other, fault.target) for other in others]
        return pairs

    def _duel(self, writer: str) -> None:
        """Recovers the writer's ledger while the writer cannot notice."""
        if writer in self._writing and self.chance.random() < _DUEL_SHARE:
            self._recover_soon(self._writing.pop(writer))

    # --- The end ------------------------------------------------------------------------------

    async def heal(self) -> None:
        """Waits, after all faults, until every process is ready."""
        await self._until_ready(self.actors)

    async def close_everything(self) -> None:
        """Kills one writer, lets the others finish, and recovers the ledgers that are still open."""
        self.actors[WRITERS[0]].kill()
        closer = RECOVERERS[0]
        await asyncio.gather(
            self._ask(closer, "close all", "all closed", _PATIENCE_S),
            *(self._ask(name, "finish", "finished", _PATIENCE_S) for name in WRITERS[1:]),
        )
        # Again, for a ledger that a writer was creating when it was asked to finish.
        await self._ask(closer, "close all", "all closed", _PATIENCE_S)

    async def audit(self, timeout_s: float) -> None:
        """Two new clients, without any state, read and check everything."""
        for name in (*WRITERS[1:], *RECOVERERS):
            self.actors[name].kill()
        self._cast(AUDITORS, self._client)
        await self._until_ready(AUDITORS)
        first, second = AUDITORS
        await asyncio.gather(
            self._ask(first, "audit", "audited", timeout_s),
            self._ask(second, "read", "audited", timeout_s),
        )

    def end(self) -> list[str]:
        """Failures of the processes themselves."""
        for actor in self.actors.values():
            actor.kill()
        wrong = [text for actor in self.actors.values() for text in actor.unasked]
        return wrong + tracebacks(self._logs)


async def conduct(
    conductor: Conductor, seconds: float, seed: int, closed_within_s: float, history: Path
) -> dict[str, Any]:
    await conductor.begin()
    cast = Cast(BOOKIES, WRITERS, (*RECOVERERS, *TAILERS), conductor.kinds(), slow_disk=SLOW)
    await conductor.suffer(draw(seed, seconds, cast), seconds)
    healed_at = time.monotonic()
    await conductor.heal()
    healed_after_s = time.monotonic() - healed_at
    await conductor.close_everything()
    closed_after_s = time.monotonic() - healed_at
    await conductor.audit(_PATIENCE_S + 2 * seconds)  # Reading takes about as long as writing.
    wrong = conductor.end()
    events = list(read_history(history))
    judgement = judge(events)
    violations = [*judgement.violations, *wrong]
    if closed_after_s > closed_within_s:
        violations.append(f"not every ledger was closed within {closed_within_s:g} s of healing")
    if judgement.unknown_share > UNKNOWN_SHARE_MAX:
        share = f"{judgement.unknown_share:.0%}"
        violations.append(f"{share} of all appends ended unknown: that proves too little")
    starts = {name: actor.lives for name, actor in conductor.actors.items()}
    return {
        "violations": violations,
        "ledgers": judgement.ledgers,
        "acked": judgement.acked,
        "unknown_share": judgement.unknown_share,
        "closed_after_s": closed_after_s,
        "faults": len(conductor.struck),
        "lines": describe(
            events,
            judgement,
            conductor.struck,
            starts,
            conductor.open_at_healing,
            healed_after_s,
            closed_after_s,
        ),
    }


def main() -> None:
    folder, seconds, seed = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    closed_within_s, flaw, is_cut = float(sys.argv[4]), sys.argv[5], sys.argv[6] == "cut"
    with ExitStack() as stack:
        children = stack.enter_context(family())
        clients = (*WRITERS, *RECOVERERS, *TAILERS, *AUDITORS)
        network: Network = (
            Namespaces(children, (ZOOKEEPER, *BOOKIES, *clients)) if is_cut else Loopback()
        )
        server = None
        with suppress(zookeeper.NoZooKeeper):
            started = stack.enter_context(
                zookeeper.running(
                    ["# Our own, whatever the environment says."],
                    host=network.address(ZOOKEEPER),
                    prefix=network.prefix(ZOOKEEPER),
                )
            )
            assert isinstance(started, zookeeper.LocalZooKeeper)
            server = started
        disk = None
        if forgetful.why_not() is None:
            disk = stack.enter_context(forgetful.mount(folder / "volume"))

        async def lead() -> dict[str, Any]:
            conductor = Conductor(folder, seed, flaw, children, network, server, disk)
            return await conduct(conductor, seconds, seed, closed_within_s, folder / "history")

        result = asyncio.run(lead())
        if result["violations"] and flaw == "-":
            result["lines"].append(keep(folder, f"seed-{seed}"))
    say(f"result {json.dumps(result)}")


if __name__ == "__main__":
    main()
