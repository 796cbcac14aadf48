"""The process of `rollbook server recovery`: one recovery server, which runs until it is stopped.

This is a composition root: it connects the auditor and the worker with the machine.
"""

import asyncio
import random
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import structlog

from rollbook import __version__
from rollbook.api.access.authenticator import Authenticator
from rollbook.api.cli.bookie_admin_client import AdminClient
from rollbook.api.cli.recovery.possible_loss_adapters import AdminDoubts
from rollbook.api.cli.run_until_signal import until_stopped
from rollbook.api.cli.server.bookie_settings import (
    RECOVERY_SECTIONS,
    BookieFile,
    load_section,
    read_bookie_config,
)
from rollbook.api.cli.server.operation_handlers import describe_error, kinds_of, log_made_for
from rollbook.api.cli.server_startup import open_with_cluster, say_ready, starting
from rollbook.api.cli.system_ports import RealMachine
from rollbook.api.rest.callback_post import CallbackPost
from rollbook.api.rest.callback_target import check_hosts
from rollbook.bookie.bookie import Settings, addresses_of
from rollbook.ledger.config import ClientConfig
from rollbook.ledger.ledgers import Ledgers
from rollbook.proto.addresses import EVERY_ADDRESS, parse_address
from rollbook.proto.errors import BadConfig
from rollbook.proto.ids import BookieId, parse_bookie_id
from rollbook.proto.loopback_addresses import is_loopback
from rollbook.proto.metastore.url import Backend, MetadataUrl
from rollbook.proto.ports import Address, MetadataStore, Randomness
from rollbook.proto.runtime.config import read_config_file, variables_of_flags
from rollbook.proto.runtime.gc_tuning import calm_collector
from rollbook.proto.runtime.logging_setup import check_log_level, configure_logs
from rollbook.proto.runtime.malloc_tuning import keep_freed_memory
from rollbook.proto.runtime.metastore import open_metadata_store
from rollbook.proto.runtime.network import SocketTransport
from rollbook.proto.runtime.open_files import allow_open_files
from rollbook.proto.runtime.prometheus_text import Metrics
from rollbook.proto.runtime.tls import ClientTls, TlsFiles
from rollbook.proto.shown_settings import shown_settings
from rollbook.proto.tasks import TaskGroup, unwrapped
from rollbook.recovery.autorecovery import (
    ProcessIdentity,
    RecoveryConfig,
    RecoveryPorts,
    RecoveryServer,
)
from rollbook.recovery.config import AuditConfig, HealConfig, StewardConfig, WorkerConfig
from rollbook.recovery.heal_scheduler import DoubtsOf
from rollbook.recovery.possible_losses_port import BookieDoubts
from rollbook.recovery.stats import PART, RecoveryStats

logger = structlog.get_logger()

_OPEN_FILES: Final = 16_384
_DEFAULT_HTTP_PORT: Final = 8002
_PARTS: Final = ("audit", "steward", "heal", "worker")


@dataclass(frozen=True)
class RecoveryServerConfig:
    """The settings of a recovery server: its cluster and the parts that it runs."""

    metadata: str  # The URL of the cluster: zk://host,host/ledgers or sqlite:///path.
    name: str = ""  # The name in votes and locks; empty for the host's name.
    no_auditor: bool = False
    no_worker: bool = False
    # The token for the admin pages of bookies, through which doubts are read and healed.
    bookie_token_file: str = ""
    # The CAs of the admin pages' certificates. If it is set, the pages are called over HTTPS.
    bookie_ca_file: str = ""
    tls_authorities: str = (
        # A file with the CAs of bookies' certificates. If it is empty, connections are not encrypted.
        ""
    )
    tls_certificate: str = ""  # A file with the certificate for bookies that request one.
    tls_key: str = (
        ""  # The file with the key of tls_certificate; empty if the certificate's file has it.
    )
    http: str = ""  # The HTTP address of management, dashboard and metrics; empty for none.
    # If True, the server neither votes nor repairs. This is for clusters with BookKeeper's autorecovery.
    only_http: bool = False
    http_token_file: str = ""  # Callers that show this token over HTTP may do everything.
    access_file: str = ""  # The file with the rights over HTTP, managed by `rollbook access`.
    http_tls_certificate: str = ""  # The file with the certificate for HTTP, which then uses TLS.
    http_tls_key: str = (
        ""  # The file with the certificate's key; empty if the certificate's file has it.
    )
    # A file with the CAs of log servers' certificates. If it is empty, the dashboard connects in the clear,
    # and sends tokens only to this machine.
    log_tls_authorities: str = ""
    # The name in the log servers' certificates. If it is empty, each server's certificate must have the server's
    # advertised name.
    log_tls_name: str = ""
    log_metrics_token_file: str = (
        ""  # The token for the log servers' /metrics, which the dashboard's charts need.
    )
    # The hosts to which callbacks may be sent, each with or without a port. If it is empty, no callbacks are
    # sent.
    callback_hosts: tuple[str, ...] = ()
    # A file with the CAs of callback receivers' certificates, instead of the system's.
    callback_ca_file: str = ""
    # Serves metrics off loopback without TLS and a token. Management always needs both.
    insecure: bool = False
    log_level: str = "info"  # One of debug, info, warning and error.
    # Seconds without contact after which the metadata store ends the server's session. Longer: the server survives
    # short outages, but a dead server's locks and votes stay longer. Shorter: a dead server's work is taken over
    # sooner, but a live server that pauses may be taken for dead.
    session_timeout_s: float = 10.0
    # Seconds to wait at the start for a missing metadata store or cluster. Longer: machines may start in any
    # order. Shorter: a wrong address is reported sooner.
    startup_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0.5 <= self.session_timeout_s <= 600:
            raise BadConfig("session_timeout_s must be 0.5 to 600", settings=("session_timeout_s",))
        if not 0 <= self.startup_s <= 86_400:
            raise BadConfig("startup_s must be 0 to 86400", settings=("startup_s",))
        if self.tls_certificate and not self.tls_authorities:
            raise BadConfig(
                "TLS needs tls_authorities, the CAs that sign the bookies' certificates",
                settings=("tls_certificate", "tls_authorities"),
            )
        if self.tls_key and not self.tls_certificate:
            raise BadConfig(
                "tls_key has no effect without tls_certificate",
                settings=("tls_key", "tls_certificate"),
            )
        if self.http_tls_key and not self.http_tls_certificate:
            raise BadConfig(
                "http_tls_key has no effect without http_tls_certificate",
                settings=("http_tls_key", "http_tls_certificate"),
            )
        if self.log_tls_name and not self.log_tls_authorities:
            raise BadConfig(
                "log_tls_name would not be used without log_tls_authorities",
                settings=("log_tls_name", "log_tls_authorities"),
            )
        check_hosts(self.callback_hosts)
        if self.only_http and not self.http:
            raise BadConfig(
                "only_http needs http, the address to listen on",
                settings=("only_http", "http"),
                next_step="use --http 127.0.0.1:7500",
            )
        if self.no_auditor and self.no_worker and not self.only_http:
            raise BadConfig(
                "no_auditor and no_worker leave nothing to run; to serve only HTTP, use only_http",
                settings=("no_auditor", "no_worker"),
            )


@dataclass(frozen=True, slots=True)
class RecoverySettings:
    """All settings of a recovery server, by section."""

    server: RecoveryServerConfig
    audit: AuditConfig = field(default_factory=AuditConfig)
    steward: StewardConfig = field(default_factory=StewardConfig)
    heal: HealConfig = field(default_factory=HealConfig)
    worker: WorkerConfig = field(default_factory=WorkerConfig)
    ledger: ClientConfig = field(default_factory=ClientConfig)
    # The sources of values that are not defaults, by `section.name`.
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def shown(self) -> Sequence[Mapping[str, str]]:
        sections = {name: getattr(self, name) for name in (*_PARTS, "ledger")}
        return shown_settings({"recovery": self.server, **sections}, self.sources)

    @property
    def recovery(self) -> RecoveryConfig:
        return RecoveryConfig(
            self.audit,
            self.worker,
            self.steward,
            self.heal,
            runs_auditor=not (self.server.no_auditor or self.server.only_http),
            runs_worker=not (self.server.no_worker or self.server.only_http),
        )


def load_recovery_settings(config_file: str | None = None, **flags: Any) -> RecoverySettings:
    """Returns the settings. Flags take precedence over the environment, the environment over the file, and the file
    over defaults. The flag FOO-BAR is ROLLBOOK_FOO_BAR in the environment and foo_bar under [recovery] in the
    file. Raises `BadConfig`.
    """
    file = _file_of(config_file) if config_file else BookieFile({})
    sources: dict[str, str] = {}
    server = load_section(
        RecoveryServerConfig,
        "recovery",
        file,
        flags,
        variables=variables_of_flags(RecoveryServerConfig),
        check=_check_server,
        sources=sources,
    )
    return RecoverySettings(server, **_parts_of(file, sources), sources=sources)


def _file_of(path: str) -> BookieFile:
    """Reads a TOML file, or the `bk_server.conf` of BookKeeper's autorecovery."""
    if path.endswith(".toml"):
        return BookieFile(read_config_file(path, RECOVERY_SECTIONS), path=path)
    found = read_bookie_config(path)
    shared = {
        name: value
        for name, value in found.tables["bookie"].items()
        if name in ("metadata", "session_timeout_s")
    }
    return replace(found, tables={**found.tables, "recovery": shared})


def recovery_of_bookie(file: BookieFile, settings: Settings) -> RecoverySettings:
    """Returns the settings of a recovery server in a bookie's process. The bookie's file may also have the sections
    of a recovery server. Raises `BadConfig`.

    If [recovery] has no TLS settings for bookies, the bookie's TLS settings are used.
    """
    bookie = settings.bookie
    _, _, bookie_id = addresses_of(bookie)
    known: dict[str, Any] = {
        "metadata": bookie.metadata,
        "name": bookie_id,
        "session_timeout_s": bookie.session_timeout_s,
    }
    if bookie.tls_listen and bookie.tls_authorities:
        known |= {
            "tls_authorities": bookie.tls_authorities,
            "tls_certificate": bookie.tls_certificate,
            "tls_key": bookie.tls_key,
        }
    table = {**known, **file.tables.get("recovery", {})}
    own = replace(file, tables={**file.tables, "recovery": table})
    server = load_section(RecoveryServerConfig, "recovery", own, check=_check_server)
    return RecoverySettings(server, **_parts_of(file, {}))


def _parts_of(file: BookieFile, sources: dict[str, str]) -> dict[str, Any]:
    return {
        section: load_section(kind, section, file, sources=sources)
        for section, kind in (
            ("audit", AuditConfig),
            ("steward", StewardConfig),
            ("heal", HealConfig),
            ("worker", WorkerConfig),
            ("ledger", ClientConfig),
        )
    }


def _check_server(config: RecoveryServerConfig) -> None:
    check_log_level(config.log_level)
    with BadConfig.about("metadata"):
        if MetadataUrl.parse(config.metadata).backend is Backend.MEMORY:
            raise BadConfig(
                "a metadata store in memory can be used by one process only",
                next_step="use sqlite:///path for one machine, zk://host,host/ledgers for several",
            )
    if config.http:
        _require_locked(config)
    if config.name:
        with BadConfig.about("name"):
            parse_bookie_id(config.name)


def _require_locked(config: RecoveryServerConfig) -> None:
    """Requires TLS and a token for management off loopback (MG2)."""
    has_lock = config.http_tls_certificate or config.http_token_file or config.access_file
    if _is_local_or_locked(config) or (config.insecure and not has_lock):
        return
    raise BadConfig(
        f"HTTP on {_http_of(config)} would be open to the network",
        settings=("http", "http_tls_certificate", "http_token_file", "access_file", "insecure"),
        next_step="set http_tls_certificate with http_token_file or access_file, listen on 127.0.0.1, "
        "or set insecure without them, to serve only metrics",
    )


def _is_local_or_locked(config: RecoveryServerConfig) -> bool:
    has_token = config.http_token_file or config.access_file
    is_locked = bool(config.http_tls_certificate and has_token)
    return is_locked or is_loopback(_http_of(config).host)


def run_recovery_server(flags: Mapping[str, Any]) -> None:
    """Runs a recovery server until it is stopped. Raises `RollbookError`."""
    if hosts := flags.get("callback_hosts"):
        flags = {**flags, "callback_hosts": tuple(each.strip() for each in hosts.split(","))}
    settings = load_recovery_settings(**flags)
    configure_logs(level=settings.server.log_level, as_json=not sys.stderr.isatty())
    asyncio.run(until_stopped(_serve(settings)))


async def _serve(settings: RecoverySettings) -> None:
    allow_open_files(_OPEN_FILES)
    keep_freed_memory()
    async with (
        recovery_server(settings, serves_store=True) as server,
        AsyncExitStack() as stack,
    ):
        calm_collector()
        pages = await stack.enter_async_context(_pages(settings, server))
        logger.info("recovery_server_started", server=server.name, version=__version__)
        what = " and ".join(server.kinds) or "HTTP alone"
        say_ready(f"ready: recovery server {server.name}, {what}{pages}")
        await asyncio.Event().wait()


@asynccontextmanager
async def _pages(settings: RecoverySettings, server: RecoveryServer) -> AsyncIterator[str]:
    """Serves HTTP within the context. Yields a text for the ready line that says what is served and where. Off
    loopback without access control, only metrics are served.
    """
    config = settings.server
    if not config.http:
        yield ""
        return
    # Imported here because FastAPI takes a third of a second to load.
    from rollbook.api.cli.server.management_http import ProcessAccess, management
    from rollbook.api.dashboard.page_dependencies import OwnProcess
    from rollbook.api.dashboard.viewer_log_client import LogTls
    from rollbook.api.rest.metrics_server import start_metrics_page
    from rollbook.api.rest.server import HttpConfig

    address, metrics = _http_of(config), Metrics()
    metrics.add(PART, server.stats)
    metrics.add_process(__version__)
    if not _is_local_or_locked(config):
        page = await start_metrics_page("Rollbook recovery server", metrics, address, insecure=True)
        try:
            yield f" (metrics on {page.address})"
        finally:
            await page.close()
        return
    http = HttpConfig(
        address,
        config.http_token_file or None,
        TlsFiles(config.http_tls_certificate, config.http_tls_key)
        if config.http_tls_certificate
        else None,
        knows_callers=bool(config.access_file),
    )
    authenticator = Authenticator.of(config.http_token_file, config.access_file)
    shown = str(MetadataUrl.parse(config.metadata))
    log_tls = LogTls(
        bool(config.log_tls_authorities), config.log_tls_authorities, config.log_tls_name
    )
    ledgers = server.ledgers

    def pages_of(bookie: BookieId) -> AdminClient | None:
        return _pages_of_bookie(config, ledgers, bookie)

    async with management(
        ledgers,
        server.events,
        shown,
        http,
        authenticator,
        OwnProcess(server.name, settings.shown(), metrics),
        ProcessAccess(
            log_tls,
            metrics_token_file=config.log_metrics_token_file,
            pages_of=pages_of,
            callback_hosts=config.callback_hosts,
        ),
    ) as where:
        yield f" (http on {where})"


def _http_of(config: RecoveryServerConfig) -> Address:
    return parse_address(
        config.http, "http", default_host=EVERY_ADDRESS, default_port=_DEFAULT_HTTP_PORT
    )


def recovery_server(
    settings: RecoverySettings,
    *,
    serves_store: bool,
    local_bookie: BookieId | None = None,
    doubts_of: DoubtsOf = lambda _: None,
    stats: RecoveryStats | None = None,
) -> AbstractAsyncContextManager[RecoveryServer]:
    """Runs a recovery server within the context. `serves_store` lets this process own an embedded metadata
    store. `doubts_of` returns the doubts (possible losses) of a bookie in this process, or None; the doubts of
    other bookies are read through their admin pages.

    Raises the error that ends the server or the context, and an exception group only if both have failed.
    """
    start = partial(
        _recovery_server,
        settings,
        serves_store=serves_store,
        local_bookie=local_bookie,
        doubts_of=doubts_of,
        stats=stats,
    )
    return starting(start, settings.server.startup_s)


@asynccontextmanager
async def _recovery_server(
    settings: RecoverySettings,
    *,
    serves_store: bool,
    local_bookie: BookieId | None,
    doubts_of: DoubtsOf,
    stats: RecoveryStats | None,
) -> AsyncIterator[RecoveryServer]:
    """Makes one attempt to start a recovery server."""
    config, machine = settings.server, RealMachine()
    randomness = random.Random(random.SystemRandom().getrandbits(128))
    async with AsyncExitStack() as stack:
        ledgers = await _open_ledgers(
            stack, settings, machine, randomness, serves_store=serves_store
        )

        def doubts_of_any(bookie: BookieId) -> BookieDoubts | None:
            return doubts_of(bookie) or _doubts_over_http(config, ledgers, bookie)

        post = CallbackPost(config.callback_hosts, config.callback_ca_file)
        stack.callback(post.close)
        name = local_bookie or parse_bookie_id(config.name or socket.gethostname())
        server = RecoveryServer(
            ledgers,
            ledgers.store,
            machine.clock,
            randomness,
            settings.recovery,
            ProcessIdentity(name, __version__, local_bookie),
            RecoveryPorts(
                doubts_of_any,
                kinds_of(ledgers, settings.worker, name),
                describe_error,
                log_made_for,
                post.post,
            ),
            stats,
        )
        failure: BaseException | None = None
        try:
            async with TaskGroup() as group:
                running = group.create_task(server.run())
                try:
                    yield server
                finally:
                    running.cancel()
        except BaseExceptionGroup as errors:
            failure = unwrapped(errors)
        if failure is not None:  # Raised outside `except`, so that the error keeps its cause.
            raise failure


async def _open_ledgers(
    stack: AsyncExitStack,
    settings: RecoverySettings,
    machine: RealMachine,
    randomness: Randomness,
    *,
    serves_store: bool,
) -> Ledgers:
    """Opens the client of the bookies. The stack closes it, and then its metadata store."""
    config = settings.server
    url = MetadataUrl.parse(config.metadata)

    async def open_store() -> MetadataStore:
        return await open_metadata_store(
            url,
            serve=serves_store,
            session_timeout_s=config.session_timeout_s,
            randomness=randomness,
        )

    store, cluster = await open_with_cluster(url, open_store)
    stack.push_async_callback(store.close)
    transport, ledger = machine.transport, settings.ledger
    if config.tls_authorities:
        tls = ClientTls(
            config.tls_authorities, certificate=config.tls_certificate, key=config.tls_key
        )
        transport, ledger = SocketTransport(client_tls=tls), replace(ledger, uses_tls=True)
    ledgers = Ledgers(transport, store, cluster, machine.clock, randomness, ledger)
    return await stack.enter_async_context(ledgers)


def _doubts_over_http(
    config: RecoveryServerConfig, ledgers: Ledgers, bookie: BookieId
) -> BookieDoubts | None:
    client = _pages_of_bookie(config, ledgers, bookie)
    return AdminDoubts(client) if client else None


def _pages_of_bookie(
    config: RecoveryServerConfig, ledgers: Ledgers, bookie: BookieId
) -> AdminClient | None:
    """Returns access to the bookie's admin pages at the registered address, or None if the bookie is not registered
    or has no pages.
    """
    info = ledgers.live().find(bookie)
    if info is None or info.http_address is None:
        return None
    address, ca_file = str(info.http_address), config.bookie_ca_file or None
    url = f"https://{address}" if ca_file else address
    return AdminClient(url, config.bookie_token_file or None, ca_file)
