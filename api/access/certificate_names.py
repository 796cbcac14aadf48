"""The names in a peer's certificate: its alternative names, or otherwise its common name (G2)."""

from collections.abc import Mapping
from typing import Any


def names_in(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """`certificate`: a verified certificate as `ssl` returns it; None or empty: the peer sent no certificate."""
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
