"""Checks the bytes of a node before they are parsed."""

from typing import Final

from rollbook.proto.errors import BadMetadata

# This is ZooKeeper's default limit for one packet.
METADATA_BYTES_MAX: Final = 1024 * 1024


def check_size(data: bytes, bytes_max: int = METADATA_BYTES_MAX) -> None:
    if len(data) > bytes_max:
        raise BadMetadata(f"{len(data)} bytes are over the limit of {bytes_max}")


def decode_ascii(data: bytes, what: str) -> str:
    check_size(data)
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise BadMetadata(f"{what} is not ASCII: {data[:80]!r}") from None
