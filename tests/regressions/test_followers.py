"""What followers of a log were given twice, or not at all."""

from rollbook.logservice.messages import CaughtUp, Moving, Progress, ReadStream, Records
from rollbook.logservice.positions import Earliest
from tests.regressions.defects import defect
from tests.unit.logservice.owner_scene import Scene, play
from tests.unit.logservice.service_scene import log_suggested_to, make_log, start_all


@defect(
    "follower-hears-records-twice-at-a-take-over",
    "A follower was sent on from an offset before records that it had been given: SSE ids went back, Python raised"
    " BadFrame.",
)
def test_a_follower_is_sent_on_from_behind_what_it_was_given() -> None:
    """RL5: it is decided where to go on while a step of the reader waits for slow bookies."""

    async def story(scene: Scene) -> None:
        a, b, c = await start_all(scene, "a", "b", "c")
        log = await make_log(scene, log_suggested_to(a))
        for _ in range(300):
            await a.append(log, bytes(24 * 1024))
        server = c if b.log_server.membership.suggestions.server_for(log, ("a",)) == "b" else b
        position = 0
        async with server.events(ReadStream(log, Earliest(), heartbeat_ms=100)) as events:
            async for event in events:
                assert scene.world.now < 60
                match event:
                    case Records(_, base_offset, next_offset):
                        assert base_offset == position
                        if not position:
                            a.node.kill()
                            b.takes_calls = c.takes_calls = False  # Neither can ask the other.
                            for bookie in scene.bookies.values():
                                bookie.delay_s = 0.75
                        position = next_offset
                    case CaughtUp(tail):
                        assert tail == position
                    case Progress(position=told):
                        assert told == position
                    case Moving(_, resume_offset):
                        assert resume_offset == position
                        break
            else:
                raise AssertionError("it was not sent on")
        for bookie in scene.bookies.values():
            bookie.delay_s = 0.0

    play(story)
