"""Everything a run depends on, made from a seed."""

import asyncio
import gc
import random
import sys
import warnings
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import Context
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any, Final, Never, TypeVar

import structlog

from rollbook.proto.ports import MetadataStore, Randomness
from tests.simulation.kernel.buggify import SeededBuggify
from tests.simulation.kernel.disk import MachineDisk
from tests.simulation.kernel.failures import InvariantBroken, LostTask, Unhandled
from tests.simulation.kernel.guards import guarded
from tests.simulation.kernel.loop import WORLD, VirtualLoop
from tests.simulation.kernel.metadata import SimulatedMetadata
from tests.simulation.kernel.network import Network, SimulatedTransport
from tests.simulation.kernel.trace import Trace

T = TypeVar("T")

Main = Callable[["Node"], Coroutine[Any, Any, Any]]

EPOCH_US: Final = 1_767_225_600_000_000  # The first day of 2026: wall clocks start there.


class Process:
    """One life of a node's program."""

    def __init__(self, node: "Node", number: int, main: Main) -> None:
        loop = node.world.loop
        self.node = node
        self.number = number
        self.main = main
        self.result: asyncio.Future[Any] = loop.create_future()
        self.lane = loop.new_lane(node.name, f"{node.name}#{number}")
        self.lane.on_exit = self._on_exit
        self._task = loop.create_task(self._live(main), context=self.lane.context.copy())

    @property
    def is_alive(self) -> bool:
        return self.lane.is_alive

    async def _live(self, main: Main) -> None:
        """As `asyncio.run` does it: main, then whatever it left behind is cancelled."""
        tell: Callable[[], object]
        try:
            value = await main(self.node)
        except asyncio.CancelledError:
            tell = self.result.cancel
        except Exception as error:  # noqa: BLE001  # The process dies of it; its awaiter gets the error.
            tell = partial(self.result.set_exception, error)
        else:
            tell = partial(self.result.set_result, value)
        try:
            await self._cancel_the_rest()
        finally:  # Cancelled again: it ends all the same.
            self._end(tell)

    async def _cancel_the_rest(self) -> None:
        rest = [task for task in self.lane.tasks() if task is not self._task]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        for task in rest:
            if not task.cancelled() and (error := task.exception()) is not None:
                self.node.world.loop.call_exception_handler(
                    {"message": "while it was cancelled", "exception": error, "task": task}
                )

    def _on_exit(self, error: SystemExit) -> None:
        self._end(partial(self.result.set_result, error.code))

    def _end(self, tell: Callable[[], object]) -> None:
        if self.is_alive:
            self.node.world.loop.freeze_lane(self.lane)
            self.node.on_process_dead()
            if not self.result.done():
                tell()

    def terminate(self) -> None:
        self.node.world.loop.call_soon(self._task.cancel, context=self.lane.context)


class SimulatedClock:
    """The `Clock` port of a node. Its monotonic time starts anywhere, and starts again at each boot."""

    def __init__(self, loop: VirtualLoop, chance: random.Random) -> None:
        self._loop = loop
        self._chance = chance
        self._boot_ns = 0
        self._wall_offset_us = 0
        self.on_boot()

    def on_boot(self) -> None:
        self._boot_ns = self._chance.randrange(10**15) - round(self._loop.now * 1e9)

    def monotonic_ns(self) -> int:
        return self._boot_ns + round(self._loop.now * 1e9)

    def wall_us(self) -> int:
        return EPOCH_US + round(self._loop.now * 1e6) + self._wall_offset_us

    def let_others_run(self) -> None:
        """Here every process has a processor of its own."""

    def jump(self, seconds: float) -> None:
        self._wall_offset_us += round(seconds * 1e6)


class Node:
    """One machine: its ports, and at most one process at a time."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.process: Process | None = None
        self.is_up = True  # As machines go: connections to it are refused, not unanswered.
        self.clock = SimulatedClock(world.loop, world.random(f"clock:{name}"))
        self.transport = SimulatedTransport(world.network, name)
        self.disk = MachineDisk(world.loop, name, world.random)
        self.randomness: Randomness = world.random(f"node:{name}")
        self.buggify = world.buggify

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.is_alive

    @property
    def context(self) -> Context:
        """For callbacks that its process is to run."""
        assert self.process is not None
        return self.process.lane.context

    async def metadata(
        self, session_timeout_s: float = 10.0, operation_timeout_s: float = 10.0
    ) -> MetadataStore:
        """A client of the world's metadata store, with a session of its own."""
        return await self.world.metadata.connect(self, session_timeout_s, operation_timeout_s)

    def start(self, main: Main) -> Process:
        assert not self.is_running, f"{self.name} runs already"
        if not self.is_up:
            self.is_up = True
            self.clock.on_boot()
            self.world.network.on_power_back(self.name)
        number = self.process.number + 1 if self.process else 1
        self.world.log("started", node=self.name, number=number)
        self.process = Process(self, number, main)
        self.world.processes.append(self.process)
        return self.process

    def restart(self) -> Process:
        assert self.process is not None, f"{self.name} has never been started"
        self.kill()
        return self.start(self.process.main)

    def kill(self) -> None:
        if self.process is not None and self.process.is_alive:
            self.world.log("killed", node=self.name)
            self.process._end(self.process.result.cancel)

    def power_cut(self) -> None:
        if not self.is_up:
            return
        self.world.log("power cut", node=self.name)
        self.is_up = False
        self.world.network.on_power_lost(self.name)  # First: the dead send no word.
        if self.process is not None:
            self.process._end(self.process.result.cancel)
        self.disk.on_power_lost()

    def pause(self) -> None:
        if self.process is not None and self.process.is_alive:
            self.world.log("paused", node=self.name)
            self.world.loop.stop_lane(self.process.lane)

    def resume(self) -> None:
        if self.process is not None and self.process.is_alive:
            self.world.log("resumed", node=self.name)
            self.world.loop.resume_lane(self.process.lane)

    def terminate(self) -> None:
        if self.process is not None and self.process.is_alive:
            self.process.terminate()

    def on_process_dead(self) -> None:
        """Its end, however it came: the machine closes what it had open."""
        self.world.network.on_process_dead(self.name)
        self.disk.on_process_dead()

    def __repr__(self) -> str:
        return f"<node {self.name}>"


class World:
    def __init__(
        self,
        seed: int,
        *,
        shuffle: bool = False,
        keep_text: bool = False,
        callbacks_max: int = 5_000_000,
        seconds_max: float = 21_600.0,
    ) -> None:
        self.seed = seed
        self.trace = Trace(keep_text=keep_text)
        self.nodes: dict[str, Node] = {}
        self.processes: list[Process] = []
        self._streams: dict[str, random.Random] = {}
        self._has_run = False
        self.loop = VirtualLoop(  # type: ignore[abstract]  # What is missing does not exist here.
            self.random("scheduling"),
            self.trace,
            shuffle=shuffle,
            callbacks_max=callbacks_max,
            seconds_max=seconds_max,
        )
        self.network = Network(self.loop, self.random("network"), self._is_up)
        self.loop.network = self.network
        self.buggify = SeededBuggify(self.random)

    # --- For scenarios ------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self.loop.now

    @property
    def now_ns(self) -> int:
        return round(self.loop.now * 1e9)

    @property
    def callbacks(self) -> int:
        return self.loop.callbacks

    def random(self, purpose: str) -> random.Random:
        """A stream of its own for each purpose: one more draw here shifts nothing there."""
        stream = self._streams.get(purpose)
        if stream is None:
            digest = blake2b(f"{self.seed}/{purpose}".encode(), digest_size=8).digest()
            stream = self._streams[purpose] = random.Random(int.from_bytes(digest))
        return stream

    def node(self, name: str) -> Node:
        node = self.nodes.get(name)
        if node is None:
            assert name != WORLD
            node = self.nodes[name] = Node(self, name)
        return node

    @cached_property
    def metadata(self) -> SimulatedMetadata:
        """Made when it is first asked for."""
        return SimulatedMetadata(self)

    def at(self, when_s: float, action: Callable[..., object], *arguments: object) -> None:
        assert when_s >= self.now
        self.loop.call_at(when_s, action, *arguments, context=self.loop.outside.context)

    def log(self, event: str, /, **fields: object) -> None:
        """Values are written with `repr`: give it none that holds an address or a set."""
        self.trace.on_event(self.now, self.loop.lane().name, event, fields)

    def fail(self, reason: str) -> None:
        self.log("failed", reason=reason)
        self.loop.fail(InvariantBroken(reason))

    def run(self, scenario: Coroutine[Any, Any, T]) -> T:
        assert not self._has_run, "a world runs once"
        self._has_run = True
        with ExitStack() as after:
            after.enter_context(_Alone(self.loop))
            after.enter_context(_logs_into(self))
            after.enter_context(guarded(self.loop.fail))
            after.callback(self._end)
            result: T = self.loop.run_until_complete(scenario)
            self._check_processes()
            return result

    # --- Inside -------------------------------------------------------------------------------

    def _is_up(self, host: str) -> bool:
        return host == WORLD or ((node := self.nodes.get(host)) is not None and node.is_up)

    def _check_processes(self) -> None:
        for process in self.processes:
            result = process.result
            # asyncio's own note on whether anybody has looked at the exception.
            if result.done() and not result.cancelled() and result._log_traceback:
                error = result.exception()
                raise Unhandled(f"{process.lane.name} died of {error!r}") from error

    def _end(self) -> None:
        """Takes the world apart. `finally` blocks of what was still waiting run here, in a world
        that no longer listens.
        """
        self.trace.close()
        self.loop.close()
        self.network.dismantle()
        self.loop.dismantle()


@contextmanager
def _logs_into(world: World) -> Iterator[None]:
    """What product code logs becomes part of the trace."""
    outer = structlog.get_config() if structlog.is_configured() else None

    def write(_logger: Any, method: str, event: structlog.typing.EventDict) -> Never:
        world.log(f"{method} {event.pop('event')}", **event)
        raise structlog.DropEvent

    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, write],
        wrapper_class=structlog.make_filtering_bound_logger("info"),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.reset_defaults()
        if outer is not None:
            structlog.configure(**outer)


class _Alone:
    """While a world runs, this thread has no other loop, no garbage collection at odd moments, and
    nothing is forgotten in silence.
    """

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def __enter__(self) -> None:
        self._warnings = warnings.catch_warnings()
        self._warnings.__enter__()
        warnings.simplefilter("ignore")  # A run must not depend on the filters around it.
        warnings.filterwarnings("error", message="coroutine .* was never awaited")
        self._outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self._loop)
        self._hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(None, self._loop.finish_generator)
        self._unraisable = sys.unraisablehook
        sys.unraisablehook = self._on_unraisable
        self._collected = gc.isenabled()
        gc.disable()

    def __exit__(self, *_error: object) -> None:
        if self._collected:
            gc.enable()
        sys.unraisablehook = self._unraisable
        sys.set_asyncgen_hooks(*self._hooks)
        asyncio._set_running_loop(self._outer)
        self._warnings.__exit__(None, None, None)

    def _on_unraisable(self, what: Any) -> None:
        failure = LostTask(f"{what.err_msg or 'while something was destroyed'}: {what.exc_value!r}")
        failure.__cause__ = what.exc_value
        self._loop.fail(failure)
