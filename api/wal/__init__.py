"""`rollbook.wal`: state machines that a log keeps alike on many machines. `wal.aio`: with an event loop.

See ../DESIGN.md.
"""

from rollbook.api.wal import aio
from rollbook.api.wal.machine import State
from rollbook.api.wal.sync import ExclusiveWriter, StateMachine, Term

__all__ = ["ExclusiveWriter", "State", "StateMachine", "Term", "aio"]
