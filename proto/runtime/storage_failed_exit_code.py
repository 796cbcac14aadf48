"""The exit codes of Rollbook's processes."""

from typing import Final

EXIT_STORAGE_FAILED: Final = 74  # EX_IOERR of sysexits.h.
