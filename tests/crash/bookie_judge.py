"""Judges whether the responses that clients of one bookie got can be true.

The judge gets every request before it is sent, and every response. A request without a response,
because the process died, has an unknown outcome: until a client reads the entry, both outcomes are
possible, and from then on only the one that was read. For each ledger:

- An entry that was acknowledged, or read, stays there, with the bytes that were added.
- An entry that was never added, was refused, or was read as absent and not added since, is absent.
- A fence that was answered holds: every ordinary add sent later is refused; and an entry that
  was absent in a read after it stays absent, unless a recovery adds it.
- The LAC that a reader gets never falls below one that was acknowledged or read before.
- A deleted ledger stays deleted.
- UNKNOWN is never a response, since nothing was damaged.

Adds with deferred sync are promised by the response to FORCE, not by their own responses.
"""

import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from rollbook.proto.errors import (
    BookieFailed,
    BookieReadOnly,
    DigestMismatch,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
    Overloaded,
)
from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId
from rollbook.proto.ports import Buffer
from rollbook.proto.wire.digest import DigestType, LedgerDigest
from rollbook.proto.wire.entry_list import EntryList
from rollbook.proto.wire.messages import Failure
from tests.support.bookie_client import PASSWORD

_VIOLATIONS_MAX: Final = 50
_KINDS: Final = tuple(DigestType)
_ids: Final = struct.Struct(">qq").pack
_SIZES: Final = (0, 16, 100, 100, 100, 700, 1000, 4000, 13_000)
_LARGE_EVERY: Final = 211
_LARGE_BYTES: Final = 150_000


def payload_of(ledger_id: int, entry_id: int) -> bytes:
    """The payload of this entry, which is always the same."""
    mixed = (ledger_id * 7919 + entry_id * 104729) & 0xFFFFFF
    size = _LARGE_BYTES if mixed % _LARGE_EVERY == 0 else _SIZES[mixed % len(_SIZES)]
    pattern = _ids(ledger_id, entry_id)
    return (pattern * (size // len(pattern) + 1))[:size]


@dataclass(frozen=True, slots=True)
class Sent:
    """An add without a response yet."""

    last_add_confirmed: int
    is_recovery: bool
    is_sync_deferred: bool
    is_behind_fence: bool


@dataclass(frozen=True, slots=True)
class Question:
    """The facts that were certain when a read was sent."""

    must_be_there: bool
    is_at_rest: bool  # No add of this entry was in flight.
    is_deleted: bool
    is_behind_fence: bool
    lac_floor: int
    sent: int  # Number of adds of the ledger that had been sent.


@dataclass(slots=True)
class Promises:
    """The promises and possible states of one ledger."""

    ledger_id: int
    digest: LedgerDigest
    promised: set[int] = field(default_factory=set)
    perhaps: set[int] = field(default_factory=set)  # Outcome unknown, or not yet forced.
    in_flight: dict[int, list[Sent]] = field(default_factory=dict)
    denied: set[int] = field(default_factory=set)  # Absent in a read after the fence.
    unforced: set[int] = field(default_factory=set)  # Acknowledged before their sync.
    sent: int = 0
    lac_floor: int = NO_ENTRY
    lac_ceiling: int = NO_ENTRY
    explicit_lac_floor: int = NO_ENTRY
    explicit_lac_ceiling: int = NO_ENTRY
    is_fence_asked: bool = False
    is_fenced: bool = False
    is_deletion_asked: bool = False
    is_deleted: bool = False


class Judge:
    def __init__(self) -> None:
        self.violations: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self.ledgers: dict[int, Promises] = {}
        self.may_be_read_only = False  # Set by tests that fill the disk.
        self.may_fail = False  # Set by tests that make the disk fail.

    def of(self, ledger_id: int) -> Promises:
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            kind = _KINDS[ledger_id % len(_KINDS)]
            digest = LedgerDigest(kind, PASSWORD, LedgerId(ledger_id))
            ledger = self.ledgers[ledger_id] = Promises(ledger_id, digest)
        return ledger

    def _break(self, ledger: Promises, text: str) -> None:
        if len(self.violations) < _VIOLATIONS_MAX:
            self.violations.append(f"ledger {ledger.ledger_id}: {text}")

    # --- Adds ---------------------------------------------------------------------------------

    def on_sent(
        self,
        ledger_id: int,
        entry_id: int,
        last_add_confirmed: int,
        *,
        is_recovery: bool = False,
        is_sync_deferred: bool = False,
    ) -> None:
        ledger = self.of(ledger_id)
        sent = Sent(last_add_confirmed, is_recovery, is_sync_deferred, ledger.is_fenced)
        ledger.in_flight.setdefault(entry_id, []).append(sent)
        ledger.sent += 1
        ledger.lac_ceiling = max(ledger.lac_ceiling, last_add_confirmed)
        if is_recovery:
            ledger.denied.discard(entry_id)

    def on_add_reply(self, ledger_id: int, entry_id: int, error: Failure) -> None:
        ledger = self.of(ledger_id)
        waiting = ledger.in_flight.get(entry_id)
        if not waiting:
            self._break(ledger, f"an answer to an add of {entry_id} that nobody sent")
            return
        sent = waiting.pop(0)
        if not waiting:
            del ledger.in_flight[entry_id]
        if error is None:
            self.outcomes["acknowledged"] += 1
            self.outcomes["acknowledged as usual"] += not sent.is_recovery
            self._on_ack(ledger, entry_id, sent)
        elif error is BookieFailed and self.may_fail:
            self._on_unknown(ledger, entry_id)
        else:
            self.outcomes["refused"] += 1
            self._on_refusal(ledger, entry_id, sent, error)

    def _on_ack(self, ledger: Promises, entry_id: int, sent: Sent) -> None:
        if sent.is_behind_fence and not sent.is_recovery:
            self._break(ledger, f"an add of {entry_id} passed the fence")
        if entry_id in ledger.denied and not sent.is_recovery:
            self._break(ledger, f"{entry_id} was acknowledged after it was absent behind the fence")
        if ledger.is_deleted:
            self._break(ledger, f"an add of {entry_id} went to a deleted ledger")
        if sent.is_sync_deferred and not sent.is_recovery:
            if entry_id not in ledger.promised:
                ledger.unforced.add(entry_id)
                ledger.perhaps.add(entry_id)
            return
        self._promise(ledger, entry_id)
        ledger.lac_floor = max(ledger.lac_floor, sent.last_add_confirmed)

    def _on_refusal(
        self, ledger: Promises, entry_id: int, sent: Sent, error: type[Exception]
    ) -> None:
        if error is LedgerFenced:
            if not ledger.is_fence_asked and not ledger.is_deletion_asked:
                self._break(ledger, f"{entry_id} was refused by a fence that nobody asked for")
            elif sent.is_recovery and not ledger.is_deletion_asked:
                self._break(ledger, f"the recovery's add of {entry_id} was refused by the fence")
        elif error is BookieReadOnly:
            self.outcomes["refused for want of room"] += 1
            if not (self.may_be_read_only or self.may_fail):
                self._break(ledger, f"{entry_id} was refused though there is room")
        elif error is not Overloaded:
            self._break(ledger, f"the add of {entry_id} ended in {error.__name__}")

    def _promise(self, ledger: Promises, entry_id: int) -> None:
        ledger.promised.add(entry_id)
        ledger.perhaps.discard(entry_id)
        ledger.unforced.discard(entry_id)

    def on_crash(self) -> None:
        """All adds in flight now have an unknown outcome."""
        for ledger in self.ledgers.values():
            for entry_id in ledger.in_flight:
                self._on_unknown(ledger, entry_id)
            ledger.in_flight.clear()

    def _on_unknown(self, ledger: Promises, entry_id: int) -> None:
        self.outcomes["unknown"] += 1
        if entry_id not in ledger.promised:
            ledger.perhaps.add(entry_id)

    @property
    def in_flight(self) -> int:
        return sum(len(ledger.in_flight) for ledger in self.ledgers.values())

    # --- Deferred sync ------------------------------------------------------------------------

    def ask_force(self, ledger_id: int) -> frozenset[int]:
        return frozenset(self.of(ledger_id).unforced)

    def on_forced(self, ledger_id: int, asked: Iterable[int]) -> None:
        ledger = self.of(ledger_id)
        for entry_id in asked:
            self._promise(ledger, entry_id)

    # --- Reads --------------------------------------------------------------------------------

    def ask(self, ledger_id: int, entry_id: int) -> Question:
        ledger = self.of(ledger_id)
        must_be_there = entry_id in ledger.promised and not ledger.is_deletion_asked
        return Question(
            must_be_there,
            entry_id not in ledger.in_flight,
            ledger.is_deleted,
            ledger.is_fenced,
            ledger.lac_floor,
            ledger.sent,
        )

    def on_read(
        self,
        ledger_id: int,
        entry_id: int,
        question: Question,
        error: Failure,
        body: Buffer | None,
        last_add_confirmed: int | None = None,
    ) -> None:
        ledger = self.of(ledger_id)
        if error is None:
            assert body is not None
            self._on_present(ledger, entry_id, question, body)
        elif error in (NoSuchEntry, NoSuchLedger):
            self._on_absent(ledger, entry_id, question)
        elif error is not BookieFailed or not self.may_fail:
            self._break(ledger, f"the read of {entry_id} ended in {error.__name__}")
        if last_add_confirmed is not None and not ledger.is_deletion_asked:
            self._on_lac(ledger, question, last_add_confirmed)

    def _on_present(
        self, ledger: Promises, entry_id: int, question: Question, body: Buffer
    ) -> None:
        if question.is_deleted:
            self._break(ledger, f"{entry_id} was read, and the ledger is deleted")
        if not any(entry_id in ids for ids in (ledger.promised, ledger.perhaps, ledger.in_flight)):
            self._break(
                ledger, f"{entry_id} was read, and nobody added it, or it was absent before"
            )
        try:
            entry = ledger.digest.unpack_entry(body, EntryId(entry_id))
        except DigestMismatch as error:
            self._break(ledger, f"{entry_id} was read with other bytes: {error}")
            return
        if entry.payload != payload_of(ledger.ledger_id, entry_id):
            self._break(ledger, f"{entry_id} was read with another payload")
        if entry_id in ledger.denied:
            self._break(ledger, f"{entry_id} was read after it was absent behind the fence")
        if entry_id not in ledger.unforced and not self._is_deferred(ledger, entry_id):
            self._promise(ledger, entry_id)

    def _is_deferred(self, ledger: Promises, entry_id: int) -> bool:
        return any(sent.is_sync_deferred for sent in ledger.in_flight.get(entry_id, ()))

    def _on_absent(self, ledger: Promises, entry_id: int, question: Question) -> None:
        if question.must_be_there and not ledger.is_deletion_asked:
            self._break(ledger, f"{entry_id}, which was promised, is absent")
            ledger.promised.discard(entry_id)
        if question.sent < ledger.sent:
            return  # It may have been added after the bookie read it.
        if question.is_behind_fence and not any(
            sent.is_recovery for sent in ledger.in_flight.get(entry_id, ())
        ):
            ledger.denied.add(entry_id)
        if question.is_at_rest:
            ledger.perhaps.discard(entry_id)
            ledger.unforced.discard(entry_id)

    def _on_lac(self, ledger: Promises, question: Question, last_add_confirmed: int) -> None:
        if last_add_confirmed < question.lac_floor:
            self._break(ledger, f"LAC {last_add_confirmed} after {question.lac_floor}")
        ceiling = max(ledger.lac_ceiling, ledger.explicit_lac_ceiling)
        if last_add_confirmed > ceiling:
            self._break(ledger, f"LAC {last_add_confirmed} above all that were sent, {ceiling}")
        elif not ledger.unforced and not any(
            sent.is_sync_deferred for waiting in ledger.in_flight.values() for sent in waiting
        ):
            ledger.lac_floor = max(ledger.lac_floor, last_add_confirmed)

    def on_list(
        self, ledger_id: int, asked: frozenset[int], error: Failure, entries: EntryList | None
    ) -> None:
        """`asked` has the entries that were promised when the list was requested."""
        ledger = self.of(ledger_id)
        found: set[int] = set()
        if error is None:
            assert entries is not None
            for first, last in entries.ranges():
                found.update(range(first, last + 1))
        elif error is not NoSuchLedger:
            self._break(ledger, f"the list of entries ended in {error.__name__}")
            return
        if ledger.is_deleted:
            if found:
                self._break(ledger, "it is deleted, and has a list of entries")
        elif not ledger.is_deletion_asked and (missing := asked - found):
            self._break(ledger, f"the list of entries lacks {_some(missing)}")
        possible = ledger.promised | ledger.perhaps | ledger.in_flight.keys()
        if extra := found - possible:
            self._break(ledger, f"the list of entries has {_some(extra)}, which nobody added")

    # --- Fences, explicit LACs, deletions -------------------------------------------------------

    def ask_fence(self, ledger_id: int) -> None:
        self.of(ledger_id).is_fence_asked = True

    def on_fenced(self, ledger_id: int) -> None:
        self.of(ledger_id).is_fenced = True
        self.outcomes["fences"] += 1

    def ask_explicit_lac(self, ledger_id: int, last_add_confirmed: int) -> None:
        ledger = self.of(ledger_id)
        ledger.explicit_lac_ceiling = max(ledger.explicit_lac_ceiling, last_add_confirmed)

    def on_explicit_lac(self, ledger_id: int, last_add_confirmed: int) -> None:
        ledger = self.of(ledger_id)
        ledger.explicit_lac_floor = max(ledger.explicit_lac_floor, last_add_confirmed)
        ledger.lac_floor = max(ledger.lac_floor, last_add_confirmed)
        self.outcomes["explicit LACs"] += 1

    def on_lac_packet(self, ledger_id: int, floor: int, packet: bytes | None) -> None:
        """`floor` is the LAC that was certain when the packet was requested."""
        ledger = self.of(ledger_id)
        if ledger.is_deletion_asked:
            return
        found = NO_ENTRY
        if packet is not None:
            try:
                found = ledger.digest.unpack_lac(packet)
            except DigestMismatch as error:
                self._break(ledger, f"an explicit LAC that nobody wrote: {error}")
                return
        if found < floor:
            self._break(ledger, f"the explicit LAC is {found}, and was {floor}")
        if found > ledger.explicit_lac_ceiling:
            self._break(ledger, f"the explicit LAC is {found}, which nobody wrote")
        ledger.explicit_lac_floor = max(ledger.explicit_lac_floor, found)

    def ask_deletion(self, ledger_id: int) -> None:
        self.of(ledger_id).is_deletion_asked = True

    def on_deleted(self, ledger_id: int) -> None:
        self.of(ledger_id).is_deleted = True
        self.outcomes["deletions"] += 1


def _some(entry_ids: Iterable[int]) -> str:
    found = sorted(entry_ids)
    return f"{found[:5]} and {len(found) - 5} more" if len(found) > 5 else str(found)
