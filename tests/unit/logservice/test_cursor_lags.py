"""Cursor lags are read in the background, log by log, however slow the metadata store is."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rollbook.logservice import cursor_lags, messages
from rollbook.logservice.core.ledger_list import LedgerList
from rollbook.logservice.cursor_lags import CursorLags
from rollbook.logservice.ids import CursorName, LogName, LogUid, Offset
from rollbook.logservice.log_config import LogConfig
from rollbook.logservice.stats import LAGS_MAX
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
    """Reads are so slow that only two of them complete in one interval."""

    def __init__(self) -> None:
        self.asked: list[LogName] = []
        self.broken: dict[LogName, Exception] = {}
        self.read_s = 14.0
        self.offsets: dict[
            LogName, dict[str, int]
        ] = {}  # Overrides the default offsets of single logs.

    async def first_cursors(self, log: LogName, at_most: int) -> tuple[list[messages.Cursor], int]:
        assert at_most == cursor_lags._READ_MAX
        self.asked.append(log)
        await asyncio.sleep(self.read_s)
        if log in self.broken:
            raise self.broken[log]
        offsets = self.offsets.get(log, {"c": 4})
        found = [
            messages.Cursor(CursorName(name), Offset(offset), 1, b"", False, 0)
            for name, offset in offsets.items()
        ]
        return found[:at_most], len(found[at_most:])


def play(story: Callable[[CursorLags, Owners, Nodes], Awaitable[None]]) -> None:
    world, owners, nodes = World(1), Owners(), Nodes()

    async def scenario() -> None:
        lags = CursorLags(nodes, owners)
        await story(lags, owners, nodes)
        await lags.close()
        lags.look()
        assert len(asyncio.all_tasks()) == 1

    world.run(scenario())


def test_slow_store_still_reads_all_logs_in_turn() -> None:
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


def test_unreadable_log_does_not_delay_other_logs() -> None:
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


# --- Idle logs -----------------------------------------------------------------------------


def listed(tail: int) -> LedgerList:
    return LedgerList(LogUid(bytes(16)), LogConfig(), 1, head=Offset(tail))


async def sweep(lags: CursorLags, tails: dict[LogName, int], *, is_whole: bool = True) -> None:
    lags.on_sweep()
    for log, tail in tails.items():
        lags.on_idle(log, listed(tail))
    if is_whole:
        lags.on_swept()
    await asyncio.sleep(1_000)
    lags.look()


def play_idle(story: Callable[[CursorLags, Owners, Nodes], Awaitable[None]]) -> None:
    """Plays a story in which no log has an owner and lags are requested."""

    async def begin(lags: CursorLags, owners: Owners, nodes: Nodes) -> None:
        owners.owned_logs.clear()
        nodes.read_s = 0.01
        lags.look()
        await asyncio.sleep(1)
        await story(lags, owners, nodes)

    play(begin)


def test_failed_read_keeps_the_last_known_lag() -> None:
    """One failed read must not trigger an alert."""

    async def story(lags: CursorLags, owners: Owners, nodes: Nodes) -> None:
        await sweep(lags, dict.fromkeys(LOGS[:3], 9))
        known = {f"{log}:c": 5.0 for log in LOGS[:3]}
        assert lags.lags() == known
        nodes.broken[LOGS[0]] = MetadataUnavailable()
        await sweep(lags, {**dict.fromkeys(LOGS[:3], 9), LOGS[0]: 10, LOGS[3]: 9})
        known[f"{LOGS[3]}:c"] = 5.0
        assert lags.lags() == known
        nodes.read_s = 31.0  # Longer than the time-out of one log.
        await sweep(lags, dict.fromkeys(LOGS[:4], 10))
        assert lags.lags() == known
        lags.on_sweep()
        lags.on_unknown(LOGS[2])
        lags.on_swept()
        assert lags.lags() == {f"{LOGS[2]}:c": 5.0}

    play_idle(story)


def test_missing_log_and_cursor_at_the_tail_have_no_lag() -> None:
    async def story(lags: CursorLags, owners: Owners, nodes: Nodes) -> None:
        await sweep(lags, {LOGS[0]: 9, LOGS[1]: 9})
        nodes.broken[LOGS[0]] = NoSuchLog()
        nodes.offsets[LOGS[1]] = {"c": 9}
        await sweep(lags, {LOGS[0]: 9, LOGS[1]: 9})
        assert lags.lags() == {}

    play_idle(story)


def test_unfinished_sweep_removes_no_lag() -> None:
    async def story(lags: CursorLags, owners: Owners, nodes: Nodes) -> None:
        await sweep(lags, {LOGS[0]: 9, LOGS[1]: 9})
        await sweep(lags, {LOGS[0]: 9}, is_whole=False)
        assert lags.lags() == {f"{LOGS[0]}:c": 5.0, f"{LOGS[1]}:c": 5.0}
        await sweep(lags, {LOGS[1]: 9})
        assert lags.lags() == {f"{LOGS[1]}:c": 5.0}

    play_idle(story)


def test_idle_log_opened_before_its_read_is_skipped() -> None:
    async def story(lags: CursorLags, owners: Owners, nodes: Nodes) -> None:
        lags.on_idle(LOGS[0], listed(9))
        owners.owned_logs.append(LOGS[0])
        await asyncio.sleep(1)
        assert nodes.asked == []

    play_idle(story)


def test_closing_does_not_wait_for_reads() -> None:
    async def story(lags: CursorLags, owners: Owners, nodes: Nodes) -> None:
        lags.on_idle(LOGS[0], listed(9))
        await asyncio.sleep(0)

    play_idle(story)


def test_largest_lags_among_many_idle_logs_are_kept() -> None:
    async def story(lags: CursorLags, owners: Owners, nodes: Nodes) -> None:
        logs = [LogName("many", f"log-{number:04}") for number in range(2000)]
        nodes.offsets = {log: {"c": 2 * (2000 - lag)} for lag, log in enumerate(logs, 1)}
        await sweep(lags, {log: 4000 - lag for lag, log in enumerate(logs, 1)})
        assert list(lags.lags().values()) == list(range(2001 - LAGS_MAX, 2001))
        assert len(lags._idle) <= cursor_lags._IDLE_MAX

    play_idle(story)


def test_largest_lags_among_many_cursors_are_reported() -> None:
    """Across all logs."""

    async def story(lags: CursorLags, owners: Owners, nodes: Nodes) -> None:
        for number, log in enumerate(LOGS):
            offsets = range(number, 1000, len(LOGS))
            nodes.offsets[log] = {f"c{offset}": offset for offset in reversed(offsets)}
        await sweep(lags, dict.fromkeys(LOGS, 1000))
        owners.owned_logs.append(LOGS[0])
        lags.look()
        await asyncio.sleep(1)
        owners.tail = Offset(1000)
        most = [1000 - offset for offset in range(LAGS_MAX)]
        assert sorted(lags.lags().values(), reverse=True) == most
        nodes.offsets[LOGS[1]] = {f"c{offset}": offset for offset in range(900)}
        await sweep(lags, {LOGS[1]: 1000})
        assert len(lags._idle[LOGS[1]][2]) == LAGS_MAX

    play_idle(story)


def test_cursors_without_a_reported_lag_are_counted() -> None:
    """Cursors beyond the first thousand of a log have no lag metric, so they are counted."""

    async def story(lags: CursorLags, owners: Owners, nodes: Nodes) -> None:
        for log, more in ((LOGS[0], 7), (LOGS[1], 20)):
            nodes.offsets[log] = {f"c{n}": 9 for n in range(cursor_lags._READ_MAX + more)}
        assert lags.without_lag() == 0
        owners.owned_logs.append(LOGS[0])
        await asyncio.sleep(cursor_lags._INTERVAL_S)
        lags.look()
        await asyncio.sleep(1)
        assert lags.without_lag() == 7
        await sweep(lags, {LOGS[1]: 9})
        assert lags.without_lag() == 27, "also cursors with a lag of zero"
        await sweep(lags, {})
        assert lags.without_lag() == 7, "another server sweeps the other log now"
        owners.owned_logs.clear()
        assert lags.without_lag() == 0, "the log's present owner counts them"
        await sweep(lags, {LOGS[0]: 9})
        assert lags.without_lag() == 7
        nodes.broken[LOGS[0]] = NoSuchLog()
        await sweep(lags, {LOGS[0]: 9})
        assert lags.without_lag() == 0

    play_idle(story)


def test_queue_of_logs_to_read_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs beyond the bound keep their last known lag."""
    monkeypatch.setattr(cursor_lags, "_PASSED_MAX", 2)

    async def story(lags: CursorLags, owners: Owners, nodes: Nodes) -> None:
        await sweep(lags, dict.fromkeys(LOGS[:2], 9))
        await sweep(lags, dict.fromkeys(LOGS[2:4], 9))
        await sweep(lags, dict.fromkeys(LOGS[2:4], 9))
        nodes.asked.clear()
        await sweep(lags, dict.fromkeys((LOGS[2], LOGS[4], LOGS[3]), 10))
        assert nodes.asked == [LOGS[2], LOGS[4]]
        assert lags.lags() == {f"{LOGS[2]}:c": 6.0, f"{LOGS[3]}:c": 5.0, f"{LOGS[4]}:c": 6.0}

    play_idle(story)
