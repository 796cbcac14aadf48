"""The credentials of a log server as a client of other log servers."""

import os
import ssl
import time
from contextlib import suppress
from typing import Final

import structlog

from rollbook.api.access.operator_token_file import token_of
from rollbook.api.access.watched_file import WatchedFile
from rollbook.api.client.channels import Security
from rollbook.logservice.config import LogServerConfig
from rollbook.proto.loopback_addresses import is_loopback
from rollbook.proto.runtime.file_stamp import file_stamp
from rollbook.proto.runtime.tls import TlsFiles, client_context, server_context, trusting_context

logger = structlog.get_logger()

# The environment variable that names gRPC's default CAs.
_ROOTS: Final = "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"


def authorities_of_peers(config: LogServerConfig) -> str:
    """Returns the path of the CAs' file; empty if the system's CAs are used."""
    return config.peer_authorities or config.tls_authorities


def report_untrusted(config: LogServerConfig, host: str) -> None:
    """Logs an error if a server with these settings would refuse the certificate of this server.

    Log servers of a cluster have the same settings, so if one certificate is refused, all are, and no server
    can relay. Without this check, the problem would show only when a client needs a relay.
    """
    if not config.tls_certificate or is_loopback(host):
        return
    name = config.tls_name or host
    if reason := _why_refused(config, name):
        logger.error(
            "peers_not_trusted",
            reason=reason,
            name=name,
            next_step="name the CAs of log servers' certificates with --peer-authorities FILE, and a name that all "
            "these certificates have with --tls-name NAME",
        )


def _why_refused(config: LogServerConfig, name: str) -> str:
    """Returns why clients would refuse the certificate; empty if they would accept it. Performs a handshake in
    memory to find out. Raises `BadConfig`.
    """
    files = TlsFiles(config.tls_certificate, config.tls_key)
    authorities = authorities_of_peers(config) or os.environ.get(_ROOTS, "")
    trusting = client_context(authorities) if authorities else trusting_context()
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(to_client, to_server, server_hostname=name)
    server = server_context(files).wrap_bio(to_server, to_client, server_side=True)
    try:
        for side in (client, server, client):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    return ""


class ShownToPeers:
    """The credentials that log servers show each other: the server certificate and the token."""

    def __init__(self, config: LogServerConfig) -> None:
        """Raises `BadConfig`."""
        self._config = config
        self._token = WatchedFile(config.token_file, is_token=True) if config.token_file else None

    def security(self) -> Security:
        """Raises `BadConfig`."""
        config = self._config
        return Security(
            uses_tls=bool(config.tls_certificate),
            authorities=authorities_of_peers(config),
            certificate=config.tls_certificate if config.tls_authorities else "",
            key=config.tls_key if config.tls_authorities else "",
            token=token_of(self._token) if self._token is not None else "",
            insecure=config.insecure,
            name=config.tls_name,
        )

    def look(self) -> object:
        """Returns a value that changes when the result of `security` may change. It stays the same while the token
        file is empty because somebody is replacing it (AF1).
        """
        token = b""
        if self._token is not None:
            self._token.look(time.monotonic_ns(), time.time_ns())
            token = self._token.data
        config = self._config
        files = (config.tls_certificate, config.tls_key, authorities_of_peers(config))
        return token, tuple(file_stamp(path) for path in files if path)
