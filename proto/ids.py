"""The ids of ledgers, entries and bookies. All ids are signed 64-bit integers."""

import re
from typing import Final, NewType

from rollbook.proto.errors import InvalidRequest

LedgerId = NewType("LedgerId", int)
EntryId = NewType("EntryId", int)
BookieId = NewType("BookieId", str)

LEDGER_ID_MAX: Final = LedgerId(2**63 - 1)
FIRST_ENTRY: Final = EntryId(0)
NO_ENTRY: Final = EntryId(-1)  # As a last entry or a LAC it means that there is no entry yet.

# The range from `:` to `_` in ASCII is BookKeeper's own choice; it leaves out `/`, space and `,`.
_BOOKIE_ID: Final = re.compile(r"[A-Za-z0-9:-_.\-]+", re.ASCII)
_RESERVED_BOOKIE_ID: Final = "readonly"  # The folder of read-only registrations has this name.
BOOKIE_ID_BYTES_MAX: Final = 255  # File systems and the metadata store accept names of this length.


def parse_ledger_id(value: int) -> LedgerId:
    if not 0 <= value <= LEDGER_ID_MAX:
        raise InvalidRequest(f"ledger id {value} is outside 0 … 2^63-1")
    return LedgerId(value)


def parse_bookie_id(text: str) -> BookieId:
    """Checks a bookie's name. Every bookie id passes this check, so it is safe as a node name and
    as a file name.
    """
    if not _BOOKIE_ID.fullmatch(text) or len(text) > BOOKIE_ID_BYTES_MAX:
        raise InvalidRequest(
            f"bookie id {text[:80]!r} is not 1 to {BOOKIE_ID_BYTES_MAX} letters, digits or "
            "characters of `: ; < = > ? @ [ \\ ] ^ _ . -`"
        )
    if text.lower() == _RESERVED_BOOKIE_ID or text in (".", ".."):
        raise InvalidRequest(f"bookie id {text!r} is reserved")
    return BookieId(text)
