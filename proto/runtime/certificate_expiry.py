"""Reads the time at which a certificate expires from its DER.

    Certificate ── TBSCertificate ── [0] version? · serial · algorithm · issuer · Validity ── from, until

Python's library reports this time only for the certificate of a peer, after a handshake.
"""

import ssl
from datetime import UTC, datetime
from typing import Final

from rollbook.proto.errors import BadConfig
from rollbook.proto.runtime.system_error_text import describe_error

_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17  # The tag of times with a two-digit year, from 1950 to 2049.


def certificate_end_s(path: str) -> float:
    """Returns when the first certificate of a PEM file expires, in seconds since 1970. Raises `BadConfig`."""
    try:
        with open(path, encoding="ascii") as file:
            _, begin, rest = file.read().partition(_BEGIN)
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(
            f"cannot read the certificate: {describe_error(error)}", path=path
        ) from error
    body, end, _ = rest.partition(_END)
    try:
        return _end_s(ssl.PEM_cert_to_DER_cert(begin + body + end))
    except (ValueError, IndexError) as error:
        raise BadConfig("this is not a certificate", path=path) from error


def _end_s(der: bytes) -> float:
    _, inside, _ = _element(der, 0)
    _, at, _ = _element(der, inside)
    tag, _, after = _element(der, at)
    if tag == _VERSION:
        at = after
    for _ in range(3):  # Serial, algorithm, issuer.
        _, _, at = _element(der, at)
    _, start, _ = _element(der, at)
    _, _, until = _element(der, start)
    tag, start, end = _element(der, until)
    text = der[start:end].decode("ascii")
    if tag == _UTC_TIME:
        text = ("20" if text[:2] < "50" else "19") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Returns the tag of a DER element, and where its content starts and ends."""
    tag, length, start = der[at], der[at + 1], at + 2
    if length & 0x80:
        digits = length & 0x7F
        length = int.from_bytes(der[start : start + digits])
        start += digits
    return tag, start, start + length
