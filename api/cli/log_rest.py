"""REST beside a log server's gRPC: loaded by those servers alone that were given `--rest`."""

import time
from contextlib import AsyncExitStack
from dataclasses import replace

from rollbook.api.access.doorkeeper import Doorkeeper
from rollbook.api.access.token_file import mode_of, token_in
from rollbook.api.access.watched_file import WatchedFile
from rollbook.api.cli.log_server import HTTP_PART, rest_address_of, tls_files
from rollbook.api.client.channels import Security
from rollbook.api.rest.forwarding import GrpcPeers
from rollbook.api.rest.log_metrics import Shown
from rollbook.api.rest.logs import BOUNDS, RestServer
from rollbook.api.rest.server import HttpConfig
from rollbook.logservice.config import LogServerConfig
from rollbook.logservice.server import LogServer
from rollbook.logservice.service import Service
from rollbook.proto.addresses import is_loopback
from rollbook.proto.ports import Address
from rollbook.proto.runtime.file_stamp import file_stamp
from rollbook.proto.runtime.limits import door_of
from rollbook.proto.runtime.metrics import Metrics


async def serve_rest(
    stack: AsyncExitStack,
    service: Service,
    server: LogServer,
    config: LogServerConfig,
    host: str,
    doorkeeper: Doorkeeper | None,
    metrics: Metrics,
) -> str:
    """The URL under which others find it, at that host; empty if only this machine can reach it, and the host
    is another. The stack ends it. Raises `BadConfig`.
    """
    listen = rest_address_of(config)
    tls = tls_files(config)
    http = HttpConfig(
        *(listen, config.token_file or None, tls, config.insecure),
        knows_callers=bool(config.access_file),
    )
    shown = ShownToPeers(config)
    peers = GrpcPeers(shown.security, shown.look)
    stack.push_async_callback(peers.close)

    def url_of(address: str) -> str:
        for each in server.membership.servers:
            if each.info.address == address:
                return each.http
        return ""

    def is_ready() -> bool:
        found = server.membership.find(server.server_id)
        return found is not None and not found.is_draining

    rest = await RestServer.start(
        *(service, http, url_of, peers, is_ready),
        bounds=replace(BOUNDS, connections=door_of(HTTP_PART, BOUNDS.connections)),
        doorkeeper=doorkeeper,
        shown=Shown(metrics, server.cursor_lags.look),
    )
    stack.push_async_callback(rest.close)
    if is_loopback(listen.host) and not is_loopback(host):
        return ""
    return f"{'https' if tls else 'http'}://{Address(host, rest.address.port)}"


class ShownToPeers:
    """Servers are clients of each other, with what they are servers with."""

    def __init__(self, config: LogServerConfig) -> None:
        """Raises `BadConfig`."""
        self._config = config
        self._token = WatchedFile(config.token_file, is_token=True) if config.token_file else None

    def security(self) -> Security:
        """Raises `BadConfig`."""
        config, token = self._config, ""
        if self._token is not None:
            token = token_in(self._token.data, mode_of(self._token.path), self._token.path)
        return Security(
            uses_tls=bool(config.tls_certificate),
            authorities=config.tls_authorities,
            certificate=config.tls_certificate if config.tls_authorities else "",
            key=config.tls_key if config.tls_authorities else "",
            token=token,
            insecure=config.insecure,
        )

    def look(self) -> object:
        """Another value when what `security` returns may be another one. A file that is empty for a moment changes nothing (AF1)."""
        token = b""
        if self._token is not None:
            self._token.look(time.monotonic_ns(), time.time_ns())
            token = self._token.data
        config = self._config
        files = (config.tls_certificate, config.tls_key, config.tls_authorities)
        return token, tuple(file_stamp(path) for path in files if path)
