"""`rollbook.wal.aio`: the classes of `rollbook.wal` for programs with an event loop."""

from rollbook.api.wal.exclusive_writer import ExclusiveWriter
from rollbook.api.wal.machine import State, StateMachine
from rollbook.api.wal.term import Term

__all__ = ["ExclusiveWriter", "State", "StateMachine", "Term"]
