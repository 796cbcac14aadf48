"""Management routes for bookies: list and show them, change their lifecycle, and remove them. `BookieActs` is what
routes and dashboard pages share.
"""

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query

from rollbook.api.access.core.grants import Duty
from rollbook.api.access.management_rights import Managing
from rollbook.api.rest.cluster_admin_interface import ACTS, AWAY, ClusterAdmin
from rollbook.api.rest.cluster_models import (
    BookieIds,
    BookieLifecycle,
    ClusterBookie,
    ClusterBookies,
    Removal,
    WantedLifecycle,
)
from rollbook.api.rest.cluster_route_parameters import PAGE, BookieName, Limit
from rollbook.api.rest.operation_registry import Facts, Operation, RunningOperations
from rollbook.api.rest.operation_routes import GOES_ON, begun_answer
from rollbook.api.rest.problems import describe_problems
from rollbook.proto.errors import (
    DrainBlocked,
    InvalidRequest,
    LifecycleConflict,
    Missing,
    NotConfirmed,
    Overloaded,
)
from rollbook.proto.formats.lifecycle import LifecycleState

_PATIENCE_S: Final = 20.0  # Less than the 30 s of an HTTP exchange.
_LEDGERS_MAX: Final = 2**31 - 1


def bookies(admin: ClusterAdmin) -> APIRouter:
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


def bookie_acts(
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


def lifecycle_of(bookie: Facts) -> BookieLifecycle:
    return BookieLifecycle(
        bookie=bookie["id"],
        state=bookie["lifecycle"],
        since_ms=bookie["lifecycle_since_ms"],
        **{
            name: bookie[name] for name in ("reason", "ledgers_at_start", "ledgers_left", "allowed")
        },
    )


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
