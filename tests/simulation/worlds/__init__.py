"""The worlds that can be simulated: each makes a case from a seed and runs cases."""

import importlib
from dataclasses import dataclass
from typing import Final, Protocol

from tests.simulation.history import History
from tests.simulation.schedule import Case


@dataclass(frozen=True, slots=True)
class Report:
    """What one run came to."""

    broke: str | None  # The rule that was broken, by its short name; None: all held.
    detail: str
    digest: str  # Of the trace: equal iff the runs were.
    history: History
    story: list[str]  # What happened, a line each; empty unless it was asked for.
    callbacks: int


class Scene(Protocol):
    def case(self, seed: int) -> Case:
        """A function of the seed alone."""

    def run(self, case: Case, *, tell: bool = False) -> Report:
        """A function of the case alone."""


_SCENES: Final = {
    "bookie": ("tests.simulation.worlds.bookie.scene", "BookieScene"),
    "cluster": ("tests.simulation.worlds.cluster.scene", "ClusterScene"),
    "ledger": ("tests.simulation.worlds.ledger.scene", "LedgerScene"),
    "logs": ("tests.simulation.worlds.logs.scene", "LogsScene"),
    "toy": ("tests.simulation.worlds.toy.scene", "ToyScene"),
}


def scene(name: str) -> Scene:
    """Raises KeyError for a world that there is not."""
    if name not in _SCENES:
        raise KeyError(f"no world {name!r}; there are: {', '.join(_SCENES)}")
    module, kind = _SCENES[name]
    made: Scene = getattr(
        importlib.import_module(module), kind
    )()  # They build on what stands here.
    return made
