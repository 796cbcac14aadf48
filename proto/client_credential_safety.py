"""Checks that every client makes before it connects: a token is sent without TLS only where that is safe, and a
TLS key needs its certificate.
"""

from rollbook.proto.errors import BadConfig
from rollbook.proto.loopback_addresses import is_loopback


def may_show_token(host: str, *, uses_tls: bool, insecure: bool) -> bool:
    """Returns whether a client may send its token to this host: over TLS, within the machine, or
    where `insecure` permits it.

    Every client and command uses this rule. The host may come from metadata, which other parties
    can write.
    """
    return uses_tls or insecure or is_loopback(host)


def require_certificate_of(key: str | None, certificate: str | None, said_as: str) -> None:
    """Raises `BadConfig` for a key without a certificate, since TLS would silently ignore the key.

    `said_as` is the name of the certificate's setting; the error shows it.
    """
    if key and not certificate:
        raise BadConfig(
            f"there is no certificate for the key {key}",
            next_step=f"set {said_as}, too",
        )
