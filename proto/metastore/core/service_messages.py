"""The messages between a client of a metadata service and the service.

    client                                 service
    Hello(session or none)            ->
                                      <-   Welcome(session), or Expired: send Hello again, without a session
    Ask(request id, question)         ->   any number at once, processed in the order of arrival
                                      <-   Answer(request id, result or refusal)
                                      <-   WatchNotice(watch, event), whenever something happens

Commits are numbered, and every message from the service has the number of a commit: all events up
to this commit that concern the client have been sent before the message. A client that reconnects
starts its watches again from the last number that it received, and gets RESYNC if the store has
changed since then.
"""

from dataclasses import dataclass

from rollbook.proto.errors import RollbookError
from rollbook.proto.ports import Node, Op, OpResult, SessionId, WatchEvent


@dataclass(frozen=True, slots=True)
class Hello:
    # The id of the store that opened the session; without a session it may have any value.
    store: str
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
    # The last commit number that the client received, if this watch was running before.
    since: int | None


@dataclass(frozen=True, slots=True)
class StopWatch:
    watch_id: int


@dataclass(frozen=True, slots=True)
class Sync:
    """A request that is answered after all requests before it. It also serves as the heartbeat."""


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
"""The results of Get, Children and Transact, in this order. None is the result of all other
questions, and that of Get for a missing node.
"""


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
    """Ends a connection for this reason. It is never sent."""

    reason: str


FromService = Welcome | Expired | Answer | WatchNotice
