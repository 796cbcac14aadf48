"""Checks that the files for TLS are given together."""

from rollbook.proto.errors import BadConfig


def require_certificate_of(key: str | None, certificate: str | None, said_as: str) -> None:
    """Raises `BadConfig` for a key without a certificate, since TLS would silently ignore the key.

    `said_as` is the name of the certificate's setting; the error shows it.
    """
    if key and not certificate:
        raise BadConfig(
            f"there is no certificate for the key {key}",
            next_step=f"set {said_as}, too",
        )
