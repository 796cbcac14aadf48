"""The commands that repair what keeps a bookie from starting; errors and the doctor name them."""

from typing import Final

INIT: Final = "rollbook bookie init"
FORMAT: Final = "rollbook bookie format"
REJOIN: Final = "rollbook bookie rejoin"
WRITE_OFF: Final = "rollbook bookie write-off"
# A command for the whole cluster: it takes the metadata URL.
RESTORED: Final = "rollbook cluster restored"
