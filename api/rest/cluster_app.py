"""HTTP management of a cluster (`/api/v1`): programs can do what `rollbook cluster`, `bookie`, `ledger` and `recovery`
do.

The cluster is passed in as a `ClusterAdmin`, which makes all decisions. Each route requires a duty
(`api/access/core/grants.py`), and the audit records each act.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import APIRouter, Depends, FastAPI, Response
from fastapi.responses import PlainTextResponse

from rollbook import __version__
from rollbook.api.access.core.grants import Duty
from rollbook.api.access.management_rights import Managing
from rollbook.api.rest.app_factory import new_app
from rollbook.api.rest.bookie_management_routes import BookieActs, bookie_acts, bookies
from rollbook.api.rest.bookie_proxy import bookie_pages
from rollbook.api.rest.bookkeeper_paths import as_bookkeeper
from rollbook.api.rest.callback_routes import callbacks
from rollbook.api.rest.cluster_admin_interface import AWAY, ClusterAdmin
from rollbook.api.rest.cluster_events import events
from rollbook.api.rest.cluster_models import ClusterHealth, ClusterSummary
from rollbook.api.rest.cluster_route_parameters import PREFIX
from rollbook.api.rest.cookie_routes import cookies
from rollbook.api.rest.effective_settings_models import EffectiveSettings
from rollbook.api.rest.ledger_routes import ledger_acts, ledger_ends, ledgers
from rollbook.api.rest.operation_registry import RunningOperations
from rollbook.api.rest.operation_routes import lasting_acts, shown_operations
from rollbook.api.rest.problems import describe_problems
from rollbook.api.rest.recovery_routes import recovery, recovery_acts
from rollbook.proto.runtime.prometheus_text import CONTENT_TYPE, Metrics

OPEN_PATHS: Final = ("/heartbeat",)


def make_app(
    admin: ClusterAdmin,
    managing: Managing,
    operations: RunningOperations,
    metrics: Metrics,
    settings: Sequence[Mapping[str, str]] = (),
) -> FastAPI:
    app = new_app(
        "Rollbook cluster",
        "Shows and manages the bookies, ledgers and repairs of one cluster.",
        __version__,
        OPEN_PATHS,
    )

    def needs(duty: Duty) -> Any:
        async def check() -> None:
            managing.require(duty)

        return Depends(check)

    looks = [needs(Duty.LOOK)]
    app.include_router(_probes(metrics, looks))
    for routes in (
        _cluster(admin, settings),
        bookies(admin),
        ledgers(admin),
        recovery(admin),
        shown_operations(admin, operations),
    ):
        app.include_router(routes, prefix=PREFIX, dependencies=looks)
    app.include_router(bookie_acts(admin, managing, operations), prefix=PREFIX)
    app.include_router(ledger_acts(admin, managing), prefix=PREFIX)
    app.include_router(lasting_acts(admin, managing, operations), prefix=PREFIX)
    app.include_router(recovery_acts(admin, managing), prefix=PREFIX)
    acts = BookieActs(admin, managing, operations)
    app.include_router(cookies(admin, acts, looks), prefix=PREFIX)
    app.include_router(ledger_ends(admin, acts), prefix=PREFIX)
    app.include_router(bookie_pages(admin, acts, looks), prefix=PREFIX)
    app.include_router(events(admin, looks), prefix=PREFIX)
    app.include_router(callbacks(admin, managing, looks), prefix=PREFIX)
    app.include_router(as_bookkeeper(admin, managing, acts, looks), prefix=PREFIX)
    return app


def _probes(metrics: Metrics, looks: Sequence[Any]) -> APIRouter:
    routes = APIRouter(tags=["probes"])

    @routes.get("/heartbeat", response_class=PlainTextResponse)
    async def heartbeat() -> str:
        """OK, as long as the process responds."""
        return "OK\n"

    @routes.get("/metrics", response_class=PlainTextResponse, dependencies=looks)
    async def read_metrics() -> Response:
        """The metrics, for Prometheus."""
        return Response(await metrics.page(), media_type=CONTENT_TYPE)

    return routes


def _cluster(admin: ClusterAdmin, settings: Sequence[Mapping[str, str]]) -> APIRouter:
    routes = APIRouter(tags=["cluster"])

    @routes.get("/cluster")
    async def get_cluster() -> ClusterSummary:
        """The cluster's identity. It is shown even while the metadata store is unavailable."""
        return ClusterSummary.model_validate(await admin.cluster())

    @routes.get("/cluster/health", responses=describe_problems(*AWAY))
    async def get_health() -> ClusterHealth:
        """The cluster's health. Each member is asked whether it can be reached, for two seconds at most."""
        return ClusterHealth.model_validate(await admin.health())

    @routes.get("/settings")
    async def get_settings() -> EffectiveSettings:
        """The settings in force in this process and the source of each value, without secrets."""
        return EffectiveSettings.model_validate({"settings": settings})

    return routes
