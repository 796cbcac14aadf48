"""The recovery server, which is a candidate for auditor and steward, and repairs marked ledgers.

    index ◄── auditor (elected)
          ◄── steward (elected apart)      worker      presence      operations (elected apart)
      each is a part: a part that fails is restarted, after a pause that doubles up to a minute

All parts use one metadata session; when it ends, its votes and locks are gone, too. The parts share one
`Marks`, which knows the locks of the session. For `status`, `process_status_nodes.py` reports the work of the
parts.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Never

import structlog

from rollbook.ledger.ledgers import Ledgers
from rollbook.proto.cluster.bookie_watcher import BookieWatcher
from rollbook.proto.cluster.cluster_root import ensure_own_root
from rollbook.proto.cluster.election import Election, Vote
from rollbook.proto.cluster.underreplication_marks import Marks
from rollbook.proto.errors import BadMetadata, NoSuchLedger, RollbookError
from rollbook.proto.ids import BookieId, LedgerId
from rollbook.proto.ports import Clock, MetadataStore, Randomness
from rollbook.proto.tasks import TaskGroup
from rollbook.recovery.auditor import Auditor
from rollbook.recovery.callback_sender import CallbackSender, Post
from rollbook.recovery.cluster_event_log import ClusterEventLog
from rollbook.recovery.config import AuditConfig, HealConfig, StewardConfig, WorkerConfig
from rollbook.recovery.drain_steward import Steward
from rollbook.recovery.drain_task_nodes import STEWARD
from rollbook.recovery.heal_scheduler import DoubtsOf, HealScheduler
from rollbook.recovery.ledger_checks import Checks
from rollbook.recovery.ledger_index import LedgerIndex
from rollbook.recovery.metastore_outage_retries import patiently, until_done
from rollbook.recovery.operation_nodes import RUNNER
from rollbook.recovery.operation_runner import OperationKind, OperationRunner
from rollbook.recovery.process_status_nodes import PresenceNodes, ProcessStatus
from rollbook.recovery.stats import RecoveryStats
from rollbook.recovery.worker import Worker

logger = structlog.get_logger()

_PAUSE_S_MIN: Final = 1.0
_PAUSE_S_MAX: Final = 60.0
_TELL_S: Final = 2.0
_COUNT_S: Final = 30.0
_SHORT_MAX: Final = 100_000  # The maximum number of marks that are counted.
_OVERDUE_MAX: Final = 1_000  # The maximum number of marks that are read to find their ages.
_STEADY_S: Final = 300.0  # A part that ran for this time restarts after the shortest pause.


@dataclass(frozen=True)
class RecoveryConfig:
    audit: AuditConfig = field(default_factory=AuditConfig)
    worker: WorkerConfig = field(default_factory=WorkerConfig)
    steward: StewardConfig = field(default_factory=StewardConfig)
    heal: HealConfig = field(default_factory=HealConfig)
    runs_auditor: bool = True  # True: the process is a candidate for auditor and steward.
    runs_worker: bool = True


@dataclass(slots=True)
class PartState:
    """The state of one part of the process, for `status`."""

    restarts: int = 0
    last_error: str = ""
    state: str = "running"  # An elected part is "standing" or "leading".


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """The identity of this process, as it is shown to people and in its locks."""

    name: BookieId  # The name that is written in votes and locks.
    release: str = ""
    # The bookie in the same process, which is preferred as a target of copies.
    local_bookie: BookieId | None = None


def _describe_as_text(error: RollbookError) -> Mapping[str, Any]:
    return {"detail": str(error)}


@dataclass(frozen=True, slots=True)
class RecoveryPorts:
    """Functions that the process provides. A part that needs a missing function does not run."""

    doubts_of: DoubtsOf | None = None  # Reads a bookie's possible losses.
    # The operations that people may start.
    operations: Mapping[str, OperationKind] = field(default_factory=dict)
    # Turns an error of an operation into its stored form.
    describe: Callable[[RollbookError], Mapping[str, Any]] = _describe_as_text
    # Returns the log that a ledger with this custom metadata was made for.
    log_of: Callable[[Mapping[str, bytes]], str | None] = lambda _: None
    post: Post | None = None  # Sends callbacks.


class RecoveryServer:
    """The parts of a recovery process. The owner calls `run` in a task of its own; if that is cancelled, the
    server gives up its votes and locks.
    """

    def __init__(
        self,
        ledgers: Ledgers,
        store: MetadataStore,
        clock: Clock,
        randomness: Randomness,
        config: RecoveryConfig,
        identity: ProcessIdentity,
        ports: RecoveryPorts | None = None,
        stats: RecoveryStats | None = None,
    ) -> None:
        ports = ports or RecoveryPorts()
        self.stats = stats or RecoveryStats()
        self.ledgers = ledgers
        self.name = identity.name
        self.parts: dict[str, PartState] = {}
        self.worker: Worker | None = None
        self.auditor: Auditor | None = None
        self.steward: Steward | None = None
        self._store = store
        self._cluster = cluster = ledgers.cluster
        self._clock, self._randomness = clock, randomness
        self._config, self._identity, self._ports = config, identity, ports
        self._started_ms = clock.wall_us() // 1000
        self._presence = PresenceNodes(store, cluster)
        self._watcher = BookieWatcher(store, cluster.root)
        self._index = LedgerIndex(store, cluster, clock)
        self._marks = Marks(store, cluster.root)
        self._short_ledgers = self._overdue_ledgers = 0
        self._overdue_s = config.audit.overdue_s
        self.events = ClusterEventLog(
            store, cluster, clock, self._log_of, overdue_s=config.audit.overdue_s
        )
        self._works: dict[str, Callable[[], Coroutine[Any, Any, Never]]] = {}
        if config.runs_auditor:
            self._add_auditor()
            self._add_steward()
            self._works["count"] = lambda: patiently("count", self._count_short)
        if config.runs_worker:
            self._add_worker()
        if ports.operations:
            self._add_operations()
        self._works["presence"] = lambda: patiently("presence", self._tell)
        self._show_gauges()

    # --- Its parts ----------------------------------------------------------------------------

    def _add_auditor(self) -> None:
        self._works["index"] = self._index.run
        store, clock, marks, config = self._store, self._clock, self._marks, self._config.audit
        checks = Checks(self.ledgers, store, clock, self._randomness, marks, config)
        self.auditor = Auditor(
            store, self._cluster, clock, self._watcher, self._index, marks, config, checks
        )
        election = Election(store, marks.election_folder, self.name, above=self._cluster.root)
        self._works["auditor"] = self._elected("auditor", election, self.auditor.lead)

    def _add_steward(self) -> None:
        clock, marks, doubts_of = self._clock, self._marks, self._ports.doubts_of
        doubts = (
            HealScheduler(self.ledgers, self._watcher, marks, clock, doubts_of, self._config.heal)
            if doubts_of
            else None
        )
        self.steward = Steward(
            self._store,
            self._cluster,
            clock,
            self._randomness,
            self._watcher,
            self._index,
            marks,
            self._config.steward,
            doubts,
        )
        self._works["steward"] = self._elected(
            "steward", self._election(STEWARD), self.steward.lead
        )

    def _add_worker(self) -> None:
        self.worker = Worker(
            self.ledgers,
            self._store,
            self._clock,
            self._config.worker,
            name=self.name,
            local_bookie=self._identity.local_bookie,
            marks=self._marks,
        )
        self._works["worker"] = self.worker.run

    def _add_operations(self) -> None:
        """Add events, operations and callbacks. The leader of operations sends the callbacks."""
        store, cluster, clock = self._store, self._cluster, self._clock
        self._works["events"] = self.events.run
        runner = OperationRunner(
            store, cluster, clock, self._ports.operations, self._ports.describe
        )
        lead: Callable[[Vote], Coroutine[Any, Any, None]] = runner.lead
        if (post := self._ports.post) is not None:
            sender = CallbackSender(store, cluster, clock, self._randomness, self.events, post)
            lead = _both(runner.lead, sender.lead)
        self._works["operations"] = self._elected("operations", self._election(RUNNER), lead)

    def _election(self, folder: str) -> Election:
        """Return an election whose votes are below our own root."""
        own_root = self._cluster.own_root
        return Election(self._store, f"{own_root}/{folder}", self.name, above=own_root)

    @property
    def kinds(self) -> list[str]:
        """Return the state of the process for display."""
        return [kind for kind in ("auditor", "worker") if kind in self._works]

    async def run(self) -> None:
        """Runs all parts until cancelled."""
        await until_done("recovery", lambda: ensure_own_root(self._store, self._cluster))
        await until_done("recovery", self._presence.prepare)
        await until_done("recovery", self._watcher.start)
        try:
            async with TaskGroup() as group:
                for part, work in self._works.items():
                    self.parts[part] = PartState()
                    group.create_task(self._keep_running(part, work))
        finally:
            await self._watcher.close()

    async def _keep_running(
        self, part: str, work: Callable[[], Coroutine[Any, Any, Never]]
    ) -> Never:
        loop, state, pause_s = asyncio.get_running_loop(), self.parts[part], _PAUSE_S_MIN
        while True:
            began, state.state = loop.time(), "running"
            try:
                await work()
            except Exception as error:
                state.restarts += 1
                state.state = "failed"
                state.last_error = str(error) or type(error).__name__
                logger.exception("recovery_part_failed", part=part)
            pause_s = _PAUSE_S_MIN if loop.time() - began >= _STEADY_S else pause_s
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def _elected(
        self, part: str, election: Election, lead: Callable[[Vote], Coroutine[Any, Any, None]]
    ) -> Callable[[], Coroutine[Any, Any, Never]]:
        async def leading(vote: Vote) -> None:
            self.parts[part].state = "leading"
            try:
                await lead(vote)
            finally:
                self.parts[part].state = "standing"

        async def serve() -> Never:
            self.parts[part].state = "standing"
            await election.serve(leading)

        return serve

    async def _log_of(self, ledger_id: LedgerId) -> str | None:
        try:
            stored = await self.ledgers.metadata(ledger_id)
        except (BadMetadata, NoSuchLedger):
            return None
        return self._ports.log_of(dict(stored.metadata.custom))

    def _leads(self, part: str) -> bool:
        state = self.parts.get(part)
        return state is not None and state.state == "leading"

    async def _count_short(self) -> None:
        count, overdue = 0, list[LedgerId]()
        if self._leads("auditor"):
            async for ledger_id in self._marks.ids():
                count += 1
                if self._overdue_s and count <= _OVERDUE_MAX and await self._is_overdue(ledger_id):
                    overdue.append(ledger_id)
                if count == _SHORT_MAX:
                    break
        if len(overdue) > self._overdue_ledgers:
            first = overdue[0]
            logger.warning(
                "ledgers_overdue", count=len(overdue), first_ledger=first, after_s=self._overdue_s
            )
        self._short_ledgers, self._overdue_ledgers = count, len(overdue)
        await asyncio.sleep(_COUNT_S)

    async def _is_overdue(self, ledger_id: LedgerId) -> bool:
        try:
            found = await self._marks.read(ledger_id)
        except BadMetadata:
            return False
        marked_ms = found.mark.marked_ms if found else None
        now_ms = self._clock.wall_us() // 1000
        return marked_ms is not None and now_ms - marked_ms >= self._overdue_s * 1000

    def _show_gauges(self) -> None:
        stats = self.stats
        if auditor := self.auditor:
            stats.is_auditor = lambda: self._leads("auditor")
            stats.index_ledgers = lambda: len(self._index)
            stats.short_ledgers = lambda: self._short_ledgers
            stats.overdue_ledgers = lambda: self._overdue_ledgers
            stats.missing_bookies = lambda: self._leads("auditor") * len(auditor.state.missing)
            stats.lost_bookies = lambda: self._leads("auditor") * len(auditor.state.lost)
            stats.unmarked_ledgers = lambda: self._leads("auditor") * auditor.state.to_mark
        if steward := self.steward:
            stats.is_steward = lambda: self._leads("steward")
            stats.draining_bookies = lambda: self._leads("steward") * len(steward.state.drains)
            stats.draining_ledgers = lambda: (
                self._leads("steward")
                * sum(ledgers for _, ledgers in steward.state.drains.values())
            )
        if worker := self.worker:
            stats.running_repairs = lambda: len(worker.stats.running)
            stats.repairs = lambda: worker.stats.repaired
            stats.failures = lambda: worker.stats.failed
            stats.unrecoverable = lambda: worker.stats.unrecoverable
            stats.copied_entries = lambda: worker.stats.entries
            stats.copied_bytes = lambda: worker.stats.entry_bytes

    # --- Status reports -----------------------------------------------------------------------

    async def _tell(self) -> None:
        await self._presence.write(self.presence())
        await asyncio.sleep(_TELL_S)

    def presence(self) -> ProcessStatus:
        parts = {part: asdict(state) for part, state in self.parts.items()}
        audit: dict[str, Any] = {}
        drains: dict[str, Any] = {}
        worker: dict[str, Any] = {}
        if self.auditor is not None and self.parts["auditor"].state == "leading":
            is_ready, ledgers = self._index.is_ready, len(self._index)
            audit = asdict(self.auditor.state) | {"is_indexed": is_ready, "ledgers": ledgers}
        if self.steward is not None and self.parts["steward"].state == "leading":
            drains = asdict(self.steward.state)
        if self.worker is not None:
            worker = asdict(self.worker.stats)
            worker["running"] = len(self.worker.stats.running)
        return ProcessStatus(
            self.name, self._identity.release, self._started_ms, parts, audit, drains, worker
        )


def _both(
    *leads: Callable[[Vote], Coroutine[Any, Any, None]],
) -> Callable[[Vote], Coroutine[Any, Any, None]]:
    async def lead(vote: Vote) -> None:
        async with TaskGroup() as group:
            for each in leads:
                group.create_task(each(vote))

    return lead
