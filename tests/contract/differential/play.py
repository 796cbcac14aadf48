"""Plays a plan on one store and records what must be the same on every store.

Permitted differences are put into common terms: paths lose the folder of the run,
sessions are named after their clients, and the numbers of transactions give way to their order.
"""

import asyncio
import contextlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from rollbook.proto.errors import ConnectionLost, RollbookError
from rollbook.proto.ports import (
    NO_SESSION,
    Check,
    Create,
    Delete,
    MetadataStore,
    Node,
    NodeStat,
    Op,
    SessionEvent,
    SessionState,
    Set,
    WatchEvent,
)
from rollbook.proto.ports import Watch as WatchPort
from tests.contract.differential.plan import (
    CLIENTS,
    Apply,
    Call,
    Children,
    Drain,
    Fault,
    Get,
    Plan,
    Reopen,
    Step,
    Sync,
    Transact,
    Watch,
)
from tests.contract.differential.stages import Stage, StoreClient

WATCHES_MAX: Final = 3  # Watches per client.
_WAIT_S: Final = 60.0  # For any single wait; a store that needs longer hangs.
_PLAY_S: Final = 240.0
_VALUE_SHOWN_MAX: Final = 16

Outcome = tuple[Any, ...]


@dataclass
class Transcript:
    outcomes: list[Outcome] = field(default_factory=list)  # One for each step.
    tree: list[Outcome] = field(default_factory=list)  # After all steps.
    tree_afterwards: list[Outcome] = field(default_factory=list)  # After all sessions are closed.


@dataclass(frozen=True, slots=True, order=True)
class _Txn:
    number: int


async def play(plan: Plan, stage: Stage, root: str) -> Transcript:
    """`root` is an unused path of the store, for this play only."""
    transcript = Transcript()
    terms = _Terms(root)
    async with asyncio.timeout(_PLAY_S), contextlib.AsyncExitStack() as end:
        observer = await stage.seat()
        end.push_async_callback(observer.close)
        await observer.store.create(root)
        async with contextlib.AsyncExitStack() as end_of_sessions:
            clients = []
            for index in range(CLIENTS):
                seat = await stage.seat()
                end_of_sessions.push_async_callback(seat.close)
                clients.append(_Client(index, seat, terms))
                await clients[-1].meet()
            for step in plan:
                transcript.outcomes.append(await clients[step.client].take(step))
            for client in clients:
                transcript.outcomes.append(await client.drain())
            transcript.tree = [terms.of_node(*found) for found in await _walk(observer, root)]
        left = await _walk(observer, root)
        transcript.tree_afterwards = [terms.of_node(*found) for found in left]
        await observer.store.transaction([Delete(path) for path, _ in reversed(left)])
    return _with_order_of_txns(transcript)


async def _walk(seat: StoreClient, root: str) -> list[tuple[str, Node]]:
    """Every node from `root` down, parents first."""
    found = []
    paths = [root]
    while paths:
        path = paths.pop(0)
        node = await seat.store.get(path)
        assert node is not None, f"{path} is listed and not there"
        found.append((path, node))
        names = await seat.store.children(path)
        assert len(names) == node.stat.children, path
        paths += [f"{path}/{name}" for name in names]
    return found


def _with_order_of_txns(transcript: Transcript) -> Transcript:
    """Replaces the transaction numbers by their order."""
    everything = (transcript.outcomes, transcript.tree, transcript.tree_afterwards)
    numbers = sorted({txn.number for part in everything for txn in _txns(part)})
    order = {number: f"txn {place}" for place, number in enumerate(numbers)}

    def put(value: Any) -> Any:
        if isinstance(value, _Txn):
            return order[value.number]
        return tuple(map(put, value)) if isinstance(value, tuple) else value

    return Transcript(
        [put(outcome) for outcome in transcript.outcomes],
        [put(node) for node in transcript.tree],
        [put(node) for node in transcript.tree_afterwards],
    )


def _txns(value: Any) -> Iterator[_Txn]:
    if isinstance(value, _Txn):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _txns(part)


class _Client:
    def __init__(self, index: int, seat: StoreClient, terms: "_Terms") -> None:
        self.index = index
        self.seat = seat
        self._terms = terms
        self._watches: list[WatchPort] = []
        self._sessions_ended = 0  # The count when its watches were last drained.
        self._events = seat.store.session_events()

    async def meet(self) -> None:
        """Names the client's new session."""
        self._events = self.seat.store.session_events()
        await self._reach(SessionState.CONNECTED)
        self._terms.name_session(self.seat.store.session, self.index)

    async def take(self, step: Step) -> Outcome:
        call, fault = step.call, step.fault
        match call:
            case Watch():
                return await self._start_watch(call)
            case Drain():
                return await self.drain()
            case Reopen():
                await self._end_watches()
                self._terms.sessions_ended += 1
                await self.seat.reopen()
                await self.meet()
                return ("reopened",)
        if fault is None:
            return await self._outcome(call)
        await self._end_watches()
        if fault in (Fault.LOSE_REQUEST, Fault.LOSE_REPLY):
            return await self._with_loss(call, fault)
        return await self._while_isolated(call, fault)

    async def _with_loss(self, call: Call, fault: Fault) -> Outcome:
        if fault is Fault.LOSE_REQUEST:
            self.seat.lose_request()
        else:
            self.seat.lose_reply()
        outcome = await self._outcome(call)
        if outcome[1] != ConnectionLost.__name__:  # The call was refused before it was sent.
            self.seat.forgive()
            return outcome
        return (*outcome, *await self._reach(SessionState.CONNECTED))

    async def _while_isolated(self, call: Call, fault: Fault) -> Outcome:
        self.seat.isolate()
        states = await self._reach(SessionState.SUSPENDED)
        waiting = asyncio.create_task(self._outcome(call))
        await asyncio.sleep(0)  # The call is made now and waits for the connection.
        if fault is Fault.EXPIRE:
            self._terms.sessions_ended += 1
            await self.seat.expire()
        self.seat.rejoin()
        states += await self._reach(SessionState.CONNECTED)
        outcome = (*await waiting, *states)
        self._terms.name_session(self.seat.store.session, self.index)
        return outcome

    async def _reach(self, wanted: SessionState) -> list[str]:
        """The states up to the wanted one, inclusive."""
        states: list[str] = []
        async with asyncio.timeout(_WAIT_S):
            while True:
                event: SessionEvent = await anext(self._events)
                states.append(event.state.value)
                if event.state is wanted:
                    return states

    async def _outcome(self, call: Call) -> Outcome:
        try:
            async with asyncio.timeout(_WAIT_S):
                result = await _ask(self.seat.store, call, self._terms)
        except RollbookError as error:
            index = error.ids.get("op") if isinstance(call, Transact) else None
            return ("refused", type(error).__name__, index)
        return ("did", self._terms.of(result))

    # --- Watches ---

    async def _start_watch(self, call: Watch) -> Outcome:
        if len(self._watches) == WATCHES_MAX:
            return ("watches enough",)
        try:
            await self.seat.store.sync()  # So that the watch reports no earlier change.
            path = self._terms.full(call.path)
            watch = await self.seat.store.watch(path, recursive=call.recursive)
        except RollbookError as error:
            return ("refused", type(error).__name__)
        self._watches.append(watch)
        return ("watches",)

    async def drain(self) -> Outcome:
        await self.seat.store.sync()  # After the sync every earlier event has arrived.
        # The ephemeral nodes of a session are deleted in no particular order.
        in_order = self._terms.sessions_ended == self._sessions_ended
        self._sessions_ended = self._terms.sessions_ended
        told = []
        for watch in self._watches:
            events = self._terms.of(await _waiting_events(watch))
            told.append(events if in_order else tuple(sorted(events)))
        return ("told", *told)

    async def _end_watches(self) -> None:
        for watch in self._watches:
            await watch.close()
        if self._watches:
            await self.seat.store.sync()  # So that no request of the watches is pending.
        self._watches.clear()


async def _ask(store: MetadataStore, call: Call, terms: "_Terms") -> Any:
    match call:
        case Get(path):
            return await store.get(terms.full(path))
        case Children(path):
            return await store.children(terms.full(path))
        case Apply(Create(path, value, mode)):
            return await store.create(terms.full(path), value, mode)
        case Apply(Set(path, value, version)):
            return await store.set(terms.full(path), value, version)
        case Apply(Delete(path, version)):
            return await store.delete(terms.full(path), version)
        case Transact(ops):
            return await store.transaction([terms.full_op(op) for op in ops])
        case Sync():
            return await store.sync()
    raise AssertionError(call)


async def _waiting_events(watch: WatchPort) -> list[WatchEvent]:
    events: list[WatchEvent] = []
    while True:
        reading = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        if not reading.done():
            reading.cancel()
            await asyncio.wait((reading,))
            return events
        events.append(reading.result())


class _Terms:
    """Translates one store's terms into common terms."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._sessions: dict[int, str] = {NO_SESSION: "nobody"}
        self.sessions_ended = 0

    def name_session(self, session: int, client: int) -> None:
        if session not in self._sessions:
            self._sessions[session] = f"session {len(self._sessions)} of client {client}"

    def full(self, path: str) -> str:
        if path == "/":
            return self._root
        return self._root + path if path.startswith("/") else path

    def full_op(self, op: Op) -> Op:
        match op:
            case Create(path, value, mode):
                return Create(self.full(path), value, mode)
            case Set(path, value, version):
                return Set(self.full(path), value, version)
            case Delete(path, version):
                return Delete(self.full(path), version)
            case Check(path, version):
                return Check(self.full(path), version)

    def of(self, result: Any) -> Any:
        match result:
            case Node(value, stat):
                return ("node", _shown(value), *self.of(stat))
            case NodeStat():
                assert result.created_ms <= result.modified_ms, result
                return (
                    f"version {result.version}",
                    f"{result.children} children",
                    self._sessions.get(result.owner, "a stranger"),
                    _Txn(result.created_txn),
                    _Txn(result.modified_txn),
                )
            case WatchEvent(kind, path):
                return f"{kind.value} {self.of(path)}"
            case str():
                return result.removeprefix(self._root) or "/"
            case list():
                return tuple(self.of(one) for one in result)
            case None:
                return None
        raise AssertionError(f"{result!r} is no answer of a store")

    def of_node(self, path: str, node: Node) -> Outcome:
        return (self.of(path), *self.of(node))


def _shown(value: bytes) -> str:
    if len(value) <= _VALUE_SHOWN_MAX:
        return repr(value)
    return f"{len(value)} bytes with checksum {zlib.crc32(value):08x}"
