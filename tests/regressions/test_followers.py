"""Followers of a log get each record once, also when they change servers."""

from rollbook.logservice.messages import CaughtUp, Moving, Progress, ReadStream, Records
from rollbook.logservice.position_syntax import Earliest
from tests.regressions.defects import defect
from tests.unit.logservice.owner_scene import Scene, play
from tests.unit.logservice.service_scene import log_suggested_to, make_log, start_all


@defect(
    "follower-gets-records-twice-at-takeover",
    "A follower was redirected to an offset before records that it had received: SSE ids went back, Python raised"
    " BadFrame.",
)
def test_redirected_follower_resumes_after_its_last_record() -> None:
    """RL5: the redirect is decided while the reader waits for slow bookies."""

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
                            b.takes_calls = c.takes_calls = False  # Neither can call the other.
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
