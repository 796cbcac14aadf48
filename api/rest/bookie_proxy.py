"""Management routes that are forwarded to the admin pages of a single bookie."""

from collections.abc import Sequence
from enum import Enum
from typing import Annotated, Any, Final

from fastapi import APIRouter, Body

from rollbook.api.access.core.grants import Duty
from rollbook.api.rest.bookie_management_routes import BookieActs
from rollbook.api.rest.cluster_admin_interface import ACTS, ClusterAdmin
from rollbook.api.rest.cluster_models import BookiePage
from rollbook.api.rest.cluster_route_parameters import BookieName
from rollbook.api.rest.problems import describe_problems
from rollbook.proto.errors import BookieUnreachable, InvalidRequest, Missing

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
