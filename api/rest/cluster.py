"""HTTP management of a cluster (`/api/v1`): programs can do what `rollbook cluster`, `bookie`, `ledger` and `recovery`
do.

The cluster is passed in as a `ClusterAdmin`, which makes all decisions. Each route requires a duty
(`api/access/core/grants.py`), and the audit records each act.
"""

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

from fastapi import APIRouter, Depends, FastAPI, Header, Path, Query, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.convertors import Convertor, register_url_convertor

from rollbook import __version__
from rollbook.api.access.authenticator import CALLER
from rollbook.api.access.core.grants import Duty
from rollbook.api.access.management_rights import Managing
from rollbook.api.rest.app_factory import new_app
from rollbook.api.rest.cluster_models import (
    Audited,
    BookieIds,
    BookieLifecycle,
    ClusterBookie,
    ClusterBookies,
    ClusterHealth,
    ClusterOperation,
    ClusterOperations,
    ClusterSummary,
    Delay,
    Rate,
    Recovery,
    Removal,
    Switch,
    WantedAudit,
    WantedDrain,
    WantedLifecycle,
    WantedRate,
    WantedRecovery,
)
from rollbook.api.rest.effective_settings_models import EffectiveSettings
from rollbook.api.rest.operation_registry import Facts, Operation, RunningOperations
from rollbook.api.rest.problems import describe_problems
from rollbook.proto.errors import (
    DrainBlocked,
    DuplicateDiffers,
    InvalidRequest,
    LifecycleConflict,
    MetadataConflict,
    MetadataUnavailable,
    Missing,
    NotConfirmed,
    OperationEnded,
    OutcomeUnknown,
    Overloaded,
    RollbookError,
)
from rollbook.proto.formats.lifecycle import LifecycleState
from rollbook.proto.ids import LEDGER_ID_MAX
from rollbook.proto.runtime.prometheus_text import CONTENT_TYPE, Metrics
from rollbook.recovery.core.operations import KEY_CHARS_MAX

if TYPE_CHECKING:
    from rollbook.api.rest.callback_routes import CallbackAdmin

OPEN_PATHS: Final = ("/heartbeat",)
PAGE: Final = 100
_PATIENCE_S: Final = 20.0  # Less than the 30 s of an HTTP exchange.
_PREFIX: Final = "/api/v1"
_LEDGERS_MAX: Final = 2**31 - 1
_METHODS: Final = {  # The methods' names in the audit.
    "verify": "VerifyLedger",
    "recover": "RecoverLedger",
    "recover-bookies": "RecoverBookies",
    "drain": "DrainBookies",
}


class ClusterAdmin(Protocol):
    """A cluster's interface for its operators. All methods raise `MetadataUnavailable` while the metadata store is
    unavailable, except `cluster`.
    """

    @property
    def callbacks(self) -> "CallbackAdmin": ...

    async def cluster(self) -> Facts:
        """Facts about the cluster, also while the metadata store is unavailable."""

    async def health(self) -> Facts: ...

    async def bookies(self) -> Sequence[Facts]:
        """All bookies, by id."""

    async def bookie(self, name: str) -> Facts:
        """Raises `Missing`."""

    async def set_lifecycle(
        self, name: str, state: LifecycleState, *, force: bool = False
    ) -> Facts: ...

    async def judge_removal(self, names: Sequence[str]) -> Facts: ...

    async def remove(self, name: str, given_up: int | None) -> Facts: ...

    async def ledgers(
        self,
        after: int,
        limit: int,
        *,
        state: str | None = None,
        bookie: str | None = None,
        short: bool | None = None,
    ) -> tuple[Sequence[Facts], int | None]: ...

    async def ledger(self, ledger_id: int) -> Facts:
        """Raises `NoSuchLedger`."""

    async def ledger_as_bookkeeper(self, ledger_id: int) -> Facts:
        """The ledger's metadata with BookKeeper's names. Raises `NoSuchLedger`."""

    async def bad_ledgers(self, after: int, limit: int) -> tuple[Sequence[Facts], int | None]: ...

    async def recovery(self) -> Facts: ...

    async def audit(self, *, anyway: bool) -> Facts: ...

    async def set_switch(self, *, enabled: bool) -> None: ...

    async def set_delay(self, seconds: int) -> Facts: ...

    async def set_rate(self, bytes_per_s: int) -> Facts: ...

    async def space(self) -> Mapping[str, tuple[int, int]]:
        """Free and total bytes of each bookie."""

    async def entries(
        self, ledger_id: int, first: int, last: int | None
    ) -> Mapping[int, bytes]: ...

    async def delete_ledger(self, ledger_id: int, *, force: bool) -> Facts:
        """Raises `NoSuchLedger`, `PartOfLog`, `RecoveryIncomplete`."""

    async def cookies(self) -> Sequence[Facts]: ...

    async def cookie(self, name: str) -> Facts:
        """Raises `Missing`."""

    async def put_cookie(self, name: str, text: str, version: int | None) -> Facts: ...

    async def delete_cookie(self, name: str) -> Facts: ...

    async def generate_cookie(
        self, name: str, directories: Mapping[str, Sequence[str]]
    ) -> Facts: ...

    async def ask_pages(self, name: str, method: str, path: str, body: Facts | None) -> Any:
        """The bookie's response. Raises the bookie's error, or `Missing` if the bookie has no admin pages."""

    async def operations(self, after: str, limit: int) -> tuple[Sequence[Facts], str | None]:
        """Operations that are stored in metadata, newest first."""

    async def operation(self, operation_id: str) -> Facts:
        """Raises `Missing`."""

    async def begin(self, kind: str, about: Facts, principal: str, key: str | None) -> Facts:
        """Raises `DuplicateDiffers`, and any error for which the operation would be refused."""

    async def cancel(self, operation_id: str) -> Facts:
        """Raises `Missing`, `OperationEnded`."""

    async def events(
        self, wanted: Mapping[str, str], after: str, limit: int
    ) -> tuple[Sequence[Facts], str | None]:
        """Events that this server saw, newest first. `wanted`: kind, bookie and log. Raises `Missing`."""


class _PathPart(Convertor[str]):
    """A path parameter without a colon: the verb after a colon is not a part of it, so a path with a verb has only the
    verb's methods.
    """

    regex = "[^/:]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


class _LedgerPathPart(_PathPart):
    """A ledger in a path. `bad` is excluded, since `/ledgers/bad` is another route."""

    regex = "(?!bad$)[^/:]+"


register_url_convertor("part", _PathPart())
register_url_convertor("ledger", _LedgerPathPart())

BookieName = Annotated[str, Path(min_length=1, max_length=255)]
LedgerNumber = Annotated[int, Path(ge=0, le=LEDGER_ID_MAX)]
OperationId = Annotated[str, Path(min_length=1, max_length=400)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="idempotency-key",
        min_length=1,
        max_length=KEY_CHARS_MAX,
        description="A repeated request with the same key returns the same operation.",
    ),
]
Limit = Annotated[int, Query(ge=1, le=1000)]
AWAY: Final = (MetadataUnavailable,)
ACTS: Final = (MetadataUnavailable, OutcomeUnknown, MetadataConflict)
GOES_ON: Final[dict[int | str, dict[str, Any]]] = {202: {"model": ClusterOperation}}


def make_app(
    admin: ClusterAdmin,
    managing: Managing,
    operations: RunningOperations,
    metrics: Metrics,
    settings: Sequence[Mapping[str, str]] = (),
) -> FastAPI:
    # These are imported here because these modules import from this one.
    from rollbook.api.rest.bookie_proxy import bookie_pages
    from rollbook.api.rest.bookkeeper_paths import as_bookkeeper
    from rollbook.api.rest.callback_routes import callbacks
    from rollbook.api.rest.cluster_events import events
    from rollbook.api.rest.cookie_routes import cookies
    from rollbook.api.rest.ledger_routes import ledger_acts, ledger_ends, ledgers

    app = new_app(
        "Rollbook cluster",
        "Shows and manages the bookies, ledgers and repairs of one cluster.",
        __version__,
        OPEN_PATHS,
    )

    def needs(duty: Duty) -> Any:
        async def check() -> None:
            managing.require(duty)

        return Depends(check)

    looks = [needs(Duty.LOOK)]
    app.include_router(_probes(metrics, looks))
    for routes in (
        _cluster(admin, settings),
        _bookies(admin),
        ledgers(admin),
        _recovery(admin),
        _operations(admin, operations),
    ):
        app.include_router(routes, prefix=_PREFIX, dependencies=looks)
    app.include_router(_bookie_acts(admin, managing, operations), prefix=_PREFIX)
    app.include_router(ledger_acts(admin, managing), prefix=_PREFIX)
    app.include_router(_lasting_acts(admin, managing, operations), prefix=_PREFIX)
    app.include_router(_recovery_acts(admin, managing), prefix=_PREFIX)
    acts = BookieActs(admin, managing, operations)
    app.include_router(cookies(admin, acts, looks), prefix=_PREFIX)
    app.include_router(ledger_ends(admin, acts), prefix=_PREFIX)
    app.include_router(bookie_pages(admin, acts, looks), prefix=_PREFIX)
    app.include_router(events(admin, looks), prefix=_PREFIX)
    app.include_router(callbacks(admin, managing, looks), prefix=_PREFIX)
    app.include_router(as_bookkeeper(admin, managing, acts, looks), prefix=_PREFIX)
    return app


def _probes(metrics: Metrics, looks: Sequence[Any]) -> APIRouter:
    routes = APIRouter(tags=["probes"])

    @routes.get("/heartbeat", response_class=PlainTextResponse)
    async def heartbeat() -> str:
        """OK, as long as the process responds."""
        return "OK\n"

    @routes.get("/metrics", response_class=PlainTextResponse, dependencies=looks)
    async def read_metrics() -> Response:
        """The metrics, for Prometheus."""
        return Response(await metrics.page(), media_type=CONTENT_TYPE)

    return routes


# --- Looking ----------------------------------------------------------------------------------


def _cluster(admin: ClusterAdmin, settings: Sequence[Mapping[str, str]]) -> APIRouter:
    routes = APIRouter(tags=["cluster"])

    @routes.get("/cluster")
    async def get_cluster() -> ClusterSummary:
        """The cluster's identity. It is shown even while the metadata store is unavailable."""
        return ClusterSummary.model_validate(await admin.cluster())

    @routes.get("/cluster/health", responses=describe_problems(*AWAY))
    async def get_health() -> ClusterHealth:
        """The cluster's health. Each member is asked whether it can be reached, for two seconds at most."""
        return ClusterHealth.model_validate(await admin.health())

    @routes.get("/settings")
    async def get_settings() -> EffectiveSettings:
        """The settings in force in this process and the source of each value, without secrets."""
        return EffectiveSettings.model_validate({"settings": settings})

    return routes


def _bookies(admin: ClusterAdmin) -> APIRouter:
    routes = APIRouter(tags=["bookies"])

    @routes.get("/bookies", responses=describe_problems(*AWAY))
    async def list_bookies(
        after: Annotated[str, Query(max_length=255)] = "", limit: Limit = PAGE
    ) -> ClusterBookies:
        """The bookies with an id above `after`, by id."""
        found = [each for each in await admin.bookies() if each["id"] > after]
        last = found[limit - 1]["id"] if len(found) > limit else None
        return ClusterBookies.model_validate({"bookies": found[:limit], "next_after": last})

    @routes.get("/bookies/{bookie_id}", responses=describe_problems(Missing, *AWAY))
    async def get_bookie(bookie_id: BookieName) -> ClusterBookie:
        return ClusterBookie.model_validate(await admin.bookie(bookie_id))

    @routes.get("/bookies/{bookie_id}/lifecycle", responses=describe_problems(Missing, *AWAY))
    async def get_lifecycle(bookie_id: BookieName) -> BookieLifecycle:
        return lifecycle_of(await admin.bookie(bookie_id))

    return routes


def lifecycle_of(bookie: Facts) -> BookieLifecycle:
    return BookieLifecycle(
        bookie=bookie["id"],
        state=bookie["lifecycle"],
        since_ms=bookie["lifecycle_since_ms"],
        **{
            name: bookie[name] for name in ("reason", "ledgers_at_start", "ledgers_left", "allowed")
        },
    )


def _recovery(admin: ClusterAdmin) -> APIRouter:
    routes = APIRouter(tags=["recovery"])

    @routes.get("/recovery", responses=describe_problems(*AWAY))
    async def get_recovery() -> Recovery:
        """The state of recovery: auditor, steward, workers, tasks, switch, delay and rate."""
        return Recovery.model_validate(await admin.recovery())

    return routes


def _operations(admin: ClusterAdmin, operations: RunningOperations) -> APIRouter:
    routes = APIRouter(tags=["operations"])

    @routes.get("/operations", responses=describe_problems(*AWAY))
    async def list_operations(
        after: Annotated[str, Query(max_length=255)] = "", limit: Limit = PAGE
    ) -> ClusterOperations:
        """The operations that are stored in metadata, newest first, then those in the memory of this server."""
        found, rest = await admin.operations(after, limit)
        here = [] if rest else [local_operation(each) for each in operations.newest_first()]
        return ClusterOperations.model_validate({"operations": [*found, *here], "next_after": rest})

    @routes.get("/operations/{operation_id}", responses=describe_problems(Missing, *AWAY))
    async def get_operation(operation_id: OperationId) -> ClusterOperation:
        """An operation; one in metadata is kept for seven days after its end."""
        if (here := operations.known(operation_id)) is not None:
            return ClusterOperation.model_validate(local_operation(here))
        return ClusterOperation.model_validate(await admin.operation(operation_id))

    return routes


def local_operation(operation: Operation) -> Facts:
    """The facts of an operation that is only in this server's memory, as a response shows them."""
    facts = operation.describe()
    unknown = {"about": {}, "principal": "", "done": 0, "total": None, "eta_s": None}
    return facts | unknown | {"created_ms": facts["started_ms"], "cancel_asked": False}


# --- Acting -----------------------------------------------------------------------------------


def _bookie_acts(
    admin: ClusterAdmin, managing: Managing, operations: RunningOperations
) -> APIRouter:
    """Routes that change bookies. A change that reads all ledgers is an operation: the response comes when it
    ends, or after `_PATIENCE_S` with the path at which to query it."""
    routes = APIRouter(tags=["bookies"])
    acts = BookieActs(admin, managing, operations)

    @routes.put(
        "/bookies/{bookie_id}/lifecycle",
        response_model=BookieLifecycle,
        responses=GOES_ON
        | describe_problems(Missing, LifecycleConflict, DrainBlocked, Overloaded, *ACTS),
    )
    async def set_lifecycle(bookie_id: BookieName, wanted: WantedLifecycle) -> Any:
        """Changes a bookie's lifecycle state. If the change is not allowed, the response is 409, and `ids.allowed` has
        the allowed states.
        """
        state = LifecycleState(wanted.state)
        done = await acts.set_lifecycle(bookie_id, state, force=wanted.force)
        return begun_answer(done) or lifecycle_of(done.result or {})

    @routes.post(
        "/bookies:safe-to-remove",
        response_model=Removal,
        responses=GOES_ON | describe_problems(InvalidRequest, Overloaded, *AWAY),
    )
    async def judge_removal(wanted: BookieIds) -> Any:
        """Whether all these bookies may be removed together. Reads the metadata of all ledgers and changes nothing."""
        done = await acts.judge(wanted.bookies)
        return begun_answer(done) or Removal.model_validate(done.result)

    @routes.delete(
        "/bookies/{bookie_id}",
        response_model=Removal,
        responses=GOES_ON
        | describe_problems(Missing, InvalidRequest, NotConfirmed, Overloaded, *ACTS),
    )
    async def remove_bookie(
        bookie_id: BookieName,
        give_up: Annotated[int | None, Query(ge=0, le=_LEDGERS_MAX)] = None,
    ) -> Any:
        """Removes a bookie. Refused while it runs, or while a ledger names it. `give_up`: removes it although ledgers
        name it; the value must be the number of ledgers that fall below their ack quorum, which the refusal says.
        """
        done = await acts.remove(bookie_id, give_up)
        return begun_answer(done) or Removal.model_validate(done.result)

    return routes


def begun_answer(operation: Operation) -> Response | None:
    """The response for an operation that still runs, with the path at which to query it; None: it has ended."""
    if operation.ended_ms is not None:
        return None
    where = {"location": f"{_PREFIX}/operations/{operation.id}"}
    return JSONResponse(local_operation(operation), 202, headers=where)


class BookieActs:
    """The code that routes and dashboard pages share: it checks rights, writes the audit, and waits for operations."""

    def __init__(
        self, admin: ClusterAdmin, managing: Managing, operations: RunningOperations
    ) -> None:
        self._admin = admin
        self._managing = managing
        self._operations = operations

    async def set_lifecycle(
        self, bookie: str, state: LifecycleState, *, force: bool = False
    ) -> Operation:
        """Operators may drain and undrain; only administrators may override a refusal."""
        overrides = force or state is LifecycleState.DRAINED
        duty = Duty.REMOVE if overrides else Duty.OPERATE

        async def work() -> Facts:
            return await self._admin.set_lifecycle(bookie, state, force=force)

        about: dict[str, Any] = {"bookie": bookie, "state": state.value, "force": force}
        # The id comes last, since it may contain any text.
        kind = f"{'forced-' if force else ''}{state.value}-{bookie}"
        return await self._await_result(duty, "SetLifecycle", kind, work, about)

    async def remove(self, bookie: str, give_up: int | None) -> Operation:
        async def work() -> Facts:
            return await self._admin.remove(bookie, give_up)

        about: dict[str, Any] = {"bookie": bookie, "give_up": give_up}
        kind = f"remove-{bookie}" if give_up is None else f"give-up-{give_up}-remove-{bookie}"
        return await self._await_result(Duty.REMOVE, "RemoveBookie", kind, work, about)

    async def change(
        self,
        duty: Duty,
        method: str,
        kind: str,
        work: Callable[[], Awaitable[Facts]],
        **about: Any,
    ) -> Operation:
        """Runs one operation of `kind` at a time; raises its error."""
        return await self._await_result(duty, method, kind, work, about)

    def act(self, duty: Duty, method: str, **about: Any) -> AbstractContextManager[dict[str, Any]]:
        """Wraps a change that ends before the response."""
        return self._managing.act(duty, method, **about)

    async def judge(self, bookies: Sequence[str]) -> Operation:
        self._managing.require(Duty.LOOK)

        async def work() -> Facts:
            return await self._admin.judge_removal(bookies)

        which = hashlib.sha256(json.dumps(list(bookies)).encode()).hexdigest()
        kind = f"judge-{which[:16]}"  # A thousand ids would make a long path.
        return await self._operations.await_result(kind, work, _PATIENCE_S, is_look=True)

    async def _await_result(
        self,
        duty: Duty,
        method: str,
        kind: str,
        work: Callable[[], Awaitable[Facts]],
        about: Mapping[str, Any],
    ) -> Operation:
        self._managing.require(duty, method)
        if self._operations.is_running(kind):
            with self._managing.act(duty, method, only_begins=True, joins=True, **about):
                pass  # In the audit, the running operation keeps the name of its first caller.

        async def work_to_its_end() -> Facts:
            with self._managing.act(duty, method, **about):
                return await work()

        return await self._operations.await_result(kind, work_to_its_end, _PATIENCE_S)


def _not_to_cancel(operation: Operation) -> OperationEnded:
    """The error for a request to cancel an operation that is only in one server's memory."""
    ids = {"operation": operation.id, "state": operation.describe()["state"]}
    if operation.ended_ms is not None:
        return OperationEnded("it has ended", next_step="begin another one", **ids)
    wait = f"wait for its end: ask GET {_PREFIX}/operations/{operation.id}"
    return OperationEnded("it cannot be cancelled", next_step=wait, **ids)


def _lasting_acts(
    admin: ClusterAdmin, managing: Managing, operations: RunningOperations
) -> APIRouter:
    """Routes that begin or cancel operations in metadata. If the process that runs one dies, another continues it."""
    routes = APIRouter(tags=["operations"])

    @routes.post(
        "/bookies:drain", status_code=202, responses=begin_problems(InvalidRequest, DrainBlocked)
    )
    async def drain_bookies(
        wanted: WantedDrain, response: Response, key: IdempotencyKey = None
    ) -> ClusterOperation:
        """Drains bookies. The operation ends when all are drained. It is refused if some ledgers would lack a bookie;
        `ids.first_ledgers` names some of them.
        """
        duty = Duty.REMOVE if wanted.force else Duty.OPERATE
        about = wanted.model_dump()
        return begun_at(response, await begin(admin, managing, "drain", about, key, duty))

    @routes.post("/recovery/bookies", status_code=202, responses=begin_problems(InvalidRequest))
    async def recover_bookies(
        wanted: WantedRecovery, response: Response, key: IdempotencyKey = None
    ) -> ClusterOperation:
        """Copies what these bookies should have to other bookies now, without waiting for the auditor."""
        about = wanted.model_dump()
        return begun_at(response, await begin(admin, managing, "recover-bookies", about, key))

    @routes.post(
        "/operations/{operation_id}:cancel",
        responses=describe_problems(Missing, OperationEnded, *ACTS),
    )
    async def cancel_operation(operation_id: OperationId) -> ClusterOperation:
        """Cancels an operation. Bookies that a drain operation is still draining become active again. Copies that were
        made are kept.
        """
        if (here := operations.known(operation_id)) is not None:
            managing.require(Duty.OPERATE, "CancelOperation")
            raise _not_to_cancel(here)
        return ClusterOperation.model_validate(await cancel(admin, managing, operation_id))

    return routes


def begin_problems(*errors: type[RollbookError]) -> dict[int | str, dict[str, Any]]:
    return describe_problems(*errors, DuplicateDiffers, Overloaded, *ACTS)


def begun_at(response: Response, begun: Facts) -> ClusterOperation:
    response.headers["location"] = f"{_PREFIX}/operations/{begun['id']}"
    return ClusterOperation.model_validate(begun)


async def begin(
    admin: ClusterAdmin,
    managing: Managing,
    kind: str,
    about: Facts,
    key: str | None = None,
    duty: Duty = Duty.OPERATE,
) -> Facts:
    with managing.act(duty, _METHODS[kind], only_begins=True, **about) as row:
        begun = await admin.begin(kind, about, CALLER.get().principal.name, key)
        row["operation"] = begun["id"]
    return begun


async def cancel(admin: ClusterAdmin, managing: Managing, operation_id: str) -> Facts:
    with managing.act(Duty.OPERATE, "CancelOperation", operation=operation_id):
        return await admin.cancel(operation_id)


def _recovery_acts(admin: ClusterAdmin, managing: Managing) -> APIRouter:
    routes = APIRouter(tags=["recovery"])

    @routes.post("/recovery:audit", responses=describe_problems(*ACTS))
    async def audit(wanted: WantedAudit | None = None) -> Audited:
        """Makes the auditor look for missing bookies and run all its checks now."""
        anyway = wanted is not None and wanted.anyway
        duty = Duty.REMOVE if anyway else Duty.OPERATE
        with managing.act(duty, "Audit", anyway=anyway):
            return Audited.model_validate(await admin.audit(anyway=anyway))

    @routes.put("/recovery/switch", responses=describe_problems(*ACTS))
    async def set_switch(wanted: Switch) -> Switch:
        """Switches repair on or off in the whole cluster. BookKeeper's autorecovery obeys the switch, too."""
        with managing.act(Duty.OPERATE, "SetRecoverySwitch", enabled=wanted.enabled):
            await admin.set_switch(enabled=wanted.enabled)
        return wanted

    @routes.put("/recovery/delay", responses=describe_problems(*ACTS))
    async def set_delay(wanted: Delay) -> Delay:
        """Sets how long a bookie must be missing before its entries are copied to other bookies."""
        with managing.act(Duty.OPERATE, "SetLostBookieDelay", delay_s=wanted.delay_s):
            return Delay.model_validate(await admin.set_delay(wanted.delay_s))

    @routes.put("/recovery/rate", responses=describe_problems(*ACTS))
    async def set_rate(wanted: WantedRate) -> Rate:
        """Sets the copying rate of each worker. All workers adopt it within moments."""
        with managing.act(Duty.OPERATE, "SetRecoveryRate", bytes_per_s=wanted.bytes_per_s):
            return Rate.model_validate(await admin.set_rate(wanted.bytes_per_s))

    return routes
