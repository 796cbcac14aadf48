"""The simulated metadata store: the contract of all stores, and its simulated faults."""

import asyncio
import inspect
import itertools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from rollbook.proto.errors import (
    ConnectionLost,
    MetadataConflict,
    MetadataUnavailable,
    NodeExists,
    SessionExpired,
)
from rollbook.proto.ports import CreateMode, MetadataStore, SessionState, WatchEvent, WatchEventKind
from tests.contract import test_metadata_store as contract
from tests.contract.stores import Site
from tests.simulation.kernel import Node, World

# --- The contract suite, in a world ---------------------------------------------------------------


class SimulatedSite(Site):
    """Each client has its own host, so that each can be cut off alone."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._nodes: dict[MetadataStore, Node] = {}

    async def _open(self, session_timeout_s: float, operation_timeout_s: float) -> MetadataStore:
        node = self._world.node(f"client{len(self._nodes)}")
        client = await node.metadata(session_timeout_s, operation_timeout_s)
        self._nodes[client] = node
        return client

    def _host(self, client: MetadataStore) -> str:
        return self._nodes[client].name

    async def cut(self, client: MetadataStore) -> None:
        self._world.network.reset(self._host(client), "metadata")
        await asyncio.sleep(0.001)

    async def suspend(self, client: MetadataStore) -> None:
        await self.cut(client)
        self._world.network.cut(self._host(client), "metadata")

    async def resume(self, client: MetadataStore) -> None:
        self._world.network.heal(self._host(client), "metadata")

    async def lose_next_request(self, client: MetadataStore) -> None:
        self._world.metadata.lose(self._nodes[client], replies=False)

    async def lose_next_answer(self, client: MetadataStore) -> None:
        self._world.metadata.lose(self._nodes[client])


# These read what another client wrote, which a lagging follower need not show.
READ_WITHOUT_SYNC = (
    contract.test_only_one_of_many_wins_a_version,
    contract.test_events_arrive_in_commit_order,
)


def contract_tests() -> Iterator[Any]:
    for name, test in vars(contract).items():
        if not name.startswith("test_"):
            continue
        choices = [
            [(mark.args[0], values) for values in mark.args[1]]
            for mark in getattr(test, "pytestmark", ())
            if mark.name == "parametrize"
        ]
        for number, chosen in enumerate(itertools.product(*choices)):
            arguments: dict[str, Any] = {}
            for names, values in chosen:
                split = (
                    [one.strip() for one in names.split(",")] if isinstance(names, str) else names
                )
                arguments |= zip(split, values if len(split) > 1 else [values], strict=True)
            yield pytest.param(test, arguments, id=f"{name[5:]}-{number}" if choices else name[5:])


@pytest.mark.parametrize(("test", "arguments"), list(contract_tests()))
def test_simulated_store_meets_the_contract(test: Any, arguments: dict[str, Any]) -> None:
    async def scenario(world: World) -> None:
        site = SimulatedSite(world)
        wanted = inspect.signature(test).parameters
        if "store" in wanted:
            await test(**arguments, store=await site.open())
        else:
            await test(**arguments, site=site)
        await site.close()

    for seed in range(3):
        world = World(seed)
        if seed == 2 and test not in READ_WITHOUT_SYNC:
            world.metadata.lag_s = (0.0, 0.2)  # A lagging follower meets the contract, too.
        world.run(scenario(world))


# --- Simulated faults -----------------------------------------------------------------------------


def in_world(story: Callable[[World, Node, Node], Awaitable[None]], seed: int = 1) -> None:
    world = World(seed)

    async def scenario() -> None:
        await story(world, world.node("a"), world.node("b"))

    world.run(scenario())


def test_follower_lags_until_sync() -> None:
    async def story(world: World, a: Node, b: Node) -> None:
        world.metadata.lag_s = (5.0, 5.0)
        writer, reader = await a.metadata(), await b.metadata()
        await writer.create("/n", b"0")
        await reader.sync()
        for number in range(1, 5):
            await writer.set("/n", b"%d" % number)
            mine = await writer.get("/n")
            assert mine is not None
            assert mine.value == b"%d" % number, "a client sees its own writes"
        theirs = await reader.get("/n")
        assert theirs is None or theirs.value == b"0", "another client sees the state before"
        await asyncio.sleep(1)
        await reader.sync()
        synced = await reader.get("/n")
        assert synced is not None
        assert synced.value == b"4"

    in_world(story)


@pytest.mark.parametrize("seed", range(10))
def test_client_of_a_lagging_follower_never_reads_older_versions(seed: int) -> None:
    async def story(world: World, a: Node, b: Node) -> None:
        world.metadata.lag_s = (0.0, 1.0)
        writer, reader = await a.metadata(), await b.metadata()
        await writer.create("/n", b"0")
        await reader.sync()
        watch = await reader.watch("/n")
        told: list[WatchEvent] = []
        seen = [0]
        stale = 0

        async def read() -> None:
            nonlocal stale
            node = await reader.get("/n")
            assert node is not None
            seen.append(node.stat.version)
            current = world.metadata.tree.get("/n")
            assert current is not None
            stale += node.stat.version < current.stat.version

        async def follow() -> None:
            async for event in watch:
                told.append(event)
                await read()

        follower = asyncio.get_running_loop().create_task(follow())
        for number in range(1, 50):
            await writer.set("/n", b"%d" % number)
            await asyncio.sleep(world.random("test").uniform(0, 0.2))
            await read()
        assert seen == sorted(seen)
        assert stale > 5
        await asyncio.sleep(2)
        assert seen[-1] == 49, "the last event came, and the read after it saw the last change"
        assert len(told) > 5
        follower.cancel()

    in_world(story, seed)


def test_partial_listing_omits_some_names() -> None:
    async def story(world: World, a: Node, b: Node) -> None:
        store = await a.metadata()
        names = [f"n{number}" for number in range(20)]
        for name in names:
            await store.create(f"/{name}")
        world.metadata.partial_listing_odds = 0.5
        listings = [await store.children("/") for _ in range(20)]
        assert all(set(listing) <= set(names) for listing in listings)
        assert all(listing == sorted(listing) for listing in listings)
        assert 3 < sum(listing == sorted(names) for listing in listings) < 17

    in_world(story)


def test_heal_removes_all_faults_of_the_store() -> None:
    async def story(world: World, a: Node, b: Node) -> None:
        world.metadata.lag_s = (5.0, 5.0)
        store, other = await a.metadata(), await b.metadata()
        world.metadata.partial_listing_odds = 1.0
        world.metadata.lose(a)
        world.metadata.down()
        world.metadata.heal()
        await asyncio.sleep(1)
        names = [await store.create(f"/n{number}") for number in range(9)]
        assert await other.children("/") == [name[1:] for name in names]

    in_world(story)


@pytest.mark.parametrize("replies", [True, False])
def test_lost_write_has_unknown_outcome(replies: bool) -> None:
    async def story(world: World, a: Node, b: Node) -> None:
        store = await a.metadata()
        world.metadata.lose(a, replies=replies)
        with pytest.raises(ConnectionLost):
            await store.create("/n")
        await asyncio.sleep(1)
        assert (await store.get("/n") is not None) == replies
        await store.create("/m")

    in_world(story)


def test_paused_client_loses_its_session_and_is_notified() -> None:
    async def story(world: World, a: Node, b: Node) -> None:
        states: list[SessionState] = []

        async def main(node: Node) -> None:
            store = await node.metadata(session_timeout_s=2)
            await store.create("/mine", mode=CreateMode.EPHEMERAL)
            events = store.session_events()
            while True:
                states.append((await anext(events)).state)

        a.start(main)
        await asyncio.sleep(1)
        observer = await b.metadata()
        watch = await observer.watch("/mine")
        a.pause()
        event = await anext(watch)
        assert event == WatchEvent(WatchEventKind.DELETED, "/mine")
        assert 1.5 < world.now < 4
        await asyncio.sleep(10)
        a.resume()
        await asyncio.sleep(1)
        assert states[0] is SessionState.CONNECTED
        assert states[-2:] == [SessionState.EXPIRED, SessionState.CONNECTED]

    in_world(story)


def test_session_of_killed_client_lasts_until_its_timeout() -> None:
    async def story(world: World, a: Node, b: Node) -> None:
        async def main(node: Node) -> None:
            store = await node.metadata(session_timeout_s=4)
            await store.create("/mine", mode=CreateMode.EPHEMERAL)
            await asyncio.get_running_loop().create_future()

        a.start(main)
        await asyncio.sleep(1)
        a.kill()
        observer = await b.metadata()
        await asyncio.sleep(2)
        assert await observer.get("/mine") is not None
        await asyncio.sleep(3)
        assert await observer.get("/mine") is None

    in_world(story)


def test_expired_session_is_replaced_by_healthy_client() -> None:
    async def story(world: World, a: Node, b: Node) -> None:
        store, other = await a.metadata(), await b.metadata()
        first = store.session
        await store.create("/mine", mode=CreateMode.EPHEMERAL)
        await other.create("/theirs", mode=CreateMode.EPHEMERAL)
        world.metadata.expire(a)
        await asyncio.sleep(1)
        assert await other.children("/") == ["theirs"]
        assert store.session != first
        await store.create("/mine", mode=CreateMode.EPHEMERAL)

    in_world(story)


def test_restarted_store_keeps_nodes_and_sessions() -> None:
    async def story(world: World, a: Node, b: Node) -> None:
        store = await a.metadata(session_timeout_s=2, operation_timeout_s=5)
        session = store.session
        await store.create("/n", b"value")
        await store.create("/mine", mode=CreateMode.EPHEMERAL)
        watch = await store.watch("/n")
        world.metadata.down()
        await asyncio.sleep(1)
        with pytest.raises(MetadataUnavailable):
            await store.get("/n")
        await asyncio.sleep(60)
        world.metadata.up()
        await asyncio.sleep(1)
        assert store.session == session
        assert await store.get("/mine") is not None
        assert world.metadata.tree.get("/n") is not None
        other = await b.metadata()
        await other.set("/n", b"changed")
        assert (await anext(watch)).kind in (WatchEventKind.CHANGED, WatchEventKind.RESYNC)

    in_world(story)


@pytest.mark.parametrize("seed", range(15))
def test_counter_survives_every_fault(seed: int) -> None:
    """Compare-and-set loops that resolve unknown outcomes by reading lose and repeat no step."""
    applied: list[int] = []

    async def main(node: Node) -> None:
        store = await node.metadata(2.0, 2.0)
        try:
            await store.create("/n", b"")
        except (NodeExists, ConnectionLost, MetadataUnavailable, SessionExpired):
            pass
        mine = 0
        while mine < 10:
            try:
                await store.sync()
                known = await store.get("/n")
                assert known is not None
                token = f"{node.name}:{mine}".encode()
                if token in known.value.split():
                    mine += 1  # An earlier attempt was applied.
                    continue
                await store.set("/n", known.value + b" " + token, known.stat.version)
                mine += 1
            except (MetadataConflict, ConnectionLost, MetadataUnavailable, SessionExpired):
                await asyncio.sleep(node.randomness.uniform(0, 0.1))
        applied.append(mine)

    async def story(world: World, a: Node, b: Node) -> None:
        chance = world.random("test")
        world.metadata.lag_s = (0.0, 0.1)
        processes = [node.start(main) for node in (a, b)]

        async def trouble() -> None:
            while True:
                await asyncio.sleep(chance.uniform(0, 0.05))
                node = chance.choice((a, b))
                match chance.randrange(5):
                    case 0:
                        world.network.reset(node.name, "metadata")
                    case 1:
                        world.network.cut(node.name, "metadata")
                        await asyncio.sleep(chance.uniform(0, 3))
                        world.network.heal(node.name, "metadata")
                    case 2:
                        world.metadata.lose(node, replies=chance.random() < 0.5)
                    case 3:
                        world.metadata.expire(node)
                    case _:
                        world.metadata.down()
                        await asyncio.sleep(chance.uniform(0, 1))
                        world.metadata.up()

        nemesis = asyncio.get_running_loop().create_task(trouble())
        for process in processes:
            await process.result
        nemesis.cancel()
        world.metadata.up()
        found = world.metadata.tree.get("/n")
        assert found is not None
        steps = found.value.split()
        assert sorted(steps) == sorted(b"%s:%d" % (n, i) for n in (b"a", b"b") for i in range(10))

    in_world(story, seed)
