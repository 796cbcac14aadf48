"""LS2, LS4, LS6, LS9: from one owner to the next, in virtual time."""

import asyncio

import pytest

from rollbook.logservice.core.control import Opened, unpack_control
from rollbook.logservice.ids import Offset, ProducerRef
from rollbook.logservice.log_config import LogConfig
from rollbook.logservice.owner import Pending
from rollbook.logservice.words import Condition
from rollbook.proto.errors import (
    NotOwner,
    OwnerChanging,
    OwnerLost,
    ProducerGap,
    RollbookError,
)
from tests.unit.logservice.owner_scene import LEASE_S, Held, Scene, play, refused


def ref(seq: int, epoch: int = 0) -> ProducerRef:
    return ProducerRef(b"p", epoch, seq)


async def outcome(scene: Scene, pending: Pending) -> object:
    try:
        return await scene.within(pending.answer)
    except RollbookError as error:
        return error


# --- Takeover ------------------------------------------------------------------------------------


def test_a_retry_after_failover_gets_the_offsets_of_the_first_time() -> None:
    """LS6, with conditions that hold no more."""

    async def story(scene: Scene) -> None:
        first = await (await scene.server("s1")).open()
        condition = Condition(expected_offset=Offset(0))
        await first.append(b"a", b"b", producer=ref(0), condition=condition)
        await first.append(b"c", producer=ref(1))
        first.server.node.kill()
        log = await (await scene.server("s2")).open()
        again = await log.append(b"a", b"b", producer=ref(0), condition=condition)
        assert (again.first_offset, again.next_offset, again.is_duplicate) == (0, 2, True)
        await refused(log.append(b"e", producer=ref(3)), ProducerGap)
        assert (await log.append(b"d", producer=ref(2))).first_offset == 3
        await log.close()
        assert await scene.values() == [b"a", b"b", b"c", b"d"]

    play(story)


def test_a_replay_of_the_end_is_enough() -> None:
    """LS5: producers from long before the part that is read are known from a snapshot."""

    async def story(scene: Scene) -> None:
        first = await (await scene.server("s1")).open()
        await first.append(b"first", producer=ProducerRef(b"early", 0, 0))
        for number in range(3000):
            pending = first.begin(b"%d" % number, producer=ref(number))
            if number % 100 == 99:
                await scene.within(pending.answer)
        first.server.node.kill()
        log = await (await scene.server("s2")).open()
        early = await log.append(b"first", producer=ProducerRef(b"early", 0, 0))
        assert (early.first_offset, early.is_duplicate) == (0, True)
        assert (await log.append(b"x", producer=ref(2999))).first_offset == 3000
        await log.close()

    play(story, config=LogConfig())


def test_what_is_pending_when_the_log_is_taken_over_is_unknown_to_its_caller() -> None:
    async def story(scene: Scene) -> None:
        first = await (await scene.server("s1")).open()
        await first.append(b"a")
        for bookie in scene.bookies.values():
            bookie.delay_s = 0.5
        pending = first.begin(b"b")
        log = await (await scene.server("s2")).open()
        error = await refused(first.append(b"c"), RollbookError)
        assert isinstance(error, OwnerLost | OwnerChanging)
        assert await outcome(scene, pending)
        await log.append(b"d")
        for bookie in scene.bookies.values():
            bookie.delay_s = 0.0
        await log.close()
        values = await scene.values()
        assert values[0] == b"a"
        assert values[-1] == b"d"
        await first.run(first.owner.ended())

    play(story)


def test_an_answer_that_rests_on_what_is_lost_is_never_given() -> None:
    """LS4: "the tail is 1" of an owner whose block never came to be would be a lie."""

    async def story(scene: Scene) -> None:
        first = await (await scene.server("s1")).open()
        for bookie in scene.bookies.values():
            bookie.is_hung = True
        lost = first.begin(b"a", producer=ref(0))
        mismatch = first.begin(b"b", condition=Condition(expected_offset=Offset(0)))
        again = first.begin(b"a", producer=ref(0))
        gap = first.begin(b"c", producer=ref(2))
        await asyncio.sleep(0.1)
        assert not any(each.answer.done() for each in (lost, mismatch, again, gap))
        assert [each.is_refused for each in (lost, mismatch, again, gap)] == [
            *(False, True, False, True)
        ]
        for bookie in scene.bookies.values():
            bookie.is_hung = False
        log = await (await scene.server("s2")).open()
        assert (await log.append(b"z", condition=Condition(must_be_empty=True))).first_offset == 0
        for each in (lost, mismatch, again, gap):
            assert isinstance(await outcome(scene, each), OwnerLost)
        await log.close()
        assert await scene.values() == [b"z"]

    play(story)


def test_a_frozen_owner_that_thaws_acks_nothing() -> None:
    """LS9: though its answers lie in its sockets, and its log was not even taken over."""

    async def story(scene: Scene) -> None:
        first = await (await scene.server("s1")).open()
        await first.append(b"a")
        pending = first.begin(b"b")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        first.server.node.pause()
        await asyncio.sleep(LEASE_S + 1)
        first.server.node.resume()
        assert isinstance(await outcome(scene, pending), OwnerLost)
        await first.run(first.owner.ended())
        log = await first.server.open("again")
        assert log.owner.tail in (1, 2)
        await log.close()

    play(story)


def test_a_frozen_owner_answers_nothing_from_memory_either() -> None:
    async def story(scene: Scene) -> None:
        first = await (await scene.server("s1")).open()
        await first.append(b"a", producer=ref(0))
        first.server.node.pause()
        log = await (await scene.server("s2")).open()
        await log.append(b"b")
        await asyncio.sleep(LEASE_S + 1)
        first.server.node.resume()
        with pytest.raises(OwnerChanging):
            first.begin(b"a", producer=ref(0))
        await first.run(first.owner.ended())
        await log.close()
        assert await scene.values() == [b"a", b"b"]

    play(story)


def test_an_owner_whose_ledger_strangers_fence_opens_again() -> None:
    """As Java's autorecovery does with ledgers of bookies that are down."""

    async def story(scene: Scene) -> None:
        server = await scene.server("s1")
        first = await server.open()
        ack = await first.append(b"a", producer=ref(0))
        async with await scene.ledgers.open_recover(ack.ledger_id):
            pass
        error = await refused(first.append(b"b", producer=ref(1)), RollbookError)
        assert isinstance(error, OwnerLost | OwnerChanging)
        assert first.owner.until_lost.done()
        await first.run(first.owner.ended())
        log = await server.open("again")
        assert log.owner.owner_epoch == 2
        assert (await log.append(b"b", producer=ref(1))).first_offset == 1
        await log.close()
        assert await scene.values() == [b"a", b"b"]

    play(story)


# --- Duels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_dueling_owners_come_to_an_end(seed: int) -> None:
    """LS3: who has fenced stands down for a newer owner only, so one of them wins."""

    async def story(scene: Scene) -> None:
        servers = [await scene.server(f"s{number}") for number in range(4)]
        opening = [server.begin(server.open()) for server in servers]
        results = [
            await asyncio.gather(scene.within(each), return_exceptions=True) for each in opening
        ]
        held = [each for (each,) in results if isinstance(each, Held)]
        assert all(isinstance(each, Held | NotOwner | OwnerChanging) for (each,) in results)
        assert held
        newest = max(held, key=lambda each: each.owner.owner_epoch)
        assert (await newest.append(b"mine")).first_offset == 0
        for each in held:
            if each is not newest:
                error = await refused(each.append(b"not mine"), RollbookError)
                assert isinstance(error, OwnerLost | OwnerChanging)
                await each.run(each.owner.ended())
        await newest.close()
        assert await scene.values() == [b"mine"]

    play(story, seed=seed)


@pytest.mark.parametrize("seed", range(10))
def test_owners_that_take_turns_lose_nothing(seed: int) -> None:
    """Each takes the log from the one before while that one appends and rolls."""

    async def story(scene: Scene) -> None:
        acked: dict[int, bytes] = {}
        unknown: list[bytes] = []
        held: list[Held] = []
        number = 0
        for turn in range(12):
            log = await (await scene.server(f"s{turn % 3}")).open()
            held.append(log)
            pending: list[tuple[bytes, Pending]] = []
            for _ in range(20):
                value = b"%d" % number
                number += 1
                pending.append((value, log.begin(value)))
                if scene.world.nodes["operator"].randomness.random() < 0.3:
                    await asyncio.sleep(0.001)
            taking = (await scene.server(f"s{(turn + 1) % 3}")).open() if turn % 2 else None
            if taking is not None:
                held.append(await taking)
            for value, each in pending:
                answer = await outcome(scene, each)
                if isinstance(answer, RollbookError):
                    unknown.append(value)
                else:
                    acked[answer.first_offset] = value  # type: ignore[attr-defined]  # An ack.
        log = await (await scene.server("last")).open()
        await log.close()
        values = await scene.values()
        assert {offset: values[offset] for offset in acked} == acked
        assert len(set(values)) == len(values)
        assert set(values) <= set(acked.values()) | set(unknown)
        for owned in held:
            owned.server.do(owned.owner.lose, "the test is over")
            await owned.run(owned.owner.ended())
        blocks = await scene.read_all()
        epochs = [block.owner_epoch for block in blocks]
        assert epochs == sorted(epochs)
        opened = [unpack_control(block) for block in blocks if block.is_control]
        assert sum(isinstance(each, Opened) for each in opened) == len(set(epochs))

    play(story, seed=seed)
