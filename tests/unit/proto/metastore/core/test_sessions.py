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
        """Time passes in ticks; returns what the last tick expires."""
        over: list[SessionId] = []
        for _ in range(ms * 1_000_000 // TICK_NS):
            over = self.stall(TICK_NS // 1_000_000)
        return over

    def stall(self, ms: int) -> list[SessionId]:
        """Time passes in one step."""
        self.now_ns += ms * 1_000_000
        return self.table.on_tick(self.now_ns)


def test_silent_session_expires_after_its_timeout() -> None:
    story = Story()
    story.table.open(S1, 1000)
    assert story.listen(900) == []
    assert story.listen(100) == [S1]
    assert S1 in story.table  # It stays until it is closed.
    story.table.close(S1)
    assert story.listen(100) == []
    assert S1 not in story.table


def test_heartbeat_restarts_the_timeout() -> None:
    story = Story()
    story.table.open(S1, 1000)
    story.table.open(S2, 1000)
    story.listen(900)
    story.table.on_heartbeat(S1)
    assert story.listen(100) == [S2]


def test_standstill_of_the_service_does_not_count_as_silence() -> None:
    """MS3: a stopped process finds an hour of heartbeats in its sockets and reads them first."""
    story = Story()
    story.table.open(S1, 1000)
    story.listen(300)
    assert story.stall(3_600_000) == []
    assert story.listen(400) == []
    assert story.listen(100) == [S1]  # The session was silent for 300 + 200 + 500 ms of listening.


def test_loaded_sessions_get_their_full_timeout() -> None:
    story = Story()
    story.table.load([(S1, 1000), (S2, 2000)])
    assert story.listen(900) == []
    assert story.listen(100) == [S1]
    assert len(story.table) == 2


def test_session_timeouts_are_clamped() -> None:
    story = Story()
    assert story.table.open(S1, 1) == TIMEOUT_MS_MIN == story.table.timeout_ms(S1)
    assert story.table.open(S2, 10**9) == TIMEOUT_MS_MAX
