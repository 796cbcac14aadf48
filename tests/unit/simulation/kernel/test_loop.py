"""Virtual time: order of execution, what stops when a process dies, and how a run fails."""

import asyncio
import warnings
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.simulation.kernel import (
    Deadlock,
    InvariantBroken,
    LostTask,
    Node,
    Runaway,
    Unhandled,
    World,
)


def run(scenario: Coroutine[Any, Any, Any], world: World | None = None) -> Any:
    return (world or World(1)).run(scenario)


# --- Time and order -------------------------------------------------------------------------------


def test_time_jumps_to_the_next_timer() -> None:
    async def scenario() -> float:
        await asyncio.sleep(3600)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await asyncio.sleep(10)
        return asyncio.get_running_loop().time()

    assert run(scenario()) == 3600.5


@pytest.mark.parametrize("seed", range(20))
def test_timers_of_one_instant_fire_in_order_of_creation(seed: int) -> None:
    fired: list[int] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        for number in range(50):
            loop.call_at(1.0, fired.append, number)
        await asyncio.sleep(2)

    run(scenario(), World(seed))
    assert fired == list(range(50))


def test_callbacks_of_a_process_run_in_order() -> None:
    ran: list[int] = []

    async def main(node: Node) -> None:
        for number in range(20):
            asyncio.get_running_loop().call_soon(ran.append, number)
        await asyncio.sleep(0.1)

    async def scenario() -> None:
        await world.node("a").start(main).result

    world = World(3)
    world.run(scenario())
    assert ran == list(range(20))


def test_processes_interleave_randomly() -> None:
    def order(seed: int) -> str:
        steps: list[str] = []

        async def main(node: Node) -> None:
            for _ in range(6):
                steps.append(node.name)
                await asyncio.sleep(0)

        async def scenario() -> None:
            for process in [world.node(name).start(main) for name in "ab"]:
                await process.result

        world = World(seed)
        world.run(scenario())
        return "".join(steps)

    orders = [order(seed) for seed in range(30)]
    assert len(set(orders)) > 20
    assert all(o.count("a") == o.count("b") == 6 for o in orders)


def test_shuffling_reorders_tasks_and_no_plain_callbacks() -> None:
    def order(*, shuffle: bool) -> list[str]:
        steps: list[str] = []

        async def child(number: int) -> None:
            steps.append(f"task {number}")

        async def main(node: Node) -> None:
            loop = asyncio.get_running_loop()
            children = []
            for number in range(20):
                children += [loop.create_task(child(number)), loop.create_task(child(100 + number))]
                for callback in range(3 * number, 3 * number + 3):
                    loop.call_soon(steps.append, f"callback {callback}")
            await asyncio.gather(*children)

        async def scenario() -> None:
            await world.node("a").start(main).result

        world = World(5, shuffle=shuffle)
        world.run(scenario())
        return steps

    in_order, shuffled = order(shuffle=False), order(shuffle=True)
    assert in_order[:6] == [f"task {n}" for n in (0, 100)] + [f"callback {n}" for n in range(3)] + [
        "task 1"
    ]
    assert shuffled != in_order
    assert sorted(shuffled) == sorted(in_order)
    places = [place for place, step in enumerate(in_order) if "callback" in step]
    assert [shuffled[place] for place in places] == [in_order[place] for place in places]


def test_cancelled_timers_are_removed_from_the_heap() -> None:
    async def scenario() -> int:
        for _ in range(5000):
            async with asyncio.timeout(1000):
                await asyncio.sleep(0.001)
        return len(world.loop._timers)

    world = World(1)
    assert world.run(scenario()) < 1000


# --- Crash is not cancel --------------------------------------------------------------------------


def test_killed_process_runs_no_finally_block() -> None:
    after: list[str] = []

    async def main(node: Node) -> None:
        try:
            await asyncio.sleep(10)
        finally:
            after.append("finally")

    async def scenario() -> None:
        node = world.node("a")
        process = node.start(main)
        await asyncio.sleep(1)
        node.kill()
        assert process.result.cancelled()
        assert not process.is_alive
        await asyncio.sleep(100)
        assert after == []
        node.start(main)  # Only the kernel still refers to the first process now.
        del process
        await asyncio.sleep(5)
        assert after == []

    world = World(1)
    world.run(scenario())


def test_timers_of_a_killed_process_stop() -> None:
    ticks: list[float] = []

    async def main(node: Node) -> None:
        while True:
            ticks.append(world.now)
            await asyncio.sleep(1)

    async def scenario() -> None:
        node = world.node("a")
        node.start(main)
        await asyncio.sleep(3.5)
        node.kill()
        await asyncio.sleep(10)

    world = World(1)
    world.run(scenario())
    assert ticks == [0.0, 1.0, 2.0, 3.0]


def test_resumed_process_runs_everything_that_is_due() -> None:
    ticks: list[int] = []

    async def main(node: Node) -> None:
        loop = asyncio.get_running_loop()
        for second in range(1, 6):
            loop.call_at(second, ticks.append, second)
        await asyncio.sleep(20)

    async def scenario() -> None:
        node = world.node("a")
        node.start(main)
        await asyncio.sleep(1.5)
        node.pause()
        await asyncio.sleep(2)
        assert ticks == [1]
        node.resume()
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        assert ticks == [1, 2, 3]
        await asyncio.sleep(5)
        assert ticks == [1, 2, 3, 4, 5]

    world = World(1)
    world.run(scenario())


def test_system_exit_in_any_task_ends_the_process_at_once() -> None:
    after: list[str] = []

    async def main(node: Node) -> None:
        async def stop() -> None:
            raise SystemExit(74)

        asyncio.get_running_loop().create_task(stop())
        try:
            await asyncio.sleep(10)
        finally:
            after.append("finally")

    async def scenario() -> object:
        code = await world.node("a").start(main).result
        assert not world.node("a").is_running
        assert after == []
        return code

    world = World(1)
    assert world.run(scenario()) == 74


def test_terminate_cancels_main_then_other_tasks() -> None:
    after: list[str] = []

    async def worker() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            after.append("worker")

    async def main(node: Node) -> None:
        asyncio.get_running_loop().create_task(worker())
        try:
            await asyncio.sleep(100)
        finally:
            after.append("main")

    async def scenario() -> None:
        node = world.node("a")
        process = node.start(main)
        await asyncio.sleep(1)
        node.terminate()
        await asyncio.sleep(1)
        assert process.result.cancelled()
        assert not node.is_running

    world = World(1)
    world.run(scenario())
    assert after == ["main", "worker"]


def test_process_that_is_cancelled_twice_ends() -> None:
    async def cleans_up_slowly() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(100)

    async def main(node: Node) -> None:
        asyncio.get_running_loop().create_task(cleans_up_slowly())
        await asyncio.sleep(1)

    async def scenario() -> None:
        process = world.node("a").start(main)
        await asyncio.sleep(2)
        assert process.is_alive, "the process waits for its cancelled task"
        world.node("a").terminate()
        await asyncio.sleep(1)
        assert not process.is_alive
        assert process.result.done()

    world = World(1)
    world.run(scenario())


# --- Failures -------------------------------------------------------------------------------------


def test_exception_of_an_unawaited_task_fails_the_run() -> None:
    async def forgotten() -> None:
        raise ValueError("forgotten")

    async def scenario() -> None:
        asyncio.get_running_loop().create_task(forgotten())
        await asyncio.sleep(1)
        await asyncio.sleep(1)

    with pytest.raises(Unhandled, match=r"ValueError.*forgotten"):
        run(scenario())


def test_exception_in_a_callback_fails_the_run() -> None:
    async def scenario() -> None:
        asyncio.get_running_loop().call_later(1, int, "x")
        await asyncio.sleep(5)

    with pytest.raises(Unhandled, match="ValueError"):
        run(scenario())


def test_uncaught_exception_in_a_process_fails_the_run_unless_observed() -> None:
    async def main(node: Node) -> None:
        raise ValueError("broken")

    async def looks() -> None:
        with pytest.raises(ValueError, match="broken"):
            await world.node("a").start(main).result

    async def looks_away() -> None:
        world.node("a").start(main)
        await asyncio.sleep(1)

    world = World(1)
    world.run(looks())
    world = World(1)
    with pytest.raises(Unhandled, match="a#1 died of ValueError"):
        world.run(looks_away())


def test_exception_during_the_end_of_a_process_fails_the_run() -> None:
    async def child() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            raise ValueError("in the end")

    async def main(node: Node) -> None:
        asyncio.get_running_loop().create_task(child())
        await asyncio.sleep(1)

    async def scenario() -> None:
        await world.node("a").start(main).result

    world = World(1)
    with pytest.raises(Unhandled, match="in the end"):
        world.run(scenario())


def test_unawaited_coroutine_fails_the_run() -> None:
    async def forgotten() -> None: ...

    async def scenario() -> None:
        forgotten()  # type: ignore[unused-coroutine]  # Must be detected.
        await asyncio.sleep(1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The kernel does not depend on pytest's filters.
        with pytest.raises(LostTask, match="never awaited"):
            run(scenario())


def test_deadlock_error_names_waiting_coroutines() -> None:
    async def scenario() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock, match=r"scenario:\d+"):
        run(scenario())


def test_loop_that_never_waits_is_detected() -> None:
    async def scenario() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Runaway, match="callbacks at the virtual second 0"):
        run(scenario(), World(1, callbacks_max=10_000))


def test_loop_that_never_ends_is_detected() -> None:
    async def scenario() -> None:
        while True:
            await asyncio.sleep(1)

    with pytest.raises(Runaway, match="10,000 callbacks"):
        run(scenario(), World(1, callbacks_max=10_000))
    with pytest.raises(Runaway, match=r"100 s and no end.*scenario"):
        run(scenario(), World(1, seconds_max=100))


def test_broken_invariant_ends_the_run_at_once() -> None:
    async def main(node: Node) -> None:
        await asyncio.sleep(1)
        world.fail("two owners")
        await asyncio.sleep(1)
        raise AssertionError("not reached")

    async def scenario() -> None:
        world.node("a").start(main)
        await asyncio.sleep(10)

    world = World(1)
    with pytest.raises(InvariantBroken, match="two owners"):
        world.run(scenario())
    assert world.now == 1.0


def test_asynchronous_generators_are_closed_during_the_run() -> None:
    finished: list[float] = []

    async def numbers() -> Any:
        try:
            for number in range(10):
                yield number
        finally:
            finished.append(world.now)

    async def scenario() -> None:
        async for _ in numbers():
            break
        await asyncio.sleep(1)
        assert finished == [0.0]

    world = World(1)
    world.run(scenario())


async def test_world_runs_inside_another_event_loop() -> None:
    async def scenario() -> str:
        await asyncio.sleep(5)
        return "done"

    assert World(1).run(scenario()) == "done"
    await asyncio.sleep(0)  # The outer loop is the running one again.
