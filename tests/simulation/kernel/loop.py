"""An event loop on virtual time, shared by many processes that know nothing of each other.

Every callback belongs to a lane: one process of one node, or the world outside of them. The lane is
a context variable, so it follows tasks and callbacks by itself. Of the lanes that have something to
do, chance picks one and its oldest callback runs: any interleaving *between* processes, first come
first served *inside* one, as asyncio promises. Time stands still while anything can run, and then
jumps to the next timer. Equal times are ordered by when the timer was set.

A lane can be stopped and go on (SIGSTOP), or be frozen permanently (SIGKILL): a killed process runs no
`finally`, so its callbacks are kept, unrun, and its tasks are kept alive until the run is over,
since dropping the last reference to a coroutine would run them.
"""

import asyncio
import contextvars
import random
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple

from rollbook.proto.ports import Address, ProtocolFactory
from tests.simulation.kernel.failures import Deadlock, ForbiddenCall, LostTask, Runaway, Unhandled
from tests.simulation.kernel.trace import Trace, describe

if TYPE_CHECKING:  # The network stands on the loop.
    from tests.simulation.kernel.network import Network, SimulatedServer

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_STANDSTILL_CALLBACKS_MAX: Final = 1_000_000  # At one instant: some loop never waits.
_CANCELLED_TIMERS_MIN: Final = 256  # Fewer than this are not worth a rebuild of the heap.
_SHUFFLE_WINDOW: Final = 4
_GOODBYES_MAX: Final = 100

LANE: ContextVar["Lane"] = ContextVar("lane")
WORLD: Final = "world"  # The host of what runs outside every node.


class Lane:
    """The callbacks of one process. It is in the loop's list of ready lanes iff it is running and
    has some.
    """

    __slots__ = (
        "_tasks",
        "_tasks_max",
        "buried",
        "context",
        "host",
        "is_alive",
        "is_running",
        "name",
        "number",
        "on_exit",
        "queue",
    )

    def __init__(self, host: str, name: str, number: int) -> None:
        self.host = host
        self.name = name
        self.number = number & 0xFF  # As the trace knows it: a byte.
        self.queue: deque[Call] = deque()
        self.is_running = True
        self.is_alive = True
        self.context = contextvars.Context()
        self.context.run(LANE.set, self)
        self.on_exit: Callable[[SystemExit], None] | None = None
        self.buried: list[
            asyncio.Task[Any]
        ] = []  # What must not be destroyed before the run is over.
        self._tasks: list[weakref.ref[asyncio.Task[Any]]] = []
        self._tasks_max = 64

    def remember(self, task: "asyncio.Task[Any]") -> None:
        if len(self._tasks) >= self._tasks_max:
            self._tasks = [ref for ref in self._tasks if ref() is not None]
            self._tasks_max = 2 * len(self._tasks) + 64
        self._tasks.append(weakref.ref(task))

    def tasks(self) -> "list[asyncio.Task[Any]]":
        """Those not done yet, in the order in which they were made."""
        return [task for ref in self._tasks if (task := ref()) is not None and not task.done()]

    def bury(self) -> None:
        self.buried += [task for ref in self._tasks if (task := ref()) is not None]

    def __repr__(self) -> str:
        return f"<lane {self.name}>"


class Call(asyncio.TimerHandle):
    """A callback to run soon or at a time. Made for every step of every task, hence bare."""

    __slots__ = ("lane",)

    if TYPE_CHECKING:  # asyncio has these slots, typeshed not all of them.
        _callback: Callable[..., object] | None  # None: cancelled.
        _args: tuple[Any, ...] | None  # type: ignore[assignment]  # None: cancelled.
        _context: Context
        _loop: "VirtualLoop"
        _when: float
        _scheduled: bool  # In the heap, that is.

    def __init__(  # No super().__init__: it would cost more than the rest of a step.
        self, lane: Lane, callback: Callable[..., object], args: tuple[Any, ...], context: Context
    ) -> None:
        self.lane = lane
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = False
        self._scheduled = False

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            if self._scheduled:
                self._loop.on_timer_cancelled()
            self._callback = self._args = None

    def when(self) -> float:
        return self._when

    def __repr__(self) -> str:
        return f"<{'cancelled ' if self._cancelled else ''}call of {describe(self._callback)}>"


class VirtualLoop(asyncio.AbstractEventLoop):
    def __init__(
        self,
        chance: random.Random,
        trace: Trace,
        *,
        shuffle: bool,
        callbacks_max: int,
        seconds_max: float,
    ) -> None:
        self.now = 0.0
        self.callbacks = 0
        self.failure: BaseException | None = None
        self.outside = Lane(WORLD, WORLD, 0)
        self.lanes = [self.outside]
        self._ready: list[Lane] = []
        self._timers: list[tuple[float, int, Call]] = []
        self._timers_set = 0
        self._timers_cancelled = 0
        self._chance = chance
        self._shuffle = shuffle
        self._callbacks_max = callbacks_max
        self._seconds_max = seconds_max
        self._trace = trace
        self.network: Network  # The world puts it there.
        self._is_going = False
        self._is_closed = False
        self._is_dismantled = False

    # --- Lanes --------------------------------------------------------------------------------

    def lane(self) -> Lane:
        """Whose code is running."""
        return LANE.get(self.outside)

    def new_lane(self, host: str, name: str) -> Lane:
        lane = Lane(host, name, len(self.lanes))
        self.lanes.append(lane)
        return lane

    def stop_lane(self, lane: Lane) -> None:
        if lane.is_running:
            lane.is_running = False
            if lane.queue:
                self._ready.remove(lane)

    def resume_lane(self, lane: Lane) -> None:
        if not lane.is_running:
            lane.is_running = True
            if lane.queue:
                self._ready.append(lane)

    def freeze_lane(self, lane: Lane) -> None:
        """Freeze the lane permanently. Whatever is still called for it is kept and never run."""
        self.stop_lane(lane)
        lane.is_alive = False
        lane.bury()

    # --- Callbacks ----------------------------------------------------------------------------

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> Call:
        if context is None:
            context = copy_context()
        lane = context.get(LANE, self.outside)
        call = Call(lane, callback, args, context)
        queue = lane.queue
        if not queue and lane.is_running:
            self._ready.append(lane)
        queue.append(call)
        return call

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> Call:
        if context is None:
            context = copy_context()
        call = Call(context.get(LANE, self.outside), callback, args, context)
        call._loop = self
        call._when = when
        call._scheduled = True
        self._timers_set += 1
        heappush(self._timers, (when, self._timers_set, call))
        return call

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> Call:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def on_timer_cancelled(self) -> None:
        """Nearly every deadline is cancelled: unswept, they would be most of the heap."""
        self._timers_cancelled += 1
        if self._timers_cancelled > max(_CANCELLED_TIMERS_MIN, len(self._timers) // 2):
            self._timers[:] = [timer for timer in self._timers if not timer[2]._cancelled]
            heapify(self._timers)
            self._timers_cancelled = 0

    def time(self) -> float:
        return self.now

    # --- Running ------------------------------------------------------------------------------

    def run_until_complete(self, future: Any) -> Any:
        """Runs until the coroutine is done or the run has failed; then raises the failure."""
        main = self.create_task(future, context=self.outside.context.copy())
        main.add_done_callback(self._on_main_done)
        self._run()
        if self.failure is not None:
            raise self.failure
        return main.result()

    def _on_main_done(self, main: "asyncio.Future[Any]") -> None:
        self._is_going = False

    def _run(self) -> None:
        """The hot loop: what it does for each callback is most of what a simulation costs."""
        ready, queue_choice = self._ready, self._chance.random
        note, keeps_text = self._trace.pending.append, self._trace.lines is not None
        budget = limit = self._next_limit()
        self._is_going = self.failure is None
        while self._is_going:
            if not ready:
                if budget < limit // 2:
                    self.callbacks += limit - budget
                    budget = limit = self._next_limit()
                self._advance()
                continue
            count = len(ready)
            index = int(queue_choice() * count) if count > 1 else 0
            lane = ready[index]
            queue = lane.queue
            if self._shuffle and len(queue) > 1:
                self._shuffle_tasks(queue)
            call = queue.popleft()
            if not queue:
                last = ready.pop()
                if last is not lane:
                    ready[index] = last
            if call._cancelled:
                continue
            note(lane.number)
            if keeps_text:
                self._trace.on_step(self.now, lane.name, call._callback)
            try:
                call._context.run(call._callback, *call._args)  # type: ignore[arg-type, misc]  # Not cancelled, so neither is None.
            except (SystemExit, KeyboardInterrupt) as error:
                self._on_exit(lane, error)
            except BaseException as error:  # noqa: BLE001  # Here tasks end.
                self._on_error(lane, call, error)
            budget -= 1
            if not budget:
                self.callbacks += limit
                self._on_runaway(limit)
                return
        self.callbacks += limit - budget

    def _next_limit(self) -> int:
        """How many callbacks may run before it is checked that the clock has moved."""
        return max(1, min(_STANDSTILL_CALLBACKS_MAX, self._callbacks_max - self.callbacks))

    def _on_runaway(self, at_once: int) -> None:
        if self.callbacks >= self._callbacks_max and at_once < self._callbacks_max:
            text = f"{self.callbacks:,} callbacks and no end"
        else:
            text = f"{at_once:,} callbacks at the virtual second {self.now:.6f}"
        self.fail(Runaway(f"{text}: {self._who_waits()}"))

    def _advance(self) -> None:
        """Time jumps to the next timer; all timers of that instant become callbacks."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heappop(timers)
            self._timers_cancelled -= 1
        if not timers:
            self.fail(Deadlock(f"nothing is left at {self.now:.6f} s: {self._who_waits()}"))
            return
        now = timers[0][0]
        if now > self.now:
            self.now = now
            self._trace.on_time(now)
            if now > self._seconds_max:
                self.fail(Runaway(f"{self._seconds_max:g} s and no end: {self._who_waits()}"))
                return
        while timers and timers[0][0] <= now:
            call = heappop(timers)[2]
            call._scheduled = False
            if call._cancelled:
                self._timers_cancelled -= 1
                continue
            lane = call.lane
            if not lane.queue and lane.is_running:
                self._ready.append(lane)
            lane.queue.append(call)  # A frozen lane keeps it, too, unrun.

    def _who_waits(self) -> str:
        return "; ".join(
            f"{lane.name} in {where_it_waits(task)}"
            for lane in self.lanes
            if lane.is_alive
            for task in lane.tasks()
        )

    def _shuffle_tasks(self, queue: deque[Call]) -> None:
        """Lets a task overtake tasks that were woken before it. Nothing else may move: asyncio
        promises the order of callbacks, and protocols rest on that.
        """
        if not _is_step(queue[0]):
            return
        other = int(self._chance.random() * min(_SHUFFLE_WINDOW, len(queue)))
        if other and _is_step(queue[other]):
            queue[0], queue[other] = queue[other], queue[0]

    # --- Failing ------------------------------------------------------------------------------

    def fail(self, failure: BaseException) -> None:
        """The first failure is the one that counts; the rest follows from it."""
        if self.failure is None and not self._is_closed:
            self.failure = failure
        self._is_going = False

    def _on_exit(self, lane: Lane, error: BaseException) -> None:
        if isinstance(error, SystemExit) and lane.on_exit is not None:
            lane.on_exit(error)
        else:
            raise error

    def _on_error(self, lane: Lane, call: Call, error: BaseException) -> None:
        failure = Unhandled(f"{type(error).__name__} in {call!r} of {lane.name}: {error}")
        failure.__cause__ = error
        self.fail(failure)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Futures and tasks report here what nobody awaited. Those of the dead are kept, and so
        never come here.
        """
        if self._is_closed:
            return
        error = context.get("exception")
        subject = context.get("task") or context.get("future")
        what = f"{context['message']}: {where_it_waits(subject)}"
        failure = Unhandled(f"{what}: {error!r}") if error is not None else LostTask(what)
        failure.__cause__ = error
        self.fail(failure)

    default_exception_handler = call_exception_handler

    # --- Streams: what `asyncio.open_connection` and pure-Python libraries call ------------------

    async def create_connection(  # type: ignore[override]  # Only what can be had here.
        self,
        protocol_factory: ProtocolFactory,
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: None = None,
        **_hints: Any,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        _refuse_tls(ssl)
        address = Address(host or "", port or 0)
        return await self.network.connect(self.lane().host, protocol_factory, address)

    async def create_server(  # type: ignore[override]  # Only what the simulator has.
        self,
        protocol_factory: ProtocolFactory,
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: None = None,
        **_hints: Any,
    ) -> "SimulatedServer":
        _refuse_tls(ssl)
        address = Address(host or "", port or 0)
        return self.network.listen(self.lane().host, protocol_factory, address)

    async def create_unix_connection(  # type: ignore[override]  # Only what the simulator has.
        self, protocol_factory: ProtocolFactory, path: str, *, ssl: None = None, **_hints: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        _refuse_tls(ssl)
        return await self.network.connect(self.lane().host, protocol_factory, Address(path, 0))

    async def create_unix_server(  # type: ignore[override]  # Only what the simulator has.
        self, protocol_factory: ProtocolFactory, path: str, *, ssl: None = None, **_hints: Any
    ) -> "SimulatedServer":
        _refuse_tls(ssl)
        return self.network.listen(self.lane().host, protocol_factory, Address(path, 0))

    # --- What asyncio asks of a loop -----------------------------------------------------------

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]  # typeshed's differs from version to version.
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
        **_later_versions: Any,
    ) -> "asyncio.Task[T]":
        # asyncio would count: the name would depend on what else this process has run.
        name = name or getattr(coro, "__qualname__", "task")
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        lane = self.lane() if context is None else context.get(LANE, self.outside)
        lane.remember(task)
        if self._is_dismantled:  # Made by what ends with a coroutine; it never runs.
            coro.close()
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # Known to asyncio.
        return task

    def finish_generator(self, generator: Any) -> None:
        """An asynchronous generator was dropped half-way: its `finally` runs as a task."""
        if not self._is_closed:
            self.create_task(generator.aclose())

    def dismantle(self) -> None:
        """After the run: ends every coroutine, so that none of them ends later, at a moment chosen
        by the garbage collector.
        """
        self._is_dismantled = True
        for lane in self.lanes:
            lane.bury()
            for task in lane.buried:
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # Known to asyncio.
                for _ in range(_GOODBYES_MAX if not task.done() else 0):
                    try:
                        task.get_coro().close()
                    except RuntimeError:  # It has waited again, in a `finally`.
                        continue
                    except BaseException:  # noqa: BLE001  # Nobody is left to care.
                        pass
                    break
            lane.buried.clear()
            lane.queue.clear()
        self._timers.clear()

    def close(self) -> None:
        self._is_closed = True
        self._is_going = False

    def is_closed(self) -> bool:
        return self._is_closed

    def is_running(self) -> bool:
        return self._is_going

    def stop(self) -> None:
        self._is_going = False

    # asyncio asks for each future: `bool()` is False, and quicker than a function of ours.
    get_debug = staticmethod(bool)

    def set_debug(self, enabled: bool) -> None:
        pass

    def get_task_factory(self) -> None:
        return None

    def get_exception_handler(self) -> None:
        return None

    def run_in_executor(self, *_arguments: Any) -> "asyncio.Future[Any]":  # type: ignore[override]  # Refused, whatever it is given.
        raise self._forbid("run_in_executor")

    def call_soon_threadsafe(self, *_arguments: Any, context: Context | None = None) -> Call:  # type: ignore[override]  # There are no threads.
        raise self._forbid("call_soon_threadsafe")

    def _forbid(self, what: str) -> ForbiddenCall:
        failure = ForbiddenCall(f"{what}: there are no threads in a simulation")
        self.fail(failure)
        return failure

    async def shutdown_asyncgens(self) -> None:
        pass

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        pass


def _refuse_tls(ssl: object) -> None:
    if ssl is not None:
        raise NotImplementedError("there is no TLS in a simulation")


def _is_step(call: Call) -> bool:
    return isinstance(getattr(call._callback, "__self__", None), asyncio.Task)


def where_it_waits(subject: Any) -> str:
    """A task as its chain of coroutines, each with the line it waits at."""
    if not isinstance(subject, asyncio.Task):
        return type(subject).__name__
    places: list[str] = []
    waiting: Any = subject.get_coro()
    while waiting is not None and (frame := getattr(waiting, "cr_frame", None)) is not None:
        places.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        waiting = getattr(waiting, "cr_await", None)
    return " > ".join(places) or subject.get_name()
