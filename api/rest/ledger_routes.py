"""Management routes for ledgers: list, show, verify, recover and delete them."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from rollbook.api.access.core.grants import Duty
from rollbook.api.access.management_rights import Managing
from rollbook.api.rest.bookie_management_routes import BookieActs
from rollbook.api.rest.cluster_admin_interface import ACTS, AWAY, ClusterAdmin
from rollbook.api.rest.cluster_models import (
    BadLedgers,
    ClusterLedgers,
    ClusterOperation,
    DeletedLedger,
    LedgerWithPlaces,
)
from rollbook.api.rest.cluster_route_parameters import PAGE, IdempotencyKey, LedgerNumber, Limit
from rollbook.api.rest.operation_registry import Facts
from rollbook.api.rest.operation_routes import (
    GOES_ON,
    begin,
    begin_problems,
    begun_answer,
    begun_at,
)
from rollbook.api.rest.problems import describe_problems
from rollbook.proto.errors import (
    InvalidRequest,
    NoSuchLedger,
    Overloaded,
    PartOfLog,
    RecoveryIncomplete,
)
from rollbook.proto.ids import LEDGER_ID_MAX
from rollbook.proto.metadata import LedgerState

_After = Annotated[int, Query(ge=-1, le=LEDGER_ID_MAX)]


def ledgers(admin: ClusterAdmin) -> APIRouter:
    routes = APIRouter(tags=["ledgers"])

    @routes.get("/ledgers", responses=describe_problems(InvalidRequest, *AWAY))
    async def list_ledgers(
        state: Annotated[LedgerState | None, Query()] = None,
        bookie: Annotated[str | None, Query(max_length=255)] = None,
        short: Annotated[bool | None, Query()] = None,
        after: _After = -1,
        limit: Limit = PAGE,
    ) -> ClusterLedgers:
        """The ledgers with an id above `after`, ascending. A page may be empty although there is a next page."""
        wanted = state.value if state else None
        found, next_after = await admin.ledgers(
            after, limit, state=wanted, bookie=bookie, short=short
        )
        return ClusterLedgers.model_validate({"ledgers": found, "next_after": next_after})

    @routes.get("/ledgers/bad", responses=describe_problems(*AWAY))
    async def list_bad_ledgers(after: _After = -1, limit: Limit = PAGE) -> BadLedgers:
        """Entries with a bad copy, found by a check, or without a copy, found by a repair. `limit` counts ledgers."""
        found, next_after = await admin.bad_ledgers(after, limit)
        return BadLedgers.model_validate({"entries": found, "next_after": next_after})

    @routes.get("/ledgers/{ledger_id:ledger}", responses=describe_problems(NoSuchLedger, *AWAY))
    async def get_ledger(ledger_id: LedgerNumber) -> LedgerWithPlaces:
        return LedgerWithPlaces.model_validate(await admin.ledger(ledger_id))

    return routes


def ledger_acts(admin: ClusterAdmin, managing: Managing) -> APIRouter:
    routes = APIRouter(tags=["ledgers"])

    @routes.post(
        "/ledgers/{ledger_id:ledger}:verify",
        status_code=202,
        responses=begin_problems(NoSuchLedger),
    )
    async def start_verify(
        ledger_id: LedgerNumber, response: Response, key: IdempotencyKey = None
    ) -> ClusterOperation:
        """Verifies a ledger: reads each copy of each entry from the bookies that should have one. Repairs nothing."""
        return begun_at(response, await begin_verify(admin, managing, ledger_id, key))

    @routes.post(
        "/ledgers/{ledger_id:ledger}:recover",
        status_code=202,
        responses=begin_problems(NoSuchLedger, PartOfLog),
    )
    async def start_recover(
        ledger_id: LedgerNumber, response: Response, key: IdempotencyKey = None
    ) -> ClusterOperation:
        """Recovers a ledger: fences its writer, finds the last entry and closes the ledger. Refused for a segment of a
        log.
        """
        return begun_at(response, await begin_recover(admin, managing, ledger_id, key))

    return routes


def ledger_ends(admin: ClusterAdmin, acts: BookieActs) -> APIRouter:
    routes = APIRouter(tags=["ledgers"])

    @routes.delete(
        "/ledgers/{ledger_id:ledger}",
        response_model=DeletedLedger,
        responses=GOES_ON
        | describe_problems(NoSuchLedger, PartOfLog, RecoveryIncomplete, Overloaded, *ACTS),
    )
    async def delete_ledger(
        ledger_id: LedgerNumber, force: Annotated[bool, Query()] = False
    ) -> Any:
        """Fences the ledger's writer, then deletes the ledger. `force`: deletes it even if the writer could not be
        fenced. Refused for a segment of a log.
        """
        done = await acts.change(
            Duty.REMOVE,
            "DeleteLedger",
            f"{'forced-' if force else ''}delete-{ledger_id}",
            lambda: admin.delete_ledger(ledger_id, force=force),
            ledger_id=ledger_id,
            force=force,
        )
        return begun_answer(done) or DeletedLedger.model_validate(done.result)

    return routes


async def begin_verify(
    admin: ClusterAdmin, managing: Managing, ledger_id: int, key: str | None = None
) -> Facts:
    return await begin(admin, managing, "verify", {"ledger_id": ledger_id}, key)


async def begin_recover(
    admin: ClusterAdmin, managing: Managing, ledger_id: int, key: str | None = None
) -> Facts:
    return await begin(admin, managing, "recover", {"ledger_id": ledger_id}, key)
