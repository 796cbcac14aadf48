"""A whole bookie in the simulator: its registration, its sessions, and its end."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from rollbook.bookie.bookie import Bookie, BookieState, Settings, addresses_of, tls_address_of
from rollbook.bookie.config import BookieConfig, SpaceConfig, StorageConfig
from rollbook.proto.cluster.cluster_root import initialise
from rollbook.proto.cluster.ledger_ids import LedgerIds
from rollbook.proto.errors import (
    BadConfig,
    BookieReadOnly,
    NodeExists,
    NoSuchCluster,
    OlderMetadata,
    RollbookError,
    Unavailable,
    WrongBookie,
)
from rollbook.proto.formats.layout import Layout, unpack_layout
from rollbook.proto.formats.service_info import IDENTITY, unpack_service_info
from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.metastore.core.request_checks import ROOT as TOP
from rollbook.proto.ports import (
    Address,
    CreateMode,
    Listener,
    MetadataStore,
    ProtocolFactory,
    Transport,
)
from rollbook.proto.wire.messages import IDENTITY_PLUGIN, Auth, AuthReply, EntryRead
from tests.messages import raises_message
from tests.simulation.kernel import Node, Process, World
from tests.support.bookie_client import KEY, BookieClient
from tests.unit.bookie.serving import add_entries
from tests.unit.bookie.test_storage import add, adds

ROOT = "/ledgers"
ID = BookieId("bk-1")
WRITABLE, READ_ONLY = f"{ROOT}/available/{ID}", f"{ROOT}/available/readonly/{ID}"
SESSION_S = 4.0
PATIENCE_S = 60.0  # Seconds of virtual time.
SETTINGS = Settings(
    BookieConfig(
        metadata="memory:",
        bookie_id=ID,
        listen="b1:3181",
        session_timeout_s=SESSION_S,
    ),
    StorageConfig("/j", ("/l",), journal_file_bytes=64 * 1024, idle_after_ms=20),
)


class Town:
    """A cluster, a machine for a bookie, and an observer of the metadata."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.node = self.world.node("b1")
        self.settings = SETTINGS
        self.tls: Transport | None = None
        self.serving: dict[str, Bookie] = {}  # The key is the host.
        self.ends: dict[str, BaseException | None] = {}
        self.eyes: MetadataStore

    async def serve(self, node: Node) -> None:
        store = await node.metadata(session_timeout_s=SESSION_S)
        bookie = await Bookie.open(node, store, self.settings, self.tls)
        try:
            self.serving[node.name] = bookie
            await bookie.register()
            self.ends[node.name] = await bookie.failed()
        finally:
            await bookie.close()

    def tell(self, story: Callable[["Town"], Awaitable[None]]) -> None:
        async def scenario() -> None:
            eyes = self.world.node("eyes")
            self.eyes = await eyes.metadata(session_timeout_s=SESSION_S)
            await initialise(self.eyes, ROOT, self.world.random("cluster"))
            await LedgerIds(self.eyes, ROOT).skip()  # The ledgers of these tests have no metadata.
            await story(self)
            for node in self.world.nodes.values():
                if node.name.startswith("b"):
                    node.kill()
            await self.eyes.close()

        self.world.run(scenario())

    async def start(self) -> Process:
        """Starts the bookie and waits until it is registered."""
        process = self.node.start(self.serve)
        await self.until_seen()
        return process

    async def until(self, holds: Callable[[], Awaitable[bool]]) -> float:
        """Waits until `holds` returns true; returns the time."""
        watch = await self.eyes.watch(TOP, recursive=True)
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not await holds():
                    await anext(watch)
        finally:
            await watch.close()
        return self.world.now

    async def until_seen(self, path: str = WRITABLE) -> float:
        return await self.until(lambda: self.is_there(path))

    async def until_gone(self, path: str = WRITABLE) -> float:
        async def is_gone() -> bool:
            return not await self.is_there(path)

        return await self.until(is_gone)

    async def is_there(self, path: str) -> bool:
        return await self.eyes.get(path) is not None

    async def owner(self, path: str = WRITABLE) -> int:
        node = await self.eyes.get(path)
        return node.stat.owner if node else 0

    async def answers(self) -> bool:
        with suppress(Unavailable):
            client = BookieClient(3)
            address = Address("b1", 3181)
            transport, _ = await self.world.node("eyes").transport.connect(
                lambda: client, address, 1.0
            )
            transport.close()
            return True
        return False


def test_bookie_registers_only_after_its_port_answers() -> None:
    """B9."""

    async def story(town: Town) -> None:
        town.node.start(town.serve)
        was_seen_deaf = False

        async def is_seen() -> bool:
            nonlocal was_seen_deaf
            if not await town.is_there(WRITABLE):
                return False
            was_seen_deaf = not await town.answers()
            return True

        await town.until(is_seen)
        assert not was_seen_deaf
        node = await town.eyes.get(WRITABLE)
        assert node
        info = unpack_service_info(ID, node.value)
        bookie = town.serving["b1"]
        assert info.address == bookie.advertised == Address("b1", 3181)
        assert info.incarnation == bookie.identity.incarnation
        assert info.holder

    for seed in range(10):
        Town(seed).tell(story)


def _itself(client: BookieClient) -> BookieClient:
    return client


def test_bookie_answers_with_its_identity() -> None:
    """A client checks it, since the address may have belonged to another bookie."""

    async def story(town: Town) -> None:
        await town.start()
        node = await town.eyes.get(WRITABLE)
        assert node is not None
        assert IDENTITY in unpack_service_info(ID, node.value).extensions
        for client in (BookieClient(2), BookieClient(3)):
            eyes = town.world.node("eyes")
            await eyes.transport.connect(partial(_itself, client), Address("b1", 3181), 1.0)
            reply = await client.call(Auth(IDENTITY_PLUGIN, b""))
            assert reply == AuthReply(IDENTITY_PLUGIN, ID.encode())
            client.abort()

    Town().tell(story)


def test_stopping_bookie_unregisters_at_once() -> None:
    """B9: it does so before it closes its port and answers its last requests."""

    async def story(town: Town) -> None:
        process = await town.start()
        client = BookieClient(3)
        await town.world.node("eyes").transport.connect(lambda: client, Address("b1", 3181), 1.0)
        started = town.world.now
        town.node.terminate()
        assert await town.until_gone() - started < 1.0
        with suppress(asyncio.CancelledError):
            await process.result
        assert town.world.now - started < 1.0 + SETTINGS.bookie.drain_s
        assert town.serving["b1"].state is BookieState.CLOSING
        assert not await town.answers()

    Town().tell(story)


def test_stop_does_not_wait_for_metadata_or_long_polls() -> None:
    """The metadata store does not respond, and a client waits in a long poll."""

    async def story(town: Town) -> None:
        process = await town.start()
        await asyncio.sleep(1)
        await add_entries(town.serving["b1"].storage, 1, [0])
        client = BookieClient(3)
        eyes = town.world.node("eyes")
        await eyes.transport.connect(lambda: client, Address("b1", 3181), 1.0)
        news = client.ask(
            EntryRead(LedgerId(1), EntryId(1), previous_lac=EntryId(5), timeout_ms=60_000)
        )
        await asyncio.sleep(0.1)
        town.world.network.cut("b1", "metadata")
        started = town.world.now
        town.node.terminate()
        with suppress(asyncio.CancelledError):
            await process.result
        assert town.world.now - started < 10
        with suppress(RollbookError):
            await news

    for seed in range(5):
        Town(seed).tell(story)


def test_killed_bookie_registers_again_at_once() -> None:
    """RG2: it takes over the lock of the dead process, so it need not wait."""

    async def story(town: Town) -> None:
        await town.start()
        before, started = await town.owner(), town.world.now
        town.node.restart()

        async def is_back() -> bool:
            return await town.owner() not in (0, before)

        assert await town.until(is_back) - started < SESSION_S / 2

    for seed in range(5):
        Town(seed).tell(story)


def test_bookie_waits_for_its_old_session_after_a_power_cut() -> None:
    """RG2: after a boot nothing shows whether another machine took over the lock."""

    async def story(town: Town) -> None:
        await town.start()
        before, cut = await town.owner(), town.world.now
        town.node.power_cut()
        town.node.restart()

        async def is_back() -> bool:
            return await town.owner() not in (0, before)

        back = await town.until(is_back)
        assert SESSION_S / 2 < back - cut < SESSION_S + 5
        await asyncio.sleep(1)  # The bookie learns of its registration later than the observer.
        assert town.serving["b1"].state is BookieState.SERVING

    for seed in range(5):
        Town(seed).tell(story)


def test_copied_directories_are_refused_while_bookie_runs() -> None:
    """RG2: the copy has the same identity, but another lock."""

    async def story(town: Town) -> None:
        await town.start()
        before = await town.owner()
        copy = town.world.node("b1-copy")
        copy.disk.system = town.node.disk.system.after_power_cut(lambda count: count - 1)
        town.settings = replace(SETTINGS, bookie=replace(SETTINGS.bookie, listen="b1-copy:3181"))
        process = copy.start(town.serve)
        with pytest.raises(NodeExists):
            await process.result
        assert await town.owner() == before

    Town().tell(story)


@pytest.mark.parametrize("seed", range(5))
def test_bookie_opens_a_new_session_after_expiry(seed: int) -> None:
    async def story(town: Town) -> None:
        await town.start()
        await asyncio.sleep(1)  # The bookie learns of its registration later than the observer.
        for lost in range(1, 4):
            before = await town.owner()
            town.world.metadata.expire(town.node)

            async def is_back(before: int = before) -> bool:
                return await town.owner() not in (0, before)

            await town.until(is_back)
            stats = town.serving["b1"].stats
            assert stats.sessions_lost() == lost
        assert town.node.is_running

    Town(seed).tell(story)


@pytest.mark.parametrize("pause_s", [SESSION_S / 4, SESSION_S * 5])
def test_bookie_is_registered_after_a_pause(pause_s: float) -> None:
    async def story(town: Town) -> None:
        await town.start()
        town.node.pause()
        await asyncio.sleep(pause_s)
        assert await town.is_there(WRITABLE) == (pause_s < SESSION_S)
        town.node.resume()
        await town.until_seen()
        await asyncio.sleep(SESSION_S * 2)
        assert await town.is_there(WRITABLE)
        assert town.node.is_running

    Town().tell(story)


@pytest.mark.parametrize("seed", range(8))
def test_pause_while_waiting_for_the_old_session_is_harmless(seed: int) -> None:
    """The wait may time out during the pause; the state after the pause counts."""

    async def story(town: Town) -> None:
        await town.start()
        town.node.power_cut()
        town.node.restart()
        await asyncio.sleep(0.5 + seed / 4)
        town.node.pause()
        await asyncio.sleep(10 * SESSION_S)
        town.node.resume()
        await town.until_seen()
        assert town.node.is_running

    Town(seed).tell(story)


def test_removed_registration_is_restored() -> None:
    async def story(town: Town) -> None:
        await town.start()
        await town.eyes.delete(WRITABLE)
        await town.until_seen()

    Town().tell(story)


def test_bookie_ends_when_another_process_holds_its_id() -> None:
    """RG2: another process registered its id while it was cut off, and keeps it."""

    async def story(town: Town) -> None:
        process = await town.start()
        town.world.network.isolate("b1")
        await town.until_gone()
        rival = await town.world.node("rival").metadata(session_timeout_s=SESSION_S)
        await rival.create(WRITABLE, b"", CreateMode.EPHEMERAL)
        town.world.network.rejoin("b1")
        async with asyncio.timeout(PATIENCE_S):
            await process.result
        assert isinstance(town.ends["b1"], NodeExists)
        assert await town.owner() == rival.session
        await rival.close()

    Town().tell(story)


def test_bookie_switches_to_read_only_and_back() -> None:
    """RG1: an operator switches it; meanwhile it is always registered in at least one place."""

    async def story(town: Town) -> None:
        await town.start()
        bookie = town.serving["b1"]
        unseen = 0

        async def look() -> None:
            nonlocal unseen
            watch = await town.eyes.watch(f"{ROOT}/available", recursive=True)
            async for _ in watch:
                there = [await town.is_there(path) for path in (WRITABLE, READ_ONLY, WRITABLE)]
                unseen += not any(there)

        looking = asyncio.get_running_loop().create_task(look())
        for _ in range(3):
            await bookie.set_read_only(True)
            await town.until_seen(READ_ONLY)
            await town.until_gone(WRITABLE)
            with pytest.raises(AssertionError, match=BookieReadOnly.__name__):
                await add_entries(bookie.storage, 1, [0])
            await bookie.set_read_only(False)
            await town.until_seen(WRITABLE)
            await town.until_gone(READ_ONLY)
            await add_entries(bookie.storage, 1, [0])
        assert unseen == 0
        looking.cancel()

    Town().tell(story)


def test_bookie_started_read_only_registers_read_only() -> None:
    async def story(town: Town) -> None:
        town.settings = replace(SETTINGS, bookie=replace(SETTINGS.bookie, read_only=True))
        town.node.start(town.serve)
        await town.until_seen(READ_ONLY)
        assert not await town.is_there(WRITABLE)
        with pytest.raises(AssertionError, match=BookieReadOnly.__name__):
            await add_entries(town.serving["b1"].storage, 1, [0])

    Town().tell(story)


def test_uncounted_start_on_a_full_disk_refuses_all_promises() -> None:
    """B8: otherwise a snapshot of its directories could serve, and report entries as ABSENT."""

    async def story(town: Town) -> None:
        town.settings = replace(SETTINGS, space=SpaceConfig(reserve_bytes=0))
        disk = town.node.disk
        await town.start()
        await add_entries(town.serving["b1"].storage, 1, [0])
        snapshot = disk.image()
        town.node.kill()
        disk.capacity_bytes = 0
        town.node.start(town.serve)
        await town.until_seen(READ_ONLY)
        storage = town.serving["b1"].storage
        assert await storage.read(1, 0)
        disk.capacity_bytes = None
        for is_urgent in (False, True):
            more = adds((1, 1), is_recovery=is_urgent, is_high_priority=is_urgent)
            assert storage.add(more).refusals == (BookieReadOnly,)
        with pytest.raises(BookieReadOnly):
            await storage.fence(1, KEY)
        with pytest.raises(BookieReadOnly):
            await storage.write_lac(1, KEY, 0, b"")
        await town.until_seen()
        await add(storage, (1, 1))
        await storage.fence(1, KEY)
        town.node.kill()
        disk.put_back(snapshot)
        with raises_message(WrongBookie):
            await town.node.start(town.serve).result

    Town().tell(story)


def test_start_is_counted_after_a_metadata_outage() -> None:
    async def story(town: Town) -> None:
        town.settings = replace(SETTINGS, space=SpaceConfig(reserve_bytes=0))
        disk = town.node.disk
        await town.start()
        town.node.kill()
        disk.capacity_bytes = 0
        town.node.start(town.serve)
        await town.until_seen(READ_ONLY)
        town.world.metadata.down()
        disk.capacity_bytes = None
        await asyncio.sleep(2 * SESSION_S)
        town.world.metadata.up()
        await town.until_seen()

    Town().tell(story)


def test_bookie_ends_if_a_copy_has_started_first() -> None:
    """B8."""

    async def story(town: Town) -> None:
        town.settings = replace(SETTINGS, space=SpaceConfig(reserve_bytes=0))
        disk = town.node.disk
        await town.start()
        town.node.kill()
        copy = disk.image()
        disk.capacity_bytes = 0
        process = town.node.start(town.serve)
        await town.until_seen(READ_ONLY)
        town.world.network.isolate("b1")
        await town.until_gone(READ_ONLY)
        other = town.world.node("b2")
        other.disk.put_back(copy)
        town.settings = replace(town.settings, bookie=replace(SETTINGS.bookie, listen="b2:3181"))
        other.start(town.serve)
        await town.until_seen()
        disk.capacity_bytes = None
        town.world.network.rejoin("b1")
        async with asyncio.timeout(PATIENCE_S):
            await process.result
        assert isinstance(town.ends["b1"], WrongBookie)

    Town().tell(story)


def test_failed_journal_ends_the_bookie() -> None:
    """B6."""

    async def story(town: Town) -> None:
        process = await town.start()
        await asyncio.sleep(1)  # The bookie learns of its registration later than the observer.
        town.node.disk.sync_error_odds = 1.0
        with suppress(RollbookError):
            await add_entries(town.serving["b1"].storage, 1, [0])
        async with asyncio.timeout(PATIENCE_S):
            await process.result
        assert town.ends["b1"] is not None
        await town.until_gone()

    Town().tell(story)


def test_failed_journal_ends_a_bookie_before_registration() -> None:
    """B6: it serves before its registration, which may take long."""

    async def story(town: Town) -> None:
        await town.start()
        town.node.kill()
        process = town.node.restart()
        del town.serving["b1"]
        while "b1" not in town.serving:
            await asyncio.sleep(0.0001)
        town.world.metadata.down()
        town.node.disk.sync_error_odds = 1.0
        with suppress(RollbookError):
            await add_entries(town.serving["b1"].storage, 1, [0])
        with pytest.raises((OSError, RollbookError)) as failure:
            async with asyncio.timeout(SESSION_S / 2):
                await process.result
        assert not isinstance(failure.value, TimeoutError | NodeExists)

    Town().tell(story)


def test_failed_background_task_ends_the_bookie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would go on, and never register as read-only, for instance."""
    reason = RuntimeError("unforeseen")

    async def fail(_bookie: Bookie) -> None:
        raise reason

    async def story(town: Town) -> None:
        monkeypatch.setattr(Bookie, "_follow_standing", fail)
        process = town.node.start(town.serve)
        async with asyncio.timeout(PATIENCE_S):
            await process.result
        assert town.ends["b1"] is reason

    Town().tell(story)


def test_bookie_does_not_start_without_a_cluster() -> None:
    async def story(town: Town) -> None:
        config = replace(SETTINGS.bookie, metadata="zk://h/elsewhere")
        town.settings = replace(SETTINGS, bookie=config)
        process = town.node.start(town.serve)
        with pytest.raises(NoSuchCluster):
            await process.result

    Town().tell(story)


def test_refusal_by_a_stale_node_shows_the_command_to_delete_it() -> None:
    async def story(town: Town) -> None:
        config = replace(SETTINGS.bookie, metadata=f"zk://zk1{ROOT}")
        town.settings = replace(SETTINGS, bookie=config)
        await town.eyes.create(WRITABLE)
        with pytest.raises(NodeExists) as refused:
            await town.node.start(town.serve).result
        assert refused.value.next_step == f"zkCli.sh -server zk1:2181 delete {WRITABLE}"

    Town().tell(story)


def test_missing_layout_is_written_and_a_missing_cluster_id_is_accepted() -> None:
    """Old clusters, and clusters created by other software, lack these nodes."""

    async def story(town: Town) -> None:
        for name in ("LAYOUT", "INSTANCEID", "cookies", "available/readonly"):
            await town.eyes.delete(f"{ROOT}/{name}")
        await town.eyes.delete("/rollbook")
        await town.start()
        assert await town.is_there(f"{ROOT}/LAYOUT")
        assert not await town.is_there(f"{ROOT}/INSTANCEID")
        assert await town.is_there(f"{ROOT}/cookies/{ID}")
        town.node.restart()
        await town.serving["b1"].set_read_only(True)

    Town().tell(story)


def test_layout_written_is_the_one_in_the_metadata_url() -> None:
    async def story(town: Town) -> None:
        await town.eyes.delete(f"{ROOT}/LAYOUT")
        config = replace(SETTINGS.bookie, metadata=f"zk+longhierarchical://zk1{ROOT}")
        town.settings = replace(SETTINGS, bookie=config)
        await town.start()
        node = await town.eyes.get(f"{ROOT}/LAYOUT")
        assert node is not None
        assert unpack_layout(node.value) is Layout.LONG_HIERARCHICAL

    Town().tell(story)


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({}, ("127.0.0.1:3181", "127.0.0.1:3181", "127.0.0.1:3181")),
        ({"listen": ":4000", "advertise": "h"}, ("0.0.0.0:4000", "h:4000", "h:4000")),
        ({"listen": "10.0.0.5"}, ("10.0.0.5:3181", "10.0.0.5:3181", "10.0.0.5:3181")),
        (
            {"listen": "0.0.0.0:1", "advertise": "bk.example"},
            ("0.0.0.0:1", "bk.example:1", "bk.example:1"),
        ),
        (
            {"listen": "0.0.0.0:1", "advertise": "bk.example:7", "bookie_id": "X"},
            ("0.0.0.0:1", "bk.example:7", "X"),
        ),
        ({"listen": "h:0", "bookie_id": "X"}, ("h:0", "h:0", "X")),
    ],
)
def test_addresses_and_bookie_id_from_config(
    config: dict[str, str], found: tuple[str, str, str]
) -> None:
    """AR41: the id is host and port, unless an id is configured."""
    places = addresses_of(BookieConfig("memory:", **config))  # type: ignore[arg-type]  # All values are strings.
    assert tuple(map(str, places)) == found


def test_tls_address_is_registered() -> None:
    assert tls_address_of(BookieConfig("memory:")) is None
    with raises_message(BadConfig):
        tls_address_of(BookieConfig("memory:", tls_listen="0.0.0.0:1", tls_certificate="c"))

    async def story(town: Town) -> None:
        config = replace(SETTINGS.bookie, tls_listen="b1:3182", tls_certificate="c")
        town.settings = replace(SETTINGS, bookie=config)
        town.tls = town.node.transport  # Any transport will do: this test makes no TLS connection.
        await town.start()
        node = await town.eyes.get(WRITABLE)
        assert node
        assert unpack_service_info(ID, node.value).tls_address == Address("b1", 3182)

    Town().tell(story)


@pytest.mark.parametrize("tls_listen", ["b1:3182", "b1:3181"])
def test_bookie_is_not_created_if_its_tls_port_is_taken(tls_listen: str) -> None:
    """Another process has the port, or the bookie itself. It must not leave an unused id behind."""

    async def story(town: Town) -> None:
        await town.node.transport.listen(asyncio.Protocol, Address("b1", 3182))
        config = replace(SETTINGS.bookie, tls_listen=tls_listen, tls_certificate="c")
        town.settings = replace(SETTINGS, bookie=config)
        town.tls = town.node.transport
        with pytest.raises(BadConfig, match=f"cannot listen on {tls_listen}"):
            await town.node.start(town.serve).result
        assert await town.node.disk.stat("/j") is None, "another port may make another id of it"
        assert not await town.answers()

    Town().tell(story)


def test_connection_during_the_port_check_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the client would wait for a response that never comes."""

    class Caller(asyncio.Protocol):
        def __init__(self) -> None:
            self.lost = asyncio.get_running_loop().create_future()

        def connection_lost(self, exc: Exception | None) -> None:
            self.lost.set_result(None)

    async def story(town: Town) -> None:
        callers: list[Caller] = []
        listen = town.node.transport.listen

        async def listen_until_called(factory: ProtocolFactory, address: Address) -> Listener:
            listener = await listen(factory, address)
            if not callers:
                callers.append(Caller())
                connect = town.world.node("eyes").transport.connect
                await connect(lambda: callers[0], address, PATIENCE_S)
                await asyncio.sleep(1)  # Waits until the connection is accepted.
            return listener

        monkeypatch.setattr(town.node.transport, "listen", listen_until_called)
        await town.start()
        async with asyncio.timeout(PATIENCE_S):
            await callers[0].lost

    Town().tell(story)


@pytest.mark.parametrize("config", [{"listen": "0.0.0.0:1"}, {"listen": "h:0"}, {"listen": "h:x"}])
def test_unusable_listen_address_is_refused(config: dict[str, str]) -> None:
    with pytest.raises(BadConfig):
        addresses_of(BookieConfig("memory:", **config))  # type: ignore[arg-type]  # All values are strings.


def test_bookie_ends_under_an_older_metadata_store() -> None:
    """B14: a metadata store may be restored while a bookie runs; its session then expires."""

    async def story(town: Town) -> None:
        process = await town.start()
        position = await LedgerIds(town.eyes, ROOT).draw()
        await add_entries(town.serving["b1"].storage, position + 5, [0])
        town.world.metadata.expire(town.node)
        await process.result
        assert isinstance(town.ends["b1"], OlderMetadata)
        with raises_message(OlderMetadata):
            await town.node.start(town.serve).result
        await LedgerIds(town.eyes, ROOT).skip(position + 5)
        await town.start()

    Town().tell(story)
