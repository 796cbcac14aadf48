"""Contexts for TLS: a process's own certificate, and the peers that it trusts.

A server uses TLS 1.3 or later. If its clients include those of BookKeeper it also accepts 1.2,
which older ones use (`TLS_OF_BOOKIES`). Rollbook's clients accept both.

A server requests a certificate from its clients iff authorities for clients are configured.
The files are checked at each handshake, so a renewed certificate or a removed authority takes
effect with the next connection. An incomplete change is ignored until it can be read. No session is
resumed, since a resumed session would be admitted because of the certificates that were valid when
it began.
"""

import ssl
from dataclasses import dataclass
from typing import Final

import structlog

from rollbook.proto.errors import BadConfig
from rollbook.proto.runtime.file_stamp import FileStamp, file_stamp

logger = structlog.get_logger()

TLS_OF_BOOKIES: Final = ssl.TLSVersion.TLSv1_2


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The paths of PEM files."""

    certificate: str  # The certificate, with its chain up to the authority.
    key: str = ""  # The unencrypted key; empty if it is in the certificate's file.
    authorities: str = ""  # The authorities that may sign a peer's certificate.

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(filter(None, (self.certificate, self.key, self.authorities))))


def server_context(
    files: TlsFiles, oldest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> ssl.SSLContext:
    """Returns the context for `SocketTransport(server_tls=…)`. Raises `BadConfig` if the files are invalid."""
    return _Reloading(files, oldest).context


def client_context(
    authorities: str, *, certificate: str = "", key: str = "", checks_name: bool = True
) -> ssl.SSLContext:
    """Raises `BadConfig`. Without `checks_name`, every certificate that the authorities signed is accepted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = TLS_OF_BOOKIES
    context.check_hostname = checks_name
    try:
        context.load_verify_locations(authorities)
        if certificate:
            context.load_cert_chain(certificate, key or None, password=_no_password)
    except (OSError, ValueError) as error:
        raise _unusable((authorities, certificate, key), error) from error
    return context


def trusting_context(authorities: str | None = None) -> ssl.SSLContext:
    """Returns the context of a client that trusts the authorities of a file, or those of the
    machine if there is no file. Raises `OSError`.

    Python 3.13 began to refuse authorities without a key usage, which `openssl req -x509` makes.
    gRPC and `client_context` accept such authorities, and a certificate that one part of a cluster
    accepts must be accepted by all parts.
    """
    context = ssl.create_default_context(cafile=authorities or None)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


class ClientTls:
    """The context of a client that runs for a long time. A changed file takes effect with the next
    connection. While files cannot be used, for example because only half of a pair was renewed, the
    context stays as it was.
    """

    def __init__(self, authorities: str, *, certificate: str = "", key: str = "") -> None:
        """Loads the files. Raises `BadConfig` if they cannot be used."""
        self._authorities, self._certificate, self._key = authorities, certificate, key
        self._paths = tuple(dict.fromkeys(filter(None, (authorities, certificate, key))))
        self._seen = self._look()
        self._current = self._load()

    def context(self) -> ssl.SSLContext:
        """Returns the context for one new connection."""
        if (seen := self._look()) != self._seen:
            self._seen = seen
            try:
                self._current = self._load()
                logger.info("certificates_reloaded", certificate=self._certificate)
            except BadConfig as error:
                logger.warning("certificates_not_reloaded", reason=str(error))
        return self._current

    def _load(self) -> ssl.SSLContext:
        return client_context(self._authorities, certificate=self._certificate, key=self._key)

    def _look(self) -> tuple[FileStamp, ...]:
        return tuple(map(file_stamp, self._paths))


class _Reloading:
    """A context that is replaced when its files have changed and can be read."""

    def __init__(self, files: TlsFiles, oldest: ssl.TLSVersion) -> None:
        self._files = files
        self._oldest = oldest
        self._seen = self._look()
        self.context = self._current = _load(files, oldest)
        self.context.sni_callback = self._on_handshake

    def _on_handshake(
        self, connection: ssl.SSLObject, _name: str | None, _outer: ssl.SSLContext
    ) -> None:
        if (seen := self._look()) != self._seen:
            self._seen = seen
            try:
                self._current = _load(self._files, self._oldest)
                logger.info("certificates_reloaded", certificate=self._files.certificate)
            except BadConfig as error:
                logger.warning("certificates_not_reloaded", reason=str(error))
        connection.context = self._current

    def _look(self) -> tuple[FileStamp, ...]:
        return tuple(map(file_stamp, self._files.all))


def _load(files: TlsFiles, oldest: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = oldest
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    try:
        context.load_cert_chain(files.certificate, files.key or None, password=_no_password)
        if files.authorities:
            context.load_verify_locations(files.authorities)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:  # This includes ssl.SSLError, which is an OSError.
        raise _unusable(files.all, error) from error
    return context


def _no_password() -> str:
    """Refuses an encrypted key, since OpenSSL would ask for its password on the terminal."""
    raise ValueError("the key is encrypted")


def _unusable(files: tuple[str, ...], error: Exception) -> BadConfig:
    return BadConfig(
        f"cannot use {', '.join(filter(None, files))}: {error}",
        next_step="give PEM files that this user may read, with an unencrypted key",
    )
