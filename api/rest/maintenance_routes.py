"""Management routes for cookies, for deleting ledgers, and for the admin pages of single bookies."""

from collections.abc import Sequence
from enum import Enum
from hashlib import sha256
from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Query

from rollbook.api.access.core.grants import Duty
from rollbook.api.rest.cluster import (
    ACTS,
    AWAY,
    BookieActs,
    BookieName,
    ClusterAdmin,
    LedgerNumber,
    begun_answer,
)
from rollbook.api.rest.cluster_models import (
    BookiePage,
    ClusterOperation,
    Cookies,
    DeletedLedger,
    StoredCookie,
    WantedCookie,
    WantedDirectories,
)
from rollbook.api.rest.problems import describe_problems
from rollbook.proto.errors import (
    BookieUnreachable,
    InvalidRequest,
    LifecycleConflict,
    Missing,
    NodeExists,
    NoSuchLedger,
    Overloaded,
    PartOfLog,
    RecoveryIncomplete,
)

_GOES_ON: Final[dict[int | str, dict[str, Any]]] = {202: {"model": ClusterOperation}}
_SAID_MAX: Final = 16  # Fields of a body that is forwarded.


class BookieView(Enum):
    """The pages of a bookie that can be read."""

    STATUS = "status"
    STATE = "state"
    GC = "gc"
    SPACE = "space"
    COMPACTION = "compaction"
    SCRUB = "scrub"
    SETTINGS = "settings"


class BookieAction(Enum):
    """The actions that can be requested from a bookie."""

    READ_ONLY = "readonly"
    GC = "gc"
    SUSPEND_COMPACTION = "suspend-compaction"
    RESUME_COMPACTION = "resume-compaction"
    SCRUB = "scrub"
    SUSPEND_SCRUB = "suspend-scrub"
    RESUME_SCRUB = "resume-scrub"


_SHOWN: Final = {
    BookieView.STATUS: "bookie/status",
    BookieView.STATE: "bookie/state",
    BookieView.GC: "bookie/gc_details",
    BookieView.SPACE: "bookie/space",
    BookieView.COMPACTION: "bookie/gc/suspend_compaction",
    BookieView.SCRUB: "bookie/scrub",
    BookieView.SETTINGS: "settings",
}
_DONE: Final = {
    BookieAction.READ_ONLY: "state/readonly",
    BookieAction.GC: "gc",
    BookieAction.SUSPEND_COMPACTION: "gc/suspend_compaction",
    BookieAction.RESUME_COMPACTION: "gc/resume_compaction",
    BookieAction.SCRUB: "scrub",
    BookieAction.SUSPEND_SCRUB: "scrub/suspend",
    BookieAction.RESUME_SCRUB: "scrub/resume",
}


def cookies(admin: ClusterAdmin, acts: BookieActs, looks: Sequence[Any]) -> APIRouter:
    routes = APIRouter(tags=["cookies"])

    @routes.get("/cookies", dependencies=looks, responses=describe_problems(*AWAY))
    async def list_cookies() -> Cookies:
        return Cookies.model_validate({"cookies": await admin.cookies()})

    @routes.get(
        "/cookies/{bookie_id}", dependencies=looks, responses=describe_problems(Missing, *AWAY)
    )
    async def get_cookie(bookie_id: BookieName) -> StoredCookie:
        return StoredCookie.model_validate(await admin.cookie(bookie_id))

    @routes.put(
        "/cookies/{bookie_id}",
        response_model=StoredCookie,
        responses=_GOES_ON
        | describe_problems(InvalidRequest, LifecycleConflict, NodeExists, Overloaded, *ACTS),
    )
    async def put_cookie(bookie_id: BookieName, wanted: WantedCookie) -> Any:
        """Stores or replaces a cookie. Refused while the bookie is registered or a ledger names it."""
        digest = sha256(wanted.model_dump_json().encode()).hexdigest()[:16]
        done = await acts.change(
            Duty.REMOVE,
            "PutCookie",
            f"put-cookie-{digest}-{bookie_id}",
            lambda: admin.put_cookie(bookie_id, wanted.text, wanted.version),
            bookie=bookie_id,
        )
        return begun_answer(done) or StoredCookie.model_validate(done.result)

    @routes.delete(
        "/cookies/{bookie_id}",
        response_model=StoredCookie,
        responses=_GOES_ON | describe_problems(Missing, LifecycleConflict, Overloaded, *ACTS),
    )
    async def delete_cookie(bookie_id: BookieName) -> Any:
        """Deletes a cookie and returns it. Refused while the bookie is registered or a ledger names it."""
        done = await acts.change(
            Duty.REMOVE,
            "DeleteCookie",
            f"delete-cookie-{bookie_id}",
            lambda: admin.delete_cookie(bookie_id),
            bookie=bookie_id,
        )
        return begun_answer(done) or StoredCookie.model_validate(done.result)

    @routes.post("/cookies/{bookie_id}:generate", responses=describe_problems(InvalidRequest))
    async def generate_cookie(bookie_id: BookieName, wanted: WantedDirectories) -> StoredCookie:
        """Returns the cookie that a bookie with these directories would write. Nothing is stored."""
        with acts.act(Duty.REMOVE, "GenerateCookie", bookie=bookie_id):
            found = await admin.generate_cookie(bookie_id, wanted.model_dump())
        return StoredCookie.model_validate(found)

    return routes


def ledger_ends(admin: ClusterAdmin, acts: BookieActs) -> APIRouter:
    routes = APIRouter(tags=["ledgers"])

    @routes.delete(
        "/ledgers/{ledger_id:ledger}",
        response_model=DeletedLedger,
        responses=_GOES_ON
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


def bookie_pages(admin: ClusterAdmin, acts: BookieActs, looks: Sequence[Any]) -> APIRouter:
    """Routes that are forwarded to a bookie, at its registered address."""
    routes = APIRouter(tags=["bookies"])

    @routes.get(
        "/bookies/{bookie_id}/pages/{page}",
        dependencies=looks,
        responses=describe_problems(Missing, BookieUnreachable, *ACTS),
    )
    async def get_page(bookie_id: BookieName, page: BookieView) -> BookiePage:
        """A page of the bookie itself, which has 5 s to respond."""
        path = f"/api/v1/{_SHOWN[page]}"
        answer = await admin.ask_pages(bookie_id, "GET", path, None)
        return BookiePage(bookie=bookie_id, answer=answer)

    @routes.put(
        "/bookies/{bookie_id}/pages/{page}",
        responses=describe_problems(Missing, BookieUnreachable, InvalidRequest, *ACTS),
    )
    async def do_page(
        bookie_id: BookieName,
        page: BookieAction,
        wanted: Annotated[
            dict[str, Any] | None, Body(max_length=_SAID_MAX, examples=[{"readOnly": True}])
        ] = None,
    ) -> BookiePage:
        """Requests an action from the bookie. The body is passed on to it, for example `{"readOnly": true}` for
        `readonly`.
        """
        path = f"/api/v1/bookie/{_DONE[page]}"
        with acts.act(Duty.OPERATE, "AskBookie", bookie=bookie_id, page=page.value):
            answer = await admin.ask_pages(bookie_id, "PUT", path, wanted)
        return BookiePage(bookie=bookie_id, answer=answer)

    return routes
