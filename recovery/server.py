"""A process's share in recovery: it stands as auditor, and works on what is marked.

    index ◄── auditor (elected)      worker
      each is a part: one that fails begins again, after a pause that doubles up to a minute

All parts use one metadata session: its end takes votes and locks along together.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, Never

import structlog

from rollbook.ledger.ledgers import Ledgers
from rollbook.proto.cluster.bookie_watcher import BookieWatcher
from rollbook.proto.cluster.election import Election
from rollbook.proto.cluster.marks import Marks
from rollbook.proto.ids import BookieId
from rollbook.proto.ports import Clock, MetadataStore
from rollbook.proto.tasks import TaskGroup
from rollbook.recovery.auditor import Auditor
from rollbook.recovery.config import AuditConfig, WorkerConfig
from rollbook.recovery.index import LedgerIndex
from rollbook.recovery.worker import Worker

logger = structlog.get_logger()

_PAUSE_S_MIN: Final = 1.0
_PAUSE_S_MAX: Final = 60.0
_STEADY_S: Final = 300.0  # A part that ran this long begins again without a longer pause.


@dataclass(frozen=True)
class RecoveryConfig:
    audit: AuditConfig = field(default_factory=AuditConfig)
    worker: WorkerConfig = field(default_factory=WorkerConfig)
    runs_auditor: bool = True
    runs_worker: bool = True


@dataclass(slots=True)
class PartState:
    """Of one part, for `status`."""

    restarts: int = 0
    last_error: str = ""


class RecoveryServer:
    """`run` it in a task of its own; cancelled, it gives up its votes and locks."""

    def __init__(
        self,
        ledgers: Ledgers,
        store: MetadataStore,
        clock: Clock,
        config: RecoveryConfig,
        *,
        name: BookieId,
        local_bookie: BookieId | None = None,
    ) -> None:
        """`name` stands in votes and locks, for people."""
        cluster = ledgers.cluster
        self.name = name
        self.parts: dict[str, PartState] = {}
        self.worker: Worker | None = None
        self.auditor: Auditor | None = None
        self._watcher = BookieWatcher(store, cluster.root)
        self._works: dict[str, Callable[[], Coroutine[Any, Any, Never]]] = {}
        if config.runs_auditor:
            index = LedgerIndex(store, cluster, clock)
            marks = Marks(store, cluster.root)
            self.auditor = Auditor(store, cluster, clock, self._watcher, index, marks, config.audit)
            election = Election(store, marks.election_folder, name, above=cluster.root)
            lead = self.auditor.lead
            self._works["index"] = index.run
            self._works["auditor"] = lambda: election.serve(lead)
        if config.runs_worker:
            self.worker = Worker(
                *(ledgers, store, clock, config.worker), name=name, local_bookie=local_bookie
            )
            self._works["worker"] = self.worker.run

    @property
    def kinds(self) -> list[str]:
        """What it does, for people."""
        return [kind for kind in ("auditor", "worker") if kind in self._works]

    async def run(self) -> None:
        """Until cancelled."""
        await self._watcher.start()
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
            began = loop.time()
            try:
                await work()
            except Exception as error:
                state.restarts += 1
                state.last_error = str(error) or type(error).__name__
                logger.exception("recovery_part_failed", part=part)
            pause_s = _PAUSE_S_MIN if loop.time() - began >= _STEADY_S else pause_s
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)
