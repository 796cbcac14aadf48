"""The exit code of a process whose storage has failed."""

from typing import Final

EXIT_STORAGE_FAILED: Final = 74  # EX_IOERR of sysexits.h.
