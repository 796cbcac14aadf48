"""Judges the responses that clients got, in a run in which every process could die, hang or be cut off.

- **lost**: an entry that was confirmed to a writer is in the ledger: its last entry is that one or a later one.
- **contents**: entry i is the i-th that was written, for every reader at every time.
- **one end**: all clients that learned where a ledger ends learned the same, and metadata says so, too.
- **prefix**: a reader is shown entries without a gap, and none beyond the end of the closed ledger.
- **refused**: an entry that was refused to a writer is not in the ledger.
- **late**: no append that was handed over after a client had seen the ledger closed is confirmed.
- **open**: when all is healed, every ledger is closed.
- **audit**: each ledger was then read to its end, more than once, and all its copies were looked at.
- **copies**: no entry has fewer sound copies than its ack quorum, and no copy is wrong or in doubt.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tests.chaos.history import NOT_CLOSED, Event

NEVER: Final = 1 << 62
AUDITOR: Final = "auditor"
"""The prefix of the clients that read everything at the end."""
AUDITS_MIN: Final = 2


@dataclass(slots=True)
class _Ledger:
    """The responses of all clients about one ledger."""

    ends: dict[int, str] = field(
        default_factory=dict
    )  # Each end, and the client that reported it first.
    closed_ns: int = NEVER  # When a client first knew that it was closed.
    confirmed: int = -1
    refused: int = NEVER
    appended: list[Event] = field(default_factory=list)
    acked: int = 0
    shown: int = -1
    is_listed: bool = False
    audits: int = 0
    is_verified: bool = False


@dataclass(slots=True)
class Judgement:
    violations: list[str] = field(default_factory=list)
    ledgers: int = 0
    appended: int = 0
    acked: int = 0
    refused: int = 0
    read: int = 0
    recoveries: int = 0
    verified_entries: int = 0

    @property
    def unknown_share(self) -> float:
        """The share of appends whose outcome no client learned."""
        return (self.appended - self.acked - self.refused) / max(1, self.appended)


class _Judge:
    def __init__(self) -> None:
        self.judgement = Judgement()
        self._ledgers: dict[int, _Ledger] = {}
        self._next: dict[tuple[str, int], int] = {}  # The next entry of each reader in each ledger.

    def _break(self, rule: str, text: str) -> None:
        self.judgement.violations.append(f"{rule}: {text}")

    def hear(self, event: Event) -> None:
        """Takes the events of one client in their order."""
        ledger = self._ledgers.setdefault(event.ledger_id, _Ledger())
        judgement, count = self.judgement, event.last - event.first + 1
        match event.kind:
            case "create" | "unsettled":
                pass
            case "misplaced":
                self._break("contents", f"{event.who} was told another id than {event.first}")
            case "closing":
                judgement.recoveries += event.who.startswith("recoverer")
            case "append":
                ledger.appended.append(event)
                judgement.appended += count
            case "acked":
                ledger.confirmed = max(ledger.confirmed, event.last)
                judgement.acked += count
            case "refused":
                ledger.refused = min(ledger.refused, event.first)
                judgement.refused += count
            case "closed":
                ledger.closed_ns = min(ledger.closed_ns, event.at_ns)
                ledger.ends.setdefault(event.last, event.who)
            case "follow" | "read" | "odd" | "ended":
                self._on_reader(ledger, event)
            case "listed":
                ledger.is_listed = True
                if event.last != NOT_CLOSED:
                    ledger.ends.setdefault(event.last, "metadata")
            case "verified":
                ledger.is_verified = True
                judgement.verified_entries += event.last + 1
                if event.first:
                    text = f"{event.first} copies or entries of ledger {event.ledger_id}"
                    self._break("copies", f"{text} are not as they must be")
            case _:
                raise ValueError(f"what is this: {event}")

    def _on_reader(self, ledger: _Ledger, event: Event) -> None:
        reader = event.who, event.ledger_id
        where = f"{event.who} in ledger {event.ledger_id}"
        if event.kind == "follow":
            self._next[reader] = event.first
            return
        expected = self._next[reader]
        if event.kind == "ended":
            ledger.ends.setdefault(event.last, event.who)
            if expected != event.last + 1:
                self._break("prefix", f"{where} is at its end, {event.last}, before {expected}")
            ledger.audits += event.who.startswith(AUDITOR)
            return
        if event.first != expected:
            self._break("prefix", f"{where} is shown {event.first}, not {expected}")
        if event.kind == "odd":
            self._break("contents", f"{where} reads entry {event.first} as nobody wrote it")
        self._next[reader] = event.last + 1
        ledger.shown = max(ledger.shown, event.last)
        self.judgement.read += event.last - event.first + 1

    def end(self) -> Judgement:
        self.judgement.ledgers = len(self._ledgers)
        for ledger_id, ledger in sorted(self._ledgers.items()):
            self._judge(f"ledger {ledger_id}", ledger)
        return self.judgement

    def _judge(self, name: str, ledger: _Ledger) -> None:
        if not ledger.ends:
            self._break("open", f"{name} is not closed")
            return
        if len(ledger.ends) > 1:
            told = ", ".join(f"{who} says {end}" for end, who in ledger.ends.items())
            self._break("one end", f"{name}: {told}")
        end = min(ledger.ends)
        if ledger.confirmed > end:
            self._break("lost", f"{name}: {ledger.confirmed} was confirmed, and it ends at {end}")
        if ledger.shown > end:
            self._break("prefix", f"{name}: {ledger.shown} was shown, and it ends at {end}")
        if ledger.refused <= end:
            self._break("refused", f"{name}: {ledger.refused} was refused, and it ends at {end}")
        for event in ledger.appended:
            if event.at_ns > ledger.closed_ns and event.first <= ledger.confirmed:
                text = f"{event.first} was written after the close, and is confirmed"
                self._break("late", f"{name}: {text}")
        if not ledger.is_listed:
            self._break("open", f"{name} is not in the metadata")
        if ledger.audits < AUDITS_MIN or not ledger.is_verified:
            self._break("audit", f"{name} could not be read to its end")


def judge(events: Iterable[Event]) -> Judgement:
    court = _Judge()
    for event in events:
        court.hear(event)
    return court.end()
