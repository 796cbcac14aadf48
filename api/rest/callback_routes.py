"""Management routes for callbacks, which receive the events of a cluster."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response

from rollbook.api.access.authenticator import CALLER
from rollbook.api.access.core.grants import Duty
from rollbook.api.access.management_rights import Managing
from rollbook.api.rest.callback_target import origin_of
from rollbook.api.rest.cluster_admin_interface import ACTS, AWAY, ClusterAdmin
from rollbook.api.rest.cluster_models import (
    Callback,
    Callbacks,
    Deliveries,
    Delivery,
    NewCallback,
    WantedCallback,
)
from rollbook.api.rest.operation_registry import Facts
from rollbook.api.rest.problems import describe_problems
from rollbook.proto.errors import InvalidRequest, Missing, Overloaded

CallbackId = Annotated[str, Path(min_length=1, max_length=100)]


def may_see_urls() -> bool:
    """Whether the caller may see whole URLs: a path is often a secret that lets anybody write to a channel."""
    return CALLER.get().principal.grants.may_manage(Duty.REMOVE)


class CallbackActs:
    """The code that routes and dashboard pages share. It checks rights, and the audit that it writes has only the
    origins of URLs.
    """

    def __init__(self, admin: ClusterAdmin, managing: Managing) -> None:
        self._admin = admin
        self._managing = managing

    async def create(self, url: str, kinds: Sequence[str], bookie: str | None) -> Facts:
        about: Mapping[str, Any] = {"to": origin_of(url), "kinds": list(kinds), "bookie": bookie}
        with self._managing.act(Duty.REMOVE, "CreateCallback", **about) as more:
            name = CALLER.get().principal.name
            created = await self._admin.callbacks.create(url, kinds, bookie, name)
            more["callback"] = created["id"]
        return created

    async def delete(self, callback_id: str) -> Facts:
        with self._managing.act(Duty.REMOVE, "DeleteCallback", callback=callback_id):
            return await self._admin.callbacks.delete(callback_id)

    async def test(self, callback_id: str) -> Facts:
        with self._managing.act(Duty.REMOVE, "TestCallback", callback=callback_id):
            return await self._admin.callbacks.test(callback_id)


def callbacks(admin: ClusterAdmin, managing: Managing, looks: Sequence[Any]) -> APIRouter:
    routes = APIRouter(tags=["callbacks"])
    acts = CallbackActs(admin, managing)

    @routes.get("/callbacks", dependencies=looks, responses=describe_problems(*AWAY))
    async def list_callbacks() -> Callbacks:
        """The callbacks, oldest first, without secrets. Only administrators see whole URLs; others see origins."""
        found = await admin.callbacks.list(shows_urls=may_see_urls())
        return Callbacks.model_validate({"callbacks": found})

    @routes.get(
        "/callbacks/{callback_id:part}",
        dependencies=looks,
        responses=describe_problems(Missing, *AWAY),
    )
    async def get_callback(callback_id: CallbackId) -> Callback:
        found = await admin.callbacks.read(callback_id, shows_urls=may_see_urls())
        return Callback.model_validate(found)

    @routes.post(
        "/callbacks",
        status_code=201,
        responses=describe_problems(InvalidRequest, Overloaded, *ACTS),
    )
    async def create_callback(wanted: WantedCallback, response: Response) -> NewCallback:
        """Creates a callback: events from now on are sent to the URL, signed with a secret. Only this response shows
        the secret.
        """
        created = await acts.create(wanted.url, wanted.kinds, wanted.bookie)
        response.headers["location"] = f"/api/v1/callbacks/{created['id']}"
        return NewCallback.model_validate(created)

    @routes.delete("/callbacks/{callback_id:part}", responses=describe_problems(Missing, *ACTS))
    async def delete_callback(callback_id: CallbackId) -> Callback:
        """Deletes the callback and returns it. Its undelivered events are dropped."""
        return Callback.model_validate(await acts.delete(callback_id))

    @routes.post("/callbacks/{callback_id:part}:test", responses=describe_problems(Missing, *ACTS))
    async def test_callback(callback_id: CallbackId) -> Delivery:
        """Sends one event of the kind `test`, without retries, and returns the result."""
        return Delivery.model_validate(await acts.test(callback_id))

    @routes.get(
        "/callbacks/{callback_id:part}/deliveries",
        dependencies=looks,
        responses=describe_problems(Missing, *AWAY),
    )
    async def list_deliveries(callback_id: CallbackId) -> Deliveries:
        """The last hundred attempts, newest first."""
        return Deliveries.model_validate(await admin.callbacks.deliveries(callback_id))

    return routes
