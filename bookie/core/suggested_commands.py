"""The repair commands that errors and the doctor name when a bookie cannot start."""

from typing import Final

INIT: Final = "rollbook bookie init"
FORMAT: Final = "rollbook bookie format"
REJOIN: Final = "rollbook bookie rejoin"
WRITE_OFF: Final = "rollbook bookie write-off"
# This command is for the whole cluster, so it takes the metadata URL.
RESTORED: Final = "rollbook cluster restored"
