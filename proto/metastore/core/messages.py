"""The messages between a client of a metadata service and the service.

    client                                 service
    Hello(session or none)            ->
                                      <-   Welcome(session), or Expired: say Hello again, with none
    Ask(request id, question)         ->   any number at once, judged in the order they came
                                      <-   Answer(request id, result or refusal)
                                      <-   WatchNotice(watch, event), whenever something happens

Commits are numbered, and every message of the service has such a number: all events up to this
commit that concern the client have been sent before. A client that reconnects starts its watches
again from the last number it received, and gets RESYNC if the store has changed since.
"""

from dataclasses import dataclass

from rollbook.proto.errors import RollbookError
from rollbook.proto.ports import Node, Op, OpResult, SessionId, WatchEvent


@dataclass(frozen=True, slots=True)
class Hello:
    store: str  # The id of the store that opened the session; any value without a session.
    session: SessionId  # NO_SESSION: open one.
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Get:
    path: str


@dataclass(frozen=True, slots=True)
class Children:
    path: str


@dataclass(frozen=True, slots=True)
class Transact:
    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class StartWatch:
    watch_id: int
    path: str
    recursive: bool
    since: int | None  # The last number received, if this watch was running before.


@dataclass(frozen=True, slots=True)
class StopWatch:
    watch_id: int


@dataclass(frozen=True, slots=True)
class Sync:
    """A request that is answered after everything before it; the heartbeat, too."""


@dataclass(frozen=True, slots=True)
class EndSession:
    pass


Question = Get | Children | Transact | StartWatch | StopWatch | Sync | EndSession


@dataclass(frozen=True, slots=True)
class Ask:
    request_id: int
    question: Question


FromClient = Hello | Ask


@dataclass(frozen=True, slots=True)
class Welcome:
    store: str
    session: SessionId
    timeout_ms: int
    commit: int


@dataclass(frozen=True, slots=True)
class Expired:
    session: SessionId


Result = Node | list[str] | list[OpResult] | None
"""The results of Get, Children, Transact, and all other questions."""


@dataclass(frozen=True, slots=True)
class Answer:
    request_id: int
    commit: int
    result: Result | RollbookError


@dataclass(frozen=True, slots=True)
class WatchNotice:
    watch_id: int
    commit: int
    event: WatchEvent


@dataclass(frozen=True, slots=True)
class HangUp:
    """The reason why the connection ends; never sent."""

    reason: str


FromService = Welcome | Expired | Answer | WatchNotice
