"""Management routes for operations: list, show, begin and cancel them, and the responses of routes that begin one."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import JSONResponse

from rollbook.api.access.authenticator import CALLER
from rollbook.api.access.core.grants import Duty
from rollbook.api.access.management_rights import Managing
from rollbook.api.rest.cluster_admin_interface import ACTS, AWAY, ClusterAdmin
from rollbook.api.rest.cluster_models import (
    ClusterOperation,
    ClusterOperations,
    WantedDrain,
    WantedRecovery,
)
from rollbook.api.rest.cluster_route_parameters import PAGE, PREFIX, IdempotencyKey, Limit
from rollbook.api.rest.operation_registry import Facts, Operation, RunningOperations
from rollbook.api.rest.problems import describe_problems
from rollbook.proto.errors import (
    DrainBlocked,
    DuplicateDiffers,
    InvalidRequest,
    Missing,
    OperationEnded,
    Overloaded,
    RollbookError,
)

GOES_ON: Final[dict[int | str, dict[str, Any]]] = {202: {"model": ClusterOperation}}
_METHODS: Final = {  # The methods' names in the audit.
    "verify": "VerifyLedger",
    "recover": "RecoverLedger",
    "recover-bookies": "RecoverBookies",
    "drain": "DrainBookies",
}
OperationId = Annotated[str, Path(min_length=1, max_length=400)]


def shown_operations(admin: ClusterAdmin, operations: RunningOperations) -> APIRouter:
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


def lasting_acts(
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


def local_operation(operation: Operation) -> Facts:
    """The facts of an operation that is only in this server's memory, as a response shows them."""
    facts = operation.describe()
    unknown = {"about": {}, "principal": "", "done": 0, "total": None, "eta_s": None}
    return facts | unknown | {"created_ms": facts["started_ms"], "cancel_asked": False}


def begun_answer(operation: Operation) -> Response | None:
    """The response for an operation that still runs, with the path at which to query it; None: it has ended."""
    if operation.ended_ms is not None:
        return None
    where = {"location": f"{PREFIX}/operations/{operation.id}"}
    return JSONResponse(local_operation(operation), 202, headers=where)


def _not_to_cancel(operation: Operation) -> OperationEnded:
    """The error for a request to cancel an operation that is only in one server's memory."""
    ids = {"operation": operation.id, "state": operation.describe()["state"]}
    if operation.ended_ms is not None:
        return OperationEnded("it has ended", next_step="begin another one", **ids)
    wait = f"wait for its end: ask GET {PREFIX}/operations/{operation.id}"
    return OperationEnded("it cannot be cancelled", next_step=wait, **ids)


def begin_problems(*errors: type[RollbookError]) -> dict[int | str, dict[str, Any]]:
    return describe_problems(*errors, DuplicateDiffers, Overloaded, *ACTS)


def begun_at(response: Response, begun: Facts) -> ClusterOperation:
    response.headers["location"] = f"{PREFIX}/operations/{begun['id']}"
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
