"""What a bookie says, judged against everything that was said to it and by it before.

Facts come in as they happen: what clients ask, what they hear, what is done to disks. Nothing is known
of the bookie's inside. Rules, each by the name under which a run fails:

- **acked** (B1, B12): an entry that was acknowledged is there: never absent, and UNKNOWN only on a damaged disk.
- **bytes** (B1, B12): an entry is answered as somebody wrote it, and not as it was before somebody wrote it again.
- **fence** (B4): nobody who asks after a fence was answered has an ordinary add accepted; nothing that was
  called absent under a fence is acknowledged, before or after; nobody is refused for a fence that
  nobody asked for.
- **LAC**: what the bookie calls confirmed was called so by a writer, and never falls.
- **dropped** (B16): what a bookie has of a ledger that metadata names elsewhere may be called absent; what it
  listed, and what was added to it, before metadata named it again is there.
- **deleted** (B11): a ledger is gone only if it was deleted; once gone, it does not come back.
- **answers**: they are of a kind that fits the question.

An event is a number; a call that was asked at 7 saw everything that was heard before 7.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from rollbook.proto.errors import (
    BookieFailed,
    BookieReadOnly,
    EntryStateUnknown,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
    Overloaded,
)
from rollbook.proto.ids import NO_ENTRY
from rollbook.proto.ports import Buffer
from rollbook.proto.wire.messages import Failure

ACKED: Final = "acked"
BYTES: Final = "bytes"
FENCE: Final = "fence"
LAC: Final = "LAC"
DELETED: Final = "deleted"
ANSWERS: Final = "answers"

_ABSENT: Final = (NoSuchEntry, NoSuchLedger)
_NOT_NOW: Final = (BookieReadOnly, Overloaded, BookieFailed)  # Nothing was promised.
_ids_at: Final = struct.Struct(">qqq").unpack_from
_NEVER: Final = 1 << 62


@dataclass
class _Ledger:
    """One ledger on one bookie, as its clients know it."""

    sent: dict[int, list["Sent"]] = field(default_factory=dict)
    durable: dict[int, int] = field(default_factory=dict)  # When: by the event of each add.
    acked: dict[int, int] = field(default_factory=dict)  # When first.
    ordinary_acked: dict[int, None] = field(default_factory=dict)
    denied: dict[int, None] = field(default_factory=dict)  # Under a fence.
    fence_asked_at: int = _NEVER
    fenced_at: int = _NEVER
    lac_named: int = NO_ENTRY  # The highest that a writer named.
    lac_told: int = NO_ENTRY  # The highest that the bookie sent, or acknowledged.
    packet_named: dict[int, None] = field(default_factory=dict)
    packet_acked: int = NO_ENTRY
    gone_at: int = _NEVER
    is_loose: bool = False  # Metadata does not name the bookie, or did not when these were sent:
    loose_until: int = 0


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, with what its answer must not fall behind."""

    bookie: str
    ledger_id: int
    at: int
    lac_least: int
    packet_least: int
    is_fencing: bool = False


@dataclass(frozen=True, slots=True)
class Sent:
    """An add."""

    bookie: str
    ledger_id: int
    entry_id: int
    body: bytes
    at: int
    is_recovery: bool
    is_deferred: bool


class BookieChecker:
    def __init__(self, on_broken: Callable[[str, str], None]) -> None:
        self.damaged: dict[str, None] = {}  # Bookies that may answer UNKNOWN.
        self.heard = dict.fromkeys(("acks", "entries", "absences", "unknowns", "refusals"), 0)
        self._on_broken = on_broken
        self._ledgers: dict[tuple[str, int], _Ledger] = {}
        self._doomed: dict[int, None] = {}
        self._moved: dict[tuple[str, int], None] = {}  # At least once; its LAC may go back.
        self._events = 0

    # --- For those who ask --------------------------------------------------------------------

    def entry_ids(self, bookie: str, ledger_id: int) -> list[int]:
        """That were ever sent, ascending."""
        return sorted(self._of(bookie, ledger_id).sent)

    def known_lac(self, bookie: str, ledger_id: int) -> int:
        """That a writer may name without saying anything new."""
        return self._of(bookie, ledger_id).lac_told

    def has_acked(self, bookie: str, ledger_id: int) -> bool:
        return bool(self._of(bookie, ledger_id).acked)

    def is_doomed(self, ledger_id: int) -> bool:
        return ledger_id in self._doomed

    def must_refuse(self, bookie: str, ledger_id: int) -> bool:
        ledger = self._of(bookie, ledger_id)
        return min(ledger.fenced_at, ledger.gone_at) < self._events

    # --- Facts: adds --------------------------------------------------------------------------

    def on_sent(
        self, bookie: str, ledger_id: int, body: bytes, *, is_recovery: bool, is_deferred: bool
    ) -> Sent:
        ledger = self._of(bookie, ledger_id)
        _, entry_id, lac = _ids_at(body)
        ledger.lac_named = max(ledger.lac_named, lac)
        at = self._event()
        sent = Sent(bookie, ledger_id, entry_id, body, at, is_recovery, is_deferred)
        ledger.sent.setdefault(entry_id, []).append(sent)
        return sent

    def on_add_answer(self, add: Sent, error: Failure) -> None:
        ledger, now = self._of(add.bookie, add.ledger_id), self._event()
        what = f"{add.bookie}: ledger {add.ledger_id} entry {add.entry_id}"
        if error is None:
            self.heard["acks"] += 1
            if not add.is_recovery:
                if ledger.fenced_at < add.at:
                    self._break(FENCE, f"{what} is accepted behind a fence")
                if add.entry_id in ledger.denied:
                    self._break(FENCE, f"{what} was denied under a fence and is accepted")
            if ledger.gone_at < add.at:
                self._break(DELETED, f"{what} is accepted, though the ledger is gone")
            if not add.is_deferred:
                self._on_durable(ledger, add, now)
            return
        self.heard["refusals"] += 1
        if error is LedgerFenced:
            if min(ledger.fence_asked_at, ledger.gone_at) > now and not (
                add.ledger_id in self._doomed or add.bookie in self.damaged
            ):
                self._break(FENCE, f"{what} is refused for a fence of nobody")
        elif error not in _NOT_NOW:
            self._break(ANSWERS, f"{what}: an add is answered with {error.__name__}")

    def on_forced(self, adds: Sequence[Sent]) -> None:
        """These were answered before the question that was answered now."""
        now = self._event()
        for add in adds:
            self._on_durable(self._of(add.bookie, add.ledger_id), add, now)

    def _on_durable(self, ledger: _Ledger, add: Sent, now: int) -> None:
        if not ledger.is_loose and add.at >= ledger.loose_until:
            ledger.acked.setdefault(add.entry_id, now)
        ledger.durable.setdefault(add.at, now)
        if not add.is_recovery and add.entry_id in ledger.acked:
            ledger.ordinary_acked[add.entry_id] = None
        ledger.lac_told = max(ledger.lac_told, _ids_at(add.body)[2])

    # --- Facts: questions ---------------------------------------------------------------------

    def on_asked(self, bookie: str, ledger_id: int, *, is_fencing: bool = False) -> Asked:
        ledger, at = self._of(bookie, ledger_id), self._event()
        if is_fencing:
            ledger.fence_asked_at = min(ledger.fence_asked_at, at)
        return Asked(bookie, ledger_id, at, ledger.lac_told, ledger.packet_acked, is_fencing)

    def on_entry(self, asked: Asked, entry_id: int, body: Buffer) -> None:
        """`entry_id` NO_ENTRY: the last one was asked for."""
        ledger, _ = self._heard_from(asked)
        self.heard["entries"] += 1
        ids = _ids_at(body)
        what = f"{asked.bookie}: ledger {asked.ledger_id} entry {entry_id}"
        same = [add for add in ledger.sent.get(ids[1], ()) if add.body == body]
        if entry_id not in (ids[1], NO_ENTRY) or not same:
            self._break(BYTES, f"{what} comes as nobody wrote it")
        elif all(self._was_replaced(ledger, add, asked) for add in same):
            self._break(BYTES, f"{what} comes as it was before it was written again")
        if ledger.gone_at < asked.at:
            self._break(DELETED, f"{what} is there, though the ledger was gone")
        if entry_id == NO_ENTRY:
            later = [e for e, at in ledger.acked.items() if e > ids[1] and at < asked.at]
            if later and not self._may_be_gone(asked):
                self._break(ACKED, f"{what}: the last one is {ids[1]}, acknowledged are {later}")

    def _was_replaced(self, ledger: _Ledger, add: Sent, asked: Asked) -> bool:
        """Surely: by an add that was sent when this one was durable, and durable before anybody asked."""
        if asked.bookie in self.damaged:
            return False
        durable_at = ledger.durable.get(add.at, _NEVER)
        return any(
            other.at > durable_at and ledger.durable.get(other.at, _NEVER) < asked.at
            for other in ledger.sent[add.entry_id]
        )

    def on_failure(self, asked: Asked, entry_id: int | None, error: type[Exception]) -> None:
        """`entry_id` NO_ENTRY: any; None: it was no question about entries."""
        if error in _NOT_NOW:  # It has done nothing, or nobody knows.
            self.heard["refusals"] += 1
            return
        ledger, now = self._heard_from(asked)
        what = f"{asked.bookie}: ledger {asked.ledger_id} entry {entry_id}"
        if error in _ABSENT:
            self.heard["absences"] += 1
            had_some = any(at < asked.at for at in ledger.acked.values())
            if asked.ledger_id in self._doomed and error is NoSuchLedger and had_some:
                ledger.gone_at = min(ledger.gone_at, now)
            if self._may_be_gone(asked) or entry_id is None:
                return
            wanted = (
                ledger.acked if entry_id == NO_ENTRY else {entry_id: ledger.acked.get(entry_id)}
            )
            if lost := [e for e, at in wanted.items() if at is not None and at < asked.at]:
                self._break(ACKED, f"{what}: {lost} acknowledged, and {error.__name__}")
            if asked.is_fencing and entry_id != NO_ENTRY:
                ledger.denied[entry_id] = None
                if entry_id in ledger.ordinary_acked:
                    self._break(FENCE, f"{what} is denied under a fence and was accepted")
        elif error is EntryStateUnknown:
            self.heard["unknowns"] += 1
            if asked.bookie not in self.damaged:
                self._break(ACKED, f"{what} is unknown, and its disk is sound")
        else:
            self._break(ANSWERS, f"{what}: a question is answered with {error.__name__}")

    def on_lac(self, asked: Asked, lac: int, *, is_durable: bool = True) -> None:
        """Who polls hears of it before it is durable there: it is true, and may be forgotten."""
        ledger, _ = self._heard_from(asked)
        what = f"{asked.bookie}: ledger {asked.ledger_id}: LAC {lac}"
        if lac > ledger.lac_named:
            self._break(LAC, f"{what}, writers named at most {ledger.lac_named}")
        if lac < asked.lac_least and not self._is_excused(asked):
            self._break(LAC, f"{what}, and it was {asked.lac_least}")
        if is_durable:
            ledger.lac_told = max(ledger.lac_told, lac)

    def on_listed(self, asked: Asked, listed: Sequence[int]) -> None:
        ledger, _ = self._heard_from(asked)
        what = f"{asked.bookie}: ledger {asked.ledger_id}"
        if strange := [e for e in listed if e not in ledger.sent]:
            self._break(BYTES, f"{what} lists {strange}, which nobody wrote")
        lost = [e for e, at in ledger.acked.items() if at < asked.at and e not in listed]
        is_excused = self._may_be_gone(asked) or asked.bookie in self.damaged
        if lost and not is_excused:  # What is in doubt is not listed.
            self._break(ACKED, f"{what} does not list {lost}, which it acknowledged")

    # --- Facts: explicit LACs -----------------------------------------------------------------

    def on_lac_sent(self, bookie: str, ledger_id: int, lac: int) -> Asked:
        asked, ledger = self.on_asked(bookie, ledger_id), self._of(bookie, ledger_id)
        ledger.packet_named[lac] = None
        ledger.lac_named = max(ledger.lac_named, lac)
        return asked

    def on_lac_written(self, asked: Asked, lac: int) -> None:
        ledger, _ = self._heard_from(asked)
        ledger.packet_acked = max(ledger.packet_acked, lac)
        ledger.lac_told = max(ledger.lac_told, lac)

    def on_packet(self, asked: Asked, lac: int | None) -> None:
        ledger, _ = self._heard_from(asked)
        told = NO_ENTRY if lac is None else lac
        what = f"{asked.bookie}: ledger {asked.ledger_id}: explicit LAC {lac}"
        if lac is not None and lac not in ledger.packet_named:
            self._break(LAC, f"{what}, and nobody wrote it")
        if told < asked.packet_least and not self._is_excused(asked):
            self._break(LAC, f"{what}, and it was {asked.packet_least}")

    # --- Facts: what others do ----------------------------------------------------------------

    def on_doomed(self, ledger_id: int) -> None:
        """Somebody begins to delete it in the metadata."""
        self._doomed[ledger_id] = None

    def on_unnamed(self, bookie: str, ledger_id: int) -> None:
        """Somebody begins to move the ledger away from the bookie."""
        ledger = self._of(bookie, ledger_id)
        ledger.is_loose = True
        ledger.acked.clear()
        ledger.ordinary_acked.clear()
        ledger.lac_told = NO_ENTRY
        self._moved[bookie, ledger_id] = None

    def on_named(self, bookie: str, ledger_id: int, entry_ids: Iterable[int]) -> None:
        """Metadata names it again: these were there."""
        ledger, now = self._of(bookie, ledger_id), self._event()
        ledger.is_loose, ledger.loose_until = False, now
        ledger.acked.update(dict.fromkeys(entry_ids, now))
        ledger.denied.clear()

    def may_hold_nothing(self, bookie: str, ledger_id: int) -> bool:
        return self._of(bookie, ledger_id).is_loose

    def on_damaged(self, bookie: str) -> None:
        self.damaged[bookie] = None

    def on_put_back(self, bookie: str) -> None:
        """Its disk is as it was before; whatever it promised since must hold all the same.

        But nobody names those that were deleted in the metadata, so they are as they were.
        """
        for (name, ledger_id), ledger in self._ledgers.items():
            if name == bookie and ledger_id in self._doomed:
                ledger.gone_at = ledger.fenced_at = _NEVER
                ledger.acked.clear()
                ledger.denied.clear()
                ledger.ordinary_acked.clear()

    def on_rolled_back(self, bookie: str) -> None:
        """It knows that it was put back: what came since is in doubt, and each ledger fenced."""
        self.on_damaged(bookie)
        self.on_put_back(bookie)  # Some were deleted meanwhile.
        for (name, _), ledger in self._ledgers.items():
            if name == bookie:
                ledger.lac_told = ledger.packet_acked = NO_ENTRY
                ledger.fence_asked_at = min(ledger.fence_asked_at, self._event())

    # --- Inside -------------------------------------------------------------------------------

    def _of(self, bookie: str, ledger_id: int) -> _Ledger:
        return self._ledgers.setdefault((bookie, ledger_id), _Ledger())

    def _event(self) -> int:
        self._events += 1
        return self._events

    def _heard_from(self, asked: Asked) -> tuple[_Ledger, int]:
        ledger, now = self._of(asked.bookie, asked.ledger_id), self._event()
        if asked.is_fencing:
            ledger.fenced_at = min(ledger.fenced_at, now)
        return ledger, now

    def _may_be_gone(self, asked: Asked) -> bool:
        return asked.ledger_id in self._doomed

    def _is_excused(self, asked: Asked) -> bool:
        if (asked.bookie, asked.ledger_id) in self._moved:
            return True
        return asked.ledger_id in self._doomed or asked.bookie in self.damaged

    def _break(self, rule: str, text: str) -> None:
        self._on_broken(rule, text)
