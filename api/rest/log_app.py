"""Serves named logs over HTTP (`/v1`), with the same service core as gRPC. DESIGN.md lists the routes."""

from collections.abc import Callable
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from rollbook import __version__
from rollbook.api.access.authenticator import Authenticator
from rollbook.api.access.authorized_service import AuthorizedService
from rollbook.api.rest import (
    log_admin,
    log_cursors,
    log_records,
    log_segments,
    log_servers,
    log_writer_epochs,
    metrics_and_settings,
)
from rollbook.api.rest.app_factory import new_app
from rollbook.api.rest.index_page import add_index
from rollbook.api.rest.metrics_and_settings import MetricsPage
from rollbook.api.rest.owner_routing import OwnerRouting, PeerServers
from rollbook.api.rest.problems import describe_problems, response_of
from rollbook.api.rest.request_limits import Bounds
from rollbook.api.rest.server import HttpConfig, HttpServer
from rollbook.logservice.messages import ServiceCore
from rollbook.proto.errors import NotOwner, OwnerChanging, RollbookError
from rollbook.proto.ports import Address

OPEN_PATHS: Final[tuple[str, ...]] = ("/healthz", "/readyz")

_MIB: Final = 1024 * 1024
BOUNDS: Final = Bounds(
    connections=4096,
    backlog=1024,
    body_bytes=8 * _MIB,  # Room for a batch of 5 MiB as JSON.
    bodies_bytes=64 * _MIB,
    answers_bytes=64 * _MIB,
    unsent_bytes=1,  # One byte: more is written only after all earlier bytes have left.
    may_stream=True,
)
_RETRY_S: Final = 1


class RestServer:
    """A listening server; use `start` to create one."""

    def __init__(self, http: HttpServer, routing: OwnerRouting) -> None:
        self._http = http
        self._routing = routing

    @classmethod
    async def start(
        cls,
        core: ServiceCore,
        config: HttpConfig,
        url_of: Callable[[str], str],
        peers: PeerServers | None = None,
        is_ready: Callable[[], bool] = lambda: True,
        bounds: Bounds = BOUNDS,
        authenticator: Authenticator | None = None,
        shown: MetricsPage | None = None,
        dashboard: Callable[[], str] | None = None,
    ) -> "RestServer":
        """`url_of`: see `OwnerRouting`. `is_ready`: whether balancers should send clients here. `authenticator`: the
        one that gRPC uses, too; by default one for the token of `config`, if it has one. `shown`: the contents of
        `/metrics` and `/v1/settings`. `dashboard`: returns the URL to which browsers at `/` are redirected; empty:
        there is none yet. Raises `BadConfig`.
        """
        authenticator = authenticator or Authenticator.of(config.token_file)
        service = AuthorizedService(core, authenticator.audit if authenticator else None)
        routing = OwnerRouting(service, url_of, peers)
        app = make_app(
            routing, is_ready, shown, dashboard, asks_for_tokens=authenticator is not None
        )
        open_paths = (*OPEN_PATHS, "/")
        return cls(await HttpServer.start(app, config, open_paths, authenticator, bounds), routing)

    @property
    def address(self) -> Address:
        return self._http.address

    async def close(self) -> None:
        await self._routing.close()
        await self._http.close()


def make_app(
    routing: OwnerRouting,
    is_ready: Callable[[], bool],
    shown: MetricsPage | None = None,
    dashboard: Callable[[], str] | None = None,
    *,
    asks_for_tokens: bool = False,
) -> FastAPI:
    app = new_app("Rollbook", "Durable, replicated, append-only logs.", __version__, OPEN_PATHS)
    _add_redirects(app, routing)
    _add_probes(app, is_ready)
    add_index(app, dashboard, asks_for_tokens=asks_for_tokens)
    app.state.routing = routing
    for each in (log_records, log_admin, log_writer_epochs, log_cursors, log_segments, log_servers):
        app.include_router(each.routes)
    if shown is not None:
        app.state.metrics_page = shown
        app.include_router(metrics_and_settings.routes)
    return app


def _add_redirects(app: FastAPI, routing: OwnerRouting) -> None:
    """Turns `NotOwner` into a redirect to the owner, if its address is known."""

    async def on_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RollbookError)
        if not isinstance(error, NotOwner):
            return response_of(error)
        owner = str(error.ids.get("owner") or "")
        headers = {"log-owner": owner, "log-epoch": str(error.ids.get("owner_epoch", 0))}
        url = routing.url_of(owner)
        if not url:
            headers["retry-after"] = str(_RETRY_S)
            return response_of(error, status=OwnerChanging.code.http, headers=headers)
        query = request.scope["query_string"].decode("ascii")
        path = request.scope["raw_path"].decode("ascii")
        headers["location"] = f"{url}{path}{'?' if query else ''}{query}"
        return response_of(error, headers=headers)

    app.add_exception_handler(RollbookError, on_error)


def _add_probes(app: FastAPI, is_ready: Callable[[], bool]) -> None:
    @app.head("/healthz", response_class=PlainTextResponse, include_in_schema=False)
    @app.get("/healthz", tags=["probes"], response_class=PlainTextResponse)
    async def health() -> str:
        """OK, as long as the process responds."""
        return "OK\n"

    not_ready = describe_problems(OwnerChanging)

    @app.head("/readyz", response_class=PlainTextResponse, include_in_schema=False)
    @app.get("/readyz", tags=["probes"], response_class=PlainTextResponse, responses={**not_ready})
    async def ready() -> Response:
        """OK, or 503 while the server starts, hands over its logs, or is being stopped."""
        if not is_ready():
            return response_of(OwnerChanging("this server does not take logs at present"))
        return PlainTextResponse("OK\n")
