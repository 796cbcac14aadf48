"""Serves management and the dashboard over HTTP, with or without a recovery server in the same process. This module
is imported only with `--http`.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from rollbook.api.access.audit import AuditLog
from rollbook.api.access.authenticator import Authenticator
from rollbook.api.access.management_rights import Managing
from rollbook.api.client.token_file import token_of_file
from rollbook.api.dashboard.app import Dashboard
from rollbook.api.dashboard.core.samples import Samples
from rollbook.api.dashboard.page_dependencies import OwnProcess, PageSources
from rollbook.api.dashboard.parts import PREFIX
from rollbook.api.dashboard.responses import refused
from rollbook.api.dashboard.sampler import Sampler
from rollbook.api.dashboard.viewer_log_client import IN_THE_CLEAR, LogServers, LogTls
from rollbook.api.management.cluster import ClusterManagement, PagesOf
from rollbook.api.management.store_calls import StoreWatch
from rollbook.api.rest.cluster_app import OPEN_PATHS, make_app
from rollbook.api.rest.operation_registry import RunningOperations
from rollbook.api.rest.request_limits import Bounds
from rollbook.api.rest.server import HttpConfig, HttpServer
from rollbook.ledger.ledgers import Ledgers
from rollbook.proto.ports import Address
from rollbook.proto.runtime.prometheus_text import Metrics
from rollbook.recovery.cluster_event_log import ClusterEventLog

# Each open page of the dashboard holds a stream.
_BOUNDS: Final = Bounds(connections=256, may_stream=True)


@dataclass(frozen=True, slots=True)
class ProcessAccess:
    """The credentials and functions with which management reaches the cluster's processes."""

    log_tls: LogTls = IN_THE_CLEAR
    # The metrics of log servers in this process, by name.
    own_logs: Mapping[str, Metrics] = field(default_factory=dict)
    metrics_token_file: str = ""  # The token for the /metrics of other log servers.
    pages_of: PagesOf | None = None  # Returns access to a bookie's admin pages.
    callback_hosts: Sequence[str] = ()  # The hosts to which callbacks may be sent.


@asynccontextmanager
async def management(
    ledgers: Ledgers,
    events: ClusterEventLog,
    metadata: str,
    config: HttpConfig,
    authenticator: Authenticator | None,
    own: OwnProcess,
    access: ProcessAccess,
) -> AsyncIterator[Address]:
    """Serves management and yields its address. `metadata` is the URL without secrets; `own` describes this
    process.

    Raises `BadConfig`.
    """
    async with AsyncExitStack() as stack:
        watch = StoreWatch(ledgers.store)
        watching = asyncio.create_task(watch.run())
        stack.callback(watching.cancel)
        admin = ClusterManagement(
            ledgers, events, watch, metadata, access.pages_of, access.callback_hosts
        )
        managing, operations = Managing(audit_of(authenticator)), RunningOperations()
        stack.push_async_callback(operations.close)
        logs = _log_servers(stack, admin, access.log_tls)
        samples = _sample(stack, admin, access)
        app = make_app(admin, managing, operations, own.metrics, own.settings)
        dashboard = Dashboard(
            PageSources(admin, managing, operations, logs, samples, own),
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


def _log_servers(stack: AsyncExitStack, admin: ClusterManagement, tls: LogTls) -> LogServers:
    """Returns access to the log servers for the dashboard's pages. The stack closes the connections."""

    async def log_addresses() -> list[str]:
        return [each["address"] for each in await admin.log_servers()]

    logs = LogServers(log_addresses, tls)
    stack.push_async_callback(logs.close)
    return logs


def _sample(stack: AsyncExitStack, admin: ClusterManagement, access: ProcessAccess) -> Samples:
    """Samples the counters of log servers until the stack closes."""
    sampler = Sampler(
        admin.log_servers,
        access.own_logs,
        authorities=access.log_tls.authorities,
        tls_name=access.log_tls.name,
        token=lambda: token_of_file(access.metrics_token_file),
    )
    sampling = asyncio.create_task(sampler.run())
    stack.callback(sampling.cancel)
    return sampler.samples


def audit_of(authenticator: Authenticator | None) -> AuditLog:
    """Returns the audit log. Without authentication it names no principals and follows the log level."""
    return authenticator.audit if authenticator else AuditLog(time.monotonic_ns, heeds_level=True)
