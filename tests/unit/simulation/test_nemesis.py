"""Each kind of fault takes effect and ends."""

import asyncio
from collections.abc import Callable

import pytest

from rollbook.proto.ports import OpenMode
from tests.simulation.history import History
from tests.simulation.kernel.world import Node, World
from tests.simulation.nemesis import Nemesis
from tests.simulation.schedule import Fault, Kind

BEGIN_US, LASTS_US = 100_000, 200_000
FILE = "/folder/file"
CONTENTS = bytes(4096)


async def live(node: Node) -> None:
    """A process with a file on its disk."""
    if await node.disk.stat(FILE) is None:
        await node.disk.make_directory("/folder")
        await node.disk.sync_directory("/")
        file = await node.disk.open(FILE, OpenMode.CREATE)
        await file.write_and_sync(0, [bytes(b"\x01" * 512)])
        await file.write_and_sync(0, [CONTENTS])
        await node.disk.sync_directory("/folder")
    await asyncio.get_running_loop().create_future()


def is_cut(world: World, source: str, target: str) -> bool:
    return world.network.link(source, target).is_cut


LASTING: list[tuple[Kind, tuple[str, ...], int, Callable[[World], bool]]] = [
    (Kind.KILL, ("a",), 0, lambda w: not w.nodes["a"].is_running and w.nodes["a"].is_up),
    (Kind.POWER_CUT, ("a", "b"), 0, lambda w: not w.nodes["a"].is_up and not w.nodes["b"].is_up),
    (Kind.CUT, ("a", "b"), 0, lambda w: is_cut(w, "a", "b") and is_cut(w, "b", "a")),
    (Kind.CUT_ONE_WAY, ("a", "b"), 0, lambda w: is_cut(w, "a", "b") and not is_cut(w, "b", "a")),
    (Kind.STALL, ("a", "b"), 0, lambda w: w.network.link("a", "b").is_stalled),
    (Kind.SLOW_LINK, ("a", "b"), 5000, lambda w: w.network.link("a", "b").delay_s[0] > 0.005),
    (Kind.FAR_APART, ("a", "b"), 5000, lambda w: w.network.link("b", "a").delay_s[0] > 0.005),
    (Kind.JITTER, ("a", "b"), 5000, lambda w: w.network.link("b", "a").tail_s[1] == 0.005),
    (Kind.TAIL_LATENCY, ("a", "b"), 5000, lambda w: w.network.link("a", "b").tail_s[1] == 0.005),
    (Kind.SLOW_DISK, ("a",), 70_000, lambda w: w.nodes["a"].disk.sync_s[1] == 0.07),
    (Kind.SYNC_ERROR, ("a", "b"), 0, lambda w: w.nodes["b"].disk.sync_error_odds == 1.0),
    (Kind.WRITE_ERROR, ("a",), 0, lambda w: w.nodes["a"].disk.write_error_odds == 1.0),
    (Kind.READ_ERROR, ("a",), 0, lambda w: w.nodes["a"].disk.read_error_odds == 1.0),
    (Kind.DISK_FULL, ("a",), 0, lambda w: w.nodes["a"].disk.capacity_bytes == 0),
    (Kind.METADATA_LAG, (), 7000, lambda w: w.metadata.lag_s == (0.0, 0.007)),
]


@pytest.mark.parametrize(
    ("kind", "nodes", "amount", "is_so"), LASTING, ids=[kind.value for kind, *_ in LASTING]
)
@pytest.mark.parametrize("ends", ["by itself", "by healing"])
def test_lasting_fault_begins_and_ends(
    kind: Kind, nodes: tuple[str, ...], amount: int, is_so: Callable[[World], bool], ends: str
) -> None:
    world = World(1)
    history = History()
    nemesis = Nemesis(world, history)
    a, b = world.node("a"), world.node("b")

    async def scenario() -> None:
        a.start(live)
        b.start(live)
        nemesis.schedule([Fault(BEGIN_US, kind, nodes, LASTS_US, amount)])
        assert not is_so(world)
        await asyncio.sleep((BEGIN_US + LASTS_US / 2) / 1e6)
        assert is_so(world)
        if ends == "by healing":
            nemesis.heal()
        else:
            await asyncio.sleep(LASTS_US / 1e6)
        assert not is_so(world)
        assert a.is_running
        assert b.is_running

    world.run(scenario())
    (disturbance,) = history.disturbances
    assert (disturbance.kind, disturbance.target) == (kind.value, " ".join(nodes))
    assert disturbance.ended > disturbance.began


def test_pause_stops_the_timers_of_one_process() -> None:
    world = World(1)
    nemesis = Nemesis(world, History())
    ticks: list[float] = []

    async def tick(_node: Node) -> None:
        while True:
            await asyncio.sleep(0.01)
            ticks.append(world.now)

    async def scenario() -> None:
        world.node("a").start(tick)
        nemesis.schedule([Fault(BEGIN_US, Kind.PAUSE, ("a",), LASTS_US)])
        await asyncio.sleep(0.5)

    world.run(scenario())
    assert not any(0.11 < moment < 0.29 for moment in ticks)
    assert any(moment > 0.4 for moment in ticks)


def test_hung_disk_delays_a_sync_until_the_fault_ends() -> None:
    world = World(1)
    nemesis = Nemesis(world, History())

    async def write(node: Node) -> float:
        await asyncio.sleep(0.15)
        file = await node.disk.open("/late", OpenMode.CREATE)
        await file.write_and_sync(0, [b"x"])
        return world.now

    async def scenario() -> float:
        nemesis.schedule([Fault(BEGIN_US, Kind.HUNG_DISK, ("a",), LASTS_US)])
        done_at: float = await world.node("a").start(write).result
        return done_at

    assert world.run(scenario()) >= 0.3


@pytest.mark.parametrize("kind", [Kind.ROT, Kind.STALE_SECTOR])
def test_damage_changes_durable_bytes(kind: Kind) -> None:
    world = World(1)
    nemesis = Nemesis(world, History())
    a = world.node("a")

    async def scenario() -> bytes | None:
        a.start(live)
        nemesis.schedule([Fault(BEGIN_US, kind, ("a",), amount=1)])
        await asyncio.sleep(0.2)
        return a.disk.durable(FILE)

    damaged = world.run(scenario())
    assert damaged is not None
    assert damaged != CONTENTS
    assert len(damaged) == len(CONTENTS)


def test_clock_jump_moves_the_wall_clock() -> None:
    world = World(1)
    nemesis = Nemesis(world, History())
    clock = world.node("a").clock

    async def scenario() -> int:
        nemesis.schedule([Fault(BEGIN_US, Kind.CLOCK_JUMP, ("a",), amount=3_600_000_000)])
        before = clock.wall_us()
        await asyncio.sleep(0.2)
        return clock.wall_us() - before

    assert world.run(scenario()) == 3_600_200_000


def test_metadata_store_is_down_during_the_fault() -> None:
    world = World(1)
    nemesis = Nemesis(world, History())
    took: list[float] = []

    async def ask(node: Node) -> None:
        store = await node.metadata()
        await asyncio.sleep(0.15)
        start = world.now
        assert await store.create("/x") == "/x"
        took.append(world.now - start)

    async def scenario() -> None:
        nemesis.schedule([Fault(BEGIN_US, Kind.METADATA_DOWN, (), LASTS_US)])
        await world.node("a").start(ask).result

    world.run(scenario())
    assert took[0] > 0.1


def test_overlapping_faults_end_completely() -> None:
    """All change the same link, and they end in another order than they began."""
    world = World(1)
    nemesis = Nemesis(world, History())
    link = world.network.link("a", "b")
    healthy = link.delay_s

    async def scenario() -> None:
        nemesis.schedule(
            [
                Fault(10_000, Kind.SLOW_LINK, ("a", "b"), 50_000, 1_000),
                Fault(20_000, Kind.SLOW_LINK, ("a", "b"), 100_000, 2_000),
                Fault(30_000, Kind.SLOW_LINK, ("a", "b"), 10_000, 3_000),
            ]
        )
        await asyncio.sleep(0.2)

    world.run(scenario())
    assert link.delay_s == healthy


def test_heal_cancels_scheduled_faults() -> None:
    world = World(1)
    history = History()
    nemesis = Nemesis(world, history)
    a = world.node("a")

    async def scenario() -> None:
        a.start(live)
        nemesis.schedule([Fault(BEGIN_US, Kind.KILL, ("a",), LASTS_US)])
        nemesis.heal()
        await asyncio.sleep(1.0)
        assert a.is_running

    world.run(scenario())
    assert history.disturbances == []


def test_process_killed_permanently_is_not_restarted() -> None:
    world = World(1)
    nemesis = Nemesis(world, History())
    a = world.node("a")

    async def scenario() -> None:
        a.start(live)
        nemesis.schedule([Fault(BEGIN_US, Kind.KILL, ("a",))])
        await asyncio.sleep(0.2)
        nemesis.heal()
        assert not a.is_running

    world.run(scenario())
