"""Who takes part in this world and what the steps of a case are called."""

from typing import Final

BOOKIES: Final = tuple(f"b{number}" for number in range(1, 7))
CLUSTER: Final = "cluster"
WRITER: Final = "writer"
RECOVERERS: Final = ("recoverer-1", "recoverer-2")
FOLLOWER: Final = "follower"
READER: Final = "reader"
OPERATOR: Final = "operator"
METADATA: Final = "metadata"
CLIENTS: Final = (WRITER, *RECOVERERS, FOLLOWER, READER)

CREATE, APPEND, FLUSH, FORCE, CLOSE = "create", "append", "flush", "force", "close"
RECOVER, DELETE, FOLLOW, READ, HEAL = "recover", "delete", "follow", "read", "heal"
READ_ONLY: Final = "read-only"
STAY_DOWN: Final = "stay down after the healing"
