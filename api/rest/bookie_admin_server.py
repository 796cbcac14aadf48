"""A bookie's admin pages: its state, and the few operations that it offers.

Paths of BookKeeper's admin server, and their fields in camelCase, have the same names here. Errors are
problems in JSON instead of plain text, and a request that starts background work returns an operation
that can be queried. Names that BookKeeper's server does not have are in snake_case.

The bookie is passed in as a `BookieAdmin`, which makes all decisions. The audit records every operation:
who requested it, what it was, and how it ended.
"""

import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Annotated, Any, Final, Literal, Protocol

import structlog
from fastapi import APIRouter, Depends, FastAPI, Path, Query, Request, Response
from fastapi.responses import PlainTextResponse

from rollbook import __version__
from rollbook.api.access.audit import AuditLog
from rollbook.api.access.authenticator import CALLER, Authenticator
from rollbook.api.access.core.grants import Duty
from rollbook.api.access.management_rights import Managing
from rollbook.api.rest.app_factory import new_app
from rollbook.api.rest.bookie_models import (
    Doubts,
    Files,
    GcDetails,
    GcState,
    Info,
    LedgerDetails,
    LedgerPage,
    LogLevel,
    Operations,
    OperationState,
    ReadOnly,
    ReplayMark,
    Resume,
    RunState,
    Sanity,
    SettleDoubts,
    Status,
    Suspend,
    Suspended,
    TriggerGc,
)
from rollbook.api.rest.effective_settings_models import EffectiveSettings
from rollbook.api.rest.operation_registry import Facts, RunningOperations
from rollbook.api.rest.problems import describe_problems
from rollbook.api.rest.server import HttpConfig, HttpServer
from rollbook.proto.errors import InvalidRequest, Missing, NoSuchLedger, Superseded, Unavailable
from rollbook.proto.ids import LEDGER_ID_MAX
from rollbook.proto.ports import Address
from rollbook.proto.runtime.logging_setup import level_now, set_level
from rollbook.proto.runtime.prometheus_text import CONTENT_TYPE, Metrics

logger = structlog.get_logger()

# Load balancers and orchestrators request these paths without a token.
OPEN_PATHS: Final = ("/heartbeat", "/health", "/ready", "/api/v1/bookie/is_ready")
_PAGE_MAX: Final = 1_000


class BookieAdmin(Protocol):
    """A bookie's interface for its operators."""

    @property
    def stats(self) -> object:
        """A dataclass of `rollbook.proto.stats`."""

    def status(self) -> Facts: ...

    def settings(self) -> Facts:
        """The settings in force, without secrets."""

    def shown_settings(self) -> Sequence[Mapping[str, str]]:
        """The settings in force and the source of each value, without secrets."""

    def state(self) -> Facts: ...

    def failure(self) -> str | None:
        """Why the bookie has to be restarted; None as long as it works."""

    def why_not_ready(self) -> str | None:
        """Why the bookie does not serve; None if it does."""

    async def set_read_only(self, wanted: bool) -> None:
        """Sets or clears the read-only state. Raises `RollbookError` if that is impossible."""

    async def space(self) -> Sequence[Facts]: ...

    async def ledger_space(self) -> Facts:
        """The space of all ledger directories; a disk counts once."""

    async def check_sanity(self) -> Facts: ...

    def mark(self) -> Facts: ...

    async def files(self) -> Mapping[str, Sequence[str]]: ...

    async def ledgers(self, after: int, limit: int) -> Sequence[Facts]:
        """Ids of ledgers, ascending."""

    async def ledger(self, ledger_id: int) -> Facts:
        """Raises `NoSuchLedger`."""

    def doubts(self, after: int, limit: int) -> Facts:
        """Doubts about single ledgers, ascending, and about the whole bookie."""

    async def settle_doubts(
        self, stamp: str, ledger_id: int, ranges: Sequence[tuple[int, int]]
    ) -> None:
        """Raises `Superseded` if the stamp is not the latest one."""

    async def settle_everything(self, stamp: str) -> None:
        """Raises `Superseded`."""

    def garbage(self) -> Facts: ...

    async def collect_garbage(self, *, force: bool) -> Facts:
        """`force`: proceeds even if very many ledgers are gone at once."""

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


# --- The application --------------------------------------------------------------------------


class AdminServer:
    """A listening server of one bookie's admin pages."""

    def __init__(self, http: HttpServer, operations: RunningOperations) -> None:
        self._http = http
        self._operations = operations

    @classmethod
    async def start(
        cls,
        admin: BookieAdmin,
        config: HttpConfig,
        more_stats: Mapping[str, object] = {},
        authenticator: Authenticator | None = None,
    ) -> "AdminServer":
        """`more_stats`: the statistics of the process's other parts, by part. `authenticator`: by default one that
        knows only the token of `config`. Raises `BadConfig`.
        """
        operations = RunningOperations()
        authenticator = authenticator or Authenticator.of(config.token_file)
        audit = authenticator.audit if authenticator else AuditLog(time.monotonic_ns)
        app = make_app(admin, operations, audit, more_stats)
        http = await HttpServer.start(app, config, OPEN_PATHS, authenticator)
        return cls(http, operations)

    @property
    def address(self) -> Address:
        return self._http.address

    async def close(self) -> None:
        await self._http.close()
        await self._operations.close()


def make_app(
    admin: BookieAdmin,
    operations: RunningOperations,
    audit: AuditLog,
    more_stats: Mapping[str, object] = {},
) -> FastAPI:
    app = new_app(
        "Rollbook bookie",
        "What one storage server is doing, and the operations that it offers.",
        __version__,
        OPEN_PATHS,
    )
    managing = Managing(audit)

    async def check(request: Request) -> None:
        """Checks a request's caller before the route runs (MG1)."""
        if request.url.path not in OPEN_PATHS:
            managing.require(_duty_of(request.method, request.url.path))

    app.state.admin = admin
    app.state.acts = _Acts(audit, operations)
    app.state.metrics = _metrics(admin, more_stats)
    for routes, prefix in (
        (_probes, ""),
        (_bookie, "/api/v1"),
        (_space, "/api/v1/bookie"),
        (_running, "/api/v1/bookie"),
    ):
        app.include_router(routes, prefix=prefix, dependencies=[Depends(check)])
    return app


def _metrics(admin: BookieAdmin, more_stats: Mapping[str, object]) -> Metrics:
    metrics = Metrics()
    for part, stats in {"bookie": admin.stats, **more_stats}.items():
        metrics.add(part, stats)
    metrics.add_process(__version__)
    return metrics


class _Acts:
    """Runs changes, which the audit records, and operations, which continue after the response."""

    def __init__(self, audit: AuditLog, operations: RunningOperations) -> None:
        self.operations = operations
        self._audit = audit

    def act(self, method: str, **about: Any) -> AbstractContextManager[dict[str, Any]]:
        caller = CALLER.get()
        who, peer = caller.principal.name, caller.peer
        return self._audit.act(principal=who, peer=peer, method=method, **about)

    def start(
        self,
        response: Response,
        method: str,
        kind: str,
        work: Callable[[], Awaitable[Facts]],
        **about: Any,
    ) -> OperationState:
        async def work_to_its_end() -> Facts:
            with self.act(method, operation=operation.id, **about):
                return await work()

        with self.act(method, only_begins=True, **about) as begun:
            # An operation that is running already was started by another caller, with that caller's options.
            begun["joins"] = self.operations.is_running(kind)
            operation = self.operations.start(kind, work_to_its_end)
            begun["operation"] = operation.id
        response.status_code = 202
        response.headers["location"] = f"/api/v1/bookie/operations/{operation.id}"
        return OperationState.model_validate(operation.describe())


async def _admin(request: Request) -> BookieAdmin:
    admin: BookieAdmin = request.app.state.admin
    return admin


async def _acts(request: Request) -> _Acts:
    acts: _Acts = request.app.state.acts
    return acts


async def _metrics_of(request: Request) -> Metrics:
    metrics: Metrics = request.app.state.metrics
    return metrics


Admin = Annotated[BookieAdmin, Depends(_admin)]
Acts = Annotated[_Acts, Depends(_acts)]
Counted = Annotated[Metrics, Depends(_metrics_of)]


def _duty_of(method: str, path: str) -> Duty:
    """The duty that a request requires. Clearing doubts requires `REMOVE`: afterwards the bookie may answer that it
    never had entries which it has lost.
    """
    if method in ("GET", "HEAD"):
        return Duty.LOOK
    return Duty.REMOVE if path.endswith("/doubts/settled") else Duty.OPERATE


# --- Probes -----------------------------------------------------------------------------------


_probes: Final = APIRouter(tags=["probes"])


@_probes.get("/heartbeat", response_class=PlainTextResponse)
async def heartbeat() -> str:
    """OK, as long as the process responds."""
    return "OK\n"


@_probes.get("/health", responses=describe_problems(Unavailable))
async def health(admin: Admin) -> dict[Literal["status"], Literal["ok"]]:
    """Whether the bookie works; 503 if it has to be restarted."""
    if reason := admin.failure():
        raise Unavailable(reason, next_step="restart the bookie")
    return {"status": "ok"}


@_probes.get("/ready", responses=describe_problems(Unavailable))
async def ready(admin: Admin) -> dict[Literal["status"], Literal["ready"]]:
    """Whether the bookie serves: it listens and is registered, and may be read-only. Otherwise 503."""
    _require_ready(admin)
    return {"status": "ready"}


@_probes.get(
    "/api/v1/bookie/is_ready",
    response_class=PlainTextResponse,
    responses=describe_problems(Unavailable),
)
async def is_ready(admin: Admin) -> str:
    """OK if the bookie is ready, otherwise 503."""
    _require_ready(admin)
    return "OK\n"


@_probes.get("/metrics", response_class=PlainTextResponse)
async def read_metrics(metrics: Counted) -> Response:
    """The metrics, for Prometheus."""
    return Response(await metrics.page(), media_type=CONTENT_TYPE)


def _require_ready(admin: BookieAdmin) -> None:
    if reason := admin.failure() or admin.why_not_ready():
        raise Unavailable(reason)


# --- The bookie, its ledgers and settings -----------------------------------------------------


_bookie: Final = APIRouter(tags=["bookie"])


@_bookie.get("/bookie/status")
async def get_status(admin: Admin) -> Status:
    here = {"pid": os.getpid(), "directories": await admin.space()}
    return Status.model_validate({**admin.status(), **here})


@_bookie.get("/bookie/state")
async def get_state(admin: Admin) -> RunState:
    return RunState.model_validate(admin.state())


@_bookie.get("/bookie/state/readonly")
async def get_read_only(admin: Admin) -> ReadOnly:
    return ReadOnly(read_only=admin.state()["read_only"])


@_bookie.put("/bookie/state/readonly", responses=describe_problems(Unavailable))
async def set_read_only(admin: Admin, acts: Acts, wanted: ReadOnly) -> ReadOnly:
    """Makes the bookie read-only or writable. With a full disk it stays read-only, and the response is 503."""
    with acts.act("SetReadOnly", read_only=wanted.read_only):
        await admin.set_read_only(wanted.read_only)
    return ReadOnly(read_only=admin.state()["read_only"])


@_bookie.get("/bookie/info")
async def get_info(admin: Admin) -> Info:
    """The space for ledgers. Directories on the same disk count once."""
    found = await admin.ledger_space()
    return Info(free_space=found["free_bytes"], total_space=found["total_bytes"])


@_bookie.get("/bookie/sanity")
async def check_sanity(admin: Admin) -> Sanity:
    """Whether the journal can make entries durable within five seconds."""
    return Sanity.model_validate(await admin.check_sanity())


@_bookie.get("/bookie/last_log_mark")
async def get_mark(admin: Admin) -> ReplayMark:
    return ReplayMark.model_validate(admin.mark())


@_bookie.get("/bookie/list_disk_file", response_model_exclude_none=True)
async def list_files(
    admin: Admin,
    file_type: Annotated[Literal["journal", "entrylog", "index"] | None, Query()] = None,
) -> Files:
    """The names of the bookie's files. `index` is the catalog; each entry log has the index of its own entries."""
    found = await admin.files()
    return Files.model_validate(
        {kind: names for kind, names in found.items() if file_type in (None, kind)}
    )


@_bookie.get("/bookie/ledgers")
async def list_ledgers(
    admin: Admin,
    after: Annotated[int, Query(ge=-1, le=LEDGER_ID_MAX)] = -1,
    limit: Annotated[int, Query(ge=1, le=_PAGE_MAX)] = 100,
) -> LedgerPage:
    """The ledgers with an id above `after`, ascending."""
    found = await admin.ledgers(after, limit)
    last = found[-1]["ledger_id"] if len(found) == limit else None
    return LedgerPage.model_validate({"ledgers": found, "next_after": last})


@_bookie.get("/bookie/ledgers/{ledger_id}", responses=describe_problems(NoSuchLedger))
async def get_ledger(
    admin: Admin,
    ledger_id: Annotated[int, Path(ge=0, le=LEDGER_ID_MAX)],
) -> LedgerDetails:
    return LedgerDetails.model_validate(await admin.ledger(ledger_id))


@_bookie.get("/bookie/doubts")
async def get_doubts(
    admin: Admin,
    after: Annotated[int, Query(ge=-1, le=LEDGER_ID_MAX)] = -1,
    limit: Annotated[int, Query(ge=1, le=_PAGE_MAX)] = 100,
) -> Doubts:
    """The bookie's possible losses, for ledgers with an id above `after`. Entry -1 is the
    explicit LAC.
    """
    return Doubts.model_validate(admin.doubts(after, limit))


@_bookie.put("/bookie/doubts/settled", responses=describe_problems(Superseded, InvalidRequest))
async def settle_doubts(admin: Admin, acts: Acts, wanted: SettleDoubts) -> Doubts:
    """Clears possible losses whose entries were restored or given up. `rollbook recovery heal` calls this.

    If the entries were not restored, data is lost: the bookie then answers that it never had them. `stamp`
    is the one that was returned with the possible losses.
    """
    if wanted.everything == (wanted.ledger_id is not None):
        raise InvalidRequest("name either one ledger or everything")
    if wanted.ledger_id is None:
        with acts.act("SettleEverything"):
            await admin.settle_everything(wanted.stamp)
    else:
        ranges = [(each.first_entry, each.last_entry) for each in wanted.ranges]
        with acts.act("SettleDoubts", ledger_id=wanted.ledger_id, ranges=len(ranges)):
            await admin.settle_doubts(wanted.stamp, wanted.ledger_id, ranges)
    after = -1 if wanted.ledger_id is None else wanted.ledger_id - 1
    return Doubts.model_validate(admin.doubts(after, 1))


@_bookie.get("/config/server_config")
async def get_settings(admin: Admin) -> dict[str, Any]:
    """The settings in force, without secrets."""
    return dict(admin.settings())


@_bookie.get("/settings")
async def get_shown_settings(admin: Admin) -> EffectiveSettings:
    """The settings in force and the source of each value, without secrets."""
    return EffectiveSettings.model_validate({"settings": admin.shown_settings()})


@_bookie.get("/log_level")
async def get_log_level() -> LogLevel:
    return LogLevel.model_validate({"level": level_now()})


@_bookie.put("/log_level")
async def set_log_level(acts: Acts, wanted: LogLevel) -> LogLevel:
    """Sets the log level until the next restart."""
    with acts.act("SetLogLevel", level=wanted.level):
        set_level(wanted.level)
    logger.info("log_level_changed", level=wanted.level)
    return wanted


# --- Disk space -------------------------------------------------------------------------------


_space: Final = APIRouter(tags=["space"])


@_space.put("/gc", status_code=202)
async def trigger_gc(
    admin: Admin, acts: Acts, response: Response, wanted: TriggerGc | None = None
) -> OperationState:
    """Looks for deleted ledgers now, or joins the run that is in progress."""
    force = wanted is not None and wanted.force
    if wanted and (wanted.force_major or wanted.force_minor):
        is_major = wanted.force_major

        async def collect_and_compact() -> Facts:
            garbage = await admin.collect_garbage(force=force)
            return {"garbage": garbage, "compaction": await admin.compact(major=is_major)}

        kind = "major-compaction" if is_major else "minor-compaction"
        about = {"major": is_major, "force": force}
        return acts.start(response, "Compact", kind, collect_and_compact, **about)
    collect = partial(admin.collect_garbage, force=force)
    return acts.start(response, "CollectGarbage", "gc", collect, force=force)


@_space.get("/gc")
async def get_gc(acts: Acts) -> GcState:
    """Whether a requested collection or compaction is running."""
    kinds = ("gc", "major-compaction", "minor-compaction")
    return GcState(is_in_force_gc=acts.operations.is_running(*kinds))


@_space.get("/gc_details")
async def get_gc_details(admin: Admin) -> list[GcDetails]:
    return [GcDetails.model_validate(admin.garbage())]


@_space.get("/gc/suspend_compaction")
async def get_suspended(admin: Admin) -> Suspended:
    return Suspended.model_validate(admin.suspended())


@_space.put("/gc/suspend_compaction", responses=describe_problems(InvalidRequest))
async def suspend_compaction(admin: Admin, acts: Acts, wanted: Suspend) -> Suspended:
    """Suspends compaction until it is resumed or the bookie restarts. A running one stops at its next step."""
    if not wanted.suspend_major and not wanted.suspend_minor:
        raise InvalidRequest("set suspendMajor, suspendMinor, or both")
    which = {"major": wanted.suspend_major, "minor": wanted.suspend_minor}
    with acts.act("SuspendCompaction", **which):
        admin.suspend_compaction(**which)
    return Suspended.model_validate(admin.suspended())


@_space.put("/gc/resume_compaction", responses=describe_problems(InvalidRequest))
async def resume_compaction(admin: Admin, acts: Acts, wanted: Resume) -> Suspended:
    if not wanted.resume_major and not wanted.resume_minor:
        raise InvalidRequest("set resumeMajor, resumeMinor, or both")
    which = {"major": wanted.resume_major, "minor": wanted.resume_minor}
    with acts.act("ResumeCompaction", **which):
        admin.resume_compaction(**which)
    return Suspended.model_validate(admin.suspended())


@_space.get("/space")
async def get_space(admin: Admin) -> dict[str, Any]:
    """The state of garbage collection and compaction."""
    return dict(admin.garbage_state())


@_space.get("/scrub")
async def get_scrub(admin: Admin) -> dict[str, Any]:
    return dict(admin.scrub_state())


@_space.put("/scrub", status_code=202)
async def trigger_scrub(admin: Admin, acts: Acts, response: Response) -> OperationState:
    """Reads and verifies all entries now, at the configured rate."""
    return acts.start(response, "Scrub", "scrub", admin.scrub)


@_space.put("/scrub/suspend")
async def suspend_scrub(admin: Admin, acts: Acts) -> dict[str, Any]:
    """Suspends scrubbing until it is resumed or the bookie restarts."""
    with acts.act("SuspendScrub"):
        admin.suspend_scrub()
    return dict(admin.scrub_state())


@_space.put("/scrub/resume")
async def resume_scrub(admin: Admin, acts: Acts) -> dict[str, Any]:
    with acts.act("ResumeScrub"):
        admin.resume_scrub()
    return dict(admin.scrub_state())


@_space.put("/ledgers/{ledger_id}/verify", status_code=202)
async def verify_ledger(
    admin: Admin,
    acts: Acts,
    response: Response,
    ledger_id: Annotated[int, Path(ge=0, le=LEDGER_ID_MAX)],
) -> OperationState:
    """Reads all entries of one ledger that this bookie has, from the disk, now."""
    kind = f"verify-{ledger_id}"
    verify = partial(admin.verify_ledger, ledger_id)
    return acts.start(response, "VerifyLedger", kind, verify, ledger_id=ledger_id)


# --- Operations -------------------------------------------------------------------------------


_running: Final = APIRouter(tags=["operations"])


@_running.get("/operations")
async def list_operations(acts: Acts) -> Operations:
    """The operations, newest first."""
    found = [operation.describe() for operation in acts.operations.newest_first()]
    return Operations.model_validate({"operations": found})


@_running.get("/operations/{operation_id}", responses=describe_problems(Missing))
async def get_operation(
    acts: Acts,
    operation_id: Annotated[str, Path(max_length=64)],
) -> OperationState:
    return OperationState.model_validate(acts.operations.find(operation_id).describe())
