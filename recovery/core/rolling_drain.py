"""Rules for draining many bookies, a few at a time: which bookie is next, and when the operation is over
(OP5).

If a bookie is Active again after its drain began, a person has cancelled the drain, and it does not begin
again. The notes have the version of its lifecycle from before the drain. Since each change increases the
version, they show even after a restart that the drain had begun.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rollbook.proto.formats.lifecycle import LifecycleState
from rollbook.proto.ids import BookieId

NO_NODE: Final = -1  # Stands for the version of a missing node: the bookie was always Active.


@dataclass(frozen=True, slots=True)
class DrainNotes:
    """The facts that a drain operation needs after a restart."""

    # The version of each lifecycle before its drain.
    began: Mapping[str, int] = field(default_factory=dict)
    # For each bookie: "drained", or the reason why it was not drained.
    ended: Mapping[str, str] = field(default_factory=dict)
    # The number of ledgers that named each bookie when the operation began.
    ledgers: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, notes: Mapping[str, Any]) -> "DrainNotes":
        return cls(**{name: dict(notes.get(name, {})) for name in cls.__slots__})

    def facts(self) -> dict[str, Any]:
        return {name: dict(getattr(self, name)) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class DrainStep:
    ended: Mapping[BookieId, str]  # Drains that have ended since the notes were written.
    to_begin: Sequence[BookieId]
    is_over: bool


DRAINED: Final = "drained"
CALLED_OFF: Final = "its drain was cancelled"


def next_drains(
    seen: Mapping[BookieId, tuple[LifecycleState, int]], notes: DrainNotes, at_most: int
) -> DrainStep:
    """Return the operation's next step. `seen` has each bookie's state and the version of its node, in the
    order in which the bookies are drained.
    """
    ended: dict[BookieId, str] = {}
    waiting: list[BookieId] = []
    draining = 0
    for bookie, (state, version) in seen.items():
        if bookie in notes.ended:
            continue
        was_begun = bookie in notes.began and version > notes.began[bookie]
        if state is LifecycleState.DRAINED:
            ended[bookie] = DRAINED
        elif state is LifecycleState.DRAINING:
            draining += 1
        elif not was_begun:
            waiting.append(bookie)
        elif state is LifecycleState.ACTIVE:
            ended[bookie] = CALLED_OFF
        else:
            ended[bookie] = "its drain failed"
    to_begin = waiting[: max(at_most - draining, 0)]
    return DrainStep(ended, to_begin, is_over=not draining and not waiting)
