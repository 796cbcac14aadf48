"""Who takes part in this world and what the steps of a case are called."""

from typing import Final

from rollbook.proto.ids import BookieId

BOOKIES: Final = tuple(BookieId(f"b{number}") for number in range(1, 6))
WRITER: Final = "writer"
RECOVERIES: Final = ("recovery-1", "recovery-2")
READER: Final = "reader"
LAST_RECOVERY: Final = "recovery-3"  # Starts when the chaos is over.
CLIENTS: Final = (WRITER, READER, *RECOVERIES, LAST_RECOVERY)
METADATA: Final = "metadata"
APPEND, CLOSE, RECOVER, FOLLOW = "append", "close", "recover", "follow"
STAY_DOWN: Final = "stay down after the healing"
