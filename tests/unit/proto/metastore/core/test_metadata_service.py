"""The metadata service without a network, a disk or a loop: what it sends, to whom, and when."""

from collections.abc import Sequence

import pytest

from rollbook.proto.errors import (
    MetadataConflict,
    NoSuchNode,
    Overloaded,
    RollbookError,
    SessionExpired,
)
from rollbook.proto.metastore.core.metadata_service import CommitGroup, Kept, MetadataService
from rollbook.proto.metastore.core.service_messages import (
    Answer,
    Ask,
    Children,
    EndSession,
    Expired,
    FromClient,
    FromService,
    Get,
    HangUp,
    Hello,
    Question,
    StartWatch,
    StopWatch,
    Sync,
    Transact,
    WatchNotice,
    Welcome,
)
from rollbook.proto.metastore.core.sessions import TICK_NS
from rollbook.proto.metastore.core.tree import NodeRow, Tree
from rollbook.proto.ports import (
    NO_SESSION,
    Create,
    CreateMode,
    Delete,
    Op,
    SessionId,
    Set,
    WatchEvent,
    WatchEventKind,
)

STORE = "store-id"


class World:
    """A service, and a disk that keeps a batch when the test calls `keep`."""

    def __init__(self) -> None:
        self.rows: dict[str, NodeRow] = dict(Tree().rows())
        self.timeouts_ms: dict[SessionId, int] = {}
        self.last_txn = 0
        self.now_ns = 0
        self.start()

    def start(self) -> None:
        """Starts the service from what was kept, also after a crash."""
        kept = Kept(STORE, self.last_txn, list(self.rows.items()), list(self.timeouts_ms.items()))
        self.service = MetadataService(kept, self.now_ns)
        self.heard: dict[int, list[FromService | HangUp]] = {}

    def keep(self) -> CommitGroup | None:
        batch = self.service.take_batch()
        if batch is None:
            return None
        self.last_txn = batch.last_txn
        for path, row in batch.rows.items():
            if row is None:
                self.rows.pop(path, None)
            else:
                self.rows[path] = row
        for session, timeout_ms in batch.timeouts_ms.items():
            if timeout_ms is None:
                self.timeouts_ms.pop(session, None)
            else:
                self.timeouts_ms[session] = timeout_ms
        self.service.on_durable(batch)
        return batch

    def listen(self, connection: int) -> list[FromService | HangUp]:
        """Returns the messages that may be sent now and were not returned before."""
        for number, messages in self.service.speak().items():
            self.heard.setdefault(number, []).extend(messages)
        return self.heard.pop(connection, [])

    def say(self, connection: int, *messages: FromClient) -> None:
        for message in messages:
            self.service.on_message(connection, message, now_ms=5)

    def ask(self, connection: int, question: Question, request_id: int = 1) -> FromService | HangUp:
        """Asks, keeps the batch, and returns the last message."""
        self.say(connection, Ask(request_id, question))
        self.keep()
        return self.listen(connection)[-1]

    def do(self, connection: int, *ops: Op) -> object:
        answer = self.ask(connection, Transact(ops))
        assert isinstance(answer, Answer)
        return answer.result

    def connect(self, connection: int, session: SessionId = NO_SESSION) -> Welcome:
        self.service.on_connected(connection)
        self.say(connection, Hello(STORE, session, 1000))
        self.keep()
        welcome = self.listen(connection)[-1]
        assert isinstance(welcome, Welcome)
        return welcome

    def ticks(self, count: int) -> None:
        for _ in range(count):
            self.now_ns += TICK_NS
            self.service.on_tick(self.now_ns, now_ms=6)
        self.keep()


@pytest.fixture
def world() -> World:
    return World()


def error_of(message: FromService | HangUp) -> RollbookError:
    assert isinstance(message, Answer)
    assert isinstance(message.result, RollbookError)
    return message.result


# --- MS1: nothing is sent before it is durable ----------------------------------------------------


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        (Get("/a"), Answer),
        (Children("/"), Answer),
        (Sync(), Answer),
        (Transact((Set("/a", b"", version=9),)), Answer),  # A conflict reveals the version.
        (Transact((Create("/a"),)), Answer),
        (StartWatch(1, "/a", recursive=False, since=None), Answer),
        (StartWatch(1, "/a", recursive=False, since=0), WatchNotice),
    ],
    ids=lambda value: type(value).__name__,
)
def test_answers_that_reveal_a_change_wait_until_it_is_durable(
    world: World, question: Question, kind: type
) -> None:
    world.connect(1)
    world.connect(2)
    world.say(1, Ask(1, Transact((Create("/a"),))))
    world.say(2, Ask(2, question))
    assert world.listen(1) == world.listen(2) == []
    world.keep()
    assert isinstance(world.listen(1)[0], Answer)
    assert isinstance(world.listen(2)[0], kind)


def test_answer_that_reveals_no_change_is_sent_at_once(world: World) -> None:
    world.connect(1)
    world.say(1, Ask(1, Get("/a")))
    assert world.listen(1) == [Answer(1, 1, None)]


def test_welcome_and_end_of_session_wait_until_durable(world: World) -> None:
    world.service.on_connected(1)
    world.say(1, Hello("", NO_SESSION, 1000))
    assert world.listen(1) == []
    world.keep()
    assert isinstance(world.listen(1)[0], Welcome)
    world.say(1, Ask(1, EndSession()))
    assert world.listen(1) == []


def test_changes_during_a_commit_go_into_the_next_batch(world: World) -> None:
    world.connect(1)
    world.say(1, Ask(1, Transact((Create("/a"),))))
    batch = world.service.take_batch()
    assert batch is not None
    world.say(1, Ask(2, Transact((Create("/b"),))), Ask(3, Transact((Delete("/a"),))))
    world.service.on_durable(batch)
    assert [m.request_id for m in world.listen(1) if isinstance(m, Answer)] == [1]
    second = world.service.take_batch()
    assert second is not None
    assert second.last_txn == batch.last_txn + 2
    assert second.rows["/a"] is None
    assert world.service.take_batch() is None
    world.service.on_durable(second)
    assert [m.request_id for m in world.listen(1) if isinstance(m, Answer)] == [2, 3]


def test_events_precede_the_answer_of_their_transaction(world: World) -> None:
    world.connect(1)
    world.ask(1, StartWatch(7, "/a", recursive=False, since=None))
    world.say(1, Ask(2, Transact((Create("/a"), Set("/a", b"")))))
    world.keep()
    *events, answer = world.listen(1)
    assert events == [
        WatchNotice(7, 2, WatchEvent(WatchEventKind.CREATED, "/a")),
        WatchNotice(7, 2, WatchEvent(WatchEventKind.CHANGED, "/a")),
    ]
    assert isinstance(answer, Answer)
    assert answer.commit == 2


# --- Sessions -----------------------------------------------------------------------------------


def test_session_survives_its_connection_and_a_restart(world: World) -> None:
    session = world.connect(1).session
    world.do(1, Create("/e", b"", CreateMode.EPHEMERAL))
    world.service.on_disconnected(1)
    assert world.connect(2, session).session == session
    world.start()
    welcome = world.connect(3, session)
    assert (welcome.session, welcome.timeout_ms) == (session, 1000)
    assert world.rows["/e"].owner == session


def test_session_ids_are_never_repeated(world: World) -> None:
    ids = [world.connect(1).session]
    world.ask(1, EndSession())
    world.start()
    ids.append(world.connect(2).session)
    world.do(2, Create("/a"))
    ids.append(world.connect(3).session)
    assert ids == sorted(set(ids))


def test_silent_session_expires_with_its_nodes(world: World) -> None:
    session = world.connect(1).session
    other = world.connect(2).session
    world.do(1, Create("/e", b"", CreateMode.EPHEMERAL))
    world.ask(2, StartWatch(1, "/e", recursive=False, since=None))
    for _ in range(10):
        world.ticks(1)
        world.ask(2, Sync())
    assert "/e" not in world.rows
    assert list(world.timeouts_ms) == [other]
    assert world.listen(1) == [Expired(session)]
    assert isinstance(error_of(world.ask(1, Transact((Create("/late"),)))), SessionExpired)
    world.say(1, Hello("", NO_SESSION, 1000))
    world.keep()
    assert isinstance(world.listen(1)[-1], Welcome)
    assert world.do(1, Create("/again")) == ["/again"]


@pytest.mark.parametrize(("store", "session"), [(STORE, 99), ("another", 1)])
def test_session_of_another_store_or_unknown_id_is_expired(
    world: World, store: str, session: SessionId
) -> None:
    world.connect(1)
    world.service.on_connected(2)
    world.say(2, Hello(store, session, 1000))
    assert world.listen(2) == [Expired(session)]


def test_resumed_session_closes_its_older_connection(world: World) -> None:
    """MS6: requests that wait unread on the old connection must not be applied after the client
    resumed.
    """
    session = world.connect(1).session
    world.connect(2, session)
    world.say(1, Ask(5, Transact((Create("/zombie"),))))
    assert world.keep() is None
    assert isinstance(world.listen(1)[-1], HangUp)
    assert world.ask(2, Get("/zombie")) == Answer(1, 1, None)
    world.service.on_disconnected(1)
    assert world.do(2, Create("/mine")) == ["/mine"]


def test_end_of_session_removes_its_nodes_and_watches(world: World) -> None:
    world.connect(1)
    world.do(1, Create("/e", b"", CreateMode.EPHEMERAL))
    world.ask(1, StartWatch(7, "/e", recursive=False, since=None))
    assert isinstance(world.ask(1, EndSession()), Answer)
    assert world.timeouts_ms == {}
    assert "/e" not in world.rows
    world.connect(2)
    world.do(2, Create("/e"))
    assert world.listen(1) == []


@pytest.mark.parametrize(
    "messages",
    [(Ask(1, Get("/")),), (Hello("", NO_SESSION, 1000), Hello("", NO_SESSION, 1000))],
)
def test_message_out_of_order_closes_connection(
    world: World, messages: Sequence[FromClient]
) -> None:
    world.service.on_connected(1)
    world.say(1, *messages)
    world.keep()
    assert isinstance(world.listen(1)[-1], HangUp)


# --- Watches ------------------------------------------------------------------------------------


def test_resumed_watch_gets_resync_if_the_store_changed(world: World) -> None:
    session = world.connect(1).session
    seen = world.ask(1, StartWatch(7, "/a", recursive=False, since=None))
    assert isinstance(seen, Answer)
    world.connect(2, session)
    again = world.ask(2, StartWatch(7, "/a", recursive=False, since=seen.commit))
    assert isinstance(again, Answer)
    assert world.listen(2) == []
    world.do(2, Create("/elsewhere"))
    world.start()
    world.connect(3, session)
    world.say(3, Ask(1, StartWatch(7, "/a", recursive=False, since=seen.commit)))
    assert world.listen(3)[0] == WatchNotice(7, 2, WatchEvent(WatchEventKind.RESYNC, "/a"))


def test_stopped_watch_gets_no_events(world: World) -> None:
    world.connect(1)
    world.ask(1, StartWatch(7, "/a", recursive=False, since=None))
    world.ask(1, StopWatch(7))
    world.ask(1, StopWatch(7))
    world.say(1, Ask(1, Transact((Create("/a"),))))
    world.keep()
    assert [type(message) for message in world.listen(1)] == [Answer]


def test_number_of_watches_per_client_is_limited(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollbook.proto.metastore.core.metadata_service.WATCHES_MAX", 2)
    world.connect(1)
    for watch_id in (1, 2):
        world.ask(1, StartWatch(watch_id, "/a", recursive=False, since=None))
    refusal = error_of(world.ask(1, StartWatch(3, "/a", recursive=False, since=None)))
    assert isinstance(refusal, Overloaded)
    world.ask(1, StopWatch(1))
    again = world.ask(1, StartWatch(3, "/a", recursive=False, since=None))
    assert isinstance(again, Answer)
    assert again.result is None


def test_refusals_are_sent_as_answers(world: World) -> None:
    world.connect(1)
    world.do(1, Create("/a"))
    assert isinstance(error_of(world.ask(1, Children("/no"))), NoSuchNode)
    conflict = error_of(world.ask(1, Transact((Set("/a", b"", version=4),))))
    assert isinstance(conflict, MetadataConflict)
    assert conflict.ids == {"path": "/a", "expected": 4, "found": 0, "op": 0}
    assert world.ask(1, Transact(())) == Answer(1, 2, [])
    assert world.last_txn == 2
