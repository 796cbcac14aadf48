"""`rollbook.wal`: replicated state machines. A log keeps the replicas, each on its own machine, identical.
Programs with an event loop use `wal.aio`.

See ../DESIGN.md.
"""

from rollbook.api.wal import aio
from rollbook.api.wal.machine import State
from rollbook.api.wal.sync import ExclusiveWriter, StateMachine, Term

__all__ = ["ExclusiveWriter", "State", "StateMachine", "Term", "aio"]
