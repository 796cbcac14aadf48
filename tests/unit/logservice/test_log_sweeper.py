"""Sweeps apply retention to logs that get no requests."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rollbook.ledger.ledgers import Ledgers
from rollbook.logservice import log_sweeper
from rollbook.logservice.core.ledger_list import LedgerList, LogEvent
from rollbook.logservice.cursor_lags import CursorLags
from rollbook.logservice.ids import CursorName, LogName, Offset, ServerId
from rollbook.logservice.log_config import LogConfig
from rollbook.logservice.log_deletion import delete_log
from rollbook.logservice.log_metadata import LogMetadataStore, StoredLog
from rollbook.logservice.log_sweeper import Sweeper
from rollbook.logservice.lost_segments import LostSegments
from rollbook.logservice.messages import CommitCursor
from rollbook.logservice.owner import Owner
from rollbook.logservice.truncation import delete_discarded
from rollbook.proto.errors import MetadataUnavailable, NoSuchLog
from tests.unit.logservice.owner_scene import LEASE_S, LOG, Held, Scene, Server, play, refused

AGE_S = 600
AGING = LogConfig(retention_age_s=AGE_S, roll_age_s=600)


class Keeper:
    """A log server with the parts that a sweep asks it for."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.owners: dict[LogName, Owner] = {}
        self.alive: list[ServerId] = []
        self.suggested = [LOG]
        self.opened = 0
        self.lags: CursorLags | None = None  # Set by the first sweep.

    @property
    def owned_logs(self) -> list[LogName]:
        return list(self.owners)

    def find(self, name: LogName) -> Owner | None:
        return self.owners.get(name)

    def is_suggested(self, name: LogName) -> bool:
        return name in self.suggested

    def is_nobodys(self, name: LogName, listed: LedgerList) -> bool:
        return listed.owner is None or listed.owner.server_id not in self.alive

    async def release_lost(self) -> None:
        pass  # This server has lost no log.

    async def owner_of(self, name: LogName, due: float, *, heeds_preference: bool = True) -> Owner:
        assert due > asyncio.get_running_loop().time()
        if name not in self.owners:
            self.opened += 1
            self.owners[name] = (await self._server.open(name=name)).owner
        return self.owners[name]

    async def let_go(self) -> None:
        for owner in self.owners.values():
            await self._server.run(owner.close("idle"))
        self.owners.clear()

    def sweeper(self) -> Sweeper:
        context = self._server.owner_context
        self.lags = self.lags or CursorLags(context.nodes, self)
        return Sweeper(
            context.ledgers,
            context.nodes,
            self,
            self.lags,
            LostSegments(context.ledgers.nodes, context.nodes),
            context.clock,
            context.randomness,
            sweep_interval_s=60.0,
            orphans_interval_s=3600.0,
        )

    async def sweep(self) -> None:
        await self._server.run(self.sweeper().sweep())

    async def sweep_and_read(self) -> None:
        await self.sweep()
        await asyncio.sleep(1)  # Cursors are read in the background.


Story = Callable[[Scene, Keeper], Awaitable[None]]


def swept(story: Story, config: LogConfig = AGING) -> None:
    async def begin(scene: Scene) -> None:
        keeper = Keeper(await scene.server("s2"))
        await story(scene, keeper)
        await keeper.let_go()

    play(begin, config=config)


async def two_segments(scene: Scene) -> None:
    """Segments closed at 1 and at 2; the log has no owner."""
    owner = await (await scene.server("s1")).open()
    await owner.append(b"0")
    await owner.run(owner.owner.roll("test"))
    await owner.append(b"1")
    await owner.close()


async def ledgers(scene: Scene) -> int:
    return len([ledger_id async for ledger_id in scene.ledgers.list()])


def test_idle_log_expires_to_one_empty_segment() -> None:
    """Later sweeps change nothing more."""

    async def story(scene: Scene, keeper: Keeper) -> None:
        await two_segments(scene)
        await keeper.sweep()
        assert (await scene.stored()).list.head == 0  # Nothing is old yet.
        await asyncio.sleep(AGE_S + 1)
        await keeper.sweep()
        await keeper.let_go()
        await keeper.sweep()
        listed = (await scene.stored()).list
        assert (listed.head, listed.tail, keeper.opened) == (2, 2, 1)
        assert [segment.records for segment in listed.segments] == [0]
        assert listed.events[-2].reason == "retention"
        assert await ledgers(scene) == 1
        for _ in range(3):
            await asyncio.sleep(AGE_S)
            await keeper.sweep()
        assert (await scene.stored()).list == listed
        assert keeper.opened == 1
        owner = await (await scene.server("s1")).open()
        assert (await owner.append(b"2")).first_offset == 2
        await owner.close()

    swept(story)


def test_closed_segments_of_an_owned_log_expire() -> None:
    async def story(scene: Scene, keeper: Keeper) -> None:
        await two_segments(scene)
        await asyncio.sleep(AGE_S + 1)
        owner = await keeper.owner_of(LOG, 10**9)
        await keeper.sweep()
        assert (owner.head, owner.tail) == (2, 2)
        while (await scene.stored()).list.discarded:
            await asyncio.sleep(0.01)
        assert await ledgers(scene) == 1

    swept(story)


def test_records_of_a_dead_owner_expire() -> None:
    async def story(scene: Scene, keeper: Keeper) -> None:
        owner = await (await scene.server("s1")).open()
        await owner.append(b"0")
        owner.server.node.kill()
        await asyncio.sleep(3 * AGE_S + 1)
        await keeper.sweep()  # Closes the segment of the dead owner.
        await keeper.sweep()  # Expires that segment.
        assert (await scene.stored()).list.head == 1

    swept(story)


def test_size_retention_stops_at_a_mark() -> None:
    """LL6."""

    async def story(scene: Scene, keeper: Keeper) -> None:
        await two_segments(scene)
        mark = CommitCursor(LOG, CursorName("snapshot"), Offset(0), is_protected=True)
        await scene.nodes.commit_cursor(mark)
        await keeper.sweep()
        assert (await scene.stored()).list.head == 0
        await scene.nodes.commit_cursor(
            CommitCursor(LOG, CursorName("snapshot"), Offset(1), is_protected=True)
        )
        await keeper.sweep()
        assert (await scene.stored()).list.head == 1
        assert await ledgers(scene) == 1

    swept(story, LogConfig(retention_bytes=0))


def test_closed_segments_expire_while_all_bookies_are_full() -> None:
    """Expiry must not need an owner, whose new ledger full bookies would refuse."""

    async def story(scene: Scene, keeper: Keeper) -> None:
        await two_segments(scene)
        await asyncio.sleep(AGE_S + 1)
        scene.set_bookies(is_full=True)
        await keeper.sweep()
        listed = (await scene.stored()).list
        assert (listed.head, listed.discarded) == (2, ())
        assert listed.segments[0].base_offset == 1
        scene.set_bookies(is_full=False)
        await keeper.sweep()
        await keeper.let_go()
        assert [each.records for each in (await scene.stored()).list.segments] == [0]

    swept(story)


def test_idle_log_with_several_past_owners_expires() -> None:
    """Each past owner left a segment; the log gets no more requests."""

    async def story(scene: Scene, keeper: Keeper) -> None:
        for name in ("s1", "s3", "s4"):
            owner = await (await scene.server(name)).open()
            await owner.append(name.encode())
            if name == "s3":
                owner.server.node.kill()
            else:
                await owner.close()
        await asyncio.sleep(AGE_S + 1)
        await keeper.sweep()
        await keeper.let_go()
        listed = (await scene.stored()).list
        assert (listed.head, listed.tail) == (3, 3)
        assert [segment.records for segment in listed.segments] == [0]
        assert await ledgers(scene) == 1

    swept(story)


def test_sweep_skips_logs_of_other_servers() -> None:
    async def story(scene: Scene, keeper: Keeper) -> None:
        await two_segments(scene)
        owner = await (await scene.server("s1")).open()
        stored = await scene.stored()
        await asyncio.sleep(AGE_S + 1)
        assert stored.list.owner is not None
        keeper.alive = [stored.list.owner.server_id]
        await keeper.sweep()
        keeper.alive, keeper.suggested = [], []
        await keeper.sweep()
        assert await scene.stored() == stored
        await owner.close()

    swept(story)


def test_sweep_does_not_truncate_a_log_that_is_opened_during_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If another server truncated it, the log would have two heads until the owner reads the list."""

    async def story(scene: Scene, keeper: Keeper) -> None:
        await two_segments(scene)
        stored = await scene.stored()
        await scene.nodes.replace(stored, stored.list.with_head(Offset(1), Offset(2)))
        await asyncio.sleep(AGE_S + 1)
        server, opened = await scene.server("s1"), list[Held]()

        async def slow_delete(
            ledgers: Ledgers, nodes: LogMetadataStore, stored: StoredLog
        ) -> StoredLog:
            if not opened:
                opened.append(await server.open())
                owner = (await scene.stored()).list.owner
                assert owner is not None
                keeper.alive = [owner.server_id]
            return await delete_discarded(ledgers, nodes, stored)

        monkeypatch.setattr(log_sweeper, "delete_discarded", slow_delete)
        await keeper.sweep()
        assert (await scene.stored()).list.head == opened[0].owner.head == 1
        await opened[0].close()

    swept(story)


def test_nothing_expires_by_a_wrong_clock() -> None:
    """RT1: this server's clock runs a year ahead."""

    async def story(scene: Scene, keeper: Keeper) -> None:
        await two_segments(scene)
        clock = (await scene.server("s2")).node.clock
        clock.jump(365 * 86_400)
        await keeper.sweep()
        assert (await scene.stored()).list.head == 0
        clock.jump(-365 * 86_400)
        await asyncio.sleep(AGE_S + 1)
        await keeper.sweep()
        assert (await scene.stored()).list.head == 2

    swept(story)


def test_sweep_frees_discarded_ledgers_and_deleted_logs() -> None:
    """LL3: ledgers discarded by an owner that died, and deleted logs after their grace."""

    async def story(scene: Scene, keeper: Keeper) -> None:
        await two_segments(scene)
        stored = await scene.stored()
        listed = stored.list.with_head(Offset(1), Offset(2))
        await scene.nodes.replace(stored, listed)
        assert await ledgers(scene) == 2
        await keeper.sweep()
        assert await ledgers(scene) == 1
        now_us = scene.ledgers._clock.wall_us()
        free_at_us = now_us + 60_000_000
        await delete_log(scene.nodes, LOG, free_at_us, LogEvent("log_deleted", now_us))
        await keeper.sweep()
        assert await ledgers(scene) == 1
        await asyncio.sleep(61)
        await keeper.sweep()
        assert await ledgers(scene) == 0
        freed = await scene.stored()
        assert freed.list.is_condemned, (
            "the list is kept for readers of an older version, so that no new list has its version"
        )
        await asyncio.sleep(60)
        await keeper.sweep()
        await refused(scene.nodes.read(LOG), NoSuchLog)

    swept(story, LogConfig())


def test_sweep_ends_the_owner_of_a_sealed_log_deleted_elsewhere() -> None:
    """The list names no owner, so the deleting server cannot notify it, and the log would stay open."""

    async def story(scene: Scene, keeper: Keeper) -> None:
        owner = await keeper.owner_of(LOG, asyncio.get_running_loop().time() + 10)
        server = keeper._server
        await server.run(owner.seal())
        await keeper.sweep()
        assert owner.failure is None
        await delete_log(scene.nodes, LOG, 1, LogEvent("log_deleted", 1))
        await keeper.sweep()
        assert owner.failure is not None
        await server.run(owner.ended())
        keeper.owners.clear()
        assert await ledgers(scene) == 0
        await refused(scene.nodes.read(LOG), NoSuchLog)

    swept(story, LogConfig())


def test_sweep_ends_the_owner_of_a_silent_log_deleted_elsewhere() -> None:
    """SV6: the deleting server took the owner for dead. The log's ledgers must be freed all the same."""

    async def story(scene: Scene, keeper: Keeper) -> None:
        owner = await keeper.owner_of(LOG, asyncio.get_running_loop().time() + 10)
        await delete_log(scene.nodes, LOG, 1, LogEvent("log_deleted", 1))
        await asyncio.sleep(LEASE_S)
        await keeper.sweep()
        assert owner.failure is not None
        await keeper._server.run(owner.ended())
        keeper.owners.clear()
        await keeper.sweep()
        assert await ledgers(scene) == 0

    swept(story, LogConfig())


def test_started_sweeper_sweeps_until_closed() -> None:
    async def story(scene: Scene, keeper: Keeper) -> None:
        await two_segments(scene)
        server = await scene.server("s2")
        sweeper = keeper.sweeper()
        server.do(sweeper.start)
        await asyncio.sleep(3 * AGE_S)
        assert (await scene.stored()).list.head == 2
        await server.run(sweeper.close())

    swept(story)


async def unreadable(_: LogName) -> StoredLog:
    raise MetadataUnavailable


def test_cursor_lags_of_an_idle_log_are_reported() -> None:
    """Cursor lags must stay in the metrics after an idle log is released."""

    async def story(scene: Scene, keeper: Keeper) -> None:
        await two_segments(scene)
        for name, offset in (("slow", 0), ("half", 1), ("there", 2)):
            await scene.nodes.commit_cursor(CommitCursor(LOG, CursorName(name), Offset(offset)))
        await keeper.sweep_and_read()
        assert keeper.lags is not None
        assert keeper.lags.lags() == {}  # Lags are read only after they were requested.
        keeper.lags.look()
        await keeper.sweep_and_read()
        lagging = {f"{LOG}:slow": 2.0, f"{LOG}:half": 1.0}
        assert keeper.lags.lags() == lagging
        await asyncio.sleep(400)
        keeper.lags.look()
        await keeper.sweep_and_read()
        assert keeper.lags.lags() == lagging
        await scene.nodes.commit_cursor(CommitCursor(LOG, CursorName("slow"), Offset(2)))
        await keeper.sweep_and_read()
        assert keeper.lags.lags() == {f"{LOG}:half": 1.0}
        with pytest.MonkeyPatch.context() as broken:
            broken.setattr(keeper._server.owner_context.nodes, "read", unreadable)
            await keeper.sweep_and_read()
        assert keeper.lags.lags() == {f"{LOG}:half": 1.0}
        keeper.suggested = []  # Another server sweeps the log.
        await keeper.sweep_and_read()
        assert keeper.lags.lags() == {}
        keeper.suggested = [LOG]
        await keeper.sweep_and_read()
        await keeper.owner_of(LOG, asyncio.get_running_loop().time() + 10)
        assert keeper.lags.lags() == {}  # The owner reports the lag now.
        await keeper.lags.close()

    swept(story, config=LogConfig())


def test_lag_in_a_dead_owners_log_counts_closed_segments_only() -> None:
    async def story(scene: Scene, keeper: Keeper) -> None:
        owner = await (await scene.server("s1")).open()
        await owner.append(b"0")
        await owner.run(owner.owner.roll("test"))
        await owner.append(b"1")
        await scene.nodes.commit_cursor(CommitCursor(LOG, CursorName("c"), Offset(0)))
        owner.server.node.kill()
        keeper.sweeper()
        assert keeper.lags is not None
        keeper.lags.look()
        await keeper.sweep_and_read()
        assert keeper.lags.lags() == {f"{LOG}:c": 1.0}
        await keeper.lags.close()

    swept(story, config=LogConfig())
