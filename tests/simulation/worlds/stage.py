"""One run of a case in a world of whole services: its rules, its story, its deadlines.

A scene derives its own from `Stage`, with a `scenario`, and asks for its `report`.
"""

import asyncio
import traceback
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from rollbook.proto.errors import RollbookError
from tests.simulation.history import History
from tests.simulation.kernel.failures import SimulationFailed
from tests.simulation.kernel.world import Main, Node, World
from tests.simulation.schedule import Case
from tests.simulation.worlds import Report

LIVENESS: Final = "liveness"
CRASH: Final = "crash"
_CALLBACKS_MAX: Final = 5_000_000
_LOOK_S: Final = 0.05


class Stage:
    def __init__(
        self,
        case: Case,
        is_telling: bool,
        *,
        callbacks_max: int = _CALLBACKS_MAX,
        decisive: Sequence[str] = (),
    ) -> None:
        self.world = World(case.seed, callbacks_max=callbacks_max)
        self.history = History(lambda: self.world.now, decisive=decisive)
        self.story: list[str] = []
        self.broke: str | None = None
        self.is_telling = is_telling

    async def scenario(self) -> None:
        raise NotImplementedError

    def report(self) -> Report:
        """Runs it, with whatever is planted now."""
        broke, detail = None, ""
        try:
            self.world.run(self.scenario())
        except SimulationFailed as failure:
            broke = self.broke or type(failure).__name__
            detail = str(failure)
        digest = self.world.trace.digest()
        return Report(broke, detail, digest, self.history, self.story, self.world.callbacks)

    # --- Judging and telling ----------------------------------------------------------------------

    def broken(self, rule: str, text: str) -> None:
        if self.broke is None:
            self.broke = rule
            self.world.fail(f"{rule}: {text}")

    def tell(self, text: str) -> None:
        if self.is_telling:
            self.story.append(f"{self.world.now:8.4f}s {text}")

    def tell_who_waits(self) -> None:
        """Something has not come in time."""

    async def live(self, main: Main, node: Node) -> None:
        """What ends a process by an exception is a bug of somebody's."""
        try:
            await main(node)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and not task.cancelling():
                self.broken(CRASH, f"{node.name} ends as if it had been cancelled")
            raise
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.broken(CRASH, f"{node.name}: {error!r} in {where.name}, line {where.lineno}")
            raise

    # --- Deadlines --------------------------------------------------------------------------------

    async def holds(self, seconds: float, condition: Callable[[], object]) -> bool:
        """Whether it comes to hold in that time."""
        deadline = self.world.now + seconds
        while not condition():
            if self.world.now > deadline:
                return False
            await asyncio.sleep(_LOOK_S)
        return True

    async def within(self, seconds: float, condition: Callable[[], object], what: str) -> None:
        if not await self.holds(seconds, condition):
            self.tell_who_waits()
            self.broken(LIVENESS, f"{what} within {seconds:g} s")

    async def in_time(
        self,
        seconds: float,
        work: Coroutine[Any, Any, Any],
        what: str,
        *,
        passes: tuple[type[Exception], ...] = (),
    ) -> Any:
        """`passes`: what its caller understands."""
        try:
            async with asyncio.timeout(seconds):
                return await work
        except passes:
            raise
        except (TimeoutError, RollbookError) as error:
            self.broken(LIVENESS, f"{what} within {seconds:g} s: {error!r}")
            raise
