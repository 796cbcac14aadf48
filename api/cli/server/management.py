"""HTTP management and the dashboard beside a recovery server, or without one: loaded only with `--http`."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from rollbook.api.access.audit import AuditLog
from rollbook.api.access.authenticator import Authenticator
from rollbook.api.access.managing import Managing
from rollbook.api.cli.cluster.management import ClusterManagement, PagesOf, StoreWatch
from rollbook.api.client.target import token_of_file
from rollbook.api.dashboard.app import Dashboard
from rollbook.api.dashboard.log_servers import IN_THE_CLEAR, LogServers, LogTls
from rollbook.api.dashboard.page_sources import PageSources
from rollbook.api.dashboard.parts import PREFIX
from rollbook.api.dashboard.responses import refused
from rollbook.api.dashboard.sampler import Sampler
from rollbook.api.rest.cluster import OPEN_PATHS, make_app
from rollbook.api.rest.operations import RunningOperations
from rollbook.api.rest.server import Bounds, HttpConfig, HttpServer
from rollbook.api.rest.settings_models import OwnProcess
from rollbook.ledger.ledgers import Ledgers
from rollbook.proto.ports import Address
from rollbook.proto.runtime.metrics import Metrics
from rollbook.recovery.events import ClusterEventLog

_BOUNDS: Final = Bounds(connections=256, may_stream=True)  # Each open page has a stream.


@asynccontextmanager
async def management(
    ledgers: Ledgers,
    events: ClusterEventLog,
    metadata: str,
    config: HttpConfig,
    authenticator: Authenticator | None,
    metrics: Metrics,
    log_tls: LogTls = IN_THE_CLEAR,
    *,
    own_logs: Mapping[str, Metrics] = {},
    metrics_token_file: str = "",
    pages_of: PagesOf | None = None,
    callback_hosts: Sequence[str] = (),
    own: OwnProcess | None = None,
) -> AsyncIterator[Address]:
    """Where it listens. `metadata`: the URL, as it may be shown. `own_logs`: of log servers in this process, by name.
    `metrics_token_file`: shown to others, for their /metrics. `callback_hosts`: where callbacks may be sent. `own`: the
    process that serves it. Raises `BadConfig`.
    """
    async with AsyncExitStack() as stack:
        watch = StoreWatch(ledgers.store)
        watching = asyncio.create_task(watch.run())
        stack.callback(watching.cancel)
        admin = ClusterManagement(ledgers, events, watch, metadata, pages_of, callback_hosts)
        managing, operations = Managing(audit_of(authenticator)), RunningOperations()
        stack.push_async_callback(operations.close)

        async def log_addresses() -> list[str]:
            return [each["address"] for each in await admin.log_servers()]

        logs = LogServers(log_addresses, log_tls)
        stack.push_async_callback(logs.close)
        sampler = Sampler(
            admin.log_servers,
            own_logs,
            authorities=log_tls.authorities,
            tls_name=log_tls.name,
            token=lambda: token_of_file(metrics_token_file),
        )
        sampling = asyncio.create_task(sampler.run())
        stack.callback(sampling.cancel)
        own = own or OwnProcess("this server", (), metrics)
        app = make_app(admin, managing, operations, metrics, own.settings)
        dashboard = Dashboard(
            PageSources(admin, managing, operations, logs, sampler.samples, own),
            authenticator,
            lambda: secrets.token_urlsafe(32),
            is_behind_tls=config.tls is not None,
        )
        stack.push_async_callback(dashboard.close)
        app.router.routes.extend(dashboard.routes)
        server = await HttpServer.start(
            app,
            config,
            (*OPEN_PATHS, "/"),
            authenticator,
            _BOUNDS,
            own_door=PREFIX,
            own_refusal=refused,
        )
        stack.push_async_callback(server.close)
        stack.callback(dashboard.end_streams)
        yield server.address


def audit_of(authenticator: Authenticator | None) -> AuditLog:
    """The audit. Without authentication it has no principals, and follows the log level."""
    return authenticator.audit if authenticator else AuditLog(time.monotonic_ns, heeds_level=True)
