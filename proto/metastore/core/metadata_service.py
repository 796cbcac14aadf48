"""A metadata service. It takes requests, and returns responses, events, and batches to make durable.

Transactions are applied in memory at once and made durable in batches. Nothing that depends on a
transaction is sent before the transaction is durable (MS1): no result, no read, no event, no
refusal. To ensure this, every message waits for the newest transaction that was applied when the
message was made. Therefore one queue holds all pending messages.

A session is opened and ended by ordinary transactions. Its id is the number of the transaction that
opened it, so no id is given twice.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from rollbook.proto.errors import Overloaded, RollbookError, SessionExpired
from rollbook.proto.metastore.core.disk_space_limit import FreeSpace
from rollbook.proto.metastore.core.request_checks import check_ops, check_path
from rollbook.proto.metastore.core.service_messages import (
    Answer,
    Children,
    EndSession,
    Expired,
    FromClient,
    FromService,
    Get,
    HangUp,
    Hello,
    Question,
    Result,
    StartWatch,
    StopWatch,
    Sync,
    Transact,
    WatchNotice,
    Welcome,
)
from rollbook.proto.metastore.core.sessions import SessionTable
from rollbook.proto.metastore.core.tree import Applied, NodeRow, Tree
from rollbook.proto.metastore.core.watches import WatchTable
from rollbook.proto.ports import NO_SESSION, SessionId, WatchEvent, WatchEventKind

ConnectionId = int

WATCHES_MAX: Final = 10_000  # The maximum number of watches of one connection.


@dataclass(slots=True)
class CommitGroup:
    """The changes of several transactions, which are made durable together. None for a node or
    session means that it is deleted.
    """

    last_txn: int = 0
    rows: dict[str, NodeRow | None] = field(default_factory=dict)
    timeouts_ms: dict[SessionId, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kept:
    """The contents that a store has when it is opened: the result of all batches that were stored."""

    store: str  # The id of the store. It is random and never changes.
    last_txn: int = 0
    rows: Iterable[tuple[str, NodeRow]] = ()
    timeouts_ms: Iterable[tuple[SessionId, int]] = ()


@dataclass(slots=True)
class _ClientConnection:
    session: SessionId = NO_SESSION
    lost_session: SessionId = NO_SESSION  # Requests that still come for this session are refused.
    watches: dict[int, None] = field(default_factory=dict)


class MetadataService:
    def __init__(self, kept: Kept, now_ns: int) -> None:
        self.store = kept.store
        self.sessions = SessionTable(now_ns)
        self.sessions.load(kept.timeouts_ms)
        self.room = FreeSpace()
        self.tree = Tree()
        self.tree.load(kept.rows)
        self._applied_txn = self._durable_txn = kept.last_txn
        self._batch = CommitGroup()
        self._connections: dict[ConnectionId, _ClientConnection] = {}
        self._speaking_for: dict[SessionId, ConnectionId] = {}
        self._watches: WatchTable[tuple[ConnectionId, int]] = WatchTable()
        self._said: deque[tuple[int, ConnectionId, FromService | HangUp]] = deque()

    # --- Facts ---

    def on_connected(self, connection: ConnectionId) -> None:
        self._connections[connection] = _ClientConnection()

    def on_disconnected(self, connection: ConnectionId) -> None:
        """Forgets the connection, but keeps its session."""
        if (known := self._connections.pop(connection, None)) is not None:
            self._forget_watches(connection, known)
            if self._speaking_for.get(known.session) == connection:
                del self._speaking_for[known.session]

    def on_message(self, connection: ConnectionId, message: FromClient, now_ms: int) -> None:
        known = self._connections.get(connection)
        if known is None:
            return  # The client has been disconnected, so its further messages are not processed.
        if isinstance(message, Hello):
            self._greet(connection, known, message)
        elif known.session == known.lost_session == NO_SESSION:
            self._hang_up(connection, "it sent a request before it had a session")
        else:
            result: Result | RollbookError
            try:
                result = self._judge(connection, known, message.question, now_ms)
            except RollbookError as error:
                result = error
            self._say(connection, Answer(message.request_id, self._applied_txn, result))

    def on_tick(self, now_ns: int, now_ms: int) -> None:
        for session in self.sessions.on_tick(now_ns):
            self.expire(session, now_ms)

    def expire(self, session: SessionId, now_ms: int) -> None:
        if session not in self.sessions:
            return
        connection = self._speaking_for.get(session)
        self._end_session(session, now_ms)
        if connection is not None:
            self._say(connection, Expired(session))

    def take_batch(self) -> CommitGroup | None:
        """Returns all changes since the previous batch was taken, or None if there are none."""
        if not self._batch.last_txn:
            return None
        batch, self._batch = self._batch, CommitGroup()
        return batch

    def on_durable(self, batch: CommitGroup) -> None:
        self._durable_txn = batch.last_txn

    def speak(self) -> dict[ConnectionId, list[FromService | HangUp]]:
        """Returns the messages that may be sent now, in order."""
        spoken: dict[ConnectionId, list[FromService | HangUp]] = {}
        while self._said and self._said[0][0] <= self._durable_txn:
            _, connection, message = self._said.popleft()
            spoken.setdefault(connection, []).append(message)
        return spoken

    # --- Judgement ---

    def _greet(self, connection: ConnectionId, known: _ClientConnection, hello: Hello) -> None:
        if known.session != NO_SESSION:
            self._hang_up(connection, "it said hello twice")
            return
        session = hello.session
        if session == NO_SESSION:
            session = self._next_txn()
            self._batch.timeouts_ms[session] = self.sessions.open(session, hello.timeout_ms)
        elif hello.store != self.store or session not in self.sessions:
            known.lost_session = session
            self._say(connection, Expired(session))
            return
        elif (before := self._speaking_for.get(session)) is not None:
            # Messages that wait on the older connection are never processed (MS6).
            self._hang_up(before, "its session continues on another connection")
        known.session = session
        self._speaking_for[session] = connection
        self.sessions.on_heartbeat(session)
        timeout_ms = self.sessions.timeout_ms(session)
        self._say(connection, Welcome(self.store, session, timeout_ms, self._applied_txn))

    def _judge(
        self, connection: ConnectionId, known: _ClientConnection, question: Question, now_ms: int
    ) -> Result:
        if known.session == NO_SESSION:
            raise SessionExpired(session=known.lost_session)
        self.sessions.on_heartbeat(known.session)
        match question:
            case Get(path):
                check_path(path)
                return self.tree.get(path)
            case Children(path):
                check_path(path)
                return self.tree.children(path)
            case Transact(ops):
                check_ops(ops)
                if not ops:
                    return []
                self.room.check(ops, self.tree.get)
                applied = self.tree.apply(ops, known.session, self._applied_txn + 1, now_ms)
                self._note(applied)
                return applied.results
            case StartWatch():
                self._start_watch(connection, known, question)
            case StopWatch(watch_id):
                known.watches.pop(watch_id, None)
                self._watches.remove((connection, watch_id))
            case EndSession():
                self._end_session(known.session, now_ms)
            case Sync():
                pass
        return None

    def _start_watch(
        self, connection: ConnectionId, known: _ClientConnection, watch: StartWatch
    ) -> None:
        check_path(watch.path)
        if len(known.watches) >= WATCHES_MAX:
            raise Overloaded(f"a client may have at most {WATCHES_MAX} watches")
        known.watches[watch.watch_id] = None
        self._watches.add((connection, watch.watch_id), watch.path, recursive=watch.recursive)
        if watch.since is not None and watch.since != self._applied_txn:  # MS5.
            resync = WatchEvent(WatchEventKind.RESYNC, watch.path)
            self._say(connection, WatchNotice(watch.watch_id, self._applied_txn, resync))

    def _end_session(self, session: SessionId, now_ms: int) -> None:
        applied = self.tree.end_session(session, self._applied_txn + 1, now_ms)
        self._batch.timeouts_ms[session] = None
        self.sessions.close(session)
        self._note(applied)
        if (connection := self._speaking_for.pop(session, None)) is not None:
            known = self._connections[connection]
            self._forget_watches(connection, known)
            known.session, known.lost_session = NO_SESSION, session

    def _note(self, applied: Applied) -> None:
        txn = self._next_txn()
        self._batch.rows.update(applied.rows)
        for event in applied.events:
            for connection, watch_id in self._watches.watching(event):
                self._say(connection, WatchNotice(watch_id, txn, event))

    def _next_txn(self) -> int:
        self._applied_txn += 1
        self._batch.last_txn = self._applied_txn
        return self._applied_txn

    def _forget_watches(self, connection: ConnectionId, known: _ClientConnection) -> None:
        for watch_id in known.watches:
            self._watches.remove((connection, watch_id))
        known.watches.clear()

    def _hang_up(self, connection: ConnectionId, reason: str) -> None:
        self.on_disconnected(connection)
        self._say(connection, HangUp(reason))

    def _say(self, connection: ConnectionId, message: FromService | HangUp) -> None:
        self._said.append((self._applied_txn, connection, message))
