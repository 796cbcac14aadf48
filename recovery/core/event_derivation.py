"""Derives the events of a cluster from its present metadata and from its last known states.

    sights (nodes as they are now) ──► tracks (states that were seen) ──┐
    fingerprints (what is known of each thing)                        ──┴─► derive ──► events, fingerprints after them

Each observed thing has a subject, and each of its states a fingerprint. A new fingerprint is an event. The
disappearance of a bookie's registration, a lifecycle or a pause is also an event. An event's id consists of
its node, the node's life (the transaction that made it) and its state (the node's version, or how the node
ended). All servers therefore give an event the same id (EV1). Fingerprints are small and can be stored: a
process that reads them continues exactly where the writer stopped (EV2).
"""

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from typing import Any, Final

from rollbook.proto.errors import BadMetadata

KEPT_MAX: Final = 10_000
TEXT_MAX: Final = 500
BOOKIES_MAX: Final = 20  # The maximum number of bookies that one event names.


class EventKind(StrEnum):
    # A bookie begins to drain, is drained, fails to drain, is active again, or was removed.
    LIFECYCLE = "lifecycle"
    BOOKIE_LOST = "bookie-lost"  # The bookie is no longer registered.
    BOOKIE_BACK = "bookie-back"
    BAD_LEDGER = "bad-ledger"  # A check found bad copies, or a repair found entries without a copy.
    LEDGER_OVERDUE = "ledger-overdue"  # The ledger has lacked copies for longer than `overdue_s`.
    RECOVERY_PAUSED = "recovery-paused"
    RECOVERY_RESUMED = "recovery-resumed"
    AUDITOR = "auditor"  # Another process leads as auditor.
    OPERATION_STARTED = "operation-started"
    OPERATION_ENDED = "operation-ended"
    TEST = "test"  # A test event that a person requested; it has no node.


class Thing(Enum):
    """The kind of an observed thing. Subjects of a kind begin with the kind's value."""

    REGISTRATION = "bookie"
    LIFECYCLE = "lifecycle"
    SWITCH = "switch"
    AUDITOR = "auditor"
    OPERATION = "operation"
    BAD_COPIES = "bad"
    LOST_ENTRIES = "lost"
    OVERDUE = "overdue"


@dataclass(frozen=True, slots=True)
class Event:
    id: str
    kind: EventKind
    at_ms: int
    node: str  # The path of the node, relative to the ledgers root or to our own root.
    bookies: tuple[str, ...] = ()
    ledger_id: int | None = None
    log: str | None = None
    operation: str | None = None
    state: str | None = None  # The new state of a lifecycle or an operation.
    text: str = ""

    def facts(self) -> dict[str, Any]:
        """Return the fields of the event for JSON."""
        fields = {name: getattr(self, name) for name in Event.__slots__}
        return fields | {"kind": self.kind.value, "bookies": list(self.bookies)}


@dataclass(frozen=True, slots=True)
class Sight:
    """The present state of one thing."""

    thing: Thing
    name: str  # A name that is unique among things of this kind.
    node: str
    life: int  # The transaction that made the node.
    version: int
    at_ms: int  # The time of the node's last write.
    state: str = ""  # The lifecycle or operation state, or the session of a registration.
    since_ms: int = 0  # The time when that state began.
    bookies: tuple[str, ...] = ()
    ledger_id: int | None = None
    log: str | None = None
    text: str = ""
    started_ms: int | None = None  # The time when an operation was started.
    subject: str = field(init=False)

    def __post_init__(self) -> None:
        """Compute the subject only once, since it is read at each look."""
        object.__setattr__(self, "subject", f"{self.thing.value}/{self.name}")

    @property
    def fingerprint(self) -> str:
        match self.thing:
            case Thing.REGISTRATION:
                return f"{self.state} {self.node}@{self.life:x}"
            case Thing.LIFECYCLE:
                return f"{self.state}.{self.since_ms} {self.node}@{self.life:x}.{self.version}"
            case Thing.OPERATION:
                return self.state
            case Thing.BAD_COPIES:
                return f"{self.life:x}.{self.version}"
        return f"{self.node}@{self.life:x}"

    @property
    def stamp(self) -> str:
        return f"{self.node}@{self.life:x}"


@dataclass(frozen=True, slots=True)
class ObservedState:
    """The state of one thing at one time. `sight` is None if the thing was gone."""

    fingerprint: str
    sight: Sight | None
    at_ms: int


class Tracks:
    """The states that this process has seen, for each thing the oldest first. The last state of each thing is
    kept, but only the latest ones of all earlier states.
    """

    def __init__(self, earlier_max: int = KEPT_MAX) -> None:
        self.states: dict[str, tuple[ObservedState, ...]] = {}
        self._earlier: deque[str] = (
            deque()
        )  # For each kept state that is not the last one of its thing, the thing's subject.
        self._earlier_max = earlier_max

    def on_look(self, sights: Mapping[str, Sight], now_ms: int) -> bool:
        """Take note of the present state of all things, which `sights` has by subject. Returns whether
        anything has changed.
        """
        is_new = False
        for subject, sight in sights.items():
            states = self.states.get(subject, ())
            if states and states[-1].sight is sight:
                # An unchanged sight is the usual case; comparing fingerprints would take ten times as long.
                continue
            if states and states[-1].fingerprint == sight.fingerprint:
                self.states[subject] = (*states[:-1], replace(states[-1], sight=sight))
            else:
                self._add(subject, ObservedState(sight.fingerprint, sight, now_ms))
                is_new = True
        for subject in [each for each in self.states if each not in sights]:
            last = self.states[subject][-1]
            if not _ends(subject):
                del self.states[subject]
            elif last.sight is not None:
                self._add(subject, ObservedState(f"{_GONE}{last.fingerprint}", None, now_ms))
                is_new = True
        return is_new

    def _add(self, subject: str, state: ObservedState) -> None:
        known = self.states.pop(subject, ())  # The thing changed last, so it is last in the order.
        self.states[subject] = (*known, state)
        if known:
            self._earlier.append(subject)
        if len(self._earlier) > self._earlier_max:
            changed_first = self._earlier.popleft()
            if len(states := self.states.get(changed_first, ())) > 1:
                self.states[changed_first] = states[1:]
        if len(self.states) > _TRACKS_MAX:
            gone = (each for each, states in self.states.items() if states[-1].sight is None)
            if (oldest := next(gone, None)) is not None:
                del self.states[oldest]

    def fingerprints(self) -> dict[str, str]:
        return {subject: states[-1].fingerprint for subject, states in self.states.items()}


def derive(
    fingerprints: Mapping[str, str],
    tracks: Mapping[str, Sequence[ObservedState]],
    now_ms: int,
    things_max: int | None = None,
) -> tuple[list[Event], dict[str, str]]:
    """Return the events since `fingerprints`, in order, and the fingerprints after them. If this process saw
    a state that others missed between two looks, that state is an event, too. `things_max` limits the number
    of things; the things that changed first are taken.
    """
    found: list[tuple[int, str, list[Event], str | None]] = []
    for subject, states in tracks.items():
        before = fingerprints.get(subject)
        if before == states[-1].fingerprint:
            continue
        known = [number for number, state in enumerate(states) if state.fingerprint == before]
        events: list[Event] = []
        for state in states[known[-1] + 1 if known else 0 :]:
            if state.sight is not None:
                events += _news(before, state.sight)
            elif before is not None and not before.startswith(_GONE):
                events += _end_of(subject, before, state.at_ms)
            before = state.fingerprint
        found.append((events[0].at_ms if events else 0, subject, events, before))
    for subject, fingerprint in fingerprints.items():
        if subject not in tracks and not fingerprint.startswith(_GONE):
            gone = f"{_GONE}{fingerprint}" if _ends(subject) else None
            found.append((now_ms, subject, _end_of(subject, fingerprint, now_ms), gone))
    ordered: list[tuple[int, str, int, Event]] = []
    after = dict(fingerprints)
    for _, subject, events, fingerprint_after in sorted(found, key=lambda each: each[:2])[
        :things_max
    ]:
        at_ms = 0
        for number, event in enumerate(events):
            # Keep the states of one thing in order although the clocks of writers differ.
            at_ms = max(at_ms, event.at_ms)
            ordered.append((at_ms, subject, number, event))
        if fingerprint_after is None:
            del after[subject]
        else:
            after[subject] = fingerprint_after
    return [event for *_, event in sorted(ordered, key=lambda each: each[:3])], _bounded(after)


def _bounded(fingerprints: dict[str, str]) -> dict[str, str]:
    """Drop the oldest fingerprints of things that are gone. Newer ones are kept, since they show that the
    event was made already.
    """
    gone = [
        subject for subject, fingerprint in fingerprints.items() if fingerprint.startswith(_GONE)
    ]
    for subject in gone[: max(len(gone) - _GONE_MAX, 0)]:
        del fingerprints[subject]
    return fingerprints


def first_fingerprints(tracks: Mapping[str, Sequence[ObservedState]]) -> dict[str, str]:
    """Return the fingerprints of a server that has just started: registered bookies make no events, but all
    other things do (EV3).
    """
    return {
        subject: states[-1].fingerprint
        for subject, states in tracks.items()
        if _thing_of(subject) == Thing.REGISTRATION.value
    }


def _thing_of(subject: str) -> str:
    return subject.partition("/")[0]


def _ends(subject: str) -> bool:
    """Return whether the disappearance of such a thing is an event."""
    ends = (Thing.REGISTRATION.value, Thing.LIFECYCLE.value, Thing.SWITCH.value)
    return _thing_of(subject) in ends


_GONE: Final = "gone "
_GONE_MAX: Final = 1_000
_TRACKS_MAX: Final = 20_000
_BOOKIES_IN_TEXT: Final = 3
_ENDS: Final = {"done": "is done", "failed": "has failed", "cancelled": "was cancelled"}
_SHORT_TEXTS: Final = {
    "draining": "drains: its copies are made elsewhere",
    "drained": "is drained: no ledger names it",
    "draining-failed": "could not be drained",
    "active": "is active",
}


def _news(before: str | None, sight: Sight) -> list[Event]:
    match sight.thing:
        case Thing.REGISTRATION:
            return _registered(before, sight)
        case Thing.LIFECYCLE:
            if (
                before is not None
                and before.partition(" ")[0] == sight.fingerprint.partition(" ")[0]
            ):
                return []  # The node was written again unchanged.
            return [_lifecycle(sight)]
        case Thing.OPERATION:
            return _operation(before, sight)
        case Thing.SWITCH:
            return [_event(sight, EventKind.RECOVERY_PAUSED, "", "Repair is paused.")]
        case Thing.AUDITOR:
            return [_event(sight, EventKind.AUDITOR, "", f"{sight.text} leads as auditor.")]
        case Thing.OVERDUE:
            text = f"Ledger {sight.ledger_id} lacks copies for too long."
            return [_event(sight, EventKind.LEDGER_OVERDUE, ".overdue", text)]
    what = f".{sight.version}"
    return [_event(sight, EventKind.BAD_LEDGER, what, sight.text)]


def _registered(before: str | None, sight: Sight) -> list[Event]:
    back = _event(sight, EventKind.BOOKIE_BACK, "", f"Bookie {sight.name} is registered.")
    if before is None or before.startswith(_GONE):
        return [back]
    owner, _, stamp = before.partition(" ")
    if owner == sight.state:
        return []  # The bookie became writable or read-only.
    return [_lost(sight.name, stamp, back.at_ms), back]


def _lost(bookie: str, stamp: str, at_ms: int) -> Event:
    node = stamp.rpartition("@")[0]
    text = f"Bookie {bookie} is not registered any more."
    return Event(f"{stamp}.lost", EventKind.BOOKIE_LOST, at_ms, node, (bookie,), text=text)


def _lifecycle(sight: Sight) -> Event:
    text = f"Bookie {sight.name} {_SHORT_TEXTS.get(sight.state, sight.state)}."
    if sight.text:
        text = f"{text} {sight.text}"
    return _event(sight, EventKind.LIFECYCLE, f".{sight.version}", text, state=sight.state)


def _operation(before: str | None, sight: Sight) -> list[Event]:
    if sight.state == "queued":
        return []
    has_ended = sight.state != "running"
    events = []
    if before in (None, "queued") and sight.started_ms is not None:
        text = f"{_operation_in_words(sight)} has begun."
        begun_ms = sight.started_ms
        events.append(
            _event(
                sight,
                EventKind.OPERATION_STARTED,
                ".started",
                text,
                state="running",
                at_ms=begun_ms,
            )
        )
    if has_ended:
        text = f"{_operation_in_words(sight)} {_ENDS.get(sight.state, sight.state)}."
        events.append(_event(sight, EventKind.OPERATION_ENDED, ".ended", text, state=sight.state))
    return events


def _operation_in_words(sight: Sight) -> str:
    about = ", ".join(sight.bookies[:_BOOKIES_IN_TEXT])
    if not about and sight.ledger_id is not None:
        about = f"ledger {sight.ledger_id}"
    elif len(sight.bookies) > _BOOKIES_IN_TEXT:
        about += ", …"
    return f"Operation {sight.text}" + (f" ({about})" if about else "")


def _end_of(subject: str, fingerprint: str, now_ms: int) -> list[Event]:
    thing, _, name = subject.partition("/")
    if thing == Thing.REGISTRATION.value:
        return [_lost(name, fingerprint.partition(" ")[2], now_ms)]
    if thing == Thing.LIFECYCLE.value:
        stamp = fingerprint.partition(" ")[2]
        node, text = stamp.rpartition("@")[0], f"Bookie {name} was removed from the cluster."
        kind = EventKind.LIFECYCLE
        removed = f"{stamp}.removed"
        return [Event(removed, kind, now_ms, node, (name,), state="removed", text=text)]
    if thing == Thing.SWITCH.value:
        node, kind = fingerprint.rpartition("@")[0], EventKind.RECOVERY_RESUMED
        return [Event(f"{fingerprint}.resumed", kind, now_ms, node, text="Repair goes on.")]
    return []


def _event(
    sight: Sight,
    kind: EventKind,
    what: str,
    text: str,
    *,
    state: str | None = None,
    at_ms: int | None = None,
) -> Event:
    return Event(
        f"{sight.stamp}{what}",
        kind,
        sight.at_ms if at_ms is None else at_ms,
        sight.node,
        sight.bookies[:BOOKIES_MAX],
        sight.ledger_id,
        sight.log,
        sight.name if sight.thing is Thing.OPERATION else None,
        state,
        text[:TEXT_MAX],
    )


# --- Stored form ------------------------------------------------------------------------------


def unpack_event(fields: Mapping[str, Any]) -> Event:
    """Return the event in these JSON fields. Raises `BadMetadata`."""
    try:
        kind, names = EventKind(fields["kind"]), fields["bookies"]
        event = Event(
            kind=kind,
            bookies=tuple(names),
            **{
                name: fields[name]
                for name in Event.__slots__
                if name in fields and name not in ("kind", "bookies")
            },
        )
    except (ValueError, KeyError, TypeError):
        raise BadMetadata(f"not an event: {json.dumps(fields)[:80]}") from None
    texts = (event.id, event.node, event.text, *event.bookies)
    optional = (event.log, event.operation, event.state)
    if (
        type(event.at_ms) is not int
        or not all(isinstance(each, str) for each in texts)
        or not all(each is None or isinstance(each, str) for each in optional)
        or not (event.ledger_id is None or type(event.ledger_id) is int)
    ):
        raise BadMetadata(f"not an event: {json.dumps(fields)[:80]}")
    return event


@dataclass(frozen=True, slots=True)
class EventFilter:
    """The events that a reader wants."""

    kind: EventKind | None = None
    bookie: str | None = None
    log: str | None = None

    def takes(self, event: Event) -> bool:
        return (
            (self.kind is None or event.kind is self.kind)
            and (self.bookie is None or self.bookie in event.bookies)
            and (self.log is None or self.log == event.log)
        )


class EventMemory:
    """The latest events of this process, the newest first."""

    def __init__(self, kept: int = KEPT_MAX) -> None:
        self._kept = kept
        self._events: dict[int, Event] = {}  # Events by their numbers, which ascend without gaps.
        self._numbers: dict[str, int] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._events)

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            if event.id in self._numbers:
                continue
            self._events[self._next] = event
            self._numbers[event.id] = self._next
            self._next += 1
            if len(self._events) > self._kept:
                gone = self._events.pop(self._next - self._kept - 1)
                del self._numbers[gone.id]

    def page(
        self, wanted: EventFilter, after: str, limit: int
    ) -> tuple[list[Event], str | None] | None:
        """Return the events before `after`, which is an event's id, and the `after` of the next page. Returns
        None if `after` is not known.
        """
        number = self._numbers.get(after, -1) if after else self._next
        if number < 0:
            return None
        found: list[Event] = []
        for each in range(number - 1, self._next - len(self._events) - 1, -1):
            event = self._events[each]
            if not wanted.takes(event):
                continue
            if len(found) == limit:
                return found, found[-1].id
            found.append(event)
        return found, None
