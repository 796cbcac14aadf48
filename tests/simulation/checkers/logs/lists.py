"""What the metadata store commits of logs and their ledgers, and what servers say at that moment.

Commits are seen as they happen, so a server that decides by a ledger that is not closed yet, deletes what is
listed or passes a mark is caught in the step. The rules check these invariants of `logservice`:

- **segments** (LL2, LL8), **unclosed** (LL1, LS3), **owner-epoch** (LL5), **head** (LL4), **memory** (LL4, LS5)
- **discard** (LS1, LL3), **deletion** (LL3, OR1), **marks** (LL6), **expiry** (RT1), **patience** (SV2)
- **unsettled** (LS1), **stalled** (LS9)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rollbook.logservice.core.ledger_list import (
    LEDGER_OF_LOG,
    LEDGER_OF_VERSION,
    LedgerList,
    ListedLogState,
    LogEvent,
    Segment,
)
from rollbook.logservice.core.log_node_format import unpack_log_node
from rollbook.logservice.core.truncation_guards import TruncationGuards, unpack_guards
from rollbook.logservice.log_sweeper import RETENTION
from rollbook.logservice.messages import AppendAck
from rollbook.proto.formats.layout import Layout
from rollbook.proto.formats.ledger_metadata import unpack_ledger_metadata
from rollbook.proto.formats.paths import ledger_of_path, own_root
from rollbook.proto.ids import FIRST_ENTRY, LedgerId
from rollbook.proto.metadata import LedgerMetadata, LedgerState
from tests.simulation.kernel.metadata import Commit

SEGMENTS: Final = "segments"  # Listed as they were made, closed in the list when they are closed.
UNCLOSED: Final = "unclosed"  # The last two at most.
UNSETTLED: Final = (
    "unsettled"  # Nothing of N+1 is acked before N is closed, or when it is discarded.
)
DISCARD: Final = "discard"  # What was acked stays listed until it is truncated.
DELETION: Final = "deletion"  # Only what is not listed is deleted.
EPOCH: Final = "owner-epoch"
HEAD: Final = "head"
MEMORY: Final = "memory"  # What goes leaves a segment that has begun.
EXPIRY: Final = "expiry"  # Nothing goes by itself before its time.
PATIENCE: Final = "patience"  # No server takes a log rudely twice in a short time.
MARKS: Final = "marks"
STALLED: Final = "stalled"  # A server that missed its lease opens its logs again before it acks.

AGAIN: Final = (
    " again"  # What a log is called that was created under the name of one that was deleted.
)
REST_S: Final = 5.0  # Of a log that was taken from a server that others believe to be alive.
LONG_AGO_S: Final = 1e9
APART_S: Final = 300.0  # Clocks that are wrong by less are believed.

OnBroken = Callable[[str, str], None]
OnHead = Callable[[str, int], None]
Copies = Callable[[int, int], int]
_STATES: Final = (ListedLogState.OPEN, ListedLogState.SEALED, ListedLogState.DELETED)


@dataclass
class _Log:
    name: str
    version: int = -1
    listed: LedgerList | None = None
    guards: TruncationGuards = field(default_factory=TruncationGuards)
    ledgers: dict[LedgerId, None] = field(default_factory=dict)  # That were ever listed.
    before: dict[LedgerId, LedgerId] = field(default_factory=dict)  # What each ledger came after.
    acked: dict[LedgerId, int] = field(default_factory=dict)  # Up to which offset, by ledger.
    acked_at: dict[LedgerId, float] = field(
        default_factory=dict
    )  # The last one, whatever clocks say.
    discarded: dict[LedgerId, None] = field(default_factory=dict)
    listed_at: dict[int, float] = field(default_factory=dict)  # When each owner epoch was.
    served: dict[int, None] = field(default_factory=dict)  # Owner epochs under which was acked.
    taken: dict[str, tuple[float, int]] = field(default_factory=dict)  # Rudely, by a server's life.

    @property
    def is_sealed(self) -> bool:
        return self.listed is not None and self.listed.state is ListedLogState.SEALED

    @property
    def is_deleted(self) -> bool:
        return self.listed is not None and self.listed.state is ListedLogState.DELETED

    def kept(self) -> Sequence[Segment]:
        """Whose ledgers have to be there."""
        if self.listed is None or (self.is_deleted and not self.listed.config.delete_grace_s):
            return ()
        return self.listed.segments


class ListRules:
    def __init__(
        self,
        root: str,
        on_broken: OnBroken,
        tell: Callable[[str], None],
        *,
        on_head: OnHead,
        copies: Copies,
        epoch_us: int,
    ) -> None:
        """`copies`: how many bookies hold that entry of that ledger; `epoch_us`: what a clock that is
        right shows at the beginning.
        """
        self._on_head, self._copies, self._epoch_us = on_head, copies, epoch_us
        self.logs: dict[str, _Log] = {}
        self.ledgers: dict[LedgerId, LedgerMetadata] = {}
        self.next_ledger_id = 0
        self._stalled: dict[str, float] = {}
        self._ledgers = f"{root}/"
        self._own = f"{own_root(root)}/logs/test/"
        self._break, self._tell = on_broken, tell

    def log(self, name: str) -> _Log:
        return self.logs.setdefault(name, _Log(name))

    def _present(self, name: str) -> _Log:
        """The log that has the name now."""
        return self.logs.get(f"{name}{AGAIN}") or self.log(name)

    def _life_of(self, name: str, row: Any) -> _Log:
        """Another uid is another log, which is known by a name of its own here."""
        first = self.log(name)
        if first.listed is None or not row.value:
            return first
        listed, _ = unpack_log_node(row.value)
        return first if listed.uid == first.listed.uid else self.log(f"{name}{AGAIN}")

    def leftovers(self) -> list[LedgerId]:
        """Ledgers that no list will ever lose: none has them, or one would give them away."""
        kept = [segment.ledger_id for log in self.logs.values() for segment in log.kept()]
        return [ledger_id for ledger_id in self.ledgers if ledger_id not in kept]

    def on_commit(self, commit: Commit) -> None:
        """Changes of ledgers first, then of lists, then removals: as their order must allow."""
        removed: list[LedgerId] = []
        for path, row in commit.rows.items():
            if (ledger_id := self._ledger_of(path)) is None:
                continue
            if row is None:
                removed.append(ledger_id)
            else:
                self.next_ledger_id = max(self.next_ledger_id, ledger_id + 1)
                self.ledgers[ledger_id] = unpack_ledger_metadata(ledger_id, row.value)
        for path, row in commit.rows.items():
            if path.startswith(self._own) and row is not None:
                _, _, name = path[len(self._own) :].partition("/")
                if name.endswith("/marks"):
                    if row.value:
                        guards, _ = unpack_guards(row.value)
                        self._on_guards(self._present(name.removesuffix("/marks")), guards)
                elif name and "/" not in name:
                    self._on_list(self._life_of(name, row), row, commit.at_s)
        for ledger_id in removed:
            self._on_removed(ledger_id)

    def _ledger_of(self, path: str) -> LedgerId | None:
        if not path.startswith(self._ledgers):
            return None
        return ledger_of_path(Layout.HIERARCHICAL, path[len(self._ledgers) :])

    # --- Lists ----------------------------------------------------------------------------------

    def _on_list(self, log: _Log, row: Any, at_s: float) -> None:
        if row.version == log.version or not row.value:
            return  # Only its children have changed.
        listed, _ = unpack_log_node(row.value)
        before, version = log.listed, log.version
        log.listed, log.version = listed, row.version
        if before is None:
            return
        self._tell(f"{log.name} version {row.version}: {_told(listed)}")
        if listed.owner_epoch < before.owner_epoch:
            self._break(EPOCH, f"{log.name}: {before.owner_epoch} was {listed.owner_epoch}")
        if listed.owner not in (None, before.owner) and listed.owner_epoch == before.owner_epoch:
            self._break(EPOCH, f"{log.name}: {before.owner} and {listed.owner} have one epoch")
        if before.state is ListedLogState.DELETED and listed.state is not ListedLogState.DELETED:
            if before.discarded and not before.segments:
                self._break(DELETION, f"{log.name}: its ledgers go, and it is {listed.state.value}")
        elif _STATES.index(listed.state) < _STATES.index(before.state):
            self._break(EPOCH, f"{log.name}: {before.state} becomes {listed.state}")
        if listed.head < before.head:
            self._break(HEAD, f"{log.name}: {before.head} becomes {listed.head}")
        self._on_head(log.name, listed.head)
        self._check_guards(log)
        if any(not segment.is_closed for segment in listed.segments[:-2]):
            self._break(UNCLOSED, f"{log.name}: {_told(listed)}")
        if listed.events[-1:] != before.events[-1:]:
            self._on_event(log, before, listed.events[-1], at_s)
        if before.state is ListedLogState.DELETED and before.segments and not listed.segments:
            left_s = (before.free_at_us - self._epoch_us) / 1e6 - at_s
            if left_s > APART_S:
                self._break(DELETION, f"{log.name}: freed, {left_s:g} s before its grace is over")
        log.listed_at.setdefault(listed.owner_epoch, at_s)
        known = {segment.segment_id: segment for segment in before.segments}
        previous: Segment | None = None
        for segment in listed.segments:
            log.ledgers[segment.ledger_id] = None
            self._on_segment(log, known.get(segment.segment_id), segment, version)
            if previous is not None:
                log.before[segment.ledger_id] = previous.ledger_id
            previous = segment
        first = listed.segments[0].segment_id if listed.segments else None
        present = {segment.segment_id: segment for segment in listed.segments}
        has_truncated = False
        for segment_id, segment in known.items():
            if segment_id not in present:
                is_front = first is not None and segment_id < first
                is_untouched = not (before.head or segment.base_offset or segment.is_closed)
                has_truncated |= is_front and not is_untouched
                self._on_gone(log, segment, is_front=is_front and not is_untouched)
        if has_truncated:
            self._check_memory(log)

    def _on_segment(
        self, log: _Log, before: Segment | None, segment: Segment, version: int
    ) -> None:
        metadata = self.ledgers.get(segment.ledger_id)
        if metadata is None:
            self._break(DELETION, f"{log.name}: ledger {segment.ledger_id} is listed, and gone")
            return
        if before is None:
            custom = dict(metadata.custom)
            made_for = int(custom[LEDGER_OF_VERSION])
            assert log.listed is not None
            is_ours = custom[LEDGER_OF_LOG] == log.listed.uid.hex().encode()
            if not is_ours or not version <= made_for < log.version:
                text = f"ledger {segment.ledger_id} was made for version {made_for}"
                self._break(SEGMENTS, f"{log.name}: {text}, and is listed from {version}")
        elif before.is_closed and before != segment:
            self._break(SEGMENTS, f"{log.name}: {before} becomes {segment}")
        if segment.is_closed and metadata.state is not LedgerState.CLOSED:
            text = f"ledger {segment.ledger_id} is {metadata.state.value}, its segment is closed"
            self._break(SEGMENTS, f"{log.name}: {text}")

    def _on_gone(self, log: _Log, segment: Segment, *, is_front: bool) -> None:
        assert log.listed is not None
        ledger_id, head = segment.ledger_id, log.listed.head
        if log.listed.state is ListedLogState.DELETED:
            return
        if ledger_id not in log.listed.discarded and ledger_id in self.ledgers:
            self._break(DISCARD, f"{log.name}: ledger {ledger_id} is in no list any more")
        if is_front:
            if segment.next_offset is None or segment.next_offset > head:
                self._break(DISCARD, f"{log.name}: {segment} goes, the head is {head}")
            return
        log.discarded[ledger_id] = None
        if ledger_id in log.acked:
            text = f"records up to {log.acked[ledger_id]} were acked in ledger {ledger_id}"
            self._break(DISCARD, f"{log.name}: {text}, which is discarded")

    def _check_memory(self, log: _Log) -> None:
        """The first segment that is left has begun: what the log remembers is in it, and stays there."""
        assert log.listed is not None
        if log.listed.state is ListedLogState.DELETED:
            return
        if not log.listed.segments:
            self._break(MEMORY, f"{log.name}: no segment is left")
            return
        first = log.listed.segments[0].ledger_id
        metadata = self.ledgers.get(first)
        if metadata is not None and self._copies(first, FIRST_ENTRY) < metadata.quorum.ack:
            self._break(MEMORY, f"{log.name}: ledger {first} has not begun, those before it go")

    def _on_event(self, log: _Log, before: LedgerList, event: LogEvent, at_s: float) -> None:
        assert log.listed is not None
        if event.kind == "log_truncated" and event.reason == RETENTION:
            for index, segment in enumerate(before.segments):
                if segment.base_offset is None or segment.base_offset >= log.listed.head:
                    break
                behind = sum(each.bytes or 0 for each in before.segments[index + 1 :])
                is_over = segment.next_offset is not None and segment.next_offset <= before.head
                if not is_over and not self._is_expired(log, before, segment, behind, at_s):
                    text = f"{segment} expires, {behind} bytes are behind it"
                    self._break(EXPIRY, f"{log.name}: {text}")
        if event.kind == "log_opened" and "refuses connections" in event.reason:
            server = str(event.server_id)
            last_s, epoch = log.taken.get(server, (0.0, -1))
            log.taken[server] = at_s, log.listed.owner_epoch
            # Who was fenced before it could serve has not taken it.
            if epoch in log.served and at_s - last_s < REST_S:
                text = f"taken by {server} at {last_s:.4f} s, and once more at {at_s:.4f} s"
                self._break(PATIENCE, f"{log.name}: {text}")

    def _is_expired(
        self, log: _Log, listed: LedgerList, segment: Segment, behind: int, at_s: float
    ) -> bool:
        """By what its records bear, and by when the last of them was acked."""
        if segment.last_timestamp_us is None:
            return False
        config = listed.config
        age_s = (self._epoch_us - segment.last_timestamp_us) / 1e6 + at_s + APART_S
        age_s = min(age_s, at_s - log.acked_at.get(segment.ledger_id, -LONG_AGO_S) + APART_S)
        is_old = config.retention_age_s is not None and age_s >= config.retention_age_s
        return is_old or (config.retention_bytes is not None and behind >= config.retention_bytes)

    def _on_removed(self, ledger_id: LedgerId) -> None:
        self.ledgers.pop(ledger_id, None)
        self._tell(f"ledger {ledger_id} is removed")
        for log in self.logs.values():
            if log.listed is not None and log.listed.lists(ledger_id):
                self._break(DELETION, f"{log.name}: ledger {ledger_id} is deleted, and listed")

    # --- Marks ----------------------------------------------------------------------------------

    def _on_guards(self, log: _Log, guards: TruncationGuards) -> None:
        log.guards = guards
        self._check_guards(log)

    def _check_guards(self, log: _Log) -> None:
        if log.listed is None or log.listed.state is ListedLogState.DELETED:
            return
        for name, offset in log.guards.offsets:
            if offset < log.listed.head:
                text = f"the head is {log.listed.head}, and {name} protects {offset}"
                self._break(MARKS, f"{log.name}: {text}")

    # --- Answers --------------------------------------------------------------------------------

    def on_stalled(self, server: str, began_s: float) -> None:
        """It stood still for longer than its lease, until now."""
        self._stalled[server] = began_s

    def on_ack(self, server: str, ack: AppendAck, now_s: float) -> None:
        """Given by a server in this very moment, to whomever."""
        ledger_id = ack.ledger_id
        log = next(each for each in self.logs.values() if ledger_id in each.ledgers)
        name = log.name
        log.served[ack.owner_epoch] = None
        began_s = self._stalled.get(server)
        is_read_again = log.is_sealed and ack.is_duplicate  # Nobody owns it, and nothing comes.
        is_older = began_s is not None and log.listed_at.get(ack.owner_epoch, began_s) < began_s
        if is_older and not is_read_again:
            text = f"{server} stood still from {began_s:.4f} s on, and acks as owner"
            self._break(STALLED, f"{name}: {text} {ack.owner_epoch}")
        if not ack.is_duplicate:
            log.acked_at[ledger_id] = now_s
        log.acked[ledger_id] = max(ack.next_offset, log.acked.get(ledger_id, 0))
        if ledger_id in log.discarded:
            self._break(UNSETTLED, f"{name}: acked in ledger {ledger_id}, which was discarded")
        previous = log.before.get(ledger_id)
        metadata = None if previous is None else self.ledgers.get(previous)
        if metadata is not None and metadata.state is not LedgerState.CLOSED:
            text = f"{ack.first_offset} is acked in ledger {ledger_id}"
            self._break(UNSETTLED, f"{name}: {text}, {previous} is {metadata.state.value}")


def _told(listed: LedgerList) -> str:
    segments = "; ".join(
        f"{each.ledger_id} {each.state.value} {each.base_offset}…{each.next_offset}"
        for each in listed.segments
    )
    owner = listed.owner.server_id if listed.owner else "nobody"
    return (
        f"{listed.state.value} epoch {listed.owner_epoch} {owner} head {listed.head} | {segments}"
    )
