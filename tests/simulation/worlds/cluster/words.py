"""Who takes part in this world and what the steps of a case are called."""

from typing import Final

from tests.simulation.worlds.ledger import words

BOOKIES: Final = words.BOOKIES
CLUSTER: Final = words.CLUSTER
METADATA: Final = words.METADATA
WRITERS: Final = ("writer-1", "writer-2")
RECOVERIES: Final = ("recovery-1", "recovery-2")
OPERATOR: Final = words.OPERATOR
LOG_OWNER: Final = "log-owner"
PRODUCER: Final = "producer"  # Of records for its log.
FATE: Final = "fate"  # What kills a process at one of its steps.

FILL, HOLD, APPEND, CLOSE = "fill", "hold", "append", "close"
FORCE: Final = "force"  # A drain for which too few bookies remain.
DRAIN, UNDRAIN, RETIRE, SAFE = "drain", "undrain", "retire", "safe"
DISABLE, ENABLE, AUDIT, RECOVER = "disable", "enable", "audit", "recover"
SPOIL: Final = (
    "spoil"  # The bookie's copy of the first entry: it takes bytes that fail their digest.
)
CHECK: Final = "check"  # All checks of the auditor are asked for.
ORPHAN: Final = "orphan"  # A vote of no session is left, in both elections.
DIE: Final = "dies after"
# What happens when a worker has copied something (to a target), or a steward has walked.
WIPE_TARGET: Final = "the target is wiped"
KILL_TARGET: Final = "the target dies"
WORKER_SLEEPS: Final = "the worker sleeps"
MEMBER_RETURNS: Final = "member-1 returns"
WRITER_CLOSES: Final = "the writer closes"
CALLED_OFF: Final = "the drain is called off"
LOSS_UNSEEN: Final = "a format is not seen"  # Nobody knows any more which bookie it was before.
HEALING: Final = "recovery servers heal doubts"  # From the beginning on.
ONE_RACK: Final = "recovery servers know one rack"  # From the beginning on.
TWO_RACKS: Final = "recovery servers know two racks"  # From the beginning on.
GIVEN_UP: Final = "the first ledger may lose its last copies"
AUDITOR_SLEEPS: Final = "the auditor sleeps"
STEWARD_SLEEPS: Final = "the steward sleeps alone"
OWNED: Final = "a log has an owner"  # From the beginning on.
FROM_THE_BEGINNING: Final = (HEALING, ONE_RACK, TWO_RACKS, OWNED)
