"""What each user of a log got, held against what all others got.

Each record has a value of its own, so that two facts suffice to break a rule in the step in which the
second comes: one offset, one record; one record, one offset. What takes the whole history to judge
(order in real time, holes, what was there and is not) is judged at the end, by `checkers/log.py`.
The rules check these invariants of `logservice`:

- **offsets** (LS7), **one-sequence** (RL1, RL5), **writer-epoch** (LS8), **once** (LS6), **truncation** (LL4)
- **complete** (RL6), **outcome** (LS4, LS12), **linearizable** (LS4, LS10)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from rollbook.logservice.core.record_block import Block
from rollbook.logservice.messages import AppendAck, Condition, WriterGrant
from rollbook.logservice.messages import Records as Told
from rollbook.proto.errors import LogSealed, OffsetMismatch, RollbookError
from tests.simulation.checkers.log import check_log
from tests.simulation.history import Append, Delivery, History, Tail

OFFSETS: Final = "offsets"  # Dense, increasing, each given once.
ONE_SEQUENCE: Final = "one-sequence"  # All readers see the same, without gaps; nothing disappears.
WRITER_EPOCH: Final = "writer-epoch"  # Nothing under an older one behind a grant.
ONCE: Final = "once"  # A producer's record is there at most once, acked or not.
TRUNCATION: Final = "truncation"  # The head never goes back.
CONDITION: Final = "condition"  # Accepted and refused truly.
COMPLETE: Final = "complete"  # A read that says it is complete has all that was acked before it.
OUTCOME: Final = "outcome"  # What was refused never turns up.
LINEARIZABLE: Final = "linearizable"

OnBroken = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class _Stamp:
    owner_epoch: int
    writer_epoch: int
    timestamp_us: int


@dataclass
class LogFacts:
    name: str
    appends: dict[str, Append] = field(default_factory=dict)
    at: dict[int, str] = field(default_factory=dict)
    where: dict[str, int] = field(default_factory=dict)
    stamps: dict[int, _Stamp] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)  # With the reason.
    epochs: dict[str, int] = field(default_factory=dict)  # Under which a record was sent.
    grants: dict[int, int] = field(default_factory=dict)  # With its fence offset.
    head: int = 0  # As a client got it.
    committed_head: int = 0  # As the list has it.
    behind: dict[str, int] = field(default_factory=dict)  # That one, when a record was first sent.
    is_deleted: bool = False  # As a client was answered.
    late: dict[str, None] = field(default_factory=dict)  # Records that were first sent after that.
    tails: list[Tail] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    acked: int = 0  # All that was acked is below it.
    sealed_at: int | None = None


class Records:
    def __init__(self, history: History, on_broken: OnBroken) -> None:
        self.logs: dict[str, LogFacts] = {}
        self._history, self._break = history, on_broken

    def log(self, name: str) -> LogFacts:
        return self.logs.setdefault(name, LogFacts(name))

    # --- Appends --------------------------------------------------------------------------------

    def on_append(self, name: str, client: str, values: Sequence[str], epoch: int | None) -> None:
        log = self.log(name)
        for value in values:
            log.appends[value] = self._history.append(client, value)
            log.behind[value] = log.committed_head
            if log.is_deleted:
                log.late[value] = None
            if epoch is not None:
                log.epochs[value] = epoch

    def on_acked(
        self, name: str, values: Sequence[str], ack: AppendAck, condition: Condition | None = None
    ) -> None:
        log, first = self.log(name), ack.first_offset
        if ack.next_offset - first != len(values):
            self._break(OFFSETS, f"{name}: {len(values)} records at {first} to {ack.next_offset}")
        expected = condition.expected_offset if condition is not None else None
        if expected is not None and first != expected:
            self._break(CONDITION, f"{name}: expected at {expected}, appended at {first}")
        for offset, value in enumerate(values, first):
            if value in log.refused:
                self._break(OUTCOME, f"{name}: {value} was refused, and is acked at {offset}")
            if value in log.late:
                self._break(OUTCOME, f"{name}: {value} is acked at {offset} of a deleted log")
            self._place(log, value, offset, "acked")
            if log.appends[value].position is None:
                self._history.on_applied(log.appends[value], offset)
        log.acked = max(log.acked, ack.next_offset)
        if log.sealed_at is not None and ack.next_offset > log.sealed_at:
            self._break(OUTCOME, f"{name}: sealed at {log.sealed_at}, acked at {first}")

    def on_refused(self, name: str, values: Sequence[str], error: RollbookError) -> None:
        """Permanently, and every attempt of it."""
        log = self.log(name)
        for value in values:
            log.refused[value] = error.code.reason
            if value in log.where:
                text = f"{value} is at {log.where[value]}, and was refused: {error}"
                self._break(OUTCOME, f"{name}: {text}")
            self._history.on_refused(log.appends[value])

    def on_unknown(self, name: str, values: Sequence[str], why: str) -> None:
        for value in values:
            self._history.on_unknown(self.log(name).appends[value], why)

    def on_error(self, name: str, asked: Tail, error: RollbookError) -> None:
        """What a refusal says of the tail is a read of it."""
        if isinstance(error, OffsetMismatch | LogSealed):
            tail = error.ids.get("tail")
            if isinstance(tail, int):
                self.on_tail(name, asked, tail)

    def _place(self, log: LogFacts, value: str, offset: int, how: str) -> None:
        before = log.where.setdefault(value, offset)
        if before != offset:
            self._break(ONCE, f"{log.name}: {value} is {how} at {offset}, and is at {before}, too")
        other = log.at.setdefault(offset, value)
        if other != value:
            text = f"{value} is {how} at {offset}, where {other} is"
            self._break(OFFSETS if how == "acked" else ONE_SEQUENCE, f"{log.name}: {text}")
        if offset < log.behind.get(value, 0):
            text = (
                f"{value} is {how} at {offset}; the head was {log.behind[value]} before it was sent"
            )
            self._break(TRUNCATION, f"{log.name}: {text}")
        epoch = log.epochs.get(value)
        if epoch is not None:
            for granted, fence in log.grants.items():
                if (granted > epoch) != (offset < fence) and granted != epoch:
                    text = f"{value} of epoch {epoch} at {offset}; {granted} begins at {fence}"
                    self._break(WRITER_EPOCH, f"{log.name}: {text}")

    # --- Writer epochs --------------------------------------------------------------------------

    def on_granted(self, name: str, asked: Tail, grant: WriterGrant) -> None:
        log, epoch, fence = self.log(name), grant.writer_epoch, grant.fence_offset
        if epoch in log.grants:
            self._break(WRITER_EPOCH, f"{name}: epoch {epoch} was granted twice")
        log.grants[epoch] = fence
        for value, bears in log.epochs.items():
            offset = log.where.get(value)
            if offset is not None and bears < epoch and offset >= fence:
                text = f"{value} of epoch {bears} is at {offset}, epoch {epoch} begins at {fence}"
                self._break(WRITER_EPOCH, f"{name}: {text}")
        self.on_tail(name, asked, fence)

    # --- Reading --------------------------------------------------------------------------------

    def asks_tail(self, client: str) -> Tail:
        return self._history.tail(client)

    def on_tail(self, name: str, asked: Tail, length: int) -> None:
        self._history.on_tail(asked, length)
        self.log(name).tails.append(asked)

    def on_records(self, name: str, reader: str, expected: int, told: Told, head: int) -> int:
        """`head`: what the reader knew to be truncated when it began. Returns where to go on."""
        log = self.log(name)
        if told.base_offset != expected:
            text = f"{reader} is told from {told.base_offset} on instead of {expected}"
            self._break(ONE_SEQUENCE, f"{name}: {text}")
        if told.base_offset < head:
            text = f"{reader} reads {told.base_offset}, truncated to {head} before it began"
            self._break(TRUNCATION, f"{name}: {text}")
        for block in map(Block, told.blocks):
            stamp = _Stamp(block.owner_epoch, block.writer_epoch, block.timestamp_us)
            for offset, data in enumerate(block.values(), block.base_offset):
                if not told.base_offset <= offset < told.next_offset:
                    continue
                if offset != expected:
                    self._break(ONE_SEQUENCE, f"{name}: {reader} is told {offset}, not {expected}")
                expected = offset + 1
                self._on_record(log, reader, offset, data.decode(), stamp)
        if expected != told.next_offset:
            text = f"{reader} is told up to {expected}, not to {told.next_offset}"
            self._break(ONE_SEQUENCE, f"{name}: {text}")
        return expected

    def _on_record(
        self, log: LogFacts, reader: str, offset: int, value: str, stamp: _Stamp
    ) -> None:
        if value not in log.appends:
            self._break(ONE_SEQUENCE, f"{log.name}: {value!r} at {offset} was never appended")
        if value in log.refused:
            text = f"{value} was refused ({log.refused[value]}), and is at {offset}"
            self._break(OUTCOME, f"{log.name}: {text}")
        self._place(log, value, offset, "read")
        if log.stamps.setdefault(offset, stamp) != stamp:
            self._break(ONE_SEQUENCE, f"{log.name}: {offset} is {stamp} and {log.stamps[offset]}")
        self._history.deliver(reader, offset, value)
        log.deliveries.append(self._history.deliveries[-1])

    def on_truncated(self, name: str, head: int) -> None:
        log = self.log(name)
        if head > log.head:
            log.head = head

    def on_head(self, name: str, head: int) -> None:
        """It was committed: all below it is confirmed."""
        log = self.log(name)
        log.committed_head = max(head, log.committed_head)

    def on_deleted(self, name: str) -> None:
        self.log(name).is_deleted = True

    def on_sealed(self, name: str, tail: int) -> None:
        log = self.log(name)
        if log.sealed_at is not None and log.sealed_at != tail:
            self._break(OUTCOME, f"{name}: sealed at {log.sealed_at}, and at {tail}")
        log.sealed_at = tail
        if log.acked > tail or any(offset >= tail for offset in log.at):
            self._break(OUTCOME, f"{name}: sealed at {tail}, records lie behind that")

    def acked_by(self, name: str, at_s: float) -> int:
        """Below it is all that was acked by then, as those who appended it had heard."""
        return max(
            (
                append.position + 1
                for append in self.log(name).appends.values()
                if append.position is not None and self._history.time_of(append.returned) <= at_s
            ),
            default=0,
        )

    def on_complete(self, name: str, reader: str, end: int, owed: int) -> None:
        """A server says that the log ended there, in answer to a question before which `owed` was acked."""
        if end < owed:
            text = f"{reader} heard that {end} is the end; up to {owed} was acked before it asked"
            self._break(COMPLETE, f"{name}: {text}")

    # --- At the end -----------------------------------------------------------------------------

    def check(self, name: str) -> None:
        """The whole history of a log: what was acked can be read, and all of it has an order."""
        log = self.log(name)
        view = History()
        view.appends = list(log.appends.values())
        view.tails, view.deliveries = log.tails, log.deliveries
        for anomaly in check_log(view):
            self._break(LINEARIZABLE, f"{name}: {anomaly}")
        before: tuple[int, _Stamp] | None = None
        for offset, stamp in sorted(log.stamps.items()):
            if before is not None and not _follows(stamp, before[1]):
                self._break(OFFSETS, f"{name}: {before} is followed by {offset}, {stamp}")
            before = offset, stamp
            for granted, fence in log.grants.items():
                if (stamp.writer_epoch < granted) != (offset < fence):
                    text = f"{offset} bears {stamp.writer_epoch}, {granted} begins at {fence}"
                    self._break(WRITER_EPOCH, f"{name}: {text}")


def _follows(stamp: _Stamp, before: _Stamp) -> bool:
    return (
        stamp.owner_epoch >= before.owner_epoch
        and stamp.writer_epoch >= before.writer_epoch
        and stamp.timestamp_us >= before.timestamp_us
    )
