"""Checks that files of TLS are given together."""

from rollbook.proto.errors import BadConfig


def require_certificate_of(key: str | None, certificate: str | None, said_as: str) -> None:
    """Raises `BadConfig` for a key without a certificate: TLS would silently ignore it.

    `said_as` names the setting of the certificate, for the error.
    """
    if key and not certificate:
        raise BadConfig(
            f"the key {key} is for a certificate, and there is none",
            next_step=f"say {said_as}, too",
        )
