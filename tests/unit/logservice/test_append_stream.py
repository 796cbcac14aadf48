"""Append streams: many logs on one, each in order, through openings, refusals and lost owners."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from rollbook.logservice import messages
from rollbook.logservice.append_stream import ServerAppendStream
from rollbook.logservice.ids import LogName
from rollbook.logservice.log_config import LogConfig
from rollbook.logservice.messages import AppendResult, Bind, Condition, StreamAppend
from rollbook.proto.errors import EntryTooLarge, InvalidRequest, NotOwner, OwnerChanging
from tests.unit.logservice.owner_scene import Scene, block_of, play, refused
from tests.unit.logservice.service_scene import Serving, log_suggested_to, make_log, start_all


def bind(ref: int, log: LogName, *, is_ordered: bool = True) -> Bind:
    return Bind(ref, log, is_ordered)


def append(number: int, ref: int = 1, condition: Condition | None = None) -> StreamAppend:
    return StreamAppend(number, ref, block_of(b"%d" % number)[0], condition)


WRONG = Condition(expected_offset=999)  # type: ignore[arg-type]  # An offset.


@dataclass
class Stream:
    """A stream, used from within its server's process."""

    server: Serving
    stream: ServerAppendStream

    def submit(self, binds: Sequence[Bind], appends: Sequence[StreamAppend]) -> None:
        self.server.do(self.stream.submit, binds, appends)

    async def results(self, count: int) -> list[AppendResult]:
        found: list[AppendResult] = []
        while len(found) < count:
            found += await self.server.ask(_list(self.stream))
        return found


async def _list(stream: ServerAppendStream) -> list[AppendResult]:
    return list(await stream.results())


def open_stream(server: Serving) -> Stream:
    return Stream(server, server.do(server.service.open_append_stream))


def reasons(results: Sequence[AppendResult]) -> list[str]:
    return ["ok" if each.error is None else each.error.code.reason for each in results]


def test_one_stream_keeps_each_of_many_logs_in_order() -> None:
    """SV5."""

    async def story(scene: Scene) -> None:
        a, _ = await start_all(scene, "a", "b")
        logs = [await make_log(scene, log_suggested_to(a, number)) for number in range(10)]
        stream = open_stream(a)
        binds = [bind(ref, log) for ref, log in enumerate(logs)]
        stream.submit(binds, [append(number, number % 10) for number in range(300)])
        results = await stream.results(300)
        for ref, log in enumerate(logs):
            mine = [each for each in results if each.number % 10 == ref]
            assert [each.number for each in mine] == list(range(ref, 300, 10))
            offsets = [each.ack.first_offset for each in mine if each.ack]
            assert offsets == list(range(30))
            assert await a.read_all(log) == [b"%d" % number for number in range(ref, 300, 10)]

    play(story)


def test_failed_append_blocks_later_ones_until_the_ref_is_rebound() -> None:
    async def story(scene: Scene) -> None:
        a, _ = await start_all(scene, "a", "b")
        log = await make_log(scene, log_suggested_to(a))
        stream = open_stream(a)
        stream.submit([bind(1, log)], [append(0)])
        await stream.results(1)
        stream.submit([], [append(1), append(2, condition=WRONG), append(3), append(4)])
        results = await stream.results(4)
        assert [each.number for each in results] == [1, 2, 3, 4]
        assert reasons(results) == ["ok", "OFFSET_MISMATCH", "EARLIER_FAILED", "EARLIER_FAILED"]
        assert results[3].error is not None
        assert results[3].error.ids["failed_number"] == 2
        stream.submit([bind(1, log)], [append(5)])
        assert reasons(await stream.results(1)) == ["ok"]
        await asyncio.sleep(0.1)
        assert await a.read_all(log) == [b"0", b"1", b"5"]

    play(story)


def test_unordered_appends_fail_independently() -> None:
    async def story(scene: Scene) -> None:
        a, _ = await start_all(scene, "a", "b")
        log = await make_log(scene, log_suggested_to(a))
        stream = open_stream(a)
        stream.submit(
            [bind(1, log, is_ordered=False)], [append(0), append(1, condition=WRONG), append(2)]
        )
        assert reasons(await stream.results(3)) == ["ok", "OFFSET_MISMATCH", "ok"]

    play(story)


def test_stream_continues_after_appends_to_unowned_logs_fail() -> None:
    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        mine = await make_log(scene, log_suggested_to(a))
        other = await make_log(scene, log_suggested_to(b))
        none = log_suggested_to(a, 1)
        stream = open_stream(a)
        stream.submit(
            [bind(1, mine), bind(2, other), bind(3, none)],
            [append(0, 1), append(1, 2), append(2, 3)],
        )
        results = {each.number: each for each in await stream.results(3)}
        assert reasons([results[number] for number in range(3)]) == [
            "ok",
            "NOT_OWNER",
            "LOG_NOT_FOUND",
        ]
        assert results[1].error is not None
        assert results[1].error.ids["owner"] == b.address

    play(story)


def test_a_broken_block_fails_alone() -> None:
    async def story(scene: Scene) -> None:
        a, _ = await start_all(scene, "a", "b")
        log = await make_log(scene, log_suggested_to(a))
        stream = open_stream(a)
        broken = StreamAppend(1, 1, b"nonsense", None)
        stream.submit([bind(1, log, is_ordered=False)], [append(0), broken, append(2)])
        results = await stream.results(3)
        assert [each.number for each in results] == [0, 1, 2]
        assert [each.error is None for each in results] == [True, False, True]

    play(story)


def test_append_to_an_unbound_ref_raises() -> None:
    async def story(scene: Scene) -> None:
        (a,) = await start_all(scene, "a")
        with pytest.raises(InvalidRequest):
            open_stream(a).submit([], [append(0, 7)])

    play(story)


def test_stream_blocks_appends_until_results_are_taken() -> None:
    async def story(scene: Scene) -> None:
        (a,) = await start_all(scene, "a", stream_bytes_max=20_000)
        log = await make_log(scene, log_suggested_to(a))
        stream = open_stream(a)
        stream.submit([bind(1, log)], [append(number) for number in range(40)])
        waiting = a.begin(stream.stream.ready())
        await asyncio.sleep(1.0)  # All of them are confirmed by now.
        assert not waiting.done()
        await stream.results(40)
        await scene.within(waiting)

    play(story)


def test_a_stream_outlives_the_loss_of_an_owner() -> None:
    """The pending append fails with an unknown outcome; the next one opens the log again."""

    async def story(scene: Scene) -> None:
        (a,) = await start_all(scene, "a")
        log = await make_log(scene, log_suggested_to(a))
        stream = open_stream(a)
        stream.submit([bind(1, log, is_ordered=False)], [append(0)])
        await stream.results(1)
        owner = a.log_server.find(log)
        assert owner is not None
        scene.set_bookies(delay_s=0.05)
        stream.submit([], [append(1)])
        a.do(owner.lose, "test")
        stream.submit([], [append(2)])
        results = {each.number: each for each in await stream.results(2)}
        assert reasons([results[1], results[2]]) == ["OWNER_LOST", "ok"]
        await a.ask(stream.stream.close())

    play(story)


def test_stream_submits_once_to_an_owner_that_hands_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stream must wait for the next owner instead of retrying in a loop."""

    async def story(scene: Scene) -> None:
        (a,) = await start_all(scene, "a")
        log = await make_log(scene, log_suggested_to(a))
        stream = open_stream(a)
        stream.submit([bind(1, log)], [append(0)])
        await stream.results(1)
        old = a.log_server._owners.pop(log)
        tries = 0

        def refuse(*_: object) -> bool:
            nonlocal tries
            tries += 1
            assert tries < 100
            raise OwnerChanging("it is being handed over")

        monkeypatch.setattr(old, "submit", refuse)
        stream.submit([], [append(1), append(2)])
        async with asyncio.timeout(30):
            assert reasons(await stream.results(2)) == ["ok", "ok"]
        assert tries == 1
        a.do(old.lose, "test")
        await a.ask(old.ended())
        await a.ask(stream.stream.close())

    play(story)


def test_open_stream_applies_an_updated_configuration() -> None:
    """SV7."""

    async def story(scene: Scene) -> None:
        (a,) = await start_all(scene, "a")
        log = await make_log(scene, log_suggested_to(a))
        stream = open_stream(a)
        stream.submit([bind(1, log, is_ordered=False)], [append(0)])
        await stream.results(1)
        smaller = messages.UpdateLog(log, LogConfig(record_bytes_max=10), ("record_bytes_max",))
        await a.ask(a.service.update_log(smaller, a.due()))
        large = StreamAppend(1, 1, block_of(bytes(100))[0], None)
        stream.submit([], [large, append(2)])
        assert reasons(await stream.results(2)) == ["TOO_LARGE", "ok"]
        for asked in (
            a.service.append(messages.Append(log, large.block), a.due()),
            a.service.seal(messages.Seal(log, large.block), a.due()),
        ):
            with pytest.raises(EntryTooLarge):
                await a.ask(asked)
        await a.ask(stream.stream.close())

    play(story)


@pytest.mark.parametrize("asked", ["a", "b"])
def test_owner_applies_a_configuration_updated_during_opening(asked: str) -> None:
    """SV7: at any step of the opening, and whichever server is asked first."""

    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        scene.set_bookies(delay_s=0.002)
        is_open, step = False, 0
        while not is_open:
            log = await make_log(scene, log_suggested_to(a, step))
            smaller = messages.UpdateLog(log, LogConfig(record_bytes_max=10), ("record_bytes_max",))
            appending = asyncio.ensure_future(a.append(log, b"0"))
            await asyncio.sleep(step * 0.0003)
            is_open = appending.done()
            server = {"a": a, "b": b}[asked]
            try:
                await server.ask(server.service.update_log(smaller, server.due()))
            except NotOwner:
                await a.ask(a.service.update_log(smaller, a.due()))
            too_large = messages.Append(log, block_of(bytes(100))[0])
            await refused(a.ask(a.service.append(too_large, a.due())), EntryTooLarge)
            await appending
            step += 1
        assert step > 10

    play(story)


def test_closed_stream_still_completes_submitted_appends() -> None:
    async def story(scene: Scene) -> None:
        (a,) = await start_all(scene, "a")
        log = await make_log(scene, log_suggested_to(a))
        await a.append(log, b"first")
        stream = open_stream(a)
        stream.submit([bind(1, log)], [append(0)])
        await a.ask(stream.stream.close())
        await asyncio.sleep(0.2)
        assert await a.read_all(log) == [b"first", b"0"]

    play(story)
