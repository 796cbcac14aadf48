"""The record of a bookie in our own tree. It has the incarnation that acknowledged the bookie's
entries, and counts its starts.

JSON, `{"incarnation": "4e0c…", "start": 17, "starter": "9b1d…", "version": 1}`. The record outlives
the cookie, which BookKeeper's tools remove together with the bookie, so an id that was used before
is never mistaken for a new one. Each process that starts draws a `starter`, and also writes it to
its directories. If two processes have copies of the same directories, it shows which of them wrote
the record.
"""

import json
import re
from dataclasses import dataclass
from typing import Final

from rollbook.proto.errors import BadMetadata, UnsupportedVersion
from rollbook.proto.formats.node_byte_checks import check_size

_VERSION: Final = 1
_INCARNATION: Final = re.compile(r"[0-9a-f]{32}")
_STARTER: Final = re.compile(r"[0-9a-f]{0,32}")
_START_MAX: Final = 10**12


@dataclass(frozen=True, slots=True)
class BookieRecord:
    incarnation: str
    start: int = 0  # How often the bookie has started.
    starter: str = ""

    def __post_init__(self) -> None:
        assert _INCARNATION.fullmatch(self.incarnation)
        assert _STARTER.fullmatch(self.starter)
        assert 0 <= self.start <= _START_MAX


def pack_bookie_record(record: BookieRecord) -> bytes:
    fields = {
        "version": _VERSION,
        "incarnation": record.incarnation,
        "start": record.start,
        "starter": record.starter,
    }
    return json.dumps(fields, sort_keys=True).encode("ascii")


def unpack_bookie_record(data: bytes) -> BookieRecord:
    """Raises `BadMetadata`, `UnsupportedVersion`."""
    check_size(data)
    try:
        fields = json.loads(data)
        version, incarnation = fields["version"], fields["incarnation"]
        start, starter = fields.get("start", 0), fields.get("starter", "")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadMetadata(f"not the record of a bookie: {data[:80]!r}") from None
    if version != _VERSION:
        raise UnsupportedVersion(f"a bookie's record of version {version!r:.20}")
    if not isinstance(incarnation, str) or not _INCARNATION.fullmatch(incarnation):
        raise BadMetadata(f"{incarnation!r:.80} is not an incarnation")
    if type(start) is not int or not 0 <= start <= _START_MAX:
        raise BadMetadata(f"{start!r:.80} is not the number of a start")
    if not isinstance(starter, str) or not _STARTER.fullmatch(starter):
        raise BadMetadata(f"{starter!r:.80} is not the token of a start")
    return BookieRecord(incarnation, start, starter)
