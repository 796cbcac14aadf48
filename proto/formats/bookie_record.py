"""What our own tree keeps of a bookie: the incarnation that its entries were acknowledged by.

JSON, `{"incarnation": "4e0c…", "version": 1}`. It outlives the cookie, which BookKeeper's tools remove
when a bookie is taken out: so an id that was used before is never taken for a new one.
"""

import json
import re
from typing import Final

from rollbook.proto.errors import BadMetadata, UnsupportedVersion
from rollbook.proto.formats.bounds import check_size

_VERSION: Final = 1
_INCARNATION: Final = re.compile(r"[0-9a-f]{32}")


def pack_bookie_record(incarnation: str) -> bytes:
    assert _INCARNATION.fullmatch(incarnation)
    record = {"version": _VERSION, "incarnation": incarnation}
    return json.dumps(record, sort_keys=True).encode("ascii")


def unpack_bookie_record(data: bytes) -> str:
    """The incarnation."""
    check_size(data)
    try:
        record = json.loads(data)
        version, incarnation = record["version"], record["incarnation"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadMetadata(f"no record of a bookie: {data[:80]!r}") from None
    if version != _VERSION:
        raise UnsupportedVersion(f"a bookie's record of version {version!r:.20}")
    if not isinstance(incarnation, str) or not _INCARNATION.fullmatch(incarnation):
        raise BadMetadata(f"{incarnation!r:.80} is no incarnation")
    return incarnation
