"""Which files of TLS go with which."""

from rollbook.proto.errors import BadConfig


def require_certificate_of(key: str | None, certificate: str | None, said_as: str) -> None:
    """Raises `BadConfig`: a key alone would be ignored silently, and no certificate shown.

    `said_as`: how a certificate is given here.
    """
    if key and not certificate:
        raise BadConfig(
            f"the key {key} is for a certificate, and there is none",
            next_step=f"say {said_as}, too",
        )
