"""Serves REST beside a log server's gRPC. This module is imported only with `--rest`."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace

from rollbook import __version__
from rollbook.api.access.authenticator import Authenticator
from rollbook.api.access.certificate_expiry_watch import CertificateWatch
from rollbook.api.cli.server.log import HTTP_PART, LogSettings, rest_address_of, tls_files
from rollbook.api.grpc.peer_channels import GrpcPeers
from rollbook.api.rest.log_app import BOUNDS, RestServer
from rollbook.api.rest.metrics_and_settings import MetricsPage
from rollbook.api.rest.server import HttpConfig
from rollbook.logservice.config import LogServerConfig
from rollbook.logservice.log_ownership import LogServer
from rollbook.logservice.service import LogService
from rollbook.logservice.stats import PART
from rollbook.proto.loopback_addresses import is_loopback
from rollbook.proto.ports import Address
from rollbook.proto.runtime.open_files import door_of
from rollbook.proto.runtime.prometheus_text import Metrics
from rollbook.proto.tasks import stop_tasks


def _metrics_of(stack: AsyncExitStack, service: LogService, config: LogServerConfig) -> Metrics:
    """Creates the metrics. Closing the stack ends their tasks. Raises `BadConfig`."""
    metrics = Metrics()
    metrics.add(PART, service.stats)
    metrics.add_process(__version__)
    if config.tls_certificate:
        watch = CertificateWatch(config.tls_certificate)
        metrics.add("tls", watch.stats)
        watching = asyncio.get_running_loop().create_task(watch.watch())
        stack.push_async_callback(_end, watching)
    return metrics


async def _end(task: "asyncio.Task[None]") -> None:
    await stop_tasks(task)


async def serve_rest(
    stack: AsyncExitStack,
    service: LogService,
    server: LogServer,
    peers: GrpcPeers,
    settings: LogSettings,
    host: str,
    authenticator: Authenticator | None,
    dashboard: Callable[[], str] | None = None,
) -> str:
    """Serves REST until the stack closes. Returns the URL of REST at `host`, or an empty text if REST is reachable
    only from this machine, but `host` is not loopback. Raises `BadConfig`.
    """
    config = settings.server
    metrics = _metrics_of(stack, service, config)
    listen = rest_address_of(config)
    tls = tls_files(config)
    http = HttpConfig(
        listen,
        config.token_file or None,
        tls,
        config.insecure,
        knows_callers=bool(config.access_file),
        origins=config.rest_origin,
    )

    def url_of(address: str) -> str:
        for each in server.membership.servers:
            if each.info.address == address:
                return each.http
        return ""

    def is_ready() -> bool:
        found = server.membership.find(server.server_id)
        return found is not None and not found.is_draining

    rest = await RestServer.start(
        service,
        http,
        url_of,
        peers,
        is_ready,
        bounds=replace(BOUNDS, connections=door_of(HTTP_PART, BOUNDS.connections)),
        authenticator=authenticator,
        shown=MetricsPage(metrics, server.cursor_lags.look, settings.shown()),
        dashboard=dashboard,
    )
    stack.push_async_callback(rest.close)
    if is_loopback(listen.host) and not is_loopback(host):
        return ""
    return f"{'https' if tls else 'http'}://{Address(host, rest.address.port)}"
