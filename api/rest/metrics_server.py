"""The HTTP pages of a server that has only metrics."""

from typing import Final

from fastapi.responses import PlainTextResponse, Response

from rollbook import __version__
from rollbook.api.rest.app_factory import new_app
from rollbook.api.rest.server import HttpConfig, HttpServer
from rollbook.proto.ports import Address
from rollbook.proto.runtime.prometheus_text import CONTENT_TYPE, Metrics

_OPEN_PATHS: Final = ("/heartbeat",)


async def start_metrics_page(
    title: str, metrics: Metrics, address: Address, *, insecure: bool = False
) -> HttpServer:
    """Starts the server. Raises `BadConfig` off loopback unless `insecure` is set, since there are no tokens here."""
    app = new_app(title, "The metrics of this process.", __version__, _OPEN_PATHS)

    @app.get("/heartbeat", response_class=PlainTextResponse)
    async def heartbeat() -> str:
        """OK, as long as the process responds."""
        return "OK\n"

    @app.get("/metrics", response_class=PlainTextResponse)
    async def read_metrics() -> Response:
        """The metrics, for Prometheus."""
        return Response(await metrics.page(), media_type=CONTENT_TYPE)

    return await HttpServer.start(app, HttpConfig(address, insecure=insecure), _OPEN_PATHS, None)
