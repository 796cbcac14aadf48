"""What a peer's certificate says that it is called: its alternative names, or else its common name."""

from collections.abc import Mapping
from typing import Any


def names_in(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """As `ssl` tells of a certificate that was verified; None or empty: none was shown."""
    if not certificate:
        return ()
    alternative = tuple(str(name) for _, name in certificate.get("subjectAltName", ()))
    common = (
        str(value)
        for part in certificate.get("subject", ())
        for key, value in part
        if key == "commonName"
    )
    return alternative or tuple(common)
