"""The management route for the events of a cluster."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query

from rollbook.api.rest.cluster_admin_interface import AWAY, ClusterAdmin
from rollbook.api.rest.cluster_models import ClusterEvents
from rollbook.api.rest.cluster_route_parameters import PAGE
from rollbook.api.rest.problems import describe_problems
from rollbook.proto.errors import Missing
from rollbook.recovery.core.event_derivation import EventKind


def events(admin: ClusterAdmin, looks: Sequence[Any]) -> APIRouter:
    routes = APIRouter(tags=["events"])

    @routes.get("/events", dependencies=looks, responses=describe_problems(Missing, *AWAY))
    async def list_events(
        kind: Annotated[EventKind | None, Query()] = None,
        bookie: Annotated[str | None, Query(max_length=255)] = None,
        log: Annotated[str | None, Query(max_length=255)] = None,
        after: Annotated[str, Query(max_length=1000)] = "",
        limit: Annotated[int, Query(ge=1, le=1000)] = PAGE,
    ) -> ClusterEvents:
        """The last 10,000 events that this server has seen, newest first. An event has the same id on every server."""
        asked = {"kind": kind.value if kind else "", "bookie": bookie or "", "log": log or ""}
        wanted = {name: value for name, value in asked.items() if value}
        found, next_after = await admin.events(wanted, after, limit)
        return ClusterEvents.model_validate({"events": found, "next_after": next_after})

    return routes
