"""The origin of a mirrored record, in three text headers."""

from collections.abc import Mapping
from typing import Final, NamedTuple

LOG: Final = "rollbook-log"  # namespace/log@uid
OFFSET: Final = "rollbook-offset"
TIME: Final = "rollbook-time"  # The record's timestamp in the source, in microseconds since 1970.


class RecordOrigin(NamedTuple):
    log: str
    uid: str
    offset: int


def origin_of(headers: Mapping[str, bytes]) -> RecordOrigin | None:
    """Returns the origin of a record, or None if the record is not mirrored."""
    try:
        log, at, uid = headers[LOG].decode().partition("@")
        return RecordOrigin(log, uid, int(headers[OFFSET])) if at else None
    except (KeyError, ValueError, UnicodeDecodeError):
        return None


def as_text(log: str, uid: str) -> str:
    return f"{log}@{uid}"
