"""Those who use named logs, each a process of its own: producers, writers, readers, an administrator.

They do what the case tells them, go where servers send them, and tell the checker what came of it.

- A producer numbers its batches and sends each until it is acked, several in flight, perhaps twice at
  once: so each is there once (LS6), in its order. A new life of its process has a new epoch, and so has one
  that its log has forgotten, by the client's own rules (`api/client/producer_numbering.py`).
- A writer sends each batch until somebody may have taken it. It says where it expects the tail, or
  bears the writer epoch that it was granted.
- A reader follows a log from server to server, and reads it from the start.
- A visitor asks any server for the last records of a log, until that says that these are all (RL6).
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rollbook.api.client.core.retries_and_outcomes import begins_epoch, is_forgotten, may_repeat
from rollbook.logservice import messages
from rollbook.logservice.core.record_block import Block, pack_block
from rollbook.logservice.ids import CursorName, Offset, ProducerRef, WriterEpoch
from rollbook.logservice.log_config import WriterMode
from rollbook.logservice.messages import AppendAck, Condition, WaitsFor
from rollbook.logservice.position_syntax import AtOffset, Earliest, Position
from rollbook.proto.errors import (
    BeyondTail,
    ConnectionLost,
    EarlierFailed,
    InvalidRequest,
    LogDeleted,
    LogReplaced,
    LogSealed,
    NoSuchLog,
    NoSuchServer,
    NotOwner,
    OffsetMismatch,
    Outcome,
    OutcomeUnknown,
    ProducerGap,
    RollbookError,
    StaleEpoch,
    Unavailable,
    WriterHeld,
    WriterRequired,
)
from tests.simulation.checkers.logs import Records
from tests.simulation.checkers.logs.lists import AGAIN
from tests.simulation.checkers.logs.records import (
    CONDITION,
    ONCE,
    ONE_SEQUENCE,
    TRUNCATION,
    WRITER_EPOCH,
)
from tests.simulation.history import NEVER, History
from tests.simulation.kernel.metadata import Mail
from tests.simulation.kernel.world import Main, Node, World
from tests.simulation.schedule import Case, Step
from tests.simulation.worlds.logs import plan, words
from tests.simulation.worlds.logs.door import DoorConnection, Submit, connect

ATTEMPT_S: Final = 0.7
PATIENCE_S: Final = 1.5  # Of a user that can do without a result.
_PAUSE_S: Final = 0.03
_SILENCE_S: Final = 2.0
_IN_FLIGHT: Final = 8
_FREED_S: Final = 2.0  # For the ledgers of a deleted log to go.
_UNDELETED_S: Final = 0.3  # For as long somebody tries to bring a log back.
_UNDELETE_PAUSE_S: Final = 0.002
_SECOND_RECORDS: Final = 4
_RANGE: Final = 12  # Records that a visitor reads, and what was acked since.
LIVES: Final = (
    "lives"  # What was meant for a deleted log is not taken for the one that has its name.
)
_PRESENT_S: Final = 0.001  # A step that was due so long ago was meant for an earlier life.


@dataclass
class Sums:
    """What all of them share."""

    world: World
    history: History
    records: Records
    case: Case
    mail: Mail
    servers: tuple[str, ...]
    tell: Callable[[str], None]
    on_broken: Callable[[str, str], None]
    is_deleted: Callable[[str], bool]  # As the list has it.
    may_lag: Callable[[str, str], bool]  # Whether that server may not know of the newest head yet.
    owed: Callable[[str], int]  # Below it is all that a log has for those who ask now.
    epochs: dict[str, int] = field(default_factory=dict)  # Of producers: one for each life.
    numbers: dict[str, int] = field(default_factory=dict)  # Of batches, by client.
    positions: dict[str, int] = field(default_factory=dict)  # Of readers that follow.
    sessions: dict[str, int] = field(default_factory=dict)
    uids: dict[str, str] = field(default_factory=dict)  # Of the logs that all of them mean,
    second_uids: dict[str, str] = field(default_factory=dict)  # and of those that replaced them.
    second_values: dict[str, list[str]] = field(default_factory=dict)  # Acked in those, in order.
    waiting: dict[str, int] = field(default_factory=dict)  # Batches of producers, not answered yet.
    is_over: asyncio.Event = field(default_factory=asyncio.Event)  # Nothing new is begun.


def _known(address: str) -> str:
    """The server's name, if it is where it has to be."""
    return address.removesuffix(f":{words.PORT}")


class Caller:
    """A client's way to the servers."""

    def __init__(self, sums: Sums, node: Node) -> None:
        self._sums, self._node = sums, node
        self._chance = random.Random(node.randomness.getrandbits(64))
        self._lines: dict[str, DoorConnection] = {}
        self._owners: dict[str, str] = {}  # By log, as far as known.

    def server_for(self, log: str) -> str:
        owner = self._owners.get(log)
        return owner if owner is not None else self._chance.choice(self._sums.servers)

    def any_server(self) -> str:
        return self._chance.choice(self._sums.servers)

    def learn(self, log: str, error: RollbookError) -> None:
        owner = str(error.ids.get("owner", "")) if isinstance(error, NotOwner) else ""
        self._owners.pop(log, None)
        if owner and self._chance.random() < 0.95:  # Who never looks elsewhere may look in vain.
            self._owners[log] = _known(owner)

    def found(self, log: str, server: str) -> None:
        self._owners[log] = server

    async def line(self, server: str) -> DoorConnection:
        line = self._lines.get(server)
        if line is None or line.is_lost:
            line = self._lines[server] = await self.new_line(server)
        return line

    async def new_line(self, server: str) -> DoorConnection:
        return await connect(self._sums.mail, self._node.transport, server)

    async def settle(
        self,
        log: str,
        method: str,
        request: Any,
        *,
        may_repeat: bool,
        within_s: float = PATIENCE_S,
    ) -> Any:
        """From server to server until one answers. `may_repeat`: also if one may have done it.

        Raises what the last one said; an unknown outcome stays one.
        """
        if not getattr(request, "uid", "x"):
            request = replace(request, uid=self._sums.uids[log])
        due = self._sums.world.now + within_s
        unknown: RollbookError | None = None
        while True:
            server = self.server_for(log)
            try:
                line = await self.line(server)
                answer = await line.ask(method, request, ATTEMPT_S)
            except RollbookError as error:
                self.learn(log, error)
                is_unknown = error.outcome is Outcome.UNKNOWN
                if is_unknown and not may_repeat:
                    raise
                if not is_unknown and not isinstance(error, Unavailable):
                    raise
                unknown = error if is_unknown else unknown
                if self._sums.world.now > due:
                    raise (unknown or error) from None
                await asyncio.sleep(_PAUSE_S * (1 + self._chance.random()))
            else:
                self.found(log, server)
                return answer

    async def close(self) -> None:
        for line in self._lines.values():
            line.close()


@dataclass(eq=False)
class _SubmittedBatch:
    log: str
    seq: int
    values: list[str]
    block: bytes
    is_sent: bool = False
    may_be_applied: bool = False  # An attempt may have been appended.
    first_sent_s: float = 0.0


class Users:
    def __init__(self, sums: Sums) -> None:
        self._sums = sums
        self._world, self._records, self._history = sums.world, sums.records, sums.history

    def mains(self) -> dict[str, Main]:
        return {
            **dict.fromkeys(words.PRODUCERS, self.produce),
            **dict.fromkeys(words.WRITERS, self.write),
            **dict.fromkeys(words.READERS, self.read),
            **dict.fromkeys(words.VISITORS, self.visit),
            words.ADMIN: self.administer,
        }

    async def _each_step(self, node: Node, act: Callable[[Step], Any]) -> None:
        """Its own, each when it is due, whatever became of those before; then it stays."""
        began = self._world.now
        for step in self._sums.case.steps:
            at_s = step.at_us / 1e6
            if step.actor != node.name or at_s < began - _PRESENT_S:
                continue
            await asyncio.sleep(max(0.0, at_s - self._world.now))
            if self._sums.is_over.is_set():
                break
            self._sums.tell(f"{node.name}: {step.what}")
            await act(step)
        await asyncio.Event().wait()

    def _values(self, client: str, log: str, count: int) -> list[str]:
        number = self._sums.numbers[client] = self._sums.numbers.get(client, 0) + 1
        return [f"{log}:{client}:{number}/{index}" for index in range(count)]

    # --- Producers ----------------------------------------------------------------------------

    async def produce(self, node: Node) -> None:
        sums = self._sums
        for log in words.LOGS:
            sums.waiting.pop(f"{node.name} {log}", None)
            self._give_up(node.name, log)
        caller = Caller(sums, node)
        sinks: dict[str, _Sink] = {}

        async def act(step: Step) -> None:
            verb, log, *rest = step.what.split()
            if log not in sinks:
                sinks[log] = _Sink(self, sums, caller, node, log)
            if verb == words.APPEND:
                for _ in range(int(rest[0])):
                    sinks[log].add(
                        self._values(node.name, log, 1 + sums.numbers.get(node.name, 0) % 2)
                    )
            else:
                sinks[log].send_again()

        await self._each_step(node, act)

    def _give_up(self, client: str, log: str) -> None:
        """What an earlier life of it left without an answer."""
        for append in self._records.log(log).appends.values():
            if append.client == client and append.returned == NEVER:
                self._history.on_unknown(append, "its process was killed")

    # --- Writers ------------------------------------------------------------------------------

    async def write(self, node: Node) -> None:
        for log in words.LOGS:
            self._give_up(node.name, log)
        caller = Caller(self._sums, node)
        epochs: dict[str, WriterEpoch] = {}
        tails: dict[str, Offset] = {}

        async def act(step: Step) -> None:
            verb, log, *rest = step.what.split()
            name = words.LOGS[log]
            try:
                if verb in (words.APPEND, words.EXPECT):
                    for _ in range(int(rest[0])):
                        expected = tails.get(log, Offset(0)) if verb == words.EXPECT else None
                        condition = Condition(expected, False, epochs.get(log))
                        tail = await self._append(node, caller, log, condition)
                        if tail is not None:
                            tails[log] = tail
                elif verb == words.BARRIER:
                    tails[log] = await self.barrier(node.name, caller, log)
                elif verb == words.ACQUIRE:
                    await self._acquire(node.name, caller, log, epochs)
                elif log in epochs:
                    release = messages.ReleaseWriter(name, epochs.pop(log))
                    await caller.settle(log, "release_writer", release, may_repeat=True)
            except RollbookError as error:
                self._sums.tell(f"{node.name}: {error!r}")

        await self._each_step(node, act)

    async def barrier(
        self, client: str, caller: Caller, log: str, within_s: float = PATIENCE_S
    ) -> Offset:
        asked = self._records.asks_tail(client)
        consistency = messages.Consistency.BARRIER
        if round(self._world.now * 1e6) % 2:
            consistency = messages.Consistency.READ_BARRIER
        request = messages.GetTail(words.LOGS[log], consistency)
        told: messages.LogTail = await caller.settle(
            log, "get_tail", request, may_repeat=True, within_s=within_s
        )
        self._records.on_tail(log, asked, told.tail)
        return told.tail

    async def _append(
        self, node: Node, caller: Caller, log: str, condition: Condition
    ) -> Offset | None:
        """Returns the tail after it, or the tail in the refusal."""
        records, name = self._records, words.LOGS[log]
        values = self._values(node.name, log, 1)
        records.on_append(log, node.name, values, condition.writer_epoch)
        asked = records.asks_tail(node.name)
        block = bytes(pack_block([value.encode() for value in values]))
        request = messages.Append(name, block, condition)
        try:
            ack: AppendAck = await caller.settle(log, "append", request, may_repeat=False)
        except RollbookError as error:
            self._sums.tell(f"{node.name}: {values[0]}: {error!r}")
            if error.outcome is Outcome.UNKNOWN:
                records.on_unknown(log, values, type(error).__name__)
                return None
            records.on_refused(log, values, error)
            records.on_error(log, asked, error)
            self._judge_refusal(log, condition, error)
            tail = error.ids.get("tail")
            return Offset(tail) if isinstance(tail, int) else None
        self._sums.tell(f"{node.name}: {values[0]} is acked at {ack.first_offset}")
        records.on_acked(log, values, ack, condition)
        return ack.next_offset

    async def append_surely(
        self, client: str, caller: Caller, log: str, index: int, within_s: float
    ) -> messages.AppendAck:
        """At the log's owner; in an exclusive log by a new writer, which has fenced all others."""
        name, records = words.LOGS[log], self._records
        epoch: WriterEpoch | None = None
        if plan.logs_of(self._sums.case)[log].writer_mode is WriterMode.EXCLUSIVE:
            epochs: dict[str, WriterEpoch] = {}
            await self._acquire(client, caller, log, epochs)
            epoch = epochs[log]
        values = self._values(client, log, 1)
        records.on_append(log, client, values, epoch)
        producer = ProducerRef(f"{client}-{index}".encode(), 0, 0)
        block = bytes(pack_block([value.encode() for value in values], producer=producer))
        condition = None if epoch is None else Condition(None, False, epoch)
        request = messages.Append(name, block, condition)
        try:
            ack: messages.AppendAck = await caller.settle(
                *(log, "append", request), may_repeat=True, within_s=within_s
            )
        except StaleEpoch as error:  # Some writer has not finished its step yet.
            records.on_refused(log, values, error)
            return await self.append_surely(client, caller, log, index + 1000, within_s)
        except LogSealed as error:
            records.on_refused(log, values, error)
            raise
        records.on_acked(log, values, ack)
        return ack

    async def resume(self, caller: Caller, server: str) -> None:
        """The servers that were drained, as soon as they know it themselves."""
        request = messages.DrainServer(server, resume=True)
        while True:
            try:
                line = await caller.line(server)
                await line.ask("drain_server", request, 2.0)
            except (Unavailable, OutcomeUnknown, NoSuchServer):  # It may be starting again.
                await asyncio.sleep(_PAUSE_S)
            else:
                return

    def _judge_refusal(self, log: str, condition: Condition, error: RollbookError) -> None:
        if isinstance(error, OffsetMismatch) and error.ids["tail"] == condition.expected_offset:
            self._sums.on_broken(CONDITION, f"{log}: refused, and {condition} holds: {error}")
        if isinstance(error, InvalidRequest) and not isinstance(error, WriterRequired):
            self._sums.on_broken(CONDITION, f"{log}: {condition}: {error}")

    async def _acquire(
        self, client: str, caller: Caller, log: str, epochs: dict[str, WriterEpoch]
    ) -> None:
        """Half of them first without stealing. Each has a name of its own, so that no holder blocks itself."""
        asked = self._records.asks_tail(client)
        mine = f"{client} {self._world.now}"
        is_polite = bool(round(self._world.now * 1e6) % 2)
        mode = messages.AcquireMode.FAIL if is_polite else messages.AcquireMode.STEAL
        request = messages.AcquireWriter(words.LOGS[log], mine, mode, attempt=mine)
        grant: messages.WriterGrant
        try:
            grant = await caller.settle(log, "acquire_writer", request, may_repeat=True)
        except WriterHeld as error:
            if error.ids["holder"] == mine:
                self._sums.on_broken(WRITER_EPOCH, f"{log}: {mine} is refused for his own sake")
            request = replace(request, mode=messages.AcquireMode.STEAL)
            grant = await caller.settle(log, "acquire_writer", request, may_repeat=True)
        self._sums.tell(f"{client}: {grant}")
        self._records.on_granted(log, asked, grant)
        epochs[log] = grant.writer_epoch

    # --- Readers ------------------------------------------------------------------------------

    async def read(self, node: Node) -> None:
        caller = Caller(self._sums, node)

        async def act(step: Step) -> None:
            verb, log, *_ = step.what.split()
            if verb == words.FOLLOW:
                await self.follow(node.name, caller, log)
            else:
                try:
                    await self.read_all(node.name, caller, log, PATIENCE_S)
                except RollbookError as error:
                    self._sums.tell(f"{node.name}: {error!r}")

        await self._each_step(node, act)

    async def follow(self, client: str, caller: Caller, log: str) -> None:
        """From where it stands, for ever: from server to server."""
        sums, key = self._sums, f"{client} {log}"
        session, position = self._session(key), sums.positions.get(key, 0)
        while True:
            server = caller.server_for(log)
            head, owed = self._head_at(server, log), sums.owed(log)
            request = messages.ReadStream(
                words.LOGS[log],
                AtOffset(Offset(position)),
                on_truncated=messages.OnTruncated.SKIP,
                heartbeat_ms=400,
                uid=self._sums.uids[log],
            )
            try:
                line = await caller.new_line(server)
                async for event in line.listen(request, _SILENCE_S):
                    match event:
                        case messages.Records():
                            position = self._records.on_records(log, session, position, event, head)
                            sums.positions[key] = position
                            sums.tell(f"{session} has read up to {position}")
                        case messages.Gap(_, start, end):
                            self._on_gap(log, session, position, start, end)
                            session, position = self._session(key), end
                            sums.positions[key] = position
                        case messages.CaughtUp(offset):
                            self._records.on_complete(log, session, offset, owed)
                        case messages.Progress(waits_for=WaitsFor.NOTHING, lag_records=0):
                            self._records.on_complete(log, session, event.position, owed)
                        case messages.Sealed(tail):
                            self._records.on_sealed(log, tail)
                            return
                        case messages.Moving():
                            self._on_moving(log, session, position, event)
                            break
                        case messages.Stopped():
                            break
            except (LogDeleted, LogReplaced, NoSuchLog) as error:
                sums.tell(f"{session}: {error!r}")
                sums.positions.pop(key, None)
                return
            except RollbookError as error:
                sums.tell(f"{session}: {error!r}")
                self._judge_reading(log, session, error)
                caller.learn(log, error)
            await asyncio.sleep(_PAUSE_S)

    def _head_at(self, server: str, log: str) -> int:
        """Below it nobody reads there any more."""
        return 0 if self._sums.may_lag(server, log) else self._records.log(log).head

    def _session(self, key: str) -> str:
        number = self._sums.sessions[key] = self._sums.sessions.get(key, 0) + 1
        return f"{key} {number}"

    def _on_moving(self, log: str, session: str, position: int, event: messages.Moving) -> None:
        if event.resume_offset != position:
            text = f"{session} has read up to {position}, and has to go on at {event}"
            self._sums.on_broken(ONE_SEQUENCE, f"{log}: {text}")

    def _on_gap(self, log: str, session: str, position: int, start: int, end: int) -> None:
        if start != position:
            text = f"{session} stands at {position}, and is told of a gap from {start} on"
            self._sums.on_broken(ONE_SEQUENCE, f"{log}: {text}")
        self._records.on_truncated(log, end)

    def _judge_reading(self, log: str, session: str, error: RollbookError) -> None:
        is_lost = error.code.reason in ("DATA_LOST", "BLOCK_CORRUPT", "CORRUPT")
        if is_lost and not self._sums.is_deleted(log):
            self._sums.on_broken(ONE_SEQUENCE, f"{log}: {session} is told: {error}")

    async def read_all(
        self, client: str, caller: Caller, log: str, within_s: float, server: str | None = None
    ) -> Offset:
        """To where the log ends now, by a barrier. Returns that. Raises what kept it from getting there."""
        due, first_asked = self._world.now + within_s, server
        key = f"{client} {log} all"
        start: Position = Earliest()
        position, asked = -1, self._records.asks_tail(client)
        session = self._session(key)
        while True:
            asked_at = server or caller.server_for(log)
            head = self._head_at(asked_at, log)
            request = messages.ReadStream(
                words.LOGS[log],
                start,
                at_tail=messages.AtTail.STOP_AT_BARRIER,
                on_truncated=messages.OnTruncated.SKIP,
                heartbeat_ms=400,
                uid=self._sums.uids[log],
            )
            try:
                line = await caller.new_line(asked_at)
                async for event in line.listen(request, _SILENCE_S):
                    match event:
                        case messages.Records():
                            if position < 0:
                                position = event.base_offset
                            position = self._records.on_records(log, session, position, event, head)
                            start = AtOffset(Offset(position))
                        case messages.Gap(_, begin, end):
                            self._on_gap(
                                log, session, position if position >= 0 else begin, begin, end
                            )
                            session, position = self._session(key), end
                            start = AtOffset(Offset(position))
                        case messages.Sealed(tail):
                            self._records.on_sealed(log, tail)
                            return tail
                        case messages.Stopped(offset):
                            self._records.on_tail(log, asked, offset)
                            return offset
                        case messages.Moving():
                            if position >= 0:
                                self._on_moving(log, session, position, event)
                            break
            except RollbookError as error:
                self._sums.tell(f"{session}: {error!r}")
                self._judge_reading(log, session, error)
                caller.learn(log, error)
                owner = error.ids.get("owner", "") if isinstance(error, NotOwner) else ""
                server = (_known(str(owner)) or None) if first_asked and owner else first_asked
                if isinstance(error, LogDeleted | LogReplaced | NoSuchLog):
                    raise
                if self._world.now > due:
                    raise
            await asyncio.sleep(_PAUSE_S)

    # --- Visitors -----------------------------------------------------------------------------

    async def visit(self, node: Node) -> None:
        caller = Caller(self._sums, node)

        async def act(step: Step) -> None:
            verb, log, *_ = step.what.split()
            server = caller.any_server()
            try:
                if verb == words.RANGE:
                    await self.read_range(node.name, caller, log, PATIENCE_S, server)
                else:
                    await self._read_to_tail(node.name, caller, log, server)
            except RollbookError as error:
                self._sums.tell(f"{node.name}: {error!r}")

        await self._each_step(node, act)

    async def read_range(
        self, client: str, caller: Caller, log: str, within_s: float, server: str
    ) -> None:
        """The last records, until `server` says that these are all. Raises what kept it from that."""
        due = self._world.now + within_s
        start, session = self._sums.owed(log) - _RANGE, self._session(f"{client} {log} range")
        while True:
            owed, head = self._sums.owed(log), self._head_at(server, log)
            request = messages.Read(
                words.LOGS[log],
                AtOffset(Offset(max(start, 0))),
                on_truncated=messages.OnTruncated.SKIP,
                uid=self._sums.uids[log],
            )
            error: RollbookError = ConnectionLost("it never says that these are all")
            try:
                line = await caller.line(server)
                answer: messages.ReadAnswer = await line.ask("read", request, ATTEMPT_S)
            except RollbookError as refusal:
                error = refusal
                self._judge_range_refused(log, session, max(start, 0), owed, refusal)
            else:
                if answer.first_offset > max(start, 0):  # A gap, or the log's start.
                    session = self._session(f"{client} {log} range")
                told = messages.Records(answer.blocks, answer.first_offset, answer.next_offset)
                start = self._records.on_records(log, session, answer.first_offset, told, head)
                if not answer.is_tail_uncertain:
                    self._records.on_complete(log, session, answer.tail, owed)
                    if start >= answer.tail:
                        return
            self._sums.tell(f"{session}: at {start}: {error!r}")
            if isinstance(error, LogDeleted | LogReplaced | NoSuchLog) or self._world.now > due:
                raise error
            await asyncio.sleep(_PAUSE_S)

    def _judge_range_refused(
        self, log: str, session: str, start: int, owed: int, error: RollbookError
    ) -> None:
        self._judge_reading(log, session, error)
        if isinstance(error, BeyondTail) and start <= owed:
            self._records.on_complete(log, session, error.ids["tail"], owed)

    async def _read_to_tail(self, client: str, caller: Caller, log: str, server: str) -> None:
        """Raises what kept it from getting there."""
        owed, head = self._sums.owed(log), self._head_at(server, log)
        position, session = -1, self._session(f"{client} {log} to tail")
        request = messages.ReadStream(
            words.LOGS[log],
            AtOffset(Offset(max(owed - _RANGE, 0))),
            at_tail=messages.AtTail.STOP,
            on_truncated=messages.OnTruncated.SKIP,
            heartbeat_ms=400,
            uid=self._sums.uids[log],
        )
        line = await caller.new_line(server)
        async for event in line.listen(request, _SILENCE_S):
            match event:
                case messages.Records():
                    position = event.base_offset if position < 0 else position
                    position = self._records.on_records(log, session, position, event, head)
                case messages.Gap():
                    session, position = self._session(f"{client} {log} to tail"), -1
                case messages.Stopped(offset) | messages.Sealed(offset):
                    self._records.on_complete(log, session, offset, owed)
                    return
                case messages.Moving():
                    if position >= 0:
                        self._on_moving(log, session, position, event)
                    return

    # --- The administrator --------------------------------------------------------------------

    async def administer(self, node: Node) -> None:
        caller = Caller(self._sums, node)

        async def act(step: Step) -> None:
            verb, *rest = step.what.split()
            try:
                await self._administer(node.name, caller, verb, rest)
            except RollbookError as error:
                self._sums.tell(f"{node.name}: {error!r}")

        await self._each_step(node, act)

    async def _administer(
        self, client: str, caller: Caller, verb: str, rest: Sequence[str]
    ) -> None:
        if verb in (words.DRAIN, words.RESUME):
            drain = messages.DrainServer(rest[0], resume=verb == words.RESUME)
            line = await caller.line(rest[0])
            await line.ask("drain_server", drain, PATIENCE_S)
            return
        log = rest[0]
        name, facts = words.LOGS[log], self._records.log(log)
        mark = CursorName(f"{client}-mark")
        if verb == words.TRUNCATE:
            before = AtOffset(Offset(max(facts.acked - int(rest[1]), 0)))
            request = messages.Truncate(name, before, force_roll=int(rest[1]) % 2 == 1)
            told: messages.TruncateAnswer = await caller.settle(
                log, "truncate", request, may_repeat=True
            )
            self._sums.tell(f"{client}: {told}")
            if told.new_head < told.old_head or told.old_head < 0:
                self._sums.on_broken(TRUNCATION, f"{log}: {told}")
            self._records.on_truncated(log, told.new_head)
        elif verb == words.MARK:
            offset = Offset(max(facts.acked - int(rest[1]), 0))
            commit = messages.CommitCursor(name, mark, offset, is_protected=True, may_rewind=True)
            await caller.settle(log, "commit_cursor", commit, may_repeat=True)
        elif verb == words.UNMARK:
            delete = messages.DeleteCursor(name, mark)
            await caller.settle(log, "delete_cursor", delete, may_repeat=True)
        elif verb == words.ROLL:
            await caller.settle(log, "roll_log", messages.RollLog(name), may_repeat=True)
        elif verb == words.SEAL:
            sealed: messages.SealAnswer = await caller.settle(
                log, "seal", messages.Seal(name), may_repeat=True
            )
            self._records.on_sealed(log, sealed.tail)
        elif verb == words.UNDELETE:
            await self._delete_and_undelete(caller, log)
        elif verb in (words.DELETE, words.REPLACE):
            delete_log = messages.DeleteLog(name, grace_ms=0 if verb == words.REPLACE else None)
            await caller.settle(log, "delete_log", delete_log, may_repeat=True)
            self._records.on_deleted(log)
            if verb == words.REPLACE:
                await self._create_again(caller, log)
        else:
            transfer = messages.TransferLog(name, rest[1])
            await caller.settle(log, "transfer_log", transfer, may_repeat=True)

    async def _delete_and_undelete(self, caller: Caller, log: str) -> None:
        """Both at once: either its grace was over first, or it is back as it was."""
        name, uid = words.LOGS[log], self._sums.uids[log]
        delete = messages.DeleteLog(name, uid=uid)

        async def undelete() -> None:
            due = self._world.now + _UNDELETED_S
            while self._world.now < due:
                request = messages.UndeleteLog(name, uid)
                with suppress(RollbookError):
                    await caller.settle(log, "undelete_log", request, may_repeat=True)
                    self._sums.tell(f"{log} is back")
                    return
                await asyncio.sleep(_UNDELETE_PAUSE_S)

        answers = await asyncio.gather(
            caller.settle(log, "delete_log", delete, may_repeat=False),
            undelete(),
            return_exceptions=True,
        )
        self._sums.tell(f"{log} is deleted: {answers[0]}")

    async def _create_again(self, caller: Caller, log: str) -> None:
        """Once the ledgers of the first one are gone; it holds nothing but what is appended here."""
        name, due = words.LOGS[log], self._world.now + _FREED_S
        while log not in self._sums.second_uids:
            try:
                made: messages.LogState = await caller.settle(
                    log, "ensure_log", messages.EnsureLog(name), may_repeat=True
                )
                self._sums.second_uids[log] = made.uid
            except RollbookError:
                if self._world.now > due or self._sums.is_over.is_set():
                    return
                await asyncio.sleep(_PAUSE_S)
        self._sums.tell(f"another log is called {log}")
        acked = self._sums.second_values.setdefault(log, [])
        for number in range(_SECOND_RECORDS):
            value = f"{log}{AGAIN}:{number}"
            producer = ProducerRef(b"again", 0, number)
            block = bytes(pack_block([value.encode()], producer=producer))
            request = messages.Append(name, block, uid=self._sums.second_uids[log])
            await caller.settle(log, "append", request, may_repeat=True)
            acked.append(value)

    async def check_second(self, caller: Caller, log: str) -> None:
        """Nothing of the first log is in the one that replaced it, and all that was acked in that is (LL9)."""
        uid, found, position = self._sums.second_uids[log], list[str](), Offset(0)
        while True:
            request = messages.Read(words.LOGS[log], AtOffset(position), uid=uid)
            try:
                answer: messages.ReadAnswer = await caller.settle(
                    log, "read", request, may_repeat=True
                )
            except RollbookError as error:
                self._sums.tell(f"{log}{AGAIN}: {error!r}")
                await asyncio.sleep(_PAUSE_S)
                continue
            for block in answer.blocks:
                found += [record.value.decode() for record in Block(block).records()]
            position = answer.next_offset
            if answer.is_tail_uncertain:  # It does not say that these are all.
                await asyncio.sleep(_PAUSE_S)
            elif position >= answer.tail:
                break
        strange = [value for value in found if not value.startswith(f"{log}{AGAIN}:")]
        if strange:
            self._sums.on_broken(LIVES, f"{log}: {strange[:3]} are in the log that replaced it")
        acked = self._sums.second_values.get(log, [])
        if [value for value in found if value in acked] != acked:
            self._sums.on_broken(LIVES, f"{log}{AGAIN}: {acked} were acked, {found} are read")


class _Sink:
    """The batches of one producer for one log: each is sent until it is acked."""

    def __init__(self, users: Users, sums: Sums, caller: Caller, node: Node, log: str) -> None:
        self._users, self._sums, self._caller, self._node = users, sums, caller, node
        self._log, self._name = log, words.LOGS[log]
        self._memory_s = plan.logs_of(sums.case)[log].dedupe_age_s
        self._epoch = self._seq = 0
        self._begin_epoch()
        self._is_over = False  # The log takes none of its batches, now or ever.
        self._pending: deque[_SubmittedBatch] = deque()
        self._acked: _SubmittedBatch | None = None
        self._news = asyncio.Event()
        self._chance = random.Random(node.randomness.getrandbits(64))
        self._key = f"{node.name} {log}"
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._work = loop.create_task(self._run())

    def add(self, values: list[str]) -> None:
        if self._is_over:
            return
        self._sums.records.on_append(self._log, self._node.name, values, None)
        self._pending.append(self._numbered(values))
        self._sums.waiting[self._key] = len(self._pending)
        self._news.set()

    def _begin_epoch(self) -> None:
        name, epochs = self._node.name, self._sums.epochs
        self._epoch = epochs[name] = epochs.get(name, -1) + 1
        self._seq = 0

    def _numbered(self, values: list[str]) -> _SubmittedBatch:
        producer = ProducerRef(self._node.name.encode(), self._epoch, self._seq)
        block = bytes(pack_block([value.encode() for value in values], producer=producer))
        self._seq += 1
        return _SubmittedBatch(self._log, producer.seq, values, block)

    def send_again(self) -> None:
        """By itself, and anywhere: it was acked, or is under way, and is there once all the same."""
        if self._memory_s <= words.BRIEF_S:
            return  # It would be new to the log when it comes there.
        batch = (
            self._acked if self._chance.random() < 0.7 or not self._pending else self._pending[0]
        )
        if batch is not None:
            self._loop.create_task(self._send_again(batch))

    async def _send_again(self, batch: _SubmittedBatch) -> None:
        request = messages.Append(self._name, batch.block)
        try:
            ack = await self._caller.settle(self._log, "append", request, may_repeat=True)
        except RollbookError as error:
            self._sums.tell(f"{self._node.name}: again: {error!r}")
            if isinstance(error, LogSealed | ProducerGap) and batch is self._acked:
                self._sums.on_broken(ONCE, f"{self._log}: {batch.values[0]} was acked, and {error}")
            return
        self._sums.records.on_acked(self._log, batch.values, ack)

    # --- Sending ------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            while not self._pending:
                self._news.clear()
                await self._news.wait()
            oldest, now_s = self._pending[0], self._sums.world.now
            if oldest.may_be_applied and not may_repeat(
                oldest.seq, oldest.first_sent_s, now_s, self._memory_s
            ):
                self._give_up("its log may have forgotten it")
                continue
            server = self._caller.server_for(self._log)
            try:
                line = await self._caller.new_line(server)
                await self._send_over(line, server)
            except RollbookError as error:
                self._sums.tell(f"{self._node.name}: {error!r}")
                self._caller.learn(self._log, error)
            await asyncio.sleep(_PAUSE_S * (1 + self._chance.random()))

    async def _send_over(self, line: DoorConnection, server: str) -> None:
        """Until it fails, or nothing is pending. Raises what it fails of."""
        bind: tuple[messages.Bind, ...] = (
            messages.Bind(0, self._name, True, self._sums.uids[self._log]),
        )
        sent: deque[_SubmittedBatch] = deque()
        try:
            await self._send_all(line, server, bind, sent)
        except RollbookError as error:
            for each in sent if error.outcome is Outcome.UNKNOWN else ():
                each.may_be_applied = True
            raise
        finally:
            line.close()

    async def _send_all(
        self,
        line: DoorConnection,
        server: str,
        bind: tuple[messages.Bind, ...],
        sent: deque[_SubmittedBatch],
    ) -> None:
        """`sent`: those whose result is not known yet."""
        while self._pending:
            fresh = list(self._pending)[len(sent) : _IN_FLIGHT]
            appends = [messages.StreamAppend(batch.seq, 0, batch.block) for batch in fresh]
            for batch in fresh:
                batch.is_sent = True
                batch.first_sent_s = batch.first_sent_s or self._sums.world.now
                sent.append(batch)
            if appends:
                line.submit(Submit(bind, tuple(appends)))
                bind = ()
            try:
                async with asyncio.timeout(ATTEMPT_S):
                    result = await line.results.get()
            except TimeoutError:
                raise ConnectionLost("no answer") from None
            if result is None:
                raise ConnectionLost("the connection broke")
            batch = sent[0]
            if result.number != batch.seq:
                text = f"{self._key}: {result.number} is answered before {batch.seq}"
                self._sums.on_broken(ONCE, text)
            if result.ack is not None:
                sent.popleft()
                self._caller.found(self._log, server)
                self._on_acked(batch, result.ack)
            elif result.error is not None:
                self._on_failed(batch, result.error)
                raise result.error

    def _on_acked(self, batch: _SubmittedBatch, ack: AppendAck) -> None:
        self._pending.popleft()
        self._acked = batch
        self._sums.waiting[self._key] = len(self._pending)
        self._sums.tell(f"{self._node.name}: {batch.values[0]} is acked at {ack.first_offset}")
        self._sums.records.on_acked(self._log, batch.values, ack)

    def _on_failed(self, batch: _SubmittedBatch, error: RollbookError) -> None:
        """Sealed: it is asked first whether it was appended before, so none of these was."""
        is_unknown = any(each.may_be_applied for each in self._pending)
        if begins_epoch(error, is_unknown=is_unknown):
            self._begin_epoch()
            self._pending = deque(self._numbered(each.values) for each in self._pending)
        elif is_forgotten(error) and is_unknown:
            self._give_up("its log has forgotten it")
        elif isinstance(error, LogSealed | StaleEpoch | WriterRequired):
            for each in self._pending:
                self._sums.records.on_refused(self._log, each.values, error)
            self._end()
        elif isinstance(error, LogDeleted | LogReplaced | NoSuchLog):
            for each in self._pending:
                if each.is_sent:
                    self._sums.records.on_unknown(self._log, each.values, "its log was deleted")
                else:
                    self._sums.records.on_refused(self._log, each.values, error)
            self._end()
        elif not isinstance(error, Unavailable | EarlierFailed) and (
            error.outcome is not Outcome.UNKNOWN
        ):
            text = f"{self._key}: {batch.values[0]} of epoch {self._epoch} is refused: {error}"
            self._sums.on_broken(ONCE, text)

    def _give_up(self, why: str) -> None:
        """What is in doubt stays so; what comes after it was not appended, and is not going to be."""
        for each in self._pending:
            if each.may_be_applied:
                self._sums.records.on_unknown(self._log, each.values, why)
            else:
                refusal = ProducerGap("not tried any more")
                self._sums.records.on_refused(self._log, each.values, refusal)
        self._pending.clear()
        self._sums.waiting[self._key] = 0
        self._begin_epoch()

    def _end(self) -> None:
        self._is_over = True
        self._pending.clear()
        self._sums.waiting[self._key] = 0
