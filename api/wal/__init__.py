"""`rollbook.wal`: replicated state machines. All replicas apply the records of one log, so they stay
identical. Programs with an event loop use `wal.aio`.

See ../DESIGN.md.
"""

from rollbook.api.wal import aio
from rollbook.api.wal.machine import State
from rollbook.api.wal.sync import ExclusiveWriter, StateMachine, Term

__all__ = ["ExclusiveWriter", "State", "StateMachine", "Term", "aio"]
