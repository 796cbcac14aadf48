"""`/metrics` of a log server, for Prometheus: for callers that may see what it counts."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from rollbook.api.rest.openapi import described
from rollbook.api.rest.owner_routing import Door
from rollbook.api.rest.route_parameters import How
from rollbook.logservice import messages
from rollbook.proto.runtime.metrics import CONTENT_TYPE, Metrics


@dataclass(frozen=True, slots=True)
class MetricsPage:
    metrics: Metrics
    look: Callable[[], None]  # For the next time: what takes a while to find out.


def metric_routes(door: Door, shown: MetricsPage) -> APIRouter:
    routes = APIRouter(tags=["probes"])

    @routes.get("/metrics", response_class=PlainTextResponse, **described())
    async def read_metrics(how: How) -> Response:
        """For Prometheus."""
        await door.ask(messages.GetServerStats(), how)
        shown.look()
        parts = []
        for part in shown.metrics.exposition():
            parts.append(part)
            await asyncio.sleep(0)  # Others have appends to answer.
        return Response(b"".join(parts), media_type=CONTENT_TYPE)

    return routes
