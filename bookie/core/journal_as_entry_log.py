"""Decides whether a filled journal file becomes an entry log unchanged, or is rewritten sorted.

An adopted file is written only once, but reads cost more: to read a ledger, every record with some
of its entries is read as a whole. Therefore a file is adopted only if it costs at most
`_READ_COST_MAX` times the bytes of its ledgers to read all of them one by one. An adopted file
keeps its padding and framing. Therefore it is not adopted if it is mostly padding and framing, as
after hours of single small adds.
"""

from dataclasses import dataclass
from typing import Final

_READ_COST_MAX: Final = 4
_SPACE_COST_MAX: Final = 1.6


@dataclass(slots=True)
class JournalShape:
    """Totals of a journal file, which are counted while it is written."""

    read_bytes: int = 0  # Sum over all records: bytes of the body, times the number of its ledgers.

    def on_record(self, body_bytes: int, ledgers: int) -> None:
        self.read_bytes += body_bytes * ledgers

    def is_worth_adopting(self, entry_bytes: int, file_bytes: int) -> bool:
        """`entry_bytes` is the size of the file's live entries, and `file_bytes` its size on disk."""
        return (
            entry_bytes > 0
            and self.read_bytes <= _READ_COST_MAX * entry_bytes
            and file_bytes <= _SPACE_COST_MAX * entry_bytes
        )
