"""Whether a filled journal file becomes an entry log unchanged, or is rewritten sorted.

Adopting writes each byte only once, but reads cost more: to read a ledger, every record that holds
some of its entries is read as a whole. Therefore a file is adopted only if reading all its ledgers one
by one costs at most `_READ_COST_MAX` times their bytes. The file must also not be mostly padding and
framing, as after hours of single small adds, because an adopted file keeps that space.
"""

from dataclasses import dataclass
from typing import Final

_READ_COST_MAX: Final = 4
_SPACE_COST_MAX: Final = 1.6


@dataclass(slots=True)
class JournalShape:
    """Totals of a journal file, counted while it is written."""

    read_bytes: int = 0  # Sum over all records: bytes of the body, times the number of its ledgers.

    def on_record(self, body_bytes: int, ledgers: int) -> None:
        self.read_bytes += body_bytes * ledgers

    def is_worth_adopting(self, entry_bytes: int, file_bytes: int) -> bool:
        """`entry_bytes` is the size of the file's live entries, `file_bytes` its size on disk."""
        return (
            entry_bytes > 0
            and self.read_bytes <= _READ_COST_MAX * entry_bytes
            and file_bytes <= _SPACE_COST_MAX * entry_bytes
        )
