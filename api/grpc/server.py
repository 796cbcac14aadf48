"""The gRPC server of a log server, on the same event loop. It has these rules and bounds:

off loopback   TLS and tokens or certificate names are required, unless `--insecure` is given (G1)
callers        are authenticated before their messages are read; every caller may check the health
strangers      (callers that are not authenticated) cannot use up the limit on concurrent calls that all callers
               share (G8, `token_interceptor.py`)
connections    at most `connections_max`; further connections are closed. A connection that has not begun HTTP/2
               within 5 s, or has no call for 5 minutes, is closed, too. gRPC cannot limit the connections of one peer
a message      has at most `MESSAGE_BYTES_MAX` bytes
calls          at most `calls_max` concurrent calls, including streams, and `CALLS_OF_ONE_MAX` of one connection.
               At most `_PENDING_MAX` calls, including cancelled calls, wait to be handled; further calls are
               ended, and their outcome is unknown
peers          are disconnected if they do not answer pings; pings from a peer are answered as long as it reads the
               answers
"""

from typing import Any, Final

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from rollbook.api.access.authenticator import Authenticator
from rollbook.api.access.authorized_service import AuthorizedService
from rollbook.api.grpc.config import GrpcConfig
from rollbook.api.grpc.handlers import handlers
from rollbook.api.grpc.health_reflection import HealthService, ReflectionService
from rollbook.api.grpc.relay import Relay
from rollbook.api.grpc.token_interceptor import Strangers
from rollbook.api.rpc_methods import MESSAGE_BYTES_MAX, SERVICES
from rollbook.logservice.messages import ServiceCore
from rollbook.proto.errors import BadConfig
from rollbook.proto.ports import Address
from rollbook.proto.runtime.system_error_text import describe_error
from rollbook.proto.runtime.tls import TlsFiles

logger = structlog.get_logger()

# The most calls of one connection, including streams. Our client has a second connection for calls
# that wait: a client with the maximum on both connections fills the default `calls_max`.
CALLS_OF_ONE_MAX: Final = 2048
# The most calls that wait to be handled, of all connections together. Even a call that is cancelled immediately
# holds memory (15 KiB, measured with 100,000 calls), and no other bound counts it. Eight connections
# with `CALLS_OF_ONE_MAX` calls each reach this bound while the loop is blocked. Further calls get CANCELLED.
# Their clients cannot know that nothing was done, since a call that the server drops after it has
# begun gets CANCELLED, too.
_PENDING_BYTES_MAX: Final = 256 * 1024 * 1024
_PENDING_MAX: Final = _PENDING_BYTES_MAX // (16 * 1024)
_PING_MS: Final = 20_000
_PING_ANSWER_MS: Final = 10_000
_HANDSHAKE_MS: Final = 5_000  # Includes TLS. A peer has the same time to acknowledge our settings.
_IDLE_MS: Final = 300_000  # Clients reconnect for their next call.
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.max_concurrent_streams", CALLS_OF_ONE_MAX),  # Further calls wait at the client.
    ("grpc.http.overload_protection", 0),  # Otherwise a call counts for a while after its end.
    # The most calls that gRPC queues for us. By default it queues a thousand, and ends further calls without an
    # error message.
    ("grpc.server.max_pending_requests", _PENDING_MAX),
    ("grpc.server.max_pending_requests_hard_limit", _PENDING_MAX),
    # Otherwise two servers could listen on one port, and share its clients.
    ("grpc.so_reuseport", 0),
    ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
    ("grpc.http2.settings_timeout", _HANDSHAKE_MS),
    ("grpc.max_connection_idle_ms", _IDLE_MS),
    ("grpc.keepalive_time_ms", _PING_MS),
    ("grpc.keepalive_timeout_ms", _PING_ANSWER_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    # Pings are not limited. With a limit, the fourth ping in a row ends the connection, and gRPC repeats
    # this for each further ping that it has already read: 5,000 pings cost five times as much as
    # answering them, and 6 MB of pings keep gRPC from reading any connection for a quarter of a minute.
    # gRPC stops reading from a client that does not read the answers.
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.max_pings_without_data", 0),
)


class GrpcServer:
    """A listening server; use `start` to create one."""

    def __init__(self, server: grpc.aio.Server, servicer: Any, address: Address) -> None:
        self.address = address  # Has the real port, even if port 0 was requested.
        self._server = server
        self._health = servicer

    @classmethod
    async def start(
        cls,
        core: ServiceCore,
        config: GrpcConfig,
        authenticator: Authenticator | None = None,
        relay: Relay | None = None,
    ) -> "GrpcServer":
        """`authenticator`: shared by gRPC and HTTP; None: an authenticator is made if `config` has a token file.
        `relay`: relays calls to other servers.

        Raises `BadConfig`.
        """
        authenticator = authenticator or Authenticator.of(config.token_file)
        assert authenticator or not config.knows_callers, "it would be open"
        service = AuthorizedService(core, authenticator.audit if authenticator else None)
        credentials = _credentials(config.tls) if config.tls else None
        servicer = HealthService(authenticator)
        interceptors = []
        if authenticator is not None:
            knows_names = bool(config.tls and config.tls.authorities)
            interceptors.append(Strangers(authenticator, servicer, knows_names=knows_names))
        server = grpc.aio.server(
            options=(
                *_OPTIONS,
                ("grpc.max_allowed_incoming_connections", config.connections_max),
            ),
            maximum_concurrent_rpcs=config.calls_max,
            interceptors=interceptors,
        )
        server.add_generic_rpc_handlers(handlers(service, authenticator, relay))
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        names = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(
            ReflectionService(names, authenticator), server
        )
        try:
            port = _listen(server, config.address, credentials)
            await server.start()
        except BaseException:
            await server.stop(None)
            raise
        started = cls(server, servicer, Address(config.address.host, port))
        await started.set_serving(is_serving=True)
        return started

    async def set_serving(self, *, is_serving: bool) -> None:
        """Sets the health that health checks report; calls are served in either case."""
        status = health_pb2.HealthCheckResponse
        current = status.SERVING if is_serving else status.NOT_SERVING
        for name in ("", *SERVICES):
            await self._health.set(name, current)

    async def close(self, grace_s: float = 2.0) -> None:
        """Accepts no new calls; running calls have `grace_s` to finish."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)


def _listen(
    server: grpc.aio.Server, address: Address, credentials: grpc.ServerCredentials | None
) -> int:
    host = f"[{address.host}]" if ":" in address.host else address.host
    try:
        if credentials:
            port = server.add_secure_port(f"{host}:{address.port}", credentials)
        else:
            port = server.add_insecure_port(f"{host}:{address.port}")
    except RuntimeError as error:
        raise _cannot_listen(address) from error
    if not port:
        raise _cannot_listen(address)
    return int(port)


def _cannot_listen(address: Address) -> BadConfig:
    return BadConfig(
        f"cannot serve gRPC on {address}",
        next_step="stop the program that listens there, or pass a free address: --listen HOST:PORT",
    )


def _credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Checks the files at each handshake, so that renewed certificates need no restart."""
    seen = _read_all(files)

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal seen
        try:
            now = _read_all(files)
        except BadConfig as error:
            logger.warning("certificates_not_reloaded", reason=str(error))
            return None
        if now == seen:
            return None
        seen = now
        logger.info("certificates_reloaded", certificate=files.certificate)
        return _configuration(now)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(seen),
        renewed,  # type: ignore[arg-type]  # None: keep the certificates.
        require_client_authentication=bool(files.authorities),
    )


def _configuration(pems: tuple[bytes, bytes, bytes]) -> grpc.ServerCertificateConfiguration:
    certificate, key, authorities = pems
    return grpc.ssl_server_certificate_configuration([(key, certificate)], authorities or None)


def _read_all(files: TlsFiles) -> tuple[bytes, bytes, bytes]:
    certificate = _read(files.certificate)
    key = _read(files.key) if files.key else certificate
    return certificate, key, _read(files.authorities) if files.authorities else b""


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise BadConfig(f"cannot read {path}: {describe_error(error)}") from error
