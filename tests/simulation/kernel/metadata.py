"""A metadata store across the simulated network: a ZooKeeper of the host `metadata`.

The service, its sessions and its client are the product's own; what is simulated is the distance
between them, and the ensemble. Messages travel as references to objects over an ordinary simulated
connection, so that delays, cuts, resets and silence mean here what they mean everywhere.

With `lag_s` set, each client talks to a follower that lags: reads show an older state, and events of
its watches come late, but never the one without the other. As in ZooKeeper a client never goes back,
sees its own writes, and is up to date after `sync()`.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from rollbook.proto.errors import NoSuchNode, RollbookError, SessionExpired
from rollbook.proto.metastore.core.metadata_service import CommitGroup, Kept, MetadataService
from rollbook.proto.metastore.core.service_messages import (
    Answer,
    Ask,
    Children,
    FromClient,
    FromService,
    Get,
    HangUp,
    Question,
    Result,
    Sync,
    WatchNotice,
    Welcome,
)
from rollbook.proto.metastore.core.tree import NodeRow, Tree
from rollbook.proto.metastore.service_client import (
    OPERATION_TIMEOUT_S,
    SESSION_TIMEOUT_S,
    Receiver,
    StoreClient,
)
from rollbook.proto.metastore.service_host import Host
from rollbook.proto.ports import Address, SessionId, Transport
from tests.simulation.kernel.connection import Endpoint

if TYPE_CHECKING:  # The world stands on this.
    from tests.simulation.kernel.world import Node, World

Span: TypeAlias = tuple[float, float]

HOST: Final = "metadata"
PORT: Final = 2181
_REFERENCE: Final = Struct("<Q")


class Mail:
    """Objects on their way. What is written to a connection is a number for what is sent at once."""

    def __init__(self) -> None:
        self._objects: dict[bytes, Sequence[Any]] = {}
        self._last = 0

    def post(self, objects: Sequence[Any]) -> bytes:
        self._last += 1
        number = _REFERENCE.pack(self._last)
        self._objects[number] = objects
        return number

    def collect(self, rest: bytearray, data: bytes) -> Sequence[Any]:
        """What `data` brings, after the `rest` of what came before, and leaves a new rest."""
        if not rest and len(data) == _REFERENCE.size:
            return self._objects.pop(data)
        rest += data
        whole = len(rest) // _REFERENCE.size * _REFERENCE.size
        numbers = [
            bytes(rest[at : at + _REFERENCE.size]) for at in range(0, whole, _REFERENCE.size)
        ]
        del rest[:whole]
        return [each for number in numbers for each in self._objects.pop(number)]


# --- The client's end -----------------------------------------------------------------------------


class _ClientEnd(asyncio.Protocol):
    """The `ServiceChannel` of a StoreClient."""

    def __init__(self, mail: Mail, receiver: Receiver) -> None:
        self._mail, self._receiver = mail, receiver
        self._rest = bytearray()
        self._transport: asyncio.Transport  # From connection_made() on.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, Endpoint)
        transport.is_whole = True
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if messages := self._mail.collect(self._rest, data):
            self._receiver.on_messages(messages)

    def connection_lost(self, exc: Exception | None) -> None:
        self._receiver.on_lost("the connection broke" if exc else "the store hung up")

    def send(self, messages: Sequence[FromClient]) -> None:
        self._transport.write(self._mail.post(messages))

    def close(self) -> None:
        self._transport.abort()


class _Connector:
    """Finds the service on the network."""

    def __init__(self, mail: Mail, transport: Transport) -> None:
        self._mail, self._transport = mail, transport

    async def connect(self, receiver: Receiver, timeout_s: float) -> _ClientEnd:
        _, end = await self._transport.connect(
            lambda: _ClientEnd(self._mail, receiver), Address(HOST, PORT), timeout_s
        )
        assert isinstance(end, _ClientEnd)
        return end

    def why_silent(self) -> str:
        return "it does not answer"

    async def close(self) -> None:
        pass


class _Client(StoreClient):
    """Its `sync` asks for nothing while nothing lags: it would be every third question of a run."""

    def __init__(self, metadata: "SimulatedMetadata", *rest: Any, **options: Any) -> None:
        super().__init__(*rest, **options)
        self._metadata = metadata

    async def sync(self) -> None:
        if self._metadata.lag_s is not None:
            await super().sync()


# --- The service's end ----------------------------------------------------------------------------


class _Follower:
    """A copy of the tree as it was a while ago."""

    def __init__(self, metadata: "SimulatedMetadata") -> None:
        self._commits = metadata.commits
        self._applied = len(metadata.commits)
        self.commit = metadata.last_commit
        self.tree = Tree()
        self.tree.load(metadata.tree.rows())

    def catch_up(self, commit: int) -> None:
        """To there, or beyond it: what was committed together is seen together."""
        while self.commit < commit and self._applied < len(self._commits):
            self._apply()

    def age(self, until_s: float) -> None:
        """To what was committed by then."""
        while self._applied < len(self._commits) and self._commits[self._applied].at_s <= until_s:
            self._apply()

    def _apply(self) -> None:
        commit = self._commits[self._applied]
        self._applied += 1
        self.commit = commit.last_txn
        self.tree.load(commit.rows.items())


class _ServiceEnd(asyncio.Protocol):
    """One connection, as the service has it, and the follower that it leads to."""

    def __init__(self, metadata: "SimulatedMetadata", host: Host) -> None:
        self._metadata, self._host = metadata, host
        self._rest = bytearray()
        self._transport: asyncio.Transport  # From connection_made() on.
        self._connection = 0
        self._reads: dict[int, Get | Children] = {}  # Asked, not answered.
        self._follower: _Follower | None = None
        self._held: deque[tuple[float, WatchNotice]] = (
            deque()
        )  # Events, in order, and when each is due.
        self.node = ""
        self._opener = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, Endpoint)
        transport.is_whole = True
        self._transport = transport
        self.node = transport.get_extra_info("peername")[0]
        self._opener = transport.peer.process
        self._connection = self._host.connect(self._say)

    def connection_lost(self, exc: Exception | None) -> None:
        self._host.disconnect(self._connection)

    # --- Hearing ------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        for message in self._metadata.mail.collect(self._rest, data):
            if not self._transport.is_closing():
                self._hear(message)

    def _hear(self, message: FromClient) -> None:
        loss = None
        if isinstance(message, Ask):
            if isinstance(message.question, Get | Children):
                self._reads[message.request_id] = message.question
            if not isinstance(message.question, Sync):  # A heartbeat, perhaps.
                loss = self._metadata.losses.pop(self.node, None)
        if loss is not None:
            self._transport.abort()  # Nothing that is said from here on gets out.
        if loss != "request":
            if self._metadata.on_asked is not None and isinstance(message, Ask):
                self._metadata.on_asked(self._opener, message.question)
            self._host.hear(self._connection, [message])

    # --- Saying -------------------------------------------------------------------------------

    def _say(self, messages: Sequence[FromService | HangUp]) -> None:
        """What the leader says. Events may come late; answers to reads are the follower's own."""
        for message in messages:
            match message:
                case HangUp():
                    self._transport.close()
                    return
                case WatchNotice() if self._metadata.lag_s is not None:
                    self._hold(message, self._metadata.lag_s)
                    continue
                case Answer(request_id) if (read := self._reads.pop(request_id, None)) is not None:
                    message = self._read(message, read)
                case Answer() | WatchNotice():
                    self._bring_to(message.commit)
                case Welcome(_, session):
                    self._metadata.sessions[session] = self.node
                    self._metadata.openers.setdefault(session, self._opener)
                    if self._metadata.lag_s is not None:
                        self._follower = _Follower(self._metadata)
            self._write(message)

    def _read(self, answer: Answer, question: Get | Children) -> Answer:
        metadata = self._metadata
        if isinstance(answer.result, SessionExpired):
            return answer
        if metadata.lag_s is None:
            self._bring_to(answer.commit)
            if isinstance(question, Children) and isinstance(answer.result, list):
                return replace(answer, result=metadata.forget_some(answer.result))
            return answer
        if self._follower is None:
            self._follower = _Follower(metadata)
        self._follower.age(metadata.now() - metadata.chance.uniform(*metadata.lag_s))
        self._bring_to(self._follower.commit)
        tree = self._follower.tree
        result: Result | RollbookError
        try:
            if isinstance(question, Get):
                result = tree.get(question.path)
            else:
                result = metadata.forget_some(tree.children(question.path))
        except NoSuchNode as error:
            result = error
        return Answer(answer.request_id, self._follower.commit, result)

    def _hold(self, told: WatchNotice, lag_s: Span) -> None:
        if self._follower is None:  # It knows what was before this, and perhaps a little more.
            self._follower = _Follower(self._metadata)
        due = self._metadata.now() + self._metadata.chance.uniform(*lag_s)
        self._held.append((due, told))
        asyncio.get_running_loop().call_at(due, self._release)

    def _release(self) -> None:
        while self._held and self._held[0][0] <= self._metadata.now():
            self._bring_to(self._held[0][1].commit)

    def _bring_to(self, commit: int) -> None:
        """The follower has caught up, and the client hears first what happened on the way."""
        if self._follower is not None:
            self._follower.catch_up(commit)
            commit = self._follower.commit
        while self._held and self._held[0][1].commit <= commit:
            self._write(self._held.popleft()[1])

    def _write(self, message: FromService) -> None:
        self._transport.write(self._metadata.mail.post([message]))


@dataclass(frozen=True, slots=True)
class Commit:
    last_txn: int
    at_s: float
    rows: dict[str, NodeRow | None]
    ended: tuple[SessionId, ...] = ()


class SimulatedMetadata:
    def __init__(self, world: "World") -> None:
        self._world = world
        self._node = world.node(HOST)
        self.chance: random.Random = world.random("metadata")
        self.mail = Mail()
        self.sessions: dict[SessionId, str] = {}  # By which machine each was opened,
        self.openers: dict[SessionId, str] = {}  # and by which process there.
        self.losses: dict[str, str] = {}  # What the next request of a node loses.
        self.commits: list[Commit] = []
        self.on_commit: Callable[[Commit], None] | None = None  # Called for each as it happens.
        # Called with each request before it is judged, and with the process that sent it.
        self.on_asked: Callable[[str, Question], None] | None = None
        self.lag_s: Span | None = None
        self.partial_listing_odds = 0.0
        self._host: Host | None = None
        self._store = f"{self.chance.getrandbits(64):016x}"
        self._timeouts_ms: dict[SessionId, int] = {}
        self._clients = 0
        self.up()

    # --- For scenarios ------------------------------------------------------------------------

    @property
    def tree(self) -> Tree:
        assert self._host is not None, "the store has never run"
        return self._host.service.tree

    def up(self) -> None:
        if not self._node.is_running:
            self._node.start(self._serve)

    def down(self) -> None:
        """All of it; it forgets nothing, and gives the sessions their whole time when it is back."""
        self._node.kill()

    def expire(self, node: "Node") -> None:
        """Ends the node's sessions, as if it had been silent for too long."""
        if not self._node.is_running or self._host is None:
            return
        for session, name in self.sessions.items():
            if name == node.name and session in self._host.service.sessions:
                self._world.loop.call_soon(self._host.expire, session, context=self._node.context)

    def lose(self, node: "Node", *, replies: bool = True) -> None:
        """The node's next request breaks its connection: served, its answer lost; or itself lost."""
        self.losses[node.name] = "reply" if replies else "request"

    def heal(self) -> None:
        """Up, current and whole; what was to be lost next is not."""
        self.lag_s, self.partial_listing_odds = None, 0.0
        self.losses.clear()
        self.up()

    # --- Inside -------------------------------------------------------------------------------

    async def connect(
        self,
        node: "Node",
        session_timeout_s: float = SESSION_TIMEOUT_S,
        operation_timeout_s: float = OPERATION_TIMEOUT_S,
    ) -> StoreClient:
        self._clients += 1
        client = _Client(
            self,
            _Connector(self.mail, node.transport),
            self._world.random(f"metadata:{node.name}:{self._clients}"),
            session_timeout_s=session_timeout_s,
            operation_timeout_s=operation_timeout_s,
        )
        return await client.open()

    async def _serve(self, node: "Node") -> None:
        rows = [] if self._host is None else list(self._host.service.tree.rows())
        kept = Kept(self._store, self.last_commit, rows, list(self._timeouts_ms.items()))
        host = self._host = Host(kept, node.clock)
        self._listen_in(host.service)
        host.start()
        await node.transport.listen(lambda: _ServiceEnd(self, host), Address("", PORT))
        await asyncio.get_running_loop().create_future()

    def _listen_in(self, service: MetadataService) -> None:
        """Followers and the next life of the service get what it commits."""
        take_batch = service.take_batch

        def take_and_note() -> CommitGroup | None:
            batch = take_batch()
            if batch is not None:
                self._note(batch)
            return batch

        service.take_batch = take_and_note  # type: ignore[method-assign]  # It has no such hook.

    def _note(self, batch: CommitGroup) -> None:
        ended = tuple(id_ for id_, timeout_ms in batch.timeouts_ms.items() if timeout_ms is None)
        self.commits.append(Commit(batch.last_txn, self.now(), batch.rows, ended))
        if self.on_commit is not None:
            self.on_commit(self.commits[-1])
        for session, timeout_ms in batch.timeouts_ms.items():
            if timeout_ms is None:
                self._timeouts_ms.pop(session, None)
            else:
                self._timeouts_ms[session] = timeout_ms

    @property
    def last_commit(self) -> int:
        return self.commits[-1].last_txn if self.commits else 0

    def now(self) -> float:
        return self._world.now

    def forget_some(self, names: list[Any]) -> list[Any]:
        if not self.partial_listing_odds or self.chance.random() >= self.partial_listing_odds:
            return names
        return [name for name in names if self.chance.random() < 0.5]
