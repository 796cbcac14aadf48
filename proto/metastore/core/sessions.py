"""Keeps the live sessions, and decides when a silent session ends (MS3).

A session ends when it was silent for its time-out. Only time in which the store was listening
counts, which is at most `LISTENED_NS_MAX` between two ticks. So a store that was stopped, or
stalled, or taken over by another process, reads the waiting heartbeats before any session's time is
up, since a live client sends at least three heartbeats in each time-out.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rollbook.proto.ports import SessionId

TICK_NS: Final = 100_000_000
LISTENED_NS_MAX: Final = 2 * TICK_NS
TIMEOUT_MS_MIN: Final = 500
TIMEOUT_MS_MAX: Final = 300_000


@dataclass(slots=True)
class _Session:
    timeout_ms: int
    ends_at_ns: int  # The time of its expiry, in time spent listening.


class SessionTable:
    def __init__(self, now_ns: int) -> None:
        self._listened_ns = 0
        self._ticked_at_ns = now_ns
        self._sessions: dict[SessionId, _Session] = {}

    def __contains__(self, session: SessionId) -> bool:
        return session in self._sessions

    def __len__(self) -> int:
        return len(self._sessions)

    def load(self, sessions: Iterable[tuple[SessionId, int]]) -> None:
        """Loads sessions that another process stored. Their time-outs start again."""
        for session, timeout_ms in sessions:
            self.open(session, timeout_ms)

    def open(self, session: SessionId, timeout_ms: int) -> int:
        """Opens a session, and returns its time-out, which may differ from the requested one."""
        timeout_ms = min(max(timeout_ms, TIMEOUT_MS_MIN), TIMEOUT_MS_MAX)
        self._sessions[session] = _Session(timeout_ms, 0)
        self.on_heartbeat(session)
        return timeout_ms

    def timeout_ms(self, session: SessionId) -> int:
        return self._sessions[session].timeout_ms

    def close(self, session: SessionId) -> None:
        del self._sessions[session]

    def on_heartbeat(self, session: SessionId) -> None:
        known = self._sessions[session]
        known.ends_at_ns = self._listened_ns + known.timeout_ms * 1_000_000

    def on_tick(self, now_ns: int) -> list[SessionId]:
        """Returns the sessions whose time is up, oldest first. They stay in the table until they are closed."""
        self._listened_ns += min(now_ns - self._ticked_at_ns, LISTENED_NS_MAX)
        self._ticked_at_ns = now_ns
        return [
            session
            for session, known in self._sessions.items()
            if known.ends_at_ns <= self._listened_ns
        ]
