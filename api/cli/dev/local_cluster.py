"""A whole cluster in this process: bookies, one log server and recovery, with the metadata in one file.

All its files are in one directory, where the next run finds them:

    metadata.db              the embedded store
    bk-1/journal, ledgers    each bookie's files
    LOCK                     locked by the process that runs the cluster

A bookie is known by its name, so its port may change between runs: if its usual port is in use, it takes a
free port. All bookies of earlier runs are started, even if fewer are requested.
"""

import os
import random
import re
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from rollbook import __version__
from rollbook.api.access.authenticator import Authenticator
from rollbook.api.cli.error_output import explain_error
from rollbook.api.cli.recovery.possible_loss_adapters import LocalDoubts
from rollbook.api.cli.server.log import LogSettings, RunningLogServer, log_server, tls_files
from rollbook.api.cli.server.recovery import (
    RecoveryServerConfig,
    RecoverySettings,
    recovery_server,
)
from rollbook.api.cli.system_ports import RealMachine
from rollbook.bookie.admin_operations import Admin
from rollbook.bookie.bookie import DEFAULT_PORT, Bookie, Settings
from rollbook.bookie.config import BookieConfig, StorageConfig
from rollbook.logservice.config import LogServerConfig, LogServiceConfig
from rollbook.logservice.core.owner_placement import server_name
from rollbook.logservice.stats import PART as LOG_PART
from rollbook.proto.addresses import parse_address
from rollbook.proto.cluster.cluster_root import initialise
from rollbook.proto.errors import BadConfig, ClusterExists, RollbookError
from rollbook.proto.ids import BookieId
from rollbook.proto.loopback_addresses import is_loopback
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.ports import Address, MetadataStore
from rollbook.proto.runtime.metastore import open_metadata_store
from rollbook.proto.runtime.metastore.embedded_owner import end_process
from rollbook.proto.runtime.network import cannot_listen
from rollbook.proto.runtime.prometheus_text import Metrics
from rollbook.proto.runtime.system_disk import SystemDisk
from rollbook.proto.tasks import first_of
from rollbook.recovery.autorecovery import RecoveryServer
from rollbook.recovery.possible_losses_port import BookieDoubts
from rollbook.recovery.stats import PART

DASHBOARD_PORT: Final = 7500
_MIB: Final = 1024 * 1024
_LEASE_S: Final = (
    30.0  # Long, because no other server could take over if this one is slow on a busy machine.
)
_HOST: Final = "127.0.0.1"
_NAME: Final = re.compile(r"bk-([1-9][0-9]?)")


@dataclass(frozen=True, slots=True)
class Sizes:
    """The memory and disk limits of each server in the local cluster."""

    journal_file_bytes: int
    index_bytes: int
    cache_bytes: int
    tail_memory_bytes: int
    page_cache_bytes: int  # The page cache of all bookies together.


SMALL: Final = Sizes(32 * _MIB, 16 * _MIB, 32 * _MIB, 64 * _MIB, 256 * _MIB)
LARGE: Final = Sizes(128 * _MIB, 96 * _MIB, 192 * _MIB, 256 * _MIB, 1536 * _MIB)


@dataclass(frozen=True, slots=True)
class LocalCluster:
    url: str  # The metadata URL.
    bookies: dict[str, Bookie]
    logs: RunningLogServer
    dashboard: str = ""  # The dashboard's URL; empty if the command has no --http.

    async def failed(self) -> BaseException:
        """Waits until an error stops a bookie, and returns the error."""
        return await first_of(*(bookie.failed() for bookie in self.bookies.values()))


@asynccontextmanager
async def local_cluster(
    folder: str,
    bookies: int,
    server: LogServerConfig,
    sizes: Sizes,
    http: str = "",
    callback_hosts: tuple[str, ...] = (),
) -> AsyncIterator[LocalCluster]:
    """Runs the whole cluster within the context. `folder` is an absolute path; `server.metadata` is ignored.
    `http` is the address of management and the dashboard, which use the certificate and the tokens of the log
    server. `callback_hosts` are the hosts to which callbacks may be sent.

    Raises `DirectoryInUse` if another process uses the folder, `BadConfig` if the folder is unsuitable, and
    the errors of servers that cannot start.
    """
    machine = RealMachine(SystemDisk(sizes.page_cache_bytes))
    async with AsyncExitStack() as stack:
        try:
            await machine.disk.make_directory(folder)
            lock = await machine.disk.lock(os.path.join(folder, "LOCK"))
        except OSError as error:
            raise BadConfig(
                f"cannot keep data in {folder}: {error.strerror}",
                next_step="use --data DIR with a directory that you can write or create",
            ) from error
        stack.push_async_callback(lock.release)
        url = f"sqlite://{folder}/metadata.db"
        store = await open_metadata_store(url, serve=True, create=True, on_fatal=_explain_and_end)
        stack.push_async_callback(store.close)
        await _ensure_cluster(store, url)
        running: dict[str, Bookie] = {}
        for number in range(1, max([bookies, *_found(folder)]) + 1):
            name = f"bk-{number}"
            running[name] = bookie = await _open_bookie(machine, folder, url, number, sizes)
            stack.push_async_callback(bookie.close)
            await bookie.register()
        count, dashboard = len(running), ""
        logs = await stack.enter_async_context(
            log_server(
                _log_settings(url, count, server, sizes),
                serves_store=False,
                dashboard=lambda: dashboard,
            )
        )
        recovery = RecoverySettings(
            RecoveryServerConfig(url, name="recovery-1", callback_hosts=callback_hosts)
        )
        admins = {
            name: Admin(bookie, machine.disk, machine.clock) for name, bookie in running.items()
        }
        local: dict[BookieId, BookieDoubts] = {
            BookieId(name): LocalDoubts(admin) for name, admin in admins.items()
        }
        repair = await stack.enter_async_context(
            recovery_server(recovery, serves_store=False, doubts_of=local.get)
        )
        dashboard = await stack.enter_async_context(
            _dashboard(repair, recovery, server, http, logs, admins)
        )
        yield LocalCluster(url, running, logs, dashboard)


@asynccontextmanager
async def _dashboard(
    repair: RecoveryServer,
    settings: RecoverySettings,
    server: LogServerConfig,
    http: str,
    logs: RunningLogServer,
    admins: Mapping[str, Admin],
) -> AsyncIterator[str]:
    if not http:
        yield ""
        return
    # FastAPI takes a third of a second to load.
    from rollbook.api.cli.dev.asgi_admin_client import local_pages
    from rollbook.api.cli.server.management_http import ProcessAccess, audit_of, management
    from rollbook.api.dashboard.page_dependencies import OwnProcess
    from rollbook.api.dashboard.viewer_log_client import LogTls
    from rollbook.api.rest.server import HttpConfig

    metrics = Metrics()
    metrics.add(PART, repair.stats)
    metrics.add_process(__version__)
    tls, url = tls_files(server), settings.server.metadata
    config = HttpConfig(
        dashboard_address(http, server),
        server.token_file or None,
        tls,
        knows_callers=bool(server.access_file),
    )
    authenticator = Authenticator.of(server.token_file, server.access_file)
    # The dashboard calls the log server in this process, so it trusts that server's certificate.
    log_tls = LogTls(bool(tls), tls.certificate if tls else "")
    own_logs = Metrics()
    own_logs.add(LOG_PART, logs.stats)
    async with (
        local_pages(admins, audit_of(authenticator)) as pages,
        management(
            repair.ledgers,
            repair.events,
            url,
            config,
            authenticator,
            OwnProcess(repair.name, settings.shown(), metrics),
            ProcessAccess(
                log_tls,
                own_logs={server_name(logs.server.server_id): own_logs},
                pages_of=pages.get,
                callback_hosts=settings.server.callback_hosts,
            ),
        ) as where,
    ):
        yield f"{'https' if tls else 'http'}://{where}"


def dashboard_address(http: str, server: LogServerConfig) -> Address:
    """Returns the address of management and the dashboard.

    Raises `BadConfig` if the address is invalid, or off loopback without TLS and a token. `insecure` exempts only
    the log server's address, not this one (MG2).
    """
    address = parse_address(http, "--http", default_host=_HOST, default_port=DASHBOARD_PORT)
    is_locked = server.tls_certificate and (server.token_file or server.access_file)
    if is_locked or is_loopback(address.host):
        return address
    raise BadConfig(
        f"--http {address} would be open to the network",
        next_step="use --tls-certificate with --token-file or --access-file, "
        f"or use --http {_HOST}:{address.port}",
    )


async def _open_bookie(
    machine: RealMachine, folder: str, url: str, number: int, sizes: Sizes
) -> Bookie:
    """Opens a bookie. If another process took the port before the bookie could listen on it, this tries once more
    with a free port.
    """
    settings = _bookie_settings(folder, url, number, sizes)
    try:
        return await Bookie.open(machine, await open_metadata_store(url), settings)
    except BadConfig:
        elsewhere = _bookie_settings(folder, url, number, sizes)
        if elsewhere == settings:
            raise
    return await Bookie.open(machine, await open_metadata_store(url), elsewhere)


def _explain_and_end(error: BaseException) -> None:
    """Prints the error as `main` would, and ends the process."""
    if isinstance(error, RollbookError):
        explain_error(error)
    end_process(error)


async def _ensure_cluster(store: MetadataStore, url: str) -> None:
    try:
        await initialise(store, MetadataUrl.parse(url).ledgers_root, random.SystemRandom())
    except ClusterExists:
        pass  # An earlier run created the cluster.


def _found(folder: str) -> list[int]:
    """Returns the numbers of the bookies that earlier runs created."""
    matches = map(_NAME.fullmatch, os.listdir(folder))
    return [int(match[1]) for match in matches if match]


def _bookie_settings(folder: str, url: str, number: int, sizes: Sizes) -> Settings:
    home = os.path.join(folder, f"bk-{number}")
    return Settings(
        BookieConfig(
            url,
            bookie_id=f"bk-{number}",
            listen=str(usual_or_free(Address(_HOST, DEFAULT_PORT + number - 1))),
        ),
        StorageConfig(
            os.path.join(home, "journal"),
            (os.path.join(home, "ledgers"),),
            journal_file_bytes=sizes.journal_file_bytes,
            index_bytes_max=sizes.index_bytes,
            cache_bytes=sizes.cache_bytes,
        ).with_fitting_queue(),
    )


def _log_settings(url: str, bookies: int, server: LogServerConfig, sizes: Sizes) -> LogSettings:
    write = min(bookies, 3)
    service = LogServiceConfig(
        lease_s=_LEASE_S,
        ensemble=write,
        write=write,
        ack=write // 2 + 1,
        tail_memory_bytes=sizes.tail_memory_bytes,
    )
    named = replace(server, metadata=url, server_name=server.server_name or "log-1")
    return LogSettings(named, service)


def usual_or_free(usual: Address) -> Address:
    """Returns the usual address, or port 0 if the usual port is in use, so that the system picks a free port."""
    try:
        require_free(usual)
    except BadConfig:
        return Address(usual.host, 0)
    return usual


def require_free(address: Address) -> None:
    """Raises `BadConfig` if the port is in use. Another process may still take it afterwards."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        with socket.socket(found[0][0], socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(found[0][4])
    except OSError as error:
        raise cannot_listen(address, error) from error
