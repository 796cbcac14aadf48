"""Management routes for the cookies of bookies."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from fastapi import APIRouter

from rollbook.api.access.core.grants import Duty
from rollbook.api.rest.bookie_management_routes import BookieActs
from rollbook.api.rest.cluster_admin_interface import ACTS, AWAY, ClusterAdmin
from rollbook.api.rest.cluster_models import Cookies, StoredCookie, WantedCookie, WantedDirectories
from rollbook.api.rest.cluster_route_parameters import BookieName
from rollbook.api.rest.operation_routes import GOES_ON, begun_answer
from rollbook.api.rest.problems import describe_problems
from rollbook.proto.errors import InvalidRequest, LifecycleConflict, Missing, NodeExists, Overloaded


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
        responses=GOES_ON
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
        responses=GOES_ON | describe_problems(Missing, LifecycleConflict, Overloaded, *ACTS),
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
