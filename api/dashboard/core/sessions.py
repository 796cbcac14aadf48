"""The sessions of users who have signed in to the dashboard. Tokens stay in this process's memory (DB2).

A session ends after 12 hours, after 30 minutes without a request, at sign-out, and when its principal has
changed. The session's id is generated here, never taken from a request, and replaced at sign-in. Forms carry
the session's secret.
"""

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from rollbook.api.access.core.access_file import Principal

SESSION_S: Final = 12 * 3600
IDLE_S: Final = 30 * 60
SESSIONS_MAX: Final = 1000
_S: Final = 1_000_000_000


@dataclass(slots=True)
class Session:
    id: str = field(repr=False)
    secret: str = field(repr=False)  # Every form carries this secret.
    token: str = field(repr=False)  # Empty: authentication is off.
    principal: Principal | None
    began_ns: int
    seen_ns: int
    notes: list[tuple[str, str]] = field(default_factory=list)  # Level and text, shown once.

    def allows(self, secret: str) -> bool:
        return hmac.compare_digest(secret.encode("utf-8", "replace"), self.secret.encode())


class Sessions:
    def __init__(self, now_ns: Callable[[], int], draw: Callable[[], str]) -> None:
        """`draw` returns a new text that cannot be guessed."""
        self._now_ns = now_ns
        self._draw = draw
        self._by_id: dict[str, Session] = {}  # The most recently used session is the last.

    def __len__(self) -> int:
        return len(self._by_id)

    def begin(self, token: str, principal: Principal | None) -> Session:
        """Begins a session. If there are too many sessions, the session that was idle for longest is removed."""
        while len(self._by_id) >= SESSIONS_MAX:
            del self._by_id[next(iter(self._by_id))]
        now_ns = self._now_ns()
        session = Session(self._draw(), self._draw(), token, principal, now_ns, now_ns)
        self._by_id[session.id] = session
        return session

    def find(self, session_id: str, *, stays_idle: bool = False) -> Session | None:
        """`stays_idle`: the page itself made the request, not its user, so the session is not prolonged."""
        session = self._by_id.pop(session_id, None)
        if session is None:
            return None
        if self._is_over(session):
            return None
        if not stays_idle:
            session.seen_ns = self._now_ns()
        self._by_id[session_id] = session
        return session

    def holds(self, session: Session) -> bool:
        """Whether the session still exists. Streams call this, so it does not prolong the session."""
        return self._by_id.get(session.id) is session and not self._is_over(session)

    def _is_over(self, session: Session) -> bool:
        now_ns = self._now_ns()
        return (
            now_ns - session.began_ns >= SESSION_S * _S or now_ns - session.seen_ns >= IDLE_S * _S
        )

    def end(self, session: Session) -> None:
        self._by_id.pop(session.id, None)
