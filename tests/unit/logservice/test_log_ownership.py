"""Which server owns a log, and how it moves: servers killed, frozen, drained or wrongly advertised."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from rollbook.ledger.writer import LedgerWriter
from rollbook.logservice import log_takeover as opening
from rollbook.logservice import messages
from rollbook.logservice.core.ledger_list import ListedLogState
from rollbook.logservice.ids import INT64_MAX, CursorName, LogName, Offset, ProducerRef
from rollbook.logservice.log_config import DELETE_GRACE_MS_MAX, ConfigValues, LogConfig
from rollbook.logservice.log_metadata import StoredGuards, StoredLog
from rollbook.logservice.log_ownership import _Grounds
from rollbook.logservice.log_takeover import Opening
from rollbook.logservice.owner import Owner
from rollbook.logservice.position_syntax import AtOffset, Latest
from rollbook.logservice.segment_ledgers import make_ledger
from rollbook.logservice.server_context import OwnerContext
from rollbook.logservice.service import LogService
from rollbook.proto.cluster.uncertain_writes import create_surely, delete_surely, read_surely
from rollbook.proto.errors import (
    AppendUnsettled,
    BadConfig,
    BeyondTail,
    ClockDisagrees,
    InvalidRequest,
    LogDeleted,
    MetadataUnavailable,
    NoSuchLog,
    NoSuchServer,
    NotOwner,
    Outcome,
    OutcomeUnknown,
    OwnerChanging,
    OwnerLost,
    QuorumTimeout,
    RollbookError,
    ServerUnreachable,
    SessionExpired,
    Unavailable,
    retry_after_ms,
)
from rollbook.proto.ports import MetadataStore, Node
from tests.unit.logservice.owner_scene import PATIENCE_S, SMALL, Scene, block_of, play, refused
from tests.unit.logservice.service_scene import (
    Client,
    Serving,
    log_suggested_to,
    make_log,
    start,
    start_all,
)


async def epoch_of(scene: Scene, log: LogName) -> int:
    return (await scene.stored(log)).list.owner_epoch


def owners_of(log: LogName, *servers: Serving) -> list[str]:
    return [each.name for each in servers if each.node.is_running and each.log_server.find(log)]


def test_owner_cut_off_from_the_list_acks_nothing_after_a_deletion() -> None:
    """LS12: the owner still reaches its bookies and must not go on acking."""

    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = await make_log(scene, log_suggested_to(a))
        await a.append(log, b"0")
        await a.run(a.log_server.membership.close())  # As if its lease had expired without notice.
        await scene.until(lambda: b.log_server.membership.find("a") is None)
        deletion = messages.DeleteLog(log, grace_ms=60_000)
        answer = await b.ask(b.service.delete_log(deletion, b.due()))
        assert a.log_server.find(log) is not None
        await refused(a.append(log, b"1"), OwnerLost)
        again = await b.ask(b.service.delete_log(deletion, b.due()))
        assert again == answer

    play(story)


def test_delete_grace_out_of_range_is_rejected() -> None:
    """The list cannot store a grace of 2^63 - 1 milliseconds."""

    async def story(scene: Scene) -> None:
        (a,) = await start_all(scene, "a")
        log = await make_log(scene, log_suggested_to(a))
        for grace_ms in (-1, DELETE_GRACE_MS_MAX + 1, INT64_MAX):
            deletion = messages.DeleteLog(log, grace_ms=grace_ms)
            await refused(a.ask(a.service.delete_log(deletion, a.due())), InvalidRequest)
        deletion = messages.DeleteLog(log, grace_ms=DELETE_GRACE_MS_MAX)
        await a.ask(a.service.delete_log(deletion, a.due()))
        assert (await scene.stored(log)).list.state is ListedLogState.DELETED

    play(story)


def test_deletion_without_bookies_is_uncertain_and_can_be_retried() -> None:
    """LS12."""

    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = await make_log(scene, log_suggested_to(a))
        await a.append(log, b"0")
        a.node.kill()
        await scene.until(lambda: b.log_server.membership.find("a") is None)
        for bookie in scene.bookies.values():
            bookie.scripted.node.kill()
        deletion = messages.DeleteLog(log)
        error = await refused(b.ask(b.service.delete_log(deletion, b.due(20.0))), QuorumTimeout)
        assert error.outcome is Outcome.UNKNOWN
        assert (await scene.stored(log)).list.state is ListedLogState.DELETED
        for bookie in scene.bookies.values():
            bookie.scripted.node.start(bookie.scripted.serve)
        await b.ask(b.service.delete_log(deletion, b.due(20.0)))
        (ledger_id,) = [each.ledger_id for each in (await scene.stored(log)).list.segments]
        assert (await scene.ledgers.metadata(ledger_id)).metadata.is_closed

    play(story)


def test_append_during_server_stop_fails_with_owner_changing() -> None:
    """The append must not be cancelled without a response."""

    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = await make_log(scene, log_suggested_to(a))
        await a.append(log, b"0")
        scene.world.network.refuse("a")
        asking = asyncio.ensure_future(b.append(log, b"1"))
        await asyncio.sleep(0.2)  # Server b checks whether server a is dead.
        await b.stop()
        await refused(asking, OwnerChanging)

    play(story)


def test_a_log_is_truncated_while_all_bookies_are_full() -> None:
    """Truncation makes the room that full bookies lack."""

    async def story(scene: Scene) -> None:
        (a,) = await start_all(scene, "a")
        log = await make_log(scene, log_suggested_to(a))
        for value in (b"0", b"1", b"2"):
            await a.append(log, value)
            await a.ask(a.service.roll_log(messages.RollLog(log), a.due()))
        scene.set_bookies(is_full=True)
        await refused(a.append(log, b"3"), AppendUnsettled)

        def until(offset: int) -> messages.Truncate:
            return messages.Truncate(log, AtOffset(Offset(offset)))

        plan = messages.Truncate(log, AtOffset(Offset(2)), dry_run=True)
        told = await a.ask(a.service.truncate(plan, a.due(20.0)))
        assert (await scene.stored(log)).list.head == 0
        assert await a.ask(a.service.truncate(until(2), a.due(20.0))) == told
        assert (told.old_head, told.new_head, told.records) == (0, 2, 2)
        stored = await scene.stored(log)
        assert (stored.list.head, stored.list.discarded) == (2, ())
        event = stored.list.events[-1]
        assert (event.kind, event.owner_epoch) == ("log_truncated", stored.list.owner_epoch)
        scene.set_bookies(is_full=False)
        assert (await a.append(log, b"4")).first_offset >= 3
        assert (await a.read_all(log))[0] == b"2"

    play(story)


def test_truncation_on_full_bookies_frees_an_open_segment() -> None:
    """The open segment holds all data; its successor is a ledger that bookies take from their reserve."""

    async def story(scene: Scene) -> None:
        (a,) = await start_all(scene, "a")
        log = await make_log(scene, log_suggested_to(a))
        for value in (b"0", b"1", b"2"):
            await a.append(log, value)
        scene.set_bookies(is_full=True)
        await refused(a.append(log, b"3"), AppendUnsettled)
        full = (await scene.stored(log)).list.segments[0]
        told = await a.ask(a.service.truncate(messages.Truncate(log, Latest()), a.due(20.0)))
        assert told.new_head >= 3
        listed = (await scene.stored(log)).list
        assert listed.head == listed.tail == told.new_head
        assert full.ledger_id not in [each.ledger_id for each in listed.segments]
        assert not listed.discarded, "its ledger is deleted"
        await refused(a.append(log, b"4"), RollbookError)
        scene.set_bookies(is_full=False)
        assert (await a.append(log, b"5")).first_offset == told.new_head

    play(story)


async def make_three_segments(scene: Scene, server: Serving) -> LogName:
    """Three closed segments with a record each, and an open one."""
    log = log_suggested_to(server)
    await scene.nodes.ensure(log, LogConfig(retention_age_s=60))
    for value in (b"0", b"1", b"2"):
        await server.append(log, value)
        await server.ask(server.service.roll_log(messages.RollLog(log), server.due()))
    return log


def test_lost_log_expires_while_all_bookies_are_full() -> None:
    """The list still names a live server as the owner, although that server has lost the log."""

    async def story(scene: Scene) -> None:
        a, _ = await start_all(scene, "a", "b")
        log = await make_three_segments(scene, a)
        scene.set_bookies(is_full=True)
        await refused(a.append(log, b"3"), AppendUnsettled)
        await asyncio.sleep(61)
        with suppress(Unavailable):  # Expiring the last segment needs an owner.
            await a.run(a.log_server._sweeper.sweep())
        listed = (await scene.stored(log)).list
        assert listed.owner is not None
        assert a.log_server.is_alive(listed.owner.server_id)
        assert (listed.head, listed.discarded) == (3, ())
        scene.set_bookies(is_full=False)

    play(story)


def test_log_lost_with_the_session_expires_without_any_request() -> None:
    async def story(scene: Scene) -> None:
        (a,) = await start_all(scene, "a")
        log = await make_three_segments(scene, a)
        await a.append(log, b"3")
        a.log_server._on_session_lost()
        await asyncio.sleep(61)
        await a.run(a.log_server._sweeper.sweep())  # Opens the log, which closes its last segment.
        await asyncio.sleep(61)
        await a.run(a.log_server._sweeper.sweep())  # Expires that segment.
        assert (await scene.stored(log)).list.head == 4

    play(story)


def test_transferred_log_expires_without_an_owner() -> None:
    """The suggested server must open the log itself instead of redirecting to the preferred server."""

    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b", idle_s_max=5.0)
        log = await make_three_segments(scene, a)
        await a.ask(a.service.transfer_log(messages.TransferLog(log, "b"), a.due()))
        await b.append(log, b"3")
        await asyncio.sleep(90)  # Idle logs are released within ten seconds.
        assert owners_of(log, a, b) == []
        for server in (a, b):
            await server.run(server.log_server._sweeper.sweep())
        await scene.until(lambda: owners_of(log, a, b) == [])
        listed = (await scene.stored(log)).list
        assert (listed.head, [each.records for each in listed.segments]) == (4, [0])
        await b.append(log, b"4")  # The log stays on server b.
        assert listed.preferred_server == "b"

    play(story)


def test_transferred_log_that_its_new_owner_lost_expires() -> None:
    """The list names a live server that no longer owns the log."""

    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b", idle_s_max=1000.0)
        log = await make_three_segments(scene, a)
        await a.ask(a.service.transfer_log(messages.TransferLog(log, "b"), a.due()))
        await b.append(log, b"3")
        b.do(b.log_server._on_session_lost)
        await scene.until(lambda: owners_of(log, a, b) == [])
        await asyncio.sleep(90)
        for server in (b, a):
            await server.run(server.log_server._sweeper.sweep())
        await scene.until(lambda: owners_of(log, a, b) == [])
        assert (await scene.stored(log)).list.head == 4
        await b.append(log, b"4")  # The log stays on server b.

    play(story)


@pytest.mark.parametrize("when", ["it is opened", "it is listed"])
def test_truncation_without_owner_yields_to_a_concurrent_opening(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The truncation must look for an owner in the same list version that it changes."""

    async def story(scene: Scene) -> None:
        (a,) = await start_all(scene, "a")
        log = await make_three_segments(scene, a)
        scene.set_bookies(is_full=True)
        await refused(a.append(log, b"3"), AppendUnsettled)
        server, nodes = a.log_server, a.log_server.nodes
        read_guards, begin = nodes.read_guards, Owner._begin
        opening: list[asyncio.Task[Owner]] = []
        is_listed, is_answered = asyncio.Event(), asyncio.Event()

        async def slow_begin(owner: Owner, found: Opening, reason: str) -> None:
            is_listed.set()
            if when == "it is listed":
                await is_answered.wait()
            await begin(owner, found, reason)

        async def late_read_guards(name: LogName) -> StoredGuards:
            if not opening:
                scene.set_bookies(is_full=False)
                monkeypatch.setattr(Owner, "_begin", slow_begin)
                opening.append(asyncio.ensure_future(server.owner_of(name, a.due())))
                await (is_listed.wait() if when == "it is listed" else opening[0])
            return await read_guards(name)

        monkeypatch.setattr(nodes, "read_guards", late_read_guards)
        request = messages.Truncate(log, AtOffset(Offset(2)))
        await refused(a.ask(a.service.truncate(request, a.due(20.0))), Unavailable)
        is_answered.set()
        owner = await scene.within(opening[0])
        assert owner.head == (await scene.stored(log)).list.head == 0
        assert (await a.ask(a.service.truncate(request, a.due()))).new_head == 2
        assert owner.head == 2

    play(story)


def test_truncation_out_of_time_is_not_begun() -> None:
    """The outcome is known, so the error must not be one of an unknown outcome."""

    async def story(scene: Scene) -> None:
        (a,) = await start_all(scene, "a")
        log = await make_three_segments(scene, a)
        await a.ask(a.log_server.let_go(log, "the test says so"))
        for bookie in scene.bookies.values():
            bookie.scripted.node.kill()
        request = messages.Truncate(log, AtOffset(Offset(2)))
        await refused(a.ask(a.service.truncate(request, a.due(0.5))), OwnerChanging)
        assert (await scene.stored(log)).list.head == 0

    play(story)


def test_log_can_be_opened_after_an_opening_abandoned_before_it_began() -> None:
    """Otherwise every caller would be asked to retry for ever."""

    async def story(scene: Scene) -> None:
        (a,) = await start_all(scene, "a")
        log = await make_log(scene, log_suggested_to(a))
        a.do(lambda: a.log_server._start(log, _Grounds("the test says so")).cancel())
        await asyncio.sleep(0.01)
        assert (await a.append(log, b"0")).first_offset == 0

    play(story)


def test_request_for_a_just_lost_log_opens_it_again() -> None:
    """The log is lost and requested in the same event-loop turn, which must not loop for ever."""

    async def story(scene: Scene) -> None:
        (a,) = await start_all(scene, "a")
        log = await make_log(scene, log_suggested_to(a))
        server, loop = a.log_server, asyncio.get_running_loop()
        asking: list[asyncio.Task[Owner]] = []
        opened, tries = server._opened, 0

        async def lost_at_once(name: LogName, grounds: _Grounds) -> Owner:
            nonlocal tries
            tries += 1
            owner = await opened(name, grounds)
            if tries == 1:
                owner.lose("the test says so")
                asking.append(loop.create_task(server.owner_of(log, loop.time() + 5)))
            return owner

        server._opened = lost_at_once  # type: ignore[method-assign]  # Acts in the same event-loop turn.
        server_find, asked = server.find, 0

        def find(name: LogName, uid: str = "") -> Owner | None:
            nonlocal asked
            asked += 1
            assert asked < 1000, "the request loops without yielding"
            return server_find(name, uid)

        server.find = find  # type: ignore[method-assign]  # Fails the test if the request loops.
        assert (await a.append(log, b"0")).first_offset == 0
        assert (await asking[0]).failure is None
        assert tries == 2

    play(story)


def test_cancelled_opening_fails_requests_with_owner_changing() -> None:
    """A drain that runs out of time cancels openings."""

    async def story(scene: Scene) -> None:
        (a,) = await start_all(scene, "a")
        log = await make_log(scene, log_suggested_to(a))
        asking = asyncio.ensure_future(a.append(log, b"0"))
        while log not in a.log_server._openings:
            await asyncio.sleep(0.0001)
        a.log_server._openings[log].cancel()
        await refused(asking, OwnerChanging)
        assert (await a.append(log, b"0")).first_offset == 0

    play(story)


def test_starting_server_truncates_no_log_of_another_server() -> None:
    """Otherwise the owner would return the old head until it reads the list again."""

    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = await make_log(scene, log_suggested_to(a))
        await a.append(log, b"0")
        await a.ask(a.service.roll_log(messages.RollLog(log), a.due()))
        context, b.log_server._context = b.log_server._context, None
        request = messages.Truncate(log, AtOffset(Offset(1)))
        await refused(b.ask(b.service.truncate(request, b.due())), OwnerChanging)
        assert (await scene.stored(log)).list.head == 0
        b.log_server._context = context
        await refused(b.ask(b.service.truncate(request, b.due())), NotOwner)
        assert (await a.ask(a.service.truncate(request, a.due()))).new_head == 1

    play(story)


def test_config_update_succeeds_while_bookies_hang() -> None:
    """A configuration change needs neither an owner nor bookies."""

    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = await make_log(scene, log_suggested_to(a))
        await a.append(log, b"0")
        a.node.kill()
        await scene.until(lambda: b.log_server.membership.find("a") is None)
        scene.set_bookies(is_hung=True)
        update = messages.UpdateLog(log, LogConfig(record_bytes_max=10), ("record_bytes_max",))
        asked_at = scene.world.now
        await b.ask(b.service.update_log(update, b.due(50.0)))
        assert (await scene.stored(log)).list.config.record_bytes_max == 10
        await b.ask(b.service.update_log(update, b.due(0.5)))
        assert scene.world.now - asked_at < 5.0

    play(story)


def test_concurrent_config_updates_cannot_combine_to_an_invalid_one() -> None:
    """SV7: each update is valid alone; the second is checked against the result of the first."""

    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        for number in range(20):
            log = await make_log(scene, log_suggested_to(a, number))

            async def change(server: Serving, log: LogName = log, **limits: Any) -> bool:
                update = messages.UpdateLog(log, ConfigValues(**limits), tuple(limits))
                try:
                    await server.ask(server.service.update_log(update, server.due()))
                except BadConfig:
                    return False
                return True

            assert await change(a, record_bytes_max=1000)
            assert await change(a, batch_bytes_max=2000)
            done = await asyncio.gather(
                change(a, record_bytes_max=2000), change(b, batch_bytes_max=1000)
            )
            assert sorted(done) == [False, True]
            config = (await scene.stored(log)).list.config
            limits = (config.record_bytes_max, config.batch_bytes_max)
            assert limits == ((2000, 2000) if done[0] else (1000, 1000))

    play(story)


def test_log_state_reports_when_age_will_roll_the_segment() -> None:
    async def story(scene: Scene) -> None:
        (a,) = await start_all(scene, "a")
        log = await make_log(scene, log_suggested_to(a))

        async def due_us() -> int:
            state: messages.LogState = await a.ask(a.service.get_log(messages.GetLog(log), a.due()))
            return state.roll_due_us

        assert await due_us() == 0
        await a.append(log, b"0")
        owner = a.log_server.find(log)
        assert owner is not None
        age_us = owner.config.roll_age_s * 1_000_000
        assert 0.8 * age_us < await due_us() - a.node.clock.wall_us() < 1.2 * age_us

    play(story)


def test_log_state_reports_repeated_open_failures() -> None:
    async def story(scene: Scene) -> None:
        (a,) = await start_all(scene, "a")
        log = await make_log(scene, log_suggested_to(a))
        await a.append(log, b"a")
        owner = a.log_server.find(log)
        assert owner is not None
        a.do(owner.lose, "the test says so")
        scene.set_bookies(is_hung=True)
        await refused(a.append(log, b"b"), RollbookError)
        assert a.log_server.logs_unopened == 0
        await refused(a.append(log, b"b"), RollbookError)
        assert a.log_server.logs_unopened == 1
        state: messages.LogState = await a.ask(a.service.get_log(messages.GetLog(log), a.due()))
        assert state.problem.startswith("it could not be opened 2 times in a row: ")
        scene.set_bookies(is_hung=False)
        await a.append(log, b"b")
        assert a.log_server.logs_unopened == 0
        state = await a.ask(a.service.get_log(messages.GetLog(log), a.due()))
        assert state.problem == ""

    play(story)


def test_log_state_names_bookies_that_refuse_adds() -> None:
    """LS16."""

    async def story(scene: Scene) -> None:
        (a,) = await start_all(scene, "a")
        log = await make_log(scene, log_suggested_to(a))
        await a.append(log, b"a")
        scene.bookies["b2"].writers_from = 2**62
        await a.append(log, b"b")
        owner = a.log_server.find(log)
        assert owner is not None
        await scene.until(lambda: owner.vacant_slots)
        state: messages.LogState = await a.ask(a.service.get_log(messages.GetLog(log), a.due()))
        assert state.vacant_seats == ("b2: it refuses adds",)
        assert a.log_server.logs_degraded == 1

    play(story, bookies=("b1", "b2", "b3"))


def test_only_the_suggested_server_opens_a_log() -> None:
    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = await make_log(scene, log_suggested_to(a))
        error = await refused(b.append(log, b"0"), NotOwner)
        assert error.ids["owner"] == a.address
        assert (await a.append(log, b"0")).first_offset == 0
        error = await refused(b.append(log, b"1"), NotOwner)
        assert (error.ids["owner"], error.ids["owner_epoch"]) == (a.address, 1)

    play(story)


def test_append_to_a_missing_or_deleted_log_is_refused() -> None:
    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = log_suggested_to(a)
        for server in (a, b):
            await refused(server.append(log, b"0"), NoSuchLog)
        await make_log(scene, log)
        await a.append(log, b"0")
        await a.ask(a.service.delete_log(messages.DeleteLog(log), a.due()))
        for server in (a, b):
            await refused(server.append(log, b"1"), LogDeleted)
        a.node.kill()
        await refused(b.append(log, b"1"), LogDeleted)

    play(story)


def test_logs_of_a_killed_server_are_taken_over_within_a_second() -> None:
    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = await make_log(scene, log_suggested_to(a))
        client = Client(scene, b, a)
        await client.append(log, b"0")
        a.node.kill()
        killed_at = scene.world.now
        ack = await client.append(log, b"1")
        assert ack.first_offset == 1
        assert 0.5 <= scene.world.now - killed_at < 1.0
        assert b.log_server.membership.find("a") is not None  # Its session has not expired yet.
        assert await b.read_all(log) == [b"0", b"1"]

    play(story)


def test_hundred_logs_are_taken_over_concurrently() -> None:
    """The waits of the take-overs must not add up."""

    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        logs = [await make_log(scene, log_suggested_to(a, number)) for number in range(100)]
        client = Client(scene, b, a)
        await asyncio.gather(*(client.append(log, b"0") for log in logs))
        a.node.kill()
        killed_at = scene.world.now
        acks = await asyncio.gather(*(client.append(log, b"1") for log in logs))
        assert {ack.first_offset for ack in acks} == {1}
        assert scene.world.now - killed_at < 1.5

    play(story)


def test_paused_server_loses_its_logs_when_its_lease_expires() -> None:
    """Other servers cannot know sooner: connections to it are not refused."""

    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = await make_log(scene, log_suggested_to(a))
        await a.append(log, b"0")
        a.node.pause()
        paused_at = scene.world.now
        while owners_of(log, b) == []:
            try:
                await b.append(log, b"1")
            except (NotOwner, OwnerChanging):
                await asyncio.sleep(0.1)
        assert scene.world.now - paused_at < 8.0
        a.node.resume()
        await asyncio.sleep(1.0)
        assert owners_of(log, a, b) == ["b"]
        error = await refused(a.append(log, b"2"), NotOwner)
        assert error.ids["owner"] == b.address

    play(story)


def test_server_with_a_wrong_address_makes_no_log_move_back_and_forth() -> None:
    """SV2."""

    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = await make_log(scene, log_suggested_to(a))
        await a.append(log, b"0")
        scene.world.network.refuse("a")  # Its own clients still reach it.
        for number in range(300):
            server = (a, b)[number % 2]
            try:
                await server.append(log, b"%d" % number)
            except (NotOwner, OwnerChanging, OwnerLost):
                pass
            await asyncio.sleep(0.2)
        assert owners_of(log, a, b) == ["b"]
        assert await epoch_of(scene, log) == 2

    play(story)


def test_log_moves_rarely_when_both_addresses_are_wrong() -> None:
    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = await make_log(scene, log_suggested_to(a))
        await a.append(log, b"0")
        for name in ("a", "b"):
            scene.world.network.refuse(name)
        pauses: list[int] = []
        for number in range(400):
            try:
                await (a, b)[number % 2].append(log, b"%d" % number)
            except OwnerChanging as error:
                pauses.append(retry_after_ms(error))
            except (NotOwner, OwnerLost):
                pass
            await asyncio.sleep(0.2)
        assert await epoch_of(scene, log) <= 12
        # Clients retry soon: there may be an owner long before the pause ends.
        assert max(pauses) == 1000

    play(story)


def test_read_beyond_tail_without_owner_fails_with_owner_changing() -> None:
    """A reader of the owner's memory may have read records that bookies do not report yet."""

    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = await make_log(scene, log_suggested_to(a))
        await a.append(log, b"0")
        await refused(a.read_all(log, AtOffset(Offset(9))), BeyondTail)
        for refusing, taker in (
            (a, b),
            (b, a),
        ):  # Both servers have taken the log over and now pause longer.
            scene.world.network.refuse(refusing.name)
            async with asyncio.timeout(PATIENCE_S):
                while owners_of(log, a, b) != [taker.name]:
                    for server in (refusing, taker):
                        with suppress(NotOwner, OwnerChanging, OwnerLost):
                            await server.append(log, b"1")
                    await asyncio.sleep(0.2)
        await refused(b.read_all(log, AtOffset(Offset(9))), OwnerChanging)

    play(story)


@pytest.mark.parametrize("what", ["kill", "pause"])
def test_non_owner_redirects_a_read_beyond_its_tail(what: str) -> None:
    """SV6: the reader is at the end of the acked records, of which bookies do not report the last."""

    async def story(scene: Scene) -> None:
        a, b, c = await start_all(scene, "a", "b", "c")
        suggestions = a.log_server.membership.suggestions
        logs = (log_suggested_to(a, number) for number in range(100))
        log = next(log for log in logs if suggestions.server_for(log, ("a",)) == "b")
        await make_log(scene, log)
        for number in range(3):
            await a.append(log, b"%d" % number)
        getattr(a.node, what)()
        error = await refused(c.read_all(log, AtOffset(Offset(3))), NotOwner)
        assert error.ids["owner"] == (a if what == "pause" else b).address
        if what == "pause":
            a.node.resume()  # A paused server cannot be stopped.

    play(story)


def test_read_beyond_the_tail_does_not_open_a_closed_log() -> None:
    """SV6: opening it would need bookies and add an owner and a segment."""

    async def story(scene: Scene) -> None:
        (a,) = await start_all(scene, "a", idle_s_max=5.0)
        log = await make_log(scene, LogName("test", "log"))
        await a.append(log, b"0")
        async with asyncio.timeout(PATIENCE_S):
            while (closed := await scene.stored(log)).list.owner or closed.list.tail is None:
                await asyncio.sleep(0.1)
        scene.set_bookies(is_hung=True)
        error = await refused(a.read_all(log, AtOffset(Offset(2))), BeyondTail)
        assert error.ids["tail"] == 1
        assert await scene.stored(log) == closed

    play(story)


def test_log_lost_before_its_first_ack_is_not_taken_again_at_once() -> None:
    """SV2: a take-over that is lost at once counts for the pause before the next one."""

    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = await make_log(scene, log_suggested_to(a))
        ack = await a.append(log, b"0")
        scene.world.network.refuse("a")
        scene.set_bookies(ignored={ack.ledger_id + 1})
        taking = b.begin(b.service.append(messages.Append(log, block_of(b"1")[0]), b.due(30.0)))
        await scene.until(lambda: log in b.log_server._openings)
        epoch = await epoch_of(scene, log)
        while await epoch_of(scene, log) == epoch:
            await asyncio.sleep(0.01)
        await (await scene.ledgers.open_recover(ack.ledger_id + 1)).close()
        await refused(taking, OwnerChanging)
        assert b.log_server.taken_over == 1
        assert b.log_server.find(log) is None

    play(story)


def test_a_stopped_server_hands_its_logs_over_and_no_append_fails() -> None:
    """SV3."""

    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        logs = [await make_log(scene, log_suggested_to(a, number)) for number in range(5)]
        client = Client(scene, a, b)
        written: dict[LogName, list[bytes]] = {log: [] for log in logs}

        async def write(log: LogName) -> None:
            while len(written[log]) < 40 or not owners_of(log, b):
                value = b"%d" % len(written[log])
                await client.append(log, value)
                written[log].append(value)

        writing = [asyncio.ensure_future(write(log)) for log in logs]
        await scene.until(lambda: all(len(values) >= 10 for values in written.values()))
        await a.stop()
        await scene.within(asyncio.gather(*writing))
        for log in logs:
            assert await b.read_all(log) == written[log]
            assert await epoch_of(scene, log) == 2
        assert set(client.refusals) <= {"NOT_OWNER", "OWNER_CHANGING"}

    play(story)


def test_drained_server_opens_no_log_until_resumed() -> None:
    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = await make_log(scene, log_suggested_to(a))
        await a.append(log, b"0")
        drained = await a.ask(a.service.drain_server(messages.DrainServer("a"), a.due()))
        assert drained.logs_left == 0
        await scene.until(lambda: b.log_server.membership.suggestions.names == ("b",))
        error = await refused(a.append(log, b"1"), NotOwner)
        assert error.ids["owner"] == b.address
        assert (await b.append(log, b"1")).first_offset == 1
        await a.ask(a.service.drain_server(messages.DrainServer("a", resume=True), a.due()))
        await scene.until(lambda: owners_of(log, b) == [])  # Server b hands the log back.
        assert (await Client(scene, a, b).append(log, b"2")).first_offset == 2
        assert owners_of(log, a, b) == ["a"]

    play(story)


@pytest.mark.parametrize("error", [Unavailable, OutcomeUnknown])
def test_failed_drain_can_be_retried(
    error: type[RollbookError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The retry must announce the drain, or other servers still send logs to this server."""

    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        failures = [error("the store is away")]

        async def create(*arguments: Any) -> None:
            if failures:
                raise failures.pop()
            await create_surely(*arguments)

        monkeypatch.setattr("rollbook.logservice.membership.create_surely", create)
        request = messages.DrainServer("a")
        await refused(a.ask(a.service.drain_server(request, a.due())), error)
        assert a.log_server.is_draining is (
            error is OutcomeUnknown
        )  # Unavailable says that nothing was done.
        await a.ask(a.service.drain_server(request, a.due()))
        await scene.until(lambda: b.log_server.membership.suggestions.names == ("b",))

    play(story)


def test_drain_with_an_unknown_outcome_stays_in_force(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The drain is written but cannot be read back, so the server must not open logs."""

    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        membership, failures = a.log_server.membership, [MetadataUnavailable("the store is away")]
        assert membership._record is not None
        path = membership._path(membership._record)
        await a.run(delete_surely(membership._store, path, is_ours=membership._is_ours))

        async def read(store: MetadataStore, asked: str, **how: bool) -> Node | None:
            if failures and asked == path and store is membership._store:
                raise failures.pop()
            return await read_surely(store, asked, **how)

        monkeypatch.setattr("rollbook.logservice.membership.read_surely", read)
        request = messages.DrainServer("a")
        await refused(a.ask(a.service.drain_server(request, a.due())), OutcomeUnknown)
        assert not failures
        assert a.log_server.is_draining
        await scene.until(lambda: b.log_server.membership.suggestions.names == ("b",))

    play(story)


@pytest.mark.parametrize("resume", [False, True])
def test_drain_times_out_while_sessions_keep_expiring(
    resume: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repeated registration must not hold the request beyond its deadline."""

    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        if resume:
            await a.ask(a.service.drain_server(messages.DrainServer("a"), a.due()))
        is_away = True

        async def create(*arguments: Any) -> None:
            if is_away:
                raise SessionExpired
            await create_surely(*arguments)

        monkeypatch.setattr("rollbook.logservice.membership.create_surely", create)
        request = messages.DrainServer("a", resume=resume)
        asking = scene.within(a.ask(a.service.drain_server(request, a.due(1.0))))
        error = await refused(asking, QuorumTimeout)
        assert error.outcome is Outcome.UNKNOWN
        assert error.next_step
        is_away = False
        await a.ask(a.service.drain_server(request, a.due()))
        names = ("a", "b") if resume else ("b",)
        await scene.until(lambda: b.log_server.membership.suggestions.names == names)

    play(story)


def test_replaced_owner_accepts_a_cursor_beyond_its_own_tail() -> None:
    """SV6: a refusal would be final and end the consumer."""

    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = await make_log(scene, log_suggested_to(a))
        await a.append(log, b"0")
        await a.run(a.log_server.membership.close())  # As if its lease had expired without notice.
        await scene.until(lambda: b.log_server.membership.find("a") is None)
        await b.append(log, b"1")
        assert a.log_server.find(log) is not None
        request = messages.CommitCursor(log, CursorName("c"), Offset(2))
        assert (await a.ask(a.service.commit_cursor(request, a.due()))).offset == 2
        beyond = messages.CommitCursor(log, CursorName("c"), Offset(3))
        await refused(b.ask(b.service.commit_cursor(beyond, b.due())), InvalidRequest)

    play(story)


def test_any_server_can_drain_another_server() -> None:
    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        request = messages.DrainServer("b")
        assert (await a.ask(a.service.drain_server(request, a.due()))).logs_left == 0
        assert b.log_server.is_draining
        resume = messages.DrainServer("b", resume=True)
        await a.ask(a.service.drain_server(resume, a.due()))
        assert not b.log_server.is_draining
        b.takes_calls = False
        await refused(a.ask(a.service.drain_server(request, a.due())), ServerUnreachable)
        alone = LogService(a.log_server, a.log_server.clock)
        asking = a.ask(alone.drain_server(request, a.due()))
        assert (await refused(asking, NotOwner)).ids["owner"] == b.address
        asking = a.ask(a.service.drain_server(messages.DrainServer("c"), a.due()))
        await refused(asking, NoSuchServer)

    play(story)


def test_a_new_server_gets_its_share_and_no_append_fails() -> None:
    async def story(scene: Scene) -> None:
        (a,) = await start_all(scene, "a")
        logs = [await make_log(scene, LogName("test", f"log-{number}")) for number in range(12)]
        client = Client(scene, a)
        for log in logs:
            await client.append(log, b"0")
        b = await start(scene, "b")
        client.hear_of(b)
        mine = [log for log in logs if b.log_server.membership.suggestions.server_for(log) == "b"]
        assert 0 < len(mine) < 12
        await scene.until(lambda: len(a.log_server.owned_logs) == 12 - len(mine))
        for log in logs:
            assert (await client.append(log, b"1")).first_offset == 1
        assert sorted(b.log_server.owned_logs) == sorted(mine)

    play(story)


def test_transferred_log_stays_on_its_new_server() -> None:
    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = await make_log(scene, log_suggested_to(a))
        await a.append(log, b"0")
        moved = await a.ask(a.service.transfer_log(messages.TransferLog(log, "b"), a.due()))
        assert moved.address == b.address
        error = await refused(a.append(log, b"1"), NotOwner)
        assert error.ids["owner"] == b.address
        assert (await b.append(log, b"1")).first_offset == 1
        await asyncio.sleep(5.0)
        assert owners_of(log, a, b) == ["b"]
        await refused(
            b.ask(b.service.transfer_log(messages.TransferLog(log, "c"), b.due())), NoSuchServer
        )

    play(story)


def test_repeated_failed_opening_makes_no_further_ledger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise each failed opening would make a ledger and delete it."""
    made: list[int] = []

    async def make(context: OwnerContext, stored: StoredLog) -> LedgerWriter:
        made.append(stored.version)
        return await make_ledger(context, stored)

    async def story(scene: Scene) -> None:
        (a,) = await start_all(scene, "a")
        log = await make_log(scene, log_suggested_to(a))
        await a.append(log, b"a")
        owner = a.log_server.find(log)
        assert owner is not None
        a.do(owner.lose, "the test says so")
        monkeypatch.setattr(opening, "make_ledger", make)
        scene.set_bookies(is_hung=True)
        await refused(a.append(log, b"b"), RollbookError)
        assert len(made) == 1
        await refused(a.append(log, b"b"), RollbookError)
        assert len(made) == 1
        scene.set_bookies(is_hung=False)
        await a.append(log, b"b")
        assert len(made) == 2
        assert await a.read_all(log) == [b"a", b"b"]

    play(story)


def test_server_reopens_its_logs_after_a_lost_session() -> None:
    """SV4: what is not confirmed then has an unknown outcome; the next ack is by the next owner."""

    async def story(scene: Scene) -> None:
        (a,) = await start_all(scene, "a")
        log = await make_log(scene, LogName("test", "log"))
        await a.append(log, b"0")
        owner = a.log_server.find(log)
        scene.world.network.cut("a", "metadata")
        await asyncio.sleep(10.0)
        scene.world.network.heal("a", "metadata")
        scene.set_bookies(delay_s=0.8)
        pending = []
        while a.log_server.find(log) is not None:
            pending.append(a.begin(a.append(log, b"late")))
            await asyncio.sleep(0.1)
        assert owner is not None
        assert owner.failure is not None
        next_ack = await a.append(log, b"1")
        assert (next_ack.owner_epoch, await epoch_of(scene, log)) == (2, 2)
        settled = await scene.within(asyncio.gather(*pending, return_exceptions=True))
        acks = [each for each in settled if isinstance(each, messages.AppendAck)]
        assert len(acks) < len(settled)
        assert all(isinstance(each, OwnerLost) for each in settled[len(acks) :])
        values = await a.read_all(log)
        assert values[0] == b"0"
        assert values[next_ack.first_offset] == b"1"
        assert all(values[each.first_offset] == b"late" for each in acks)

    play(story)


def test_server_restarted_at_once_regains_its_logs_in_a_second() -> None:
    """Its earlier process is still registered, at the same address."""

    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = await make_log(scene, log_suggested_to(a))
        await a.append(log, b"0")
        a.node.kill()
        await a.start()
        began_at = scene.world.now
        assert (await Client(scene, b, a).append(log, b"1")).first_offset == 1
        assert scene.world.now - began_at < 1.0
        assert owners_of(log, a, b) == ["a"]

    play(story)


def test_idle_log_is_released() -> None:
    async def story(scene: Scene) -> None:
        (a,) = await start_all(scene, "a", idle_s_max=20.0)
        log = await make_log(scene, LogName("test", "log"))
        await a.append(log, b"0")
        await asyncio.sleep(40.0)
        assert owners_of(log, a) == []
        listed = (await scene.stored(log)).list
        assert listed.owner is None
        assert listed.tail == 1
        assert (await a.append(log, b"1")).first_offset == 1

    play(story)


@pytest.mark.parametrize("seed", range(2))
def test_random_restarts_keep_every_append_exactly_once(seed: int) -> None:
    async def story(scene: Scene) -> None:
        chance = scene.world.random("story")
        servers = await start_all(scene, "a", "b", "c")
        logs = [await make_log(scene, LogName("test", f"log-{number}")) for number in range(4)]
        client = Client(scene, *servers)
        written: dict[LogName, int] = dict.fromkeys(logs, 0)
        is_over = False

        async def write(log: LogName) -> None:
            while not is_over:
                await client.append(log, b"%d" % written[log])
                written[log] += 1
                await asyncio.sleep(0.02)

        writing = [asyncio.ensure_future(write(log)) for log in logs]
        for _ in range(6):
            await asyncio.sleep(chance.uniform(0.2, 3.0))
            victim = chance.choice(servers)
            victim.node.kill()
            await asyncio.sleep(chance.uniform(0.0, 2.0))
            await victim.start()
        is_over = True
        await scene.within(asyncio.gather(*writing))
        for log in logs:
            expected = [b"%d" % number for number in range(written[log])]
            assert await servers[0].read_all(log) == expected

    play(story, seed=seed)


# --- Clocks ---------------------------------------------------------------------------------------

_FAR_S = 40 * 86_400.0


@pytest.mark.parametrize("far_s", [_FAR_S, -_FAR_S])
def test_server_with_a_wrong_clock_hands_its_logs_over(far_s: float) -> None:
    """CK1: no record has its wrong time, and it takes the logs again when its clock is right."""

    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = await make_log(scene, log_suggested_to(a))
        first = await a.append(log, b"0", producer=ProducerRef(b"p", 0, 0))
        a.node.clock.jump(far_s)
        await scene.until(lambda: b.log_server.membership.suggestions.names == ("b",))
        client = Client(scene, a, b)
        acks = [await client.append(log, b"%d" % number) for number in range(3)]
        assert [ack.first_offset for ack in acks] == [1, 2, 3]
        assert owners_of(log, a, b) == ["b"]
        last_us = acks[-1].timestamp_us
        assert first.timestamp_us <= last_us <= b.node.clock.wall_us()
        again = await b.append(log, b"0", producer=ProducerRef(b"p", 0, 0))
        assert (again.first_offset, again.is_duplicate) == (0, True)
        error = await refused(a.append(log, b"x"), NotOwner)
        assert error.ids["owner"] == b.address
        stats = await a.ask(a.service.get_server_stats(messages.GetServerStats(), a.due()))
        assert stats.stats["rollbook_log_clock_refused"] == 1
        assert abs(stats.stats["rollbook_log_clock_apart_seconds"] - far_s) < 1
        a.node.clock.jump(-far_s)
        await scene.until(lambda: b.log_server.membership.suggestions.names == ("a", "b"))
        await scene.until(lambda: owners_of(log, b) == [])
        assert (await client.append(log, b"later")).timestamp_us >= last_us

    play(story)


def test_only_server_refuses_appends_while_its_clock_is_wrong() -> None:
    """CK1: an append to a log that it does not own yet is refused at once."""

    async def story(scene: Scene) -> None:
        a = await start(scene, "a")
        log, other = await make_log(scene, log_suggested_to(a)), LogName("test", "other")
        await scene.nodes.create(other, SMALL)
        ack = await a.append(log, b"0")
        a.node.clock.jump(-_FAR_S)
        error = await refused(a.append(other, b"0"), ClockDisagrees)
        assert "behind the metadata store's" in error.message
        await scene.until(lambda: owners_of(log, a) == [])
        await refused(a.append(log, b"1"), ClockDisagrees)
        a.node.clock.jump(_FAR_S)
        await scene.until(lambda: a.log_server.membership.suggestions.names == ("a",))
        later = await a.append(log, b"1")
        assert (later.first_offset, later.timestamp_us > ack.timestamp_us) == (1, True)

    play(story)


def test_wrong_metadata_store_clock_stops_no_server() -> None:
    """CK1: the servers' clocks agree with each other."""

    async def story(scene: Scene) -> None:
        servers = await start_all(scene, "a", "b")
        for each in servers:
            each.node.clock.jump(_FAR_S)  # Seen from the servers, the store's clock is behind.
        await scene.until(
            lambda: all(
                apart_us > 0
                for each in servers
                for apart_us in each.log_server.membership.clocks_apart_us.values()
            )
        )
        await scene.until(lambda: not any(each.log_server.clock.is_odd for each in servers))
        log = await make_log(scene, log_suggested_to(servers[0]))
        assert (await Client(scene, *servers).append(log, b"0")).first_offset == 0

    play(story)
