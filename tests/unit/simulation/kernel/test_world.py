"""A world depends only on its seed, and code in it cannot bypass the ports."""

import asyncio
import gc
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import structlog

from rollbook.proto.ports import Clock, Disk, MetadataStore, Transport
from tests.simulation.kernel import ForbiddenCall, Node, World
from tests.simulation.kernel.buggify import SeededBuggify
from tests.unit.simulation.kernel import busy

# --- One seed, one run ----------------------------------------------------------------------------


def test_same_seed_gives_same_trace_under_other_hash_seeds() -> None:
    """The most important test: without it no failure could be investigated."""
    printed = [
        subprocess.run(
            [sys.executable, "-m", busy.__name__, "0", "50"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1")
    ]
    assert printed[0] == printed[1]
    assert len(set(printed[0].splitlines())) == 50


def test_text_does_not_change_the_digest_or_contain_addresses() -> None:
    worlds = [busy.run(4, keep_text=keep_text) for keep_text in (False, True, True)]
    assert len({world.trace.digest() for world in worlds}) == 1
    assert worlds[1].trace.lines == worlds[2].trace.lines
    lines = worlds[1].trace.lines
    assert lines is not None
    assert any("b1#1 step of" in line for line in lines)
    assert any("> info answered line=b'c1 1" in line for line in lines)
    assert not any(" 0x" in line for line in lines)


def test_different_seeds_give_different_digests() -> None:
    assert len({digest for _, digest in busy.digests(range(20))}) == 20


def test_digest_depends_on_order_time_and_events() -> None:
    def digest(delay_s: float, event: str, names: str) -> str:
        async def main(node: Node) -> None:
            await asyncio.sleep(delay_s)

        async def scenario() -> None:
            for name in names:
                await world.node(name).start(main).result
            world.log(event, delayed=True)

        world = World(1)
        world.run(scenario())
        return world.trace.digest()

    runs = [(1.0, "x", "ab"), (1.5, "x", "ab"), (1.0, "y", "ab"), (1.0, "x", "ba")]
    assert len({digest(*run) for run in runs}) == len(runs)
    assert digest(*runs[0]) == digest(*runs[0])


def test_draw_from_one_stream_changes_no_other() -> None:
    first, second = World(9), World(9)
    first.random("network").random()
    assert first.random("disk:a").random() == second.random("disk:a").random()
    assert first.random("x").random() != first.random("y").random()


# --- Ports ----------------------------------------------------------------------------------------


def test_node_provides_all_ports() -> None:
    async def scenario() -> MetadataStore:
        return await node.metadata()

    world = World(1)
    node = world.node("a")
    clock: Clock = node.clock
    transport: Transport = node.transport
    disk: Disk = node.disk
    chance: random.Random = node.randomness
    buggify: SeededBuggify = node.buggify
    store = world.run(scenario())
    assert all((clock, transport, disk, chance, buggify, store))


def test_clocks_of_nodes_agree_only_on_intervals() -> None:
    async def main(node: Node) -> tuple[int, int, int]:
        monotonic, wall = node.clock.monotonic_ns(), node.clock.wall_us()
        await asyncio.sleep(2.5)
        return monotonic, node.clock.monotonic_ns() - monotonic, node.clock.wall_us() - wall

    async def scenario() -> None:
        a, b = world.node("a"), world.node("b")
        world.at(1.0, a.clock.jump, -3600)
        processes = [a.start(main), b.start(main)]
        (first, passed, wall), (second, _, other_wall) = [await p.result for p in processes]
        assert passed == 2_500_000_000
        assert wall == -3_597_500_000
        assert other_wall == 2_500_000
        assert first != second, "monotonic clocks of two machines must not be compared"
        before = b.clock.monotonic_ns()
        b.power_cut()
        b.start(main)
        assert abs(b.clock.monotonic_ns() - before) > 10**6, (
            "monotonic clocks of two boots must not be compared"
        )

    world = World(1)
    world.run(scenario())


def test_buggify_is_active_in_a_quarter_of_the_seeds() -> None:
    active, fired = 0, 0
    for seed in range(400):
        world = World(seed)
        times = sum(world.buggify("test.point", 0.2) for _ in range(50))
        assert world.buggify.fired == {"test.point": times}
        assert [World(seed).buggify("test.point", 0.2)] == [World(seed).buggify("test.point", 0.2)]
        active += times > 0
        fired += times
    assert 70 < active < 130
    assert fired / active == pytest.approx(10, rel=0.2)


def test_machine_runs_one_process_at_a_time_and_numbers_them() -> None:
    async def main(node: Node) -> int:
        assert node.process is not None
        await asyncio.sleep(1)
        return node.process.number

    async def scenario() -> None:
        node = world.node("a")
        first = node.start(main)
        with pytest.raises(AssertionError, match="runs already"):
            node.start(main)
        second = node.restart()
        assert first.result.cancelled()
        assert await second.result == 2
        assert not node.is_running
        node.kill()
        node.pause()
        node.resume()
        node.terminate()
        assert node.is_up
        node.power_cut()
        node.power_cut()
        assert not node.is_up

    world = World(1)
    world.run(scenario())


# --- Guards ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "act",
    [
        lambda: time.time() > 0,
        lambda: time.monotonic() > 0,
        lambda: time.sleep(0),
        lambda: random.random() < 1,
        lambda: random.choice([1]),
        lambda: random.SystemRandom().random(),
        lambda: os.urandom(1),
        lambda: str(uuid.uuid4()),
        lambda: secrets.token_hex(4),
        lambda: threading.Thread(target=print).start(),
        lambda: socket.socket().close(),
        lambda: open("/dev/null").close(),
        lambda: os.open("/dev/null", os.O_RDONLY),
        lambda: os.listdir("/"),
        lambda: subprocess.run(["true"], check=False),
        lambda: asyncio.get_running_loop().run_in_executor(None, print),
    ],
)
def test_bypassing_the_ports_fails_the_run_even_if_swallowed(act: Callable[[], Any]) -> None:
    reached: list[bool] = []

    async def main(node: Node) -> None:
        try:
            act()
            reached.append(True)
        except BaseException:  # noqa: BLE001  # Simulates careless code.
            pass
        await asyncio.sleep(1)

    async def scenario() -> None:
        await world.node("a").start(main).result

    world = World(1)
    with pytest.raises(ForbiddenCall):
        world.run(scenario())
    assert not reached
    assert time.time() > 0, "the guards are lifted"
    assert random.random() < 1


def _leave_things_behind(ran: list[str]) -> None:
    async def serve(node: Node) -> None:
        async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            held: list[Any] = [reader, writer]
            held.append(held)
            await asyncio.sleep(1000)

        await asyncio.start_server(hold, "", 7)
        await asyncio.get_running_loop().create_future()

    async def main(node: Node) -> None:
        held: list[Any] = list(await asyncio.open_connection("server", 7))
        held.append(held)
        forgotten = asyncio.get_running_loop().create_future()
        forgotten.set_exception(ValueError("never looked at"))
        held.append(forgotten)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ran.append(node.name)
            held.append(asyncio.get_running_loop().create_task(farewell()))

    async def farewell() -> None:
        ran.append("farewell")

    async def scenario() -> None:
        world.node("server").start(serve)
        for name in "ab":
            world.node(name).start(main)
        await asyncio.sleep(1)
        world.node("a").kill()
        await asyncio.sleep(1)
        assert ran == []

    world = World(1)
    world.run(scenario())


def test_garbage_of_a_run_is_collected_silently() -> None:
    ran: list[str] = []
    _leave_things_behind(ran)
    ran.clear()  # What ran at the end of the run, ran in a world that no longer recorded anything.
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        gc.collect()
    assert told == []
    assert ran == []


def test_guards_are_lifted_after_a_failed_run() -> None:
    async def scenario() -> None:
        raise KeyError("x")

    world = World(1)
    with pytest.raises(KeyError):
        world.run(scenario())
    assert time.monotonic() > 0
    with open(os.devnull):
        pass


def test_logs_of_product_code_go_only_to_the_trace(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def main(node: Node) -> None:
        structlog.get_logger().info("ledger_fenced", ledger_id=7)
        structlog.get_logger().debug("not_kept")

    async def scenario() -> None:
        await world.node("a").start(main).result

    world = World(1, keep_text=True)
    world.run(scenario())
    assert world.trace.lines is not None
    assert [line for line in world.trace.lines if " > info " in line or "not_kept" in line] == [
        "0.000000000 a#1 > info ledger_fenced ledger_id=7"
    ]
    assert capsys.readouterr().out == ""
