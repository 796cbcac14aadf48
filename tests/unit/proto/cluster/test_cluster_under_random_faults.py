"""The classes of the cluster package in simulated worlds: clients, bookies and a store fail at
random.
"""

import asyncio
import random
from dataclasses import dataclass, replace

import pytest

from rollbook.proto.cluster.bookie_watcher import BookieWatcher
from rollbook.proto.cluster.cluster_root import initialise
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.cluster.registration import BookieRegistration, RegisteredMode
from rollbook.proto.errors import (
    Missing,
    NodeExists,
    OutcomeUnknown,
    RollbookError,
    SessionExpired,
    Superseded,
    Unavailable,
)
from rollbook.proto.formats.layout import Layout
from rollbook.proto.formats.ledger_metadata import pack_ledger_metadata
from rollbook.proto.formats.service_info import describe_bookie
from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.metadata import Fragment, LedgerMetadata
from rollbook.proto.ports import Address, MetadataStore
from rollbook.proto.quorum import Quorum
from rollbook.proto.wire.digest import DigestType
from tests.simulation.kernel import Node, World

ROOT = "/ledgers"
CLIENTS, STEPS = 4, 40
BOOKIES = 4
FIRST_PICKED, PICKED = 1_000_000, 30  # Ids that clients choose themselves, so that they collide.
SESSION_S = 2.0
TROUBLE_S = 12.0


def disturb(world: World, nodes: list[Node], faults: int) -> None:
    """Schedules this many faults between the nodes and the store until TROUBLE_S; all of them end."""
    chance = world.random("faults")
    network, metadata = world.network, world.metadata
    if chance.random() < 0.5:
        metadata.lag_s = (0.0, 0.1)
    for _ in range(faults):
        at = world.now + chance.uniform(0, TROUBLE_S - 4)
        node = chance.choice(nodes)
        match chance.choice(("reply", "request", "reset", "expire", "cut", "one way", "down")):
            case "reply":
                world.at(at, lambda node=node: metadata.lose(node))
            case "request":
                world.at(at, lambda node=node: metadata.lose(node, replies=False))
            case "reset":
                world.at(at, network.reset, node.name, "metadata")
            case "expire":
                world.at(at, metadata.expire, node)
            case "cut":
                world.at(at, network.cut, node.name, "metadata")
                world.at(at + chance.uniform(0, 4), network.heal, node.name, "metadata")
            case "one way":
                world.at(at, network.cut_one_way, "metadata", node.name)
                world.at(at + chance.uniform(0, 4), network.heal, node.name, "metadata")
            case "down":
                world.at(at, metadata.down)
                world.at(at + chance.uniform(0, 1), metadata.up)


async def set_up(world: World) -> MetadataStore:
    store = await world.node("operator").metadata()
    await initialise(store, ROOT, world.random("instance id"))
    return store


async def open_patiently(node: Node) -> MetadataStore:
    while True:
        try:
            return await node.metadata(session_timeout_s=SESSION_S, operation_timeout_s=1.0)
        except Unavailable:
            continue


# --- Ledgers ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attempt:
    """An attempt to write this version of a ledger, with bytes that no other attempt has."""

    ledger_id: LedgerId
    version: int
    data: bytes
    end: str = "unknown"


class Clients:
    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.created: list[LedgerId] = []
        self.deleted: list[LedgerId] = []  # Or perhaps deleted.

    async def live(self, node: Node) -> None:
        chance = node.randomness
        store = await node.metadata(session_timeout_s=SESSION_S, operation_timeout_s=0.3)
        ledgers = LedgerNodes(store, ROOT, Layout.HIERARCHICAL)
        for step in range(STEPS):
            try:
                match chance.choices(("create", "change", "delete"), (4, 8, 1))[0]:
                    case "create":
                        await self._create(ledgers, chance)
                    case "change" if self.created:
                        await self._change(ledgers, chance, f"{node.name}-{step}")
                    case "delete" if drawn := [e for e in self.created if e < FIRST_PICKED]:
                        doomed = chance.choice(drawn)
                        self.deleted.append(doomed)
                        await ledgers.delete(doomed)
            except (Superseded, Missing, Unavailable, OutcomeUnknown):
                pass
            await asyncio.sleep(chance.uniform(0, 0.2))
        await store.close()

    async def _create(self, ledgers: LedgerNodes, chance: random.Random) -> None:
        token = chance.getrandbits(62)

        def make(ledger_id: LedgerId) -> LedgerMetadata:
            return LedgerMetadata(
                ledger_id,
                Quorum(2, 2, 1),
                (Fragment(EntryId(0), (BookieId("a"), BookieId("b"))),),
                digest_type=DigestType.CRC32C,
                password=b"",
                created_ms=0,
                creation_token=token,
            )

        if chance.random() < 0.5:
            stored = await ledgers.create_new(make)
        else:
            picked = LedgerId(FIRST_PICKED + chance.randrange(PICKED))
            stored = await ledgers.create(make(picked))
        assert stored.metadata.ledger_id not in self.created, "two clients created one ledger"
        self.created.append(stored.metadata.ledger_id)
        data = pack_ledger_metadata(stored.metadata)
        self.attempts.append(Attempt(stored.metadata.ledger_id, 0, data, "made"))

    async def _change(self, ledgers: LedgerNodes, chance: random.Random, name: str) -> None:
        stored = await ledgers.read(chance.choice(self.created), fresh=chance.random() < 0.5)
        first = EntryId(stored.metadata.fragments[-1].first_entry + 1)
        wanted = stored.metadata.with_writer_ensemble(first, (BookieId(name), BookieId("b")))
        data = pack_ledger_metadata(wanted)
        attempt = Attempt(wanted.ledger_id, stored.version + 1, data)
        number = len(self.attempts)
        self.attempts.append(attempt)
        await asyncio.sleep(chance.uniform(0, 0.3))  # Time passes between read and update.
        try:
            newer = await ledgers.update(stored, wanted)
        except RollbookError as error:
            not_done = isinstance(error, Unavailable | Missing | SessionExpired)
            self.attempts[number] = replace(attempt, end="not made" if not_done else "unknown")
            raise
        assert newer.version == attempt.version
        self.attempts[number] = replace(attempt, end="made")


@pytest.mark.parametrize("seed", range(30))
def test_outcomes_reported_to_clients_are_true(seed: int) -> None:
    """LR1: checked against every state that the store ever had."""
    world = World(seed)
    clients = Clients()

    async def scenario() -> None:
        store = await set_up(world)
        nodes = [world.node(f"client{number}") for number in range(CLIENTS)]
        disturb(world, nodes, faults=40)
        for process in [node.start(clients.live) for node in nodes]:
            await process.result
        await store.close()

    world.run(scenario())

    ledgers = LedgerNodes(None, ROOT, Layout.HIERARCHICAL)  # type: ignore[arg-type]  # Only paths are used.
    history: dict[tuple[str, int], bytes] = {}
    last: dict[str, int] = {}
    for commit in world.metadata.commits:
        for path, row in commit.rows.items():
            if row is not None:
                history[path, row.version] = row.value
                last[path] = row.version
            else:
                last.pop(path, None)
    everything = set(history.values())
    made: dict[tuple[LedgerId, int], Attempt] = {}
    for attempt in clients.attempts:
        path = ledgers.path(attempt.ledger_id)
        match attempt.end:
            case "made":
                key = (attempt.ledger_id, attempt.version)
                assert made.setdefault(key, attempt) is attempt, "two clients wrote one version"
                assert history.get((path, attempt.version), attempt.data) == attempt.data
                is_there = last.get(path, -1) >= attempt.version
                assert is_there or attempt.ledger_id in clients.deleted
            case "not made":
                assert attempt.data not in everything
    assert any(attempt.end == "made" for attempt in clients.attempts)


def test_worlds_contain_writes_made_not_made_and_unknown() -> None:
    ends: dict[str, int] = {}
    for seed in range(30, 36):
        world, clients = World(seed), Clients()

        async def scenario(world: World = world, clients: Clients = clients) -> None:
            store = await set_up(world)
            nodes = [world.node(f"client{number}") for number in range(CLIENTS)]
            disturb(world, nodes, faults=40)
            for process in [node.start(clients.live) for node in nodes]:
                await process.result
            await store.close()

        world.run(scenario())
        for attempt in clients.attempts:
            ends[attempt.end] = ends.get(attempt.end, 0) + 1
    assert min(ends.get(end, 0) for end in ("made", "not made", "unknown")) > 5, ends


# --- Bookies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_bookies_register_again_in_the_mode_that_they_want(seed: int) -> None:
    """RG1, RG2: through lost sessions and restarts, which meet the session from before."""
    world = World(seed)
    wanted: dict[BookieId, RegisteredMode] = {}

    async def serve(node: Node) -> None:
        bookie = BookieId(f"{node.name}:3181")
        store = await open_patiently(node)
        info = describe_bookie(Address(node.name, 3181))
        while True:  # A supervisor restarts it again and again.
            registration = BookieRegistration(store, ROOT, bookie, info, SESSION_S)
            keeper = asyncio.get_running_loop().create_task(registration.keep())
            try:
                await change_standing(node, bookie, registration)
                await keeper
            except NodeExists:
                continue  # The store was down, and the earlier session is still alive.
            finally:
                keeper.cancel()
                await asyncio.gather(keeper, return_exceptions=True)

    async def change_standing(
        node: Node, bookie: BookieId, registration: BookieRegistration
    ) -> None:
        while True:
            wanted[bookie] = node.randomness.choice(list(RegisteredMode))
            try:
                await registration.register(wanted[bookie])
            except (Unavailable, OutcomeUnknown):
                pass  # The keeper retries.
            if world.now > TROUBLE_S:
                return
            await asyncio.sleep(node.randomness.uniform(0, 4))

    async def scenario() -> None:
        store = await set_up(world)
        eyes = world.node("eyes")
        watching = await eyes.metadata(session_timeout_s=SESSION_S, operation_timeout_s=1.0)
        watcher = BookieWatcher(watching, ROOT)
        await watcher.start()
        nodes = [world.node(f"b{number}") for number in range(BOOKIES)]
        for node in nodes:
            node.start(serve)
        disturb(world, [*nodes, eyes], faults=20)
        chance = world.random("restarts")
        for _ in range(4):
            world.at(world.now + chance.uniform(0, TROUBLE_S), chance.choice(nodes).restart)
        await asyncio.sleep(3 * TROUBLE_S)
        assert len(wanted) == BOOKIES
        live = watcher.current
        for bookie, standing in wanted.items():
            folder, other = (
                (live.writable, live.read_only)
                if standing is RegisteredMode.WRITABLE
                else (live.read_only, live.writable)
            )
            assert (bookie in folder, bookie in other) == (True, False), (bookie, standing)
        await watcher.close()
        for node in nodes:
            node.kill()
        await watching.close()
        await store.close()

    world.run(scenario())
