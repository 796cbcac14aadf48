"""How processes of ours end that others are told of by a number alone."""

from typing import Final

EXIT_STORAGE_FAILED: Final = 74  # EX_IOERR of sysexits.h.
