"""The commands that repair what keeps a bookie from starting: errors name them, and so does the
doctor."""

from typing import Final

INIT: Final = "rollbook bookie init"
FORMAT: Final = "rollbook bookie format"
REJOIN: Final = "rollbook bookie rejoin"
WRITE_OFF: Final = "rollbook bookie write-off"
RESTORED: Final = "rollbook cluster restored"  # Not of one bookie: it takes the metadata URL.
