"""The process of `rollbook server log`: one log server, which runs until it is stopped.

This is a composition root: it connects the service with gRPC, REST and the machine.
"""

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from rollbook import __version__
from rollbook.api.access.authenticator import Authenticator
from rollbook.api.cli.run_until_signal import until_stopped
from rollbook.api.cli.server.peer_credentials import ShownToPeers, report_untrusted
from rollbook.api.cli.server_startup import open_with_cluster, say_ready, starting
from rollbook.api.cli.system_ports import RealMachine
from rollbook.api.grpc.config import CONNECTIONS_MAX, GrpcConfig
from rollbook.api.grpc.peer_channels import GrpcPeers
from rollbook.api.grpc.relay import RELAY_OPTIONS, Relay
from rollbook.api.grpc.server import GrpcServer
from rollbook.api.rpc_methods import RELAYED_KEY
from rollbook.ledger.config import ClientConfig
from rollbook.ledger.ledgers import Ledgers
from rollbook.logservice.config import LogServerConfig, LogServiceConfig
from rollbook.logservice.log_metadata import LogMetadataStore
from rollbook.logservice.log_ownership import LogServer
from rollbook.logservice.service import LogService
from rollbook.logservice.stats import LogStats
from rollbook.proto.addresses import (
    EVERY_ADDRESS,
    is_wildcard,
    parse_address,
    require_reachable,
)
from rollbook.proto.errors import BadConfig
from rollbook.proto.metastore.url import Backend, MetadataUrl
from rollbook.proto.ports import Address, MetadataStore, Randomness
from rollbook.proto.runtime.config import (
    PREFIX,
    load_config,
    read_config_file,
    variables_of_flags,
)
from rollbook.proto.runtime.gc_tuning import calm_collector
from rollbook.proto.runtime.host_addresses import name_of_this_host
from rollbook.proto.runtime.logging_setup import check_log_level, configure_logs
from rollbook.proto.runtime.malloc_tuning import keep_freed_memory
from rollbook.proto.runtime.metastore import open_metadata_store
from rollbook.proto.runtime.network import SocketTransport
from rollbook.proto.runtime.open_files import allow_open_files, door_of
from rollbook.proto.runtime.tls import ClientTls, TlsFiles
from rollbook.proto.shown_settings import shown_settings

DEFAULT_PORT: Final = 7400
REST_PORT: Final = 7480
_SECTIONS: Final = ("log_server", "log_service", "ledger")
_OPEN_FILES: Final = 65_536
# The share of the server's connections that HTTP may use; gRPC gets the rest.
HTTP_PART: Final = 0.4
# Writing an explicit LAC to three bookies costs more than an append, and readers get a log's end from its
# owner's memory. Smaller: more work; with 10,000 logs that each got an append every two seconds, a value of 1 s
# caused two thirds of all work.
_LEDGER: Final = ClientConfig(explicit_lac_idle_ms=30_000)
_LAC: Final = "ledger.explicit_lac_idle_ms"
_NAME_CHARACTERS_MAX: Final = 200
_GRACE_S: Final = 1.0  # Seconds for the last responses after all logs are handed over.


@dataclass(frozen=True, slots=True)
class LogSettings:
    """All settings of a log server, by section."""

    server: LogServerConfig
    service: LogServiceConfig = field(default_factory=LogServiceConfig)
    ledger: ClientConfig = _LEDGER
    # The sources of values that are not defaults, by `section.name`.
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def shown(self) -> Sequence[Mapping[str, str]]:
        sections = {"log_server": self.server, "log_service": self.service, "ledger": self.ledger}
        return shown_settings(sections, self.sources)


def load_log_settings(config_file: str | None = None, **flags: Any) -> LogSettings:
    """Returns the settings. Flags take precedence over the environment, the environment over the file, and the file
    over defaults. The flag FOO-BAR is ROLLBOOK_FOO_BAR in the environment and foo_bar under [log_server] in the
    file. Raises `BadConfig`.
    """
    tables = read_config_file(config_file, _SECTIONS) if config_file else {}
    given = {name: value for name, value in flags.items() if value is not False and value != ()}
    sources: dict[str, str] = {}
    settings = LogSettings(
        load_config(
            LogServerConfig,
            section="log_server",
            file=tables.get("log_server"),
            file_path=config_file,
            environ=os.environ,
            flags=given,
            variables=variables_of_flags(LogServerConfig),
            check=_check_server,
            sources=sources,
        ),
        load_config(
            LogServiceConfig,
            section="log_service",
            file=tables.get("log_service"),
            file_path=config_file,
            environ=os.environ,
            sources=sources,
        ),
        load_config(
            ClientConfig,
            section="ledger",
            file={"explicit_lac_idle_ms": _LEDGER.explicit_lac_idle_ms}
            | dict(tables.get("ledger") or {}),
            file_path=config_file,
            environ=os.environ,
            sources=sources,
        ),
        sources,
    )
    is_in_file = "explicit_lac_idle_ms" in (tables.get("ledger") or {})
    if not is_in_file and not sources[_LAC].startswith(PREFIX):
        del sources[_LAC]  # The value is the default of log servers.
    return settings


def run_log_server(flags: Mapping[str, Any]) -> None:
    """Runs a log server until it is stopped. Raises `RollbookError`."""
    settings = load_log_settings(**flags)
    configure_logs(level=settings.server.log_level, as_json=not sys.stderr.isatty())
    asyncio.run(until_stopped(_serve(settings), stop_s_max=int(settings.server.drain_s) + 20))


async def _serve(settings: LogSettings) -> None:
    allow_open_files(_OPEN_FILES)
    keep_freed_memory()
    async with log_server(settings, serves_store=True) as running:
        calm_collector()
        rest = (f"rest {running.http}",) if running.http else ()
        say_ready(*rest, f"ready: log server {running.server.server_id} on {running.address}")
        await asyncio.Event().wait()


@dataclass(frozen=True, slots=True)
class RunningLogServer:
    server: LogServer
    address: Address  # The address on which the server listens.
    stats: LogStats
    http: str = ""  # The URL of its REST API; empty if there is none.


def log_server(
    settings: LogSettings, *, serves_store: bool, dashboard: Callable[[], str] | None = None
) -> AbstractAsyncContextManager[RunningLogServer]:
    """Runs a registered log server within the context. At the end the server has `drain_s` to hand its logs over.
    `serves_store` lets this process own an embedded metadata store. `dashboard` is described in `RestServer`.
    """
    start = partial(_log_server, settings, serves_store=serves_store, dashboard=dashboard)
    return starting(start, settings.server.startup_s)


@asynccontextmanager
async def _log_server(
    settings: LogSettings, *, serves_store: bool, dashboard: Callable[[], str] | None
) -> AsyncIterator[RunningLogServer]:
    """Makes one attempt to start a log server."""
    config, machine = settings.server, RealMachine()
    listen, advertised, name = addresses_of(config)
    # Seeds a generator once, because system randomness is too expensive for every token.
    randomness = random.Random(random.SystemRandom().getrandbits(128))
    async with AsyncExitStack() as stack:
        ledgers, lease = await _open_ledgers(
            stack, settings, machine, randomness, serves_store=serves_store
        )
        nodes = LogMetadataStore(ledgers.store, ledgers.cluster, machine.clock, randomness)
        await nodes.start()
        server = LogServer(
            name,
            __version__,
            ledgers=ledgers,
            nodes=nodes,
            lease=lease,
            transport=machine.transport,
            clock=machine.clock,
            randomness=randomness,
            config=settings.service,
        )
        shown = ShownToPeers(config)
        # If `serves_store` is False, the whole cluster is in this process, and no peer checks the certificate.
        if serves_store:
            report_untrusted(config, advertised.host)
        peers = GrpcPeers(shown.security, shown.look)
        stack.push_async_callback(peers.close)
        service = LogService(server, server.clock, peers.ask)
        relay = _make_relay(stack, server, shown)
        # gRPC and REST share one authenticator, so that they share quotas.
        authenticator = Authenticator.of(config.token_file, config.access_file)
        grpc = await GrpcServer.start(service, _grpc_config(config, listen), authenticator, relay)
        stack.push_async_callback(grpc.close, _GRACE_S)
        http = ""
        if config.rest:
            # Imports FastAPI and Prometheus' library only on demand.
            from rollbook.api.cli.server.log_rest import serve_rest

            http = await serve_rest(
                stack, service, server, peers, settings, advertised.host, authenticator, dashboard
            )
        stack.push_async_callback(server.close, config.drain_s)
        if not advertised.port:
            advertised = Address(advertised.host, grpc.address.port)
        await server.start(str(advertised), http)
        await grpc.set_serving(is_serving=True)
        stack.push_async_callback(_say_not_serving, grpc)
        yield RunningLogServer(server, grpc.address, service.stats, http)


async def _open_ledgers(
    stack: AsyncExitStack,
    settings: LogSettings,
    machine: RealMachine,
    randomness: Randomness,
    *,
    serves_store: bool,
) -> tuple[Ledgers, MetadataStore]:
    """Opens the client of the bookies and the metadata session that serves as the lease. The stack closes
    both.
    """
    config = settings.server

    async def open_store() -> MetadataStore:
        timeout_s = config.session_timeout_s
        return await _open_store(
            config, randomness, serve=serves_store, session_timeout_s=timeout_s
        )

    store, cluster = await open_with_cluster(MetadataUrl.parse(config.metadata), open_store)
    stack.push_async_callback(store.close)
    lease = await _open_store(
        config, randomness, serve=False, session_timeout_s=settings.service.lease_s
    )
    stack.push_async_callback(lease.close)
    transport, ledger = machine.transport, settings.ledger
    if config.bookie_authorities:
        tls = ClientTls(
            config.bookie_authorities,
            certificate=config.bookie_certificate,
            key=config.bookie_key,
        )
        transport, ledger = SocketTransport(client_tls=tls), replace(ledger, uses_tls=True)
    ledgers = Ledgers(transport, store, cluster, machine.clock, randomness, ledger)
    return await stack.enter_async_context(ledgers), lease


def _make_relay(stack: AsyncExitStack, server: LogServer, shown: ShownToPeers) -> Relay:
    """Returns the relay of calls to the owners of logs. The stack closes its connections."""
    relayed = GrpcPeers(
        shown.security, shown.look, options=RELAY_OPTIONS, shows=((RELAYED_KEY, "1"),)
    )
    stack.push_async_callback(relayed.close)
    return Relay(relayed, partial(_is_other_server, server))


def _is_other_server(server: LogServer, address: str) -> bool | None:
    """Returns whether another server has registered the address, or None if it is the address of this server."""
    if address == server.address:
        return None
    return any(each.info.address == address for each in server.membership.servers)


async def _say_not_serving(grpc: GrpcServer) -> None:
    await grpc.set_serving(is_serving=False)


async def _open_store(
    config: LogServerConfig, randomness: Randomness, *, serve: bool, session_timeout_s: float
) -> MetadataStore:
    url = MetadataUrl.parse(config.metadata)
    if url.backend is Backend.MEMORY:
        raise BadConfig(
            "a metadata store in memory is gone when this process ends",
            next_step="use sqlite:///path for one machine, zk://host,host/ledgers for several",
        )
    return await open_metadata_store(
        url, serve=serve, session_timeout_s=session_timeout_s, randomness=randomness
    )


def _check_server(config: LogServerConfig) -> None:
    check_log_level(config.log_level)
    addresses_of(config)
    if config.rest:
        rest_address_of(config)
    check_rest_origins(config)
    with BadConfig.about("metadata"):
        MetadataUrl.parse(config.metadata)


def rest_address_of(config: LogServerConfig) -> Address:
    """Returns the address in `rest`, which must be set. Raises `BadConfig`."""
    return parse_address(config.rest, "rest", default_host=EVERY_ADDRESS, default_port=REST_PORT)


def check_rest_origins(config: LogServerConfig) -> None:
    """Checks that the origins are valid, and that the server serves HTTP. Raises `BadConfig`."""
    if config.rest_origin and not config.rest:
        raise BadConfig(
            "rest_origin would not be used: this server serves no HTTP",
            next_step="use --rest HOST:PORT, or leave out rest_origin",
            settings=("rest_origin",),
        )
    if config.rest_origin:
        # Imported here because it loads Starlette.
        from rollbook.api.rest.cross_origin import check_origins

        asks = bool(config.token_file or config.access_file)
        check_origins(config.rest_origin, "rest_origin", asks_for_tokens=asks)


def addresses_of(config: LogServerConfig) -> tuple[Address, Address, str]:
    """Returns the listening address, the advertised address and the server's name. Raises `BadConfig`."""
    listen = parse_address(
        config.listen, "listen", default_host=EVERY_ADDRESS, default_port=DEFAULT_PORT
    )
    advertised = listen
    if config.advertise:
        advertised = parse_address(config.advertise, "advertise", default_port=listen.port)
    elif is_wildcard(listen.host):
        with BadConfig.about("listen"):
            advertised = Address(name_of_this_host(), listen.port)
    if is_wildcard(advertised.host):
        raise BadConfig(
            f"clients cannot connect to {advertised}",
            next_step="use --advertise HOST:PORT",
            settings=("advertise",) if config.advertise else ("listen",),
        )
    require_reachable([listen], advertised)
    if not advertised.port and not config.server_name:
        raise BadConfig(
            "a server without a fixed port needs a permanent name",
            next_step="use --server-name NAME",
            settings=("listen", "advertise"),
        )
    name = config.server_name or str(advertised)
    if "~" in name or "/" in name or len(name) > _NAME_CHARACTERS_MAX:
        raise BadConfig(
            f"{name[:80]!r} is not a valid server name: a name has at most 200 characters, and no ~ or /",
            settings=("server_name",) if config.server_name else ("listen", "advertise"),
        )
    return listen, advertised, name


def _grpc_config(config: LogServerConfig, listen: Address) -> GrpcConfig:
    return GrpcConfig(
        listen,
        token_file=config.token_file or None,
        tls=tls_files(config),
        insecure=config.insecure,
        knows_callers=bool(config.access_file),
        connections_max=door_of(1 - HTTP_PART, CONNECTIONS_MAX),
    )


def tls_files(config: LogServerConfig) -> TlsFiles | None:
    """Returns the TLS files, or None if connections are not encrypted."""
    if not config.tls_certificate:
        return None
    return TlsFiles(config.tls_certificate, config.tls_key, config.tls_authorities)
