"""Speed of the simulator's kernel per second of CPU time."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from rollbook.proto.ports import OpenMode
from tests.bench import Figure, figure
from tests.simulation.kernel import Node, World

PROCESSES: Final = 5
PORT: Final = 7
ACTS: Final = 2_000  # Of each process.

Main = Callable[[Node], Awaitable[None]]


def figures(runs: int) -> list[Figure]:
    measures: tuple[tuple[str, str, float | None, Callable[[], float]], ...] = (
        ("tasks that give way", "steps/s", None, lambda: _callbacks(_give_way)),
        ("tasks that sleep", "steps/s", None, lambda: _callbacks(_sleep)),
        ("lines echoed over asyncio streams", "callbacks/s", 300_000, lambda: _callbacks(_ask)),
        ("writes synced to disk", "syncs/s", None, lambda: _acts(_write_and_sync)),
        ("compare-and-set in the metadata store", "sets/s", None, lambda: _acts(_count)),
        ("worlds made, run and taken apart", "worlds/s", None, _worlds),
    )
    return [figure(name, unit, target, runs, run) for name, unit, target, run in measures]


def _run(main: Main) -> tuple[World, float]:
    async def live(node: Node) -> None:
        await main(node)

    async def scenario() -> None:
        world.node("server").start(_serve)
        await asyncio.sleep(0.1)
        for process in [world.node(f"n{number}").start(live) for number in range(PROCESSES)]:
            await process.result

    world = World(1)
    began = time.process_time()
    world.run(scenario())
    return world, time.process_time() - began


def _callbacks(main: Main) -> float:
    world, seconds = _run(main)
    return world.callbacks / seconds


def _acts(main: Main) -> float:
    _, seconds = _run(main)
    return PROCESSES * ACTS / seconds


async def _give_way(node: Node) -> None:
    for _ in range(20 * ACTS):
        await asyncio.sleep(0)


async def _sleep(node: Node) -> None:
    for _ in range(10 * ACTS):
        await asyncio.sleep(0.001)


async def _serve(node: Node) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    await asyncio.start_server(echo, "", PORT)
    await asyncio.get_running_loop().create_future()


async def _ask(node: Node) -> None:
    reader, writer = await asyncio.open_connection("server", PORT)
    for _ in range(2 * ACTS):
        writer.write(b"a line of forty bytes or thereabouts ..\n")
        await reader.readline()
    writer.close()


async def _write_and_sync(node: Node) -> None:
    file = await node.disk.open("/journal", OpenMode.CREATE)
    for number in range(ACTS):
        await file.write_and_sync(number * 100, [b"x" * 100])


async def _count(node: Node) -> None:
    store = await node.metadata()
    path = await store.create(f"/{node.name}", b"0")
    for number in range(ACTS):
        await store.set(path, b"%d" % number, number)
    await store.close()


def _worlds() -> float:
    async def nothing(node: Node) -> None:
        await asyncio.sleep(1)

    began = time.process_time()
    for _ in range(100):
        _run(nothing)
    return 100 / (time.process_time() - began)
