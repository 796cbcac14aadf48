"""The process of `rollbook server bookie`: one bookie, which runs until it is stopped.

This is a composition root: it connects packages that do not know each other.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import structlog

from rollbook import __version__
from rollbook.api.cli.run_until_signal import until_stopped
from rollbook.api.cli.server.bookie_settings import (
    BookieFile,
    http_address_of,
    open_store,
    read_bookie_config,
    settings_of,
)
from rollbook.api.cli.server.flags_in_suggested_commands import advising
from rollbook.api.cli.server_startup import open_with_cluster, retry_while_missing, say_ready
from rollbook.api.cli.system_ports import RealMachine
from rollbook.bookie.bookie import Bookie, Settings, addresses_of, tls_address_of
from rollbook.bookie.config import BookieConfig
from rollbook.proto.addresses import require_reachable
from rollbook.proto.errors import BadConfig, BookieFailed, RollbookError
from rollbook.proto.loopback_addresses import is_loopback
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.ports import Address
from rollbook.proto.runtime.gc_tuning import calm_collector
from rollbook.proto.runtime.logging_setup import configure_logs, set_level
from rollbook.proto.runtime.malloc_tuning import keep_freed_memory
from rollbook.proto.runtime.network import SocketTransport
from rollbook.proto.runtime.open_files import allow_open_files
from rollbook.proto.runtime.system_disk import SystemDisk
from rollbook.proto.runtime.tls import TLS_OF_BOOKIES, TlsFiles, server_context

if TYPE_CHECKING:
    from rollbook.api.cli.server.recovery import RecoverySettings
    from rollbook.recovery.stats import RecoveryStats

logger = structlog.get_logger()

# Open files that are not connections: for the store, handshakes, metadata and admin pages.
_OTHER_FILES: Final = 768


def run_bookie(flags: Mapping[str, Any]) -> None:
    """Runs a bookie until it is stopped. Raises `StorageFailed`, `RollbookError`."""
    # Reading the file may write log lines, before the log level in the file is known.
    configure_logs(level=flags["log_level"] or "info", as_json=not sys.stderr.isatty())
    with advising(flags):
        config_file = flags["config_file"]
        file = read_bookie_config(config_file) if config_file else BookieFile({})
        others = {name: value for name, value in flags.items() if name != "config_file"}
        settings = settings_of(file, **others)
        set_level(settings.bookie.log_level)
        recovery = _recovery_settings(file, settings)
        asyncio.run(until_stopped(serve_bookie(settings, recovery)))


class StorageFailed(Exception):
    """The bookie's storage failed. Unacknowledged requests may be lost; the next start shows whether they are."""


def _recovery_settings(file: BookieFile, settings: Settings) -> "RecoverySettings | None":
    if not settings.bookie.with_recovery:
        return None
    # Imported only if the bookie runs a recovery server.
    from rollbook.api.cli.server.recovery import recovery_of_bookie

    return recovery_of_bookie(file, settings)


def _stats_of_recovery(settings: "RecoverySettings | None") -> "RecoveryStats | None":
    if settings is None:
        return None
    from rollbook.recovery.stats import RecoveryStats

    return RecoveryStats()


@asynccontextmanager
async def _recovery(
    settings: "RecoverySettings | None",
    bookie: Bookie,
    machine: RealMachine,
    stats: "RecoveryStats | None",
) -> AsyncIterator[str]:
    """Runs a recovery server within the context, with a separate metadata session. Yields the names of its parts
    for the ready line.
    """
    if settings is None:
        yield ""
        return
    from rollbook.api.cli.recovery.possible_loss_adapters import LocalDoubts
    from rollbook.api.cli.server.recovery import recovery_server
    from rollbook.bookie.admin_operations import Admin

    doubts = LocalDoubts(Admin(bookie, machine.disk, machine.clock))
    async with recovery_server(
        settings,
        serves_store=False,
        local_bookie=bookie.bookie_id,
        doubts_of={bookie.bookie_id: doubts}.get,
        stats=stats,
    ) as server:
        logger.info("recovery_server_started", server=server.name, version=__version__)
        yield f" with {' and '.join(server.kinds)}"


async def serve_bookie(settings: Settings, recovery: "RecoverySettings | None" = None) -> None:
    """Serves until it is cancelled; raises the error that stops the bookie."""
    _require_safe(settings.bookie)
    tls = (
        SocketTransport(server_tls=server_context(_tls_files(settings.bookie), TLS_OF_BOOKIES))
        if settings.bookie.tls_listen
        else None
    )
    _, _, bookie_id = addresses_of(settings.bookie)
    logger.info("bookie_started", bookie=bookie_id, version=__version__, pid=os.getpid())
    settings = _within_limits(settings)
    keep_freed_memory()
    machine = RealMachine(SystemDisk(settings.storage.page_cache_bytes))

    async def open_bookie() -> Bookie:
        url = MetadataUrl.parse(settings.bookie.metadata)
        store, _ = await open_with_cluster(url, lambda: open_store(settings.bookie, serve=True))
        return await Bookie.open(machine, store, settings, tls)

    bookie = await retry_while_missing(open_bookie, settings.bookie.startup_s)
    reason, is_serving = "asked to", False
    try:
        stats = _stats_of_recovery(recovery)
        async with _admin_pages(bookie, machine, stats) as http:
            try:
                await bookie.register(http)
                async with _recovery(recovery, bookie, machine, stats) as parts:
                    calm_collector()
                    _say_ready(bookie, http, parts)
                    is_serving = True
                    raise await bookie.failed()
            finally:
                await bookie.leave()  # Leaves first, so that requests for pages fail immediately.
    except Exception as error:
        is_of_storage = isinstance(error, OSError | BookieFailed)
        reason = "it failed" if is_serving else "it could not start"
        if is_serving or is_of_storage or not isinstance(error, RollbookError):
            logger.error(
                "bookie_failed", bookie=bookie_id, reason=str(error) or type(error).__name__
            )
        # `main` explains the errors that are not logged here, so that each error is reported once.
        if is_of_storage:
            raise StorageFailed from error
        raise
    finally:
        await bookie.close()
        logger.info("bookie_stopped", bookie=bookie_id, reason=reason)


def _within_limits(settings: Settings) -> Settings:
    """Limits the connections, so that enough of the allowed open files remain for the store."""
    server = settings.server
    allowed = allow_open_files(server.connections_max + _OTHER_FILES)
    connections = max(1, allowed - _OTHER_FILES)
    if connections >= server.connections_max:
        return settings
    logger.warning("connections_limited", connections=connections, open_files=allowed)
    return replace(settings, server=replace(server, connections_max=connections))


def _say_ready(bookie: Bookie, http: Address | None, parts: str) -> None:
    """Prints the ready line for people and scripts. Its last word is the bookie's address."""
    pages = f" (http on {http})" if http else ""
    say_ready(f"ready: bookie {bookie.bookie_id}{parts}{pages} on {bookie.address}")
    logger.info("bookie_ready", bookie=bookie.bookie_id, address=str(bookie.address))


@asynccontextmanager
async def _admin_pages(
    bookie: Bookie, machine: RealMachine, recovery: "RecoveryStats | None"
) -> AsyncIterator[Address | None]:
    """Yields the HTTP address of the bookie, or None if it serves no HTTP."""
    config = bookie.config.bookie
    if not config.http:
        yield None
        return
    from rollbook.api.access.authenticator import Authenticator

    # Imported here, because FastAPI takes a third of a second to load.
    from rollbook.api.rest.bookie_admin_server import AdminServer
    from rollbook.api.rest.server import HttpConfig
    from rollbook.bookie.admin_operations import Admin

    where = HttpConfig(
        http_address_of(config),
        token_file=config.http_token_file or None,
        tls=_tls_files(config) if config.http_tls else None,
        insecure=config.insecure,
        knows_callers=bool(config.access_file),
    )
    authenticator = Authenticator.of(config.http_token_file, config.access_file)
    more_stats = {"recovery": recovery} if recovery else {}
    admin = Admin(bookie, machine.disk, machine.clock)
    server = await AdminServer.start(admin, where, more_stats, authenticator)
    try:
        yield server.address
    finally:
        await server.close()


def _tls_files(config: BookieConfig) -> TlsFiles:
    return TlsFiles(config.tls_certificate, config.tls_key, config.tls_authorities)


def _require_safe(config: BookieConfig) -> None:
    """Checks that a port off loopback authenticates its clients, and that the registered address is
    reachable.
    """
    listen, advertised, _ = addresses_of(config)
    tls_listen = tls_address_of(config)
    require_reachable([each for each in (listen, tls_listen) if each], advertised)
    if config.insecure:
        return
    if not is_loopback(listen.host):
        raise BadConfig(
            f"every client that reaches {listen} could read, add and fence",
            next_step="use --listen 127.0.0.1:3181 and --tls-listen HOST:PORT, "
            "or --insecure in a network that you trust",
        )
    if tls_listen and not is_loopback(tls_listen.host) and not config.tls_authorities:
        raise BadConfig(
            f"every client that reaches {tls_listen} could read, add and fence",
            next_step="name the CAs of clients' certificates with --tls-authorities FILE, or use --insecure",
        )
