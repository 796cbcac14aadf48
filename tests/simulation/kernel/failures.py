"""Why a run failed. Each class is a way of being wrong; the text says where."""


class SimulationFailed(AssertionError):
    """The run is no good; its seed and its schedule make it happen again."""


class InvariantBroken(SimulationFailed):
    """A checker, or the scenario, found a promise broken."""


class Unhandled(SimulationFailed):
    """An exception that nobody awaited, or that reached the loop."""


class LostTask(SimulationFailed):
    """Something was forgotten before it was done: a task, or a coroutine never awaited."""


class Deadlock(SimulationFailed):
    """The scenario waits, and nothing is left that could ever wake it."""


class Runaway(SimulationFailed):
    """The budget of callbacks is used up, or the clock stands still under ever new callbacks."""


class ForbiddenCall(SimulationFailed):
    """Product code reached past its ports: to the clock, to chance, to a thread, to the machine."""
