from rollbook.proto.metastore.core.sessions import (
    TICK_NS,
    TIMEOUT_MS_MAX,
    TIMEOUT_MS_MIN,
    SessionTable,
)
from rollbook.proto.ports import SessionId

S1, S2 = 1, 2
SECOND_NS = 1_000_000_000


class Story:
    def __init__(self) -> None:
        self.now_ns = 7 * SECOND_NS
        self.table = SessionTable(self.now_ns)

    def listen(self, ms: int) -> list[SessionId]:
        """Time passes in ticks, the last one counts."""
        over: list[SessionId] = []
        for _ in range(ms * 1_000_000 // TICK_NS):
            over = self.stall(TICK_NS // 1_000_000)
        return over

    def stall(self, ms: int) -> list[SessionId]:
        """Time passes in one piece."""
        self.now_ns += ms * 1_000_000
        return self.table.on_tick(self.now_ns)


def test_a_silent_session_ends_when_its_time_is_up() -> None:
    story = Story()
    story.table.open(S1, 1000)
    assert story.listen(900) == []
    assert story.listen(100) == [S1]
    assert S1 in story.table  # Until it is closed.
    story.table.close(S1)
    assert story.listen(100) == []
    assert S1 not in story.table


def test_a_heartbeat_starts_the_time_anew() -> None:
    story = Story()
    story.table.open(S1, 1000)
    story.table.open(S2, 1000)
    story.listen(900)
    story.table.on_heartbeat(S1)
    assert story.listen(100) == [S2]


def test_time_in_which_nobody_listened_does_not_count() -> None:
    """MS3: a stopped process finds the heartbeats of an hour in its sockets, and reads them first."""
    story = Story()
    story.table.open(S1, 1000)
    story.listen(300)
    assert story.stall(3_600_000) == []
    assert story.listen(400) == []
    assert story.listen(100) == [S1]  # It was silent for 300 + 200 + 500 ms of listening.


def test_kept_sessions_start_anew() -> None:
    story = Story()
    story.table.load([(S1, 1000), (S2, 2000)])
    assert story.listen(900) == []
    assert story.listen(100) == [S1]
    assert len(story.table) == 2


def test_time_outs_have_bounds() -> None:
    story = Story()
    assert story.table.open(S1, 1) == TIMEOUT_MS_MIN == story.table.timeout_ms(S1)
    assert story.table.open(S2, 10**9) == TIMEOUT_MS_MAX
