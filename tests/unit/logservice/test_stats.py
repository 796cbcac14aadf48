"""What a server counts: append stages, records sent to readers, and lags."""

import asyncio

import pytest

from rollbook.logservice import messages
from rollbook.logservice.ids import CursorName, Offset, ProducerRef
from rollbook.logservice.position_syntax import AtOffset, Earliest
from rollbook.logservice.stats import LAGS_MAX, STAGES, LogStats, largest
from rollbook.proto.errors import OffsetMismatch
from tests.unit.logservice.owner_scene import Scene, block_of, play
from tests.unit.logservice.service_scene import log_suggested_to, make_log, start_all


def counts(stats: LogStats) -> dict[str, int]:
    return {stage: stats.stages[stage].count for stage in STAGES}


def test_append_stages_add_up_to_the_append_time() -> None:
    async def story(scene: Scene) -> None:
        (a,) = await start_all(scene, "a")
        log = await make_log(scene, log_suggested_to(a))
        await a.append(log, b"one", b"two")  # This append opens the log.
        stats = a.service.stats
        stream = a.do(a.service.open_append_stream)
        a.do(
            stream.submit,
            [messages.Bind(1, log, True)],
            [messages.StreamAppend(number, 1, block_of(b"x")[0]) for number in range(10)],
        )
        told = 0
        while told < 10:
            told += len(await a.ask(_results(stream)))
        assert counts(stats) == {"queue": 11, "sequence": 11, "store": 11}
        assert stats.appends.count == 11
        assert stats.records == 12
        assert stats.appended_bytes > 11 * 72
        parts = sum(stats.stages[stage].total for stage in STAGES)
        assert abs(stats.appends.total - parts) < 11 * 1000, "to the microsecond"
        assert stats.stages["queue"].total > stats.stages["sequence"].total, "opening the log"
        stale = messages.Append(
            log, block_of(b"x")[0], messages.Condition(expected_offset=Offset(999))
        )
        with pytest.raises(OffsetMismatch):
            await a.ask(a.service.append(stale, a.due(10.0)))
        assert stats.refusals == {"OFFSET_MISMATCH": 1}
        again = messages.Append(log, block_of(b"x", producer=ProducerRef(b"p", 0, 0))[0])
        for _ in range(2):
            await a.ask(a.service.append(again, a.due(10.0)))
        assert (stats.records, stats.duplicates) == (13, 1)
        assert counts(stats) == {"queue": 12, "sequence": 12, "store": 12}
        assert stats.appends.count == 14

    play(story)


def test_append_abandoned_by_its_caller_is_not_counted() -> None:
    """It is not counted as refused either: it may be in the log."""

    async def story(scene: Scene) -> None:
        (a,) = await start_all(scene, "a")
        log = await make_log(scene, log_suggested_to(a))
        await a.append(log, b"x")
        scene.set_bookies(delay_s=0.2)
        append = messages.Append(log, block_of(b"y")[0])
        leaving = a.begin(a.service.append(append, a.due(10.0)))
        await asyncio.sleep(0.1)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        stats = a.service.stats
        assert stats.refusals == {}
        assert stats.appends.count == 1
        assert counts(stats) == {"queue": 1, "sequence": 1, "store": 1}
        scene.set_bookies(delay_s=0.0)

    play(story)


async def _results(stream: messages.AppendStream) -> list[messages.AppendResult]:
    return list(await stream.results())


def test_cursor_lags_are_counted_while_the_log_has_an_owner() -> None:
    async def story(scene: Scene) -> None:
        (a,) = await start_all(scene, "a")
        log = await make_log(scene, log_suggested_to(a))
        await a.append(log, *[b"x"] * 30)
        stats = a.service.stats
        commit = messages.CommitCursor(log, CursorName("c"), Offset(10))
        await a.ask(a.service.commit_cursor(commit, a.due(10.0)))
        a.do(a.log_server.cursor_lags.look)
        await scene.until(stats.cursor_lags)
        assert stats.cursor_lags() == {f"{log}:c": 20.0}
        async with a.events(messages.ReadStream(log, Earliest())) as events:
            assert isinstance(await anext(events), messages.Records)
            assert (stats.readers(), stats.sent_records) == (1, 30)
            assert stats.reader_lags() == {str(log): 0.0}
            request = messages.ReadStream(log, AtOffset(Offset(0)))
            async with a.events(request) as others:
                assert isinstance(await anext(others), messages.Records)
                await a.append(log, b"x", b"y")
                assert stats.reader_lags() == {str(log): 2.0}
        async with a.events(request) as events:
            assert isinstance(await anext(events), messages.Records)
            assert list(stats.reader_lags()) == [str(log)]
        answer = await a.ask(a.service.get_server_stats(messages.GetServerStats(), a.due(10.0)))
        assert answer.stats["rollbook_log_appended_records_total"] == 32
        assert answer.stats["rollbook_log_logs_owned"] == 1

    play(story)


def test_labels_are_bounded() -> None:
    lags = [(f"ns/log{number}", number) for number in range(10 * LAGS_MAX)]
    found = largest(lags)
    assert len(found) == LAGS_MAX
    assert min(found.values()) == 9 * LAGS_MAX
