"""A bookie's admin pages: what it is doing, and the few things it can be told to do.

What BookKeeper's admin server answers is answered at the same place with the same names, in
camelCase, but always as JSON, with problems where that one has texts, and with an operation to ask
after where that one starts something and forgets it. What it does not have is in snake_case.

The bookie is handed in as a `BookieAdmin`; nothing is decided here.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Protocol

import structlog
from fastapi import APIRouter, FastAPI, Path, Query, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from rollbook import __version__
from rollbook.api.rest.problems import add_problems, describe_problems, problem_of
from rollbook.api.rest.server import HttpConfig, HttpServer
from rollbook.proto.errors import (
    InvalidRequest,
    Missing,
    NoSuchLedger,
    OutcomeUnknown,
    Overloaded,
    RollbookError,
    Unavailable,
)
from rollbook.proto.ids import LEDGER_ID_MAX
from rollbook.proto.ports import Address
from rollbook.proto.runtime.logs import level_now, set_level
from rollbook.proto.runtime.metrics import CONTENT_TYPE, Metrics

logger = structlog.get_logger()

Facts = Mapping[str, Any]
"""Plain values, named like the fields of the model that shows them."""

# Load balancers and orchestrators ask these, and show no token.
OPEN_PATHS: Final = ("/heartbeat", "/health", "/ready", "/api/v1/bookie/is_ready")
_OPERATIONS_KEPT: Final = 100
_OPERATIONS_AT_ONCE: Final = 8
_PAGE_MAX: Final = 1_000


class BookieAdmin(Protocol):
    """One bookie, as its operators see it."""

    @property
    def stats(self) -> object:
        """A dataclass of `rollbook.proto.stats`."""

    def status(self) -> Facts: ...

    def settings(self) -> Facts:
        """Without secrets."""

    def state(self) -> Facts: ...

    def failure(self) -> str | None:
        """Why the bookie has to be restarted; None as long as it works."""

    def why_not_ready(self) -> str | None:
        """None if it serves."""

    async def set_read_only(self, wanted: bool) -> None:
        """Raises `RollbookError` if it cannot be had."""

    async def space(self) -> Sequence[Facts]: ...

    async def ledger_space(self) -> Facts:
        """Of all ledger directories; a disk counts once."""

    async def check_sanity(self) -> Facts: ...

    def mark(self) -> Facts: ...

    async def files(self) -> Mapping[str, Sequence[str]]: ...

    async def ledgers(self, after: int, limit: int) -> Sequence[Facts]:
        """Ascending."""

    async def ledger(self, ledger_id: int) -> Facts:
        """Raises `NoSuchLedger`."""

    def garbage(self) -> Facts: ...

    async def collect_garbage(self, *, force: bool) -> Facts:
        """`force`: however many ledgers are gone at once."""

    def garbage_state(self) -> Facts: ...

    async def compact(self, *, major: bool) -> Facts: ...

    def suspended(self) -> Facts: ...

    def suspend_compaction(self, *, major: bool, minor: bool) -> None: ...

    def resume_compaction(self, *, major: bool, minor: bool) -> None: ...

    def scrub_state(self) -> Facts: ...

    async def scrub(self) -> Facts: ...

    def suspend_scrub(self) -> None: ...

    def resume_scrub(self) -> None: ...

    async def verify_ledger(self, ledger_id: int) -> Facts:
        """Raises `NoSuchLedger`."""


# --- What is shown ----------------------------------------------------------------------------


class _Shown(BaseModel):
    """In snake_case."""

    model_config = ConfigDict(extra="forbid")


class _AsBookKeeper(BaseModel):
    """Under BookKeeper's names."""

    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True, extra="forbid")


class State(_AsBookKeeper):
    running: bool = Field(examples=[True])
    read_only: bool = Field(examples=[False])
    shutting_down: bool = Field(examples=[False])
    available_for_high_priority_writes: bool = Field(examples=[True])


class ReadOnly(_AsBookKeeper):
    read_only: bool = Field(examples=[True])


class Info(_AsBookKeeper):
    free_space: int = Field(examples=[410_000_000_000])
    total_space: int = Field(examples=[500_000_000_000])


class Sanity(_AsBookKeeper):
    passed: bool = Field(examples=[True])
    read_only: bool = Field(examples=[False])


class TriggerGc(_AsBookKeeper):
    """Which compactions are to follow; without either only what is deleted goes.

    With `force` deleted ledgers go however many they are: else a metadata store that names hardly
    any is taken for the wrong one.
    """

    force_major: bool = Field(False, examples=[False])
    force_minor: bool = Field(False, examples=[True])
    force: bool = Field(False, examples=[False])


class GcState(BaseModel):
    is_in_force_gc: bool = Field(examples=[False])


class GcDetails(_AsBookKeeper):
    """Times are milliseconds since 1970; 0 is never."""

    force_compacting: bool = Field(examples=[False])
    major_compacting: bool = Field(examples=[False])
    minor_compacting: bool = Field(examples=[False])
    last_major_compaction_time: int = Field(examples=[0])
    last_minor_compaction_time: int = Field(examples=[1_790_000_000_000])
    major_compaction_counter: int = Field(examples=[0])
    minor_compaction_counter: int = Field(examples=[3])


class Suspended(_AsBookKeeper):
    is_major_gc_suspended: bool = Field(examples=[False])
    is_minor_gc_suspended: bool = Field(examples=[False])


class Suspend(_AsBookKeeper):
    suspend_major: bool = Field(False, examples=[True])
    suspend_minor: bool = Field(False, examples=[True])


class Resume(_AsBookKeeper):
    resume_major: bool = Field(False, examples=[True])
    resume_minor: bool = Field(False, examples=[True])


class Mark(_Shown):
    """Where replay would start, and where the journal is."""

    journal: int = Field(examples=[12])
    first_sequence: int = Field(examples=[40_312])
    active_journal: int = Field(examples=[12])
    active_position: int = Field(examples=[1_048_576])


class Files(_Shown):
    journal: list[str] | None = Field(None, examples=[["0000000000000012.journal"]])
    entrylog: list[str] | None = Field(None, examples=[["0000000000000011.log"]])
    index: list[str] | None = Field(None, examples=[["catalog-0000000003.a"]])


class Directory(_Shown):
    path: str = Field(examples=["/var/lib/rollbook/ledgers"])
    kind: str = Field(examples=["ledger"])
    free_bytes: int = Field(examples=[410_000_000_000])
    total_bytes: int = Field(examples=[500_000_000_000])


class Status(BaseModel):
    """Everything at a glance."""

    bookie_id: str = Field(examples=["bk-1"])
    address: str | None = Field(examples=["127.0.0.1:3181"])
    version: str = Field(examples=[__version__])
    incarnation: str | None = Field(examples=["5f0c2a…"])
    instance_id: str | None = Field(examples=["2f9f3a1e-7f0e-4a9b-8c45-2f3f7a9d1b77"])
    state: str = Field(examples=["writable"])
    why: str | None = Field(None, examples=[None])
    uptime_s: float = Field(examples=[86_400.0])
    pid: int = Field(examples=[4711])
    ledgers: int = Field(examples=[10_000])
    entries: int = Field(examples=[10_000_000])
    doubtful_ledgers: int = Field(examples=[0])
    doubts_everything: bool = Field(examples=[False])
    entry_logs: int = Field(examples=[120])
    entry_log_bytes: int = Field(examples=[16_000_000_000])
    journal_files_waiting: int = Field(examples=[0])
    journal_queue_bytes: int = Field(examples=[0])
    connections: int = Field(examples=[12])
    entries_added: int = Field(examples=[1_000_000])
    latencies_ms: dict[str, dict[str, float]] = Field(
        examples=[{"journal_sync": {"p50": 0.4, "p99": 2.1}}]
    )
    cache_hit_ratio: float | None = Field(examples=[0.97])
    refusals: dict[str, int] = Field(examples=[{"LEDGER_FENCED": 1}])
    directories: list[Directory]


class LedgerSummary(_Shown):
    """One ledger as this bookie has it: other copies are on other bookies."""

    ledger_id: int = Field(examples=[7])
    entries: int = Field(examples=[1_000])
    first_entry: int | None = Field(examples=[0])
    last_entry: int | None = Field(examples=[2_998])
    entry_bytes: int = Field(examples=[1_024_000])
    last_add_confirmed: int = Field(examples=[2_997])
    is_fenced: bool = Field(examples=[False])
    is_deleted: bool = Field(examples=[False])
    is_doubtful: bool = Field(examples=[False])


class Place(_Shown):
    file: str = Field(examples=["0000000000000011.log"])
    first_entry: int = Field(examples=[0])
    last_entry: int = Field(examples=[2_998])
    entries: int = Field(examples=[1_000])
    entry_bytes: int = Field(examples=[1_024_000])


class Doubt(_Shown):
    first_entry: int = Field(examples=[10])
    last_entry: int = Field(examples=[12])


class LedgerDetails(LedgerSummary):
    has_key: bool = Field(examples=[True])
    explicit_lac: int | None = Field(examples=[2_998])
    places: list[Place]
    doubts: list[Doubt]


class Ledgers(_Shown):
    ledgers: list[LedgerSummary]
    next_after: int | None = Field(examples=[None])  # What `after` is for the next page.


class OperationState(_Shown):
    """Something that runs in the background; one of a kind at a time."""

    id: str = Field(examples=["gc-1"])
    kind: str = Field(examples=["gc"])
    state: Literal["running", "done", "failed"] = Field(examples=["done"])
    started_ms: int = Field(examples=[1_790_000_000_000])
    ended_ms: int | None = Field(examples=[1_790_000_000_250])
    result: dict[str, Any] | None = Field(examples=[{"ledgers": 3}])
    problem: dict[str, Any] | None = Field(examples=[None])


class Operations(_Shown):
    operations: list[OperationState]


class LogLevel(_Shown):
    level: Literal["debug", "info", "warning", "error"] = Field(examples=["info"])


# --- What runs in the background --------------------------------------------------------------


@dataclass(slots=True)
class Operation:
    id: str
    kind: str
    started_ms: int
    ended_ms: int | None = None
    result: dict[str, Any] | None = None
    problem: dict[str, Any] | None = None

    def describe(self) -> dict[str, Any]:
        state = "failed" if self.problem else "running" if self.ended_ms is None else "done"
        return {
            **{name: getattr(self, name) for name in ("id", "kind", "started_ms", "ended_ms")},
            "state": state,
            "result": self.result,
            "problem": self.problem,
        }


class RunningOperations:
    """Each has an id to ask after; the last hundred are remembered."""

    def __init__(self) -> None:
        self._known: dict[str, Operation] = {}  # Oldest first.
        self._running: dict[str, tuple[Operation, asyncio.Task[None]]] = {}  # By kind.
        self._number = 0

    def start(self, kind: str, work: Callable[[], Awaitable[Facts]]) -> Operation:
        """The one that runs already, if there is one of this kind. Raises `Overloaded`."""
        if running := self._running.get(kind):
            return running[0]
        if len(self._running) >= _OPERATIONS_AT_ONCE:
            raise Overloaded("too many operations are running", next_step="wait for one to end")
        self._number += 1
        operation = Operation(f"{kind}-{self._number}", kind, _now_ms())
        self._known[operation.id] = operation
        while len(self._known) > _OPERATIONS_KEPT:
            del self._known[next(iter(self._known))]
        task = asyncio.create_task(self._run(operation, work))
        self._running[kind] = operation, task
        logger.info("operation_started", operation=operation.id)
        return operation

    async def _run(self, operation: Operation, work: Callable[[], Awaitable[Facts]]) -> None:
        try:
            operation.result = dict(await work())
        except asyncio.CancelledError:
            operation.problem = problem_of(OutcomeUnknown("the server was stopped meanwhile"))
            raise
        except RollbookError as error:
            operation.problem = problem_of(error)
        except Exception as error:
            logger.error("operation_failed", operation=operation.id, exc_info=error)
            operation.problem = problem_of(RollbookError("the log says what happened"))
        finally:
            operation.ended_ms = _now_ms()
            del self._running[operation.kind]
        outcome = "failed" if operation.problem else "done"
        logger.info("operation_ended", operation=operation.id, outcome=outcome)

    def is_running(self, *kinds: str) -> bool:
        return any(kind in self._running for kind in kinds)

    def find(self, operation_id: str) -> Operation:
        if operation := self._known.get(operation_id):
            return operation
        raise Missing("there is no such operation", operation=operation_id)

    def newest_first(self) -> list[Operation]:
        return list(reversed(self._known.values()))

    async def close(self) -> None:
        for _, task in list(self._running.values()):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# --- The application --------------------------------------------------------------------------


class AdminServer:
    """The admin pages of one bookie, listening."""

    def __init__(self, http: HttpServer, operations: RunningOperations) -> None:
        self._http = http
        self._operations = operations

    @classmethod
    async def start(cls, admin: BookieAdmin, config: HttpConfig) -> "AdminServer":
        """Raises `BadConfig`."""
        operations = RunningOperations()
        app = make_app(admin, operations)
        return cls(await HttpServer.start(app, config, OPEN_PATHS), operations)

    @property
    def address(self) -> Address:
        return self._http.address

    async def close(self) -> None:
        await self._http.close()
        await self._operations.close()


def make_app(admin: BookieAdmin, operations: RunningOperations) -> FastAPI:
    app = FastAPI(
        title="Rollbook bookie",
        description="What one storage server is doing, and what it can be told to do.",
        version=__version__,
        docs_url=None,  # They would fetch their scripts from elsewhere.
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    add_problems(app)
    app.include_router(_probes(admin))
    app.include_router(_looking(admin), prefix="/api/v1")
    app.include_router(_space(admin, operations), prefix="/api/v1/bookie")
    app.include_router(_running(operations), prefix="/api/v1/bookie")
    return app


def _probes(admin: BookieAdmin) -> APIRouter:
    routes = APIRouter(tags=["probes"])
    metrics = Metrics()
    metrics.add("bookie", admin.stats)
    metrics.add_process()

    @routes.get("/heartbeat", response_class=PlainTextResponse)
    async def heartbeat() -> str:
        """OK, as long as anybody answers at all."""
        return "OK\n"

    @routes.get("/health", responses=describe_problems(Unavailable))
    async def health() -> dict[Literal["status"], Literal["ok"]]:
        """Whether the bookie works, or has to be restarted."""
        if reason := admin.failure():
            raise Unavailable(reason, next_step="restart the bookie")
        return {"status": "ok"}

    @routes.get("/ready", responses=describe_problems(Unavailable))
    async def ready() -> dict[Literal["status"], Literal["ready"]]:
        """Whether the bookie serves: it listens and is registered; it may be read-only."""
        _require_ready(admin)
        return {"status": "ready"}

    @routes.get(
        "/api/v1/bookie/is_ready",
        response_class=PlainTextResponse,
        responses=describe_problems(Unavailable),
    )
    async def is_ready() -> str:
        """OK, or 503."""
        _require_ready(admin)
        return "OK\n"

    @routes.get("/metrics", response_class=PlainTextResponse)
    async def read_metrics() -> Response:
        """For Prometheus."""
        parts = []
        for part in metrics.exposition():
            parts.append(part)
            await asyncio.sleep(0)  # Others have adds to answer.
        return Response(b"".join(parts), media_type=CONTENT_TYPE)

    return routes


def _require_ready(admin: BookieAdmin) -> None:
    if reason := admin.failure() or admin.why_not_ready():
        raise Unavailable(reason)


def _looking(admin: BookieAdmin) -> APIRouter:
    routes = APIRouter(tags=["bookie"])

    @routes.get("/bookie/status")
    async def get_status() -> Status:
        here = {"pid": os.getpid(), "directories": await admin.space()}
        return Status.model_validate({**admin.status(), **here})

    @routes.get("/bookie/state")
    async def get_state() -> State:
        return State.model_validate(admin.state())

    @routes.get("/bookie/state/readonly")
    async def get_read_only() -> ReadOnly:
        return ReadOnly(read_only=admin.state()["read_only"])

    @routes.put("/bookie/state/readonly", responses=describe_problems(Unavailable))
    async def set_read_only(wanted: ReadOnly) -> ReadOnly:
        """A full disk stays read-only whatever is wished."""
        await admin.set_read_only(wanted.read_only)
        return ReadOnly(read_only=admin.state()["read_only"])

    @routes.get("/bookie/info")
    async def get_info() -> Info:
        """Space for ledgers; directories on one disk count once."""
        found = await admin.ledger_space()
        return Info(free_space=found["free_bytes"], total_space=found["total_bytes"])

    @routes.get("/bookie/sanity")
    async def check_sanity() -> Sanity:
        """Whether the journal still makes things durable, within seconds."""
        return Sanity.model_validate(await admin.check_sanity())

    @routes.get("/bookie/last_log_mark")
    async def get_mark() -> Mark:
        return Mark.model_validate(admin.mark())

    @routes.get("/bookie/list_disk_file", response_model_exclude_none=True)
    async def list_files(
        file_type: Annotated[Literal["journal", "entrylog", "index"] | None, Query()] = None,
    ) -> Files:
        """`index` is the catalog: entries are indexed in the logs themselves."""
        found = await admin.files()
        return Files.model_validate(
            {kind: names for kind, names in found.items() if file_type in (None, kind)}
        )

    @routes.get("/bookie/ledgers")
    async def list_ledgers(
        after: Annotated[int, Query(ge=-1, le=LEDGER_ID_MAX)] = -1,
        limit: Annotated[int, Query(ge=1, le=_PAGE_MAX)] = 100,
    ) -> Ledgers:
        """Those with an id above `after`, ascending."""
        found = await admin.ledgers(after, limit)
        last = found[-1]["ledger_id"] if len(found) == limit else None
        return Ledgers.model_validate({"ledgers": found, "next_after": last})

    @routes.get("/bookie/ledgers/{ledger_id}", responses=describe_problems(NoSuchLedger))
    async def get_ledger(
        ledger_id: Annotated[int, Path(ge=0, le=LEDGER_ID_MAX)],
    ) -> LedgerDetails:
        return LedgerDetails.model_validate(await admin.ledger(ledger_id))

    @routes.get("/config/server_config")
    async def get_settings() -> dict[str, Any]:
        """What is in force, without secrets."""
        return dict(admin.settings())

    @routes.get("/log_level")
    async def get_log_level() -> LogLevel:
        return LogLevel.model_validate({"level": level_now()})

    @routes.put("/log_level")
    async def set_log_level(wanted: LogLevel) -> LogLevel:
        """Until the next start."""
        set_level(wanted.level)
        logger.info("log_level_changed", level=wanted.level)
        return wanted

    return routes


def _space(admin: BookieAdmin, operations: RunningOperations) -> APIRouter:
    routes = APIRouter(tags=["space"])

    def start(
        response: Response, kind: str, work: Callable[[], Awaitable[Facts]]
    ) -> OperationState:
        operation = operations.start(kind, work)
        response.status_code = 202
        response.headers["location"] = f"/api/v1/bookie/operations/{operation.id}"
        return OperationState.model_validate(operation.describe())

    @routes.put("/gc", status_code=202)
    async def trigger_gc(response: Response, wanted: TriggerGc | None = None) -> OperationState:
        """Looks for deleted ledgers now; a run that is under way is joined."""
        force = wanted is not None and wanted.force
        if wanted and (wanted.force_major or wanted.force_minor):
            is_major = wanted.force_major

            async def collect_and_compact() -> Facts:
                garbage = await admin.collect_garbage(force=force)
                return {"garbage": garbage, "compaction": await admin.compact(major=is_major)}

            kind = "major-compaction" if is_major else "minor-compaction"
            return start(response, kind, collect_and_compact)
        return start(response, "gc", lambda: admin.collect_garbage(force=force))

    @routes.get("/gc")
    async def get_gc() -> GcState:
        """Whether one is running that was asked for."""
        kinds = ("gc", "major-compaction", "minor-compaction")
        return GcState(is_in_force_gc=operations.is_running(*kinds))

    @routes.get("/gc_details")
    async def get_gc_details() -> list[GcDetails]:
        return [GcDetails.model_validate(admin.garbage())]

    @routes.get("/gc/suspend_compaction")
    async def get_suspended() -> Suspended:
        return Suspended.model_validate(admin.suspended())

    @routes.put("/gc/suspend_compaction", responses=describe_problems(InvalidRequest))
    async def suspend_compaction(wanted: Suspend) -> Suspended:
        """Until it is resumed, or the next start; one that is running stops at its next step."""
        if not wanted.suspend_major and not wanted.suspend_minor:
            raise InvalidRequest("say suspendMajor, suspendMinor, or both")
        admin.suspend_compaction(major=wanted.suspend_major, minor=wanted.suspend_minor)
        return Suspended.model_validate(admin.suspended())

    @routes.put("/gc/resume_compaction", responses=describe_problems(InvalidRequest))
    async def resume_compaction(wanted: Resume) -> Suspended:
        if not wanted.resume_major and not wanted.resume_minor:
            raise InvalidRequest("say resumeMajor, resumeMinor, or both")
        admin.resume_compaction(major=wanted.resume_major, minor=wanted.resume_minor)
        return Suspended.model_validate(admin.suspended())

    @routes.get("/space")
    async def get_space() -> dict[str, Any]:
        """How garbage collection and compaction stand."""
        return dict(admin.garbage_state())

    @routes.get("/scrub")
    async def get_scrub() -> dict[str, Any]:
        return dict(admin.scrub_state())

    @routes.put("/scrub", status_code=202)
    async def trigger_scrub(response: Response) -> OperationState:
        """Reads and verifies everything now, within its budget of bytes."""
        return start(response, "scrub", admin.scrub)

    @routes.put("/scrub/suspend")
    async def suspend_scrub() -> dict[str, Any]:
        """Until it is resumed, or the next start."""
        admin.suspend_scrub()
        return dict(admin.scrub_state())

    @routes.put("/scrub/resume")
    async def resume_scrub() -> dict[str, Any]:
        admin.resume_scrub()
        return dict(admin.scrub_state())

    @routes.put("/ledgers/{ledger_id}/verify", status_code=202)
    async def verify_ledger(
        response: Response, ledger_id: Annotated[int, Path(ge=0, le=LEDGER_ID_MAX)]
    ) -> OperationState:
        """Reads all that is here of one ledger, from the disk, now."""
        return start(response, f"verify-{ledger_id}", lambda: admin.verify_ledger(ledger_id))

    return routes


def _running(operations: RunningOperations) -> APIRouter:
    routes = APIRouter(tags=["operations"])

    @routes.get("/operations")
    async def list_operations() -> Operations:
        """The newest first."""
        found = [operation.describe() for operation in operations.newest_first()]
        return Operations.model_validate({"operations": found})

    @routes.get("/operations/{operation_id}", responses=describe_problems(Missing))
    async def get_operation(
        operation_id: Annotated[str, Path(max_length=64)],
    ) -> OperationState:
        return OperationState.model_validate(operations.find(operation_id).describe())

    return routes
