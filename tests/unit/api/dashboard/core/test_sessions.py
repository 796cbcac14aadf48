"""Sessions: when they end, their IDs and secrets, and their number."""

from itertools import count

from rollbook.api.dashboard.core.sessions import IDLE_S, SESSION_S, SESSIONS_MAX, Sessions

S = 1_000_000_000


class Site:
    def __init__(self) -> None:
        self.now_ns = 0
        numbers = count()
        self.sessions = Sessions(lambda: self.now_ns, lambda: f"drawn-{next(numbers)}")


def test_a_session_ends_when_it_is_old_or_idle() -> None:
    """DB2."""
    site = Site()
    idle, busy = site.sessions.begin("a", None), site.sessions.begin("b", None)
    site.now_ns = (IDLE_S - 1) * S
    assert site.sessions.find(busy.id) is busy
    site.now_ns = IDLE_S * S
    assert site.sessions.find(idle.id) is None
    assert site.sessions.find(idle.id) is None
    while site.now_ns < (SESSION_S - 1) * S:
        assert site.sessions.find(busy.id) is busy
        site.now_ns = min(site.now_ns + (IDLE_S - 1) * S, (SESSION_S - 1) * S)
    site.now_ns = SESSION_S * S
    assert site.sessions.find(busy.id) is None


def test_session_ids_and_secrets_are_generated_and_checked() -> None:
    """DB2: a browser cannot choose them."""
    site = Site()
    session = site.sessions.begin("the token", None)
    assert site.sessions.find("chosen") is None
    assert session.allows(session.secret)
    for wrong in ("", session.id, "drawn-1x", "\ud800ü"):
        assert not session.allows(wrong)
    assert "token" not in repr(session).replace("token=", "")
    site.sessions.end(session)
    assert site.sessions.find(session.id) is None


def test_number_of_sessions_is_bounded() -> None:
    site = Site()
    first = site.sessions.begin("", None)
    second = site.sessions.begin("", None)
    site.sessions.find(first.id)
    for _ in range(SESSIONS_MAX - 1):
        site.sessions.begin("", None)
    assert len(site.sessions) == SESSIONS_MAX
    assert site.sessions.find(second.id) is None
    assert site.sessions.find(first.id) is first
