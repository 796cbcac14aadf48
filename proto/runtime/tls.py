"""TLS: our own certificate, and which peers are trusted.

A server uses TLS 1.3 and later, unless its clients include BookKeeper's: among them are older
ones, which use 1.2 (`TLS_OF_BOOKIES`). A client of ours accepts what such a server has.

A server asks its clients for a certificate iff the authorities that sign those are configured.
Files are checked with each handshake, so a renewed certificate, or a removed authority, counts
from the next connection on; an incomplete change is ignored until it can be read. No session is
resumed: a resumed one would be admitted by the certificates of its beginning.
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
    """Paths of PEM files."""

    certificate: str  # The certificate with its chain up to the authority.
    key: str = ""  # Empty: it is in the certificate's file. Not encrypted.
    authorities: str = ""  # The authorities for a peer's certificate.

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(filter(None, (self.certificate, self.key, self.authorities))))


def server_context(
    files: TlsFiles, oldest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> ssl.SSLContext:
    """For `SocketTransport(server_tls=…)`. Raises `BadConfig` if the files are invalid."""
    return _Reloading(files, oldest).context


def client_context(
    authorities: str, *, certificate: str = "", key: str = "", checks_name: bool = True
) -> ssl.SSLContext:
    """Raises `BadConfig`. Without `checks_name` every certificate that the authorities signed is accepted."""
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
    """Returns the context of a client that trusts the authorities of a file, or without one those of the
    machine. Raises `OSError`.

    Python 3.13 began to refuse authorities without a key usage, which `openssl req -x509` makes. gRPC and `client_context`
    accept them, and a certificate that one part of a cluster accepts has to be good for all parts.
    """
    context = ssl.create_default_context(cafile=authorities or None)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


class ClientTls:
    """The context of a client that runs for long: a changed file counts from the next connection
    on.

    Files that cannot be used yet, such as half of a renewed pair, leave the context as it was.
    """

    def __init__(self, authorities: str, *, certificate: str = "", key: str = "") -> None:
        """Raises `BadConfig` if the files cannot be used."""
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
    """A context that is replaced by the newest readable one."""

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
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError.
        raise _unusable(files.all, error) from error
    return context


def _no_password() -> str:
    """Refuses encrypted keys, for which OpenSSL would ask at the terminal."""
    raise ValueError("the key is encrypted")


def _unusable(files: tuple[str, ...], error: Exception) -> BadConfig:
    return BadConfig(
        f"cannot use {', '.join(filter(None, files))}: {error}",
        next_step="give PEM files that this user may read, the key in the clear",
    )
