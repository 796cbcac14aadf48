"""Connections to log servers: two to each server, made when they are first needed.

A server limits the concurrent calls of one connection; further calls wait here. Therefore
long-polling calls have a connection of their own: appends and renewals get through however many
readers there are.

Without TLS a token is sent only to this machine, unless `insecure` is set. A configured server on
another machine is refused (`BadConfig`). A server that another server has named gets no token, and
refuses the call.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import grpc

from rollbook.api.client.fork_guard import require_own_process
from rollbook.api.client.relay_routes import RelayRoutes
from rollbook.api.rpc_methods import MESSAGE_BYTES_MAX, RELAY_KEY
from rollbook.proto.addresses import parse_address
from rollbook.proto.client_credential_safety import may_show_token, require_certificate_of
from rollbook.proto.errors import BadConfig, ClientClosed, InvalidRequest

Metadata = Sequence[tuple[str, str]]

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.enable_retries", 0),  # The client itself knows which calls it may retry.
    ("grpc.use_local_subchannel_pool", 1),  # Closing a client closes its connections.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 2000),  # The time-out of an attempt to connect.
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
    (
        "grpc.dns_ares_query_timeout",
        2000,
    ),  # A silent name server times out like an attempt to connect.
)


_OF_TLS: Final = ("authorities", "certificate", "key")


def checked_token(text: str) -> str:
    """Strips white space around a token, such as a file's line end. Raises `BadConfig`."""
    token = text.strip()
    if not (token.isascii() and token.isprintable()):
        raise BadConfig("the token is not one line of printable ASCII")
    return token


@dataclass(frozen=True, slots=True)
class Security:
    """A client's credentials, and the servers that it trusts."""

    uses_tls: bool = False
    authorities: str = ""  # A PEM file; empty: the system's authorities.
    certificate: str = ""  # A PEM file, for servers that ask for a certificate.
    key: str = ""
    token: str = field(default="", repr=False)
    # True: unencrypted connections to any host are allowed, for trusted networks.
    insecure: bool = False
    name: str = ""  # The name in the servers' certificates. Empty: each server's host name.

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Raises `BadConfig`."""
        require_certificate_of(self.key, self.certificate, "certificate=, or --tls-certificate")
        if not self.uses_tls:
            return None
        key = self.key or self.certificate
        return grpc.ssl_channel_credentials(
            root_certificates=_read(self.authorities),
            private_key=_read(key),
            certificate_chain=_read(self.certificate),
        )

    def options(self) -> Sequence[tuple[str, str]]:
        """Returns the gRPC options of a channel."""
        return (("grpc.ssl_target_name_override", self.name),) if self.name else ()

    def require_tls_is_used(self) -> None:
        """Raises `BadConfig` if TLS settings would not be used: a caller that names authorities
        expects that the servers are checked against them."""
        named = [name for name in _OF_TLS if getattr(self, name)]
        named += ["the name in certificates"] if self.name else []
        if named and not self.uses_tls:
            raise BadConfig(
                f"{' and '.join(named)} would not be used: the URL is log://, which does not use TLS",
                next_step="write log+tls://, or leave them out",
            )

    def require_safe(self, servers: Iterable[str]) -> None:
        """Raises `BadConfig`."""
        for each in servers:
            if not self.may_be_shown_to(each):
                raise BadConfig(
                    f"the token would be sent to {each} unencrypted",
                    next_step="write log+tls://, or set insecure (--insecure) in a trusted network",
                )

    def may_be_shown_to(self, server: str) -> bool:
        if not self.token or self.uses_tls:
            return True
        host = parse_address(server, "the log server").host
        return may_show_token(host, uses_tls=self.uses_tls, insecure=self.insecure)


class Channels:
    """Channels to servers. Calls to an unreachable server are sent to its relay, and name that
    server (RY3)."""

    def __init__(
        self,
        security: Security,
        routes: RelayRoutes | None = None,
        *,
        options: Sequence[tuple[str, int]] = (),
        shows: Metadata = (),
    ) -> None:
        """`options` are additional gRPC options. `shows` is the metadata of each call, besides the
        token."""
        self.routes: Final = routes or RelayRoutes()
        self._options = (*_OPTIONS, *security.options(), *options)
        self._shows = tuple(shows)
        self._security = security
        self._credentials = security.credentials()
        self._channels: dict[tuple[str, bool], grpc.aio.Channel] = {}
        self._calls: dict[tuple[str, str, bool], Any] = {}
        self._shown: dict[tuple[str, str], Metadata] = {}
        self._loop: asyncio.AbstractEventLoop | None = None  # The event loop of the first call.
        self._is_closed = False

    def shown_to(self, address: str) -> Metadata:
        """Returns the metadata of each call to this server."""
        entry = self.routes.entry_to(address)
        if (found := self._shown.get((address, entry))) is None:
            found = self._what_to_show(entry or address)
            if entry:
                found = (*found, (RELAY_KEY, address))
            self._shown[address, entry] = found
        return found

    def _what_to_show(self, address: str) -> Metadata:
        if not self._security.token or not self._security.may_be_shown_to(address):
            return self._shows
        return (("authorization", f"Bearer {self._security.token}"), *self._shows)

    def to(self, address: str, *, waits: bool = False) -> Any:
        """Returns the channel to a server. `waits` is for calls without a limit on how long they
        wait. Raises `ClientClosed`, `InvalidRequest`."""
        self._require_open()
        return self._to(self.routes.entry_to(address) or address, waits=waits)

    def _to(self, address: str, *, waits: bool) -> Any:
        if (found := self._channels.get((address, waits))) is None:
            if self._credentials is None:
                found = grpc.aio.insecure_channel(address, options=self._options)
            else:
                found = grpc.aio.secure_channel(address, self._credentials, options=self._options)
            self._channels[address, waits] = found
        return found

    def call(self, address: str, path: str, *, waits: bool = False) -> Any:
        """Returns a call with one request and one response, as bytes. Raises the errors of `to`."""
        return self.direct_call(self.routes.entry_to(address) or address, path, waits=waits)

    def direct_call(self, address: str, path: str, *, waits: bool = False) -> Any:
        """Returns a call that no relay may serve. Raises the errors of `to`."""
        self._require_open()
        if (found := self._calls.get((address, path, waits))) is None:
            found = self._to(address, waits=waits).unary_unary(path)
            self._calls[address, path, waits] = found
        return found

    def on_answered(self, address: str) -> None:
        """Notes that the server, or its relay, has responded."""
        self.routes.on_answered(self.routes.entry_to(address) or address)

    def shown_directly(self, address: str) -> Metadata:
        """Returns the metadata of a `direct_call`."""
        return self._what_to_show(address)

    def require_own_loop(self) -> None:
        """Checks that this is the event loop and the process of the first call: in others,
        responses would never arrive. Raises `ClientClosed`, `InvalidRequest`."""
        require_own_process()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise InvalidRequest(
                "this client belongs to another event loop",
                next_step="connect in the loop that uses the client, once for each `asyncio.run`; "
                "threads without a loop share the client of `rollbook.connect`",
            )

    def _require_open(self) -> None:
        self.require_own_loop()
        if self._is_closed:
            raise ClientClosed

    async def close(self) -> None:
        self._is_closed = True
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()
        self._calls.clear()


def _read(path: str) -> bytes | None:
    if not path:
        return None
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise BadConfig(f"cannot read {path}: {error.strerror}") from error
