"""`/metrics` and the settings of a log server, for callers that may see its counters."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import PlainTextResponse

from rollbook.api.rest.effective_settings_models import EffectiveSettings
from rollbook.api.rest.openapi_route_schemas import ANYWHERE, described
from rollbook.api.rest.problems import describe_problems
from rollbook.api.rest.route_parameters import How, Routing
from rollbook.logservice import messages
from rollbook.proto.runtime.prometheus_text import CONTENT_TYPE, Metrics


@dataclass(frozen=True, slots=True)
class MetricsPage:
    metrics: Metrics
    look: Callable[[], None]  # Starts collecting the slow facts for the next scrape.
    settings: Sequence[Mapping[str, str]] = ()


routes: Final = APIRouter(tags=["probes"])


async def _metrics_page(request: Request) -> MetricsPage:
    page: MetricsPage = request.app.state.metrics_page
    return page


Shown = Annotated[MetricsPage, Depends(_metrics_page)]


@routes.get("/metrics", response_class=PlainTextResponse, **described())
async def read_metrics(routing: Routing, shown: Shown, how: How) -> Response:
    """The metrics, for Prometheus."""
    await routing.ask(messages.GetServerStats(), how)
    shown.look()
    return Response(await shown.metrics.page(), media_type=CONTENT_TYPE)


@routes.get(
    "/v1/settings", response_model=EffectiveSettings, responses=describe_problems(*ANYWHERE)
)
async def read_settings(routing: Routing, shown: Shown, how: How) -> EffectiveSettings:
    """The settings in force on this server and the source of each value, without secrets."""
    await routing.ask(messages.GetServerStats(), how)
    return EffectiveSettings.model_validate({"settings": shown.settings})
