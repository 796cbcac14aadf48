"""Lags of cursors are found out in the background, of all logs in turn, however slow the store is."""

import asyncio
from collections.abc import Awaitable, Callable

from rollbook.logservice import words
from rollbook.logservice.cursor_lags import CursorLags
from rollbook.logservice.ids import CursorName, LogName, Offset
from rollbook.proto.errors import MetadataUnavailable, NoSuchLog
from tests.simulation.kernel import World

LOGS = [LogName("ns", f"log-{number}") for number in range(5)]


class Owners:
    tail = Offset(10)

    def __init__(self) -> None:
        self.owned_logs = list(LOGS)

    def find(self, name: LogName) -> "Owners | None":
        return self if name in self.owned_logs else None


class Nodes:
    """Slow enough for two logs in one look."""

    def __init__(self) -> None:
        self.asked: list[LogName] = []
        self.broken: dict[LogName, Exception] = {}
        self.read_s = 14.0

    async def cursors(self, log: LogName) -> list[words.Cursor]:
        self.asked.append(log)
        await asyncio.sleep(self.read_s)
        if log in self.broken:
            raise self.broken[log]
        return [words.Cursor(CursorName("c"), Offset(4), 1, b"", False, 0)]


def play(story: Callable[[CursorLags, Owners, Nodes], Awaitable[None]]) -> None:
    world, owners, nodes = World(1), Owners(), Nodes()

    async def scenario() -> None:
        lags = CursorLags(nodes, owners)
        await story(lags, owners, nodes)
        await lags.close()
        lags.look()
        assert len(asyncio.all_tasks()) == 1

    world.run(scenario())


def test_logs_take_turns_however_slow_the_store_is() -> None:
    async def story(lags: CursorLags, owners: Owners, nodes: Nodes) -> None:
        assert lags.lags() == {}
        for _ in range(3):
            lags.look()
            lags.look()
            await asyncio.sleep(31)
        assert nodes.asked == [*LOGS[:3], LOGS[3], LOGS[4], LOGS[0], LOGS[1], LOGS[2], LOGS[3]]
        assert lags.lags() == {f"{log}:c": 6.0 for log in LOGS}
        del owners.owned_logs[0]
        assert lags.lags() == {f"{log}:c": 6.0 for log in LOGS[1:]}

    play(story)


def test_a_log_that_cannot_be_read_holds_nobody_up() -> None:
    async def story(lags: CursorLags, owners: Owners, nodes: Nodes) -> None:
        nodes.read_s = 0.01
        nodes.broken = {LOGS[0]: MetadataUnavailable(), LOGS[2]: NoSuchLog()}
        lags.look()
        await asyncio.sleep(1)
        assert lags.lags() == {}
        await asyncio.sleep(30)
        lags.look()
        await asyncio.sleep(1)
        assert lags.lags() == {f"{log}:c": 6.0 for log in (LOGS[1], LOGS[3], LOGS[4])}

    play(story)
