"""Rules for callbacks: which events are sent to each callback, in which order, and when a delivery is
retried.

    events ──► a queue for each callback ──► lanes, one for each bookie ──► attempts
                                              an event is sent when it is the first one in all of its lanes

- An event stays in the queue until its receiver has answered 2xx, or for at most a day (CL1).
- An event that names a bookie is sent only when earlier events that name it have left the queue (CL2).
- The pause after a failure is 1 s, doubling to an hour, plus or minus a fifth (CL3).
- Each request carries an HMAC-SHA-256 of its time and its body (CL4).
"""

import hmac
import json
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import sha256
from random import Random
from typing import Any, Final

from rollbook.proto.errors import BadMetadata, UnsupportedVersion
from rollbook.proto.formats.node_byte_checks import check_size
from rollbook.recovery.core.event_derivation import Event, EventKind, unpack_event

CALLBACKS_MAX: Final = 16
QUEUED_MAX: Final = 10_000  # The maximum number of queued events for one callback.
ROWS_MAX: Final = 100  # The maximum number of attempts that are kept for display.
AT_ONCE: Final = 4  # The maximum number of concurrent requests to one callback.
GIVEN_UP_MS: Final = 86_400_000
PAUSE_S_MAX: Final = 3_600.0
PROBLEM_MAX: Final = 200
_PAUSE_S: Final[float] = 1.0
_JITTER: Final = 0.2
_ID_DIGITS: Final = 32
_VERSION: Final = 1
_S: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class RegisteredCallback:
    id: str
    url: str
    secret: str
    kinds: tuple[EventKind, ...] = ()  # The kinds of events that are sent. Empty: all kinds.
    bookie: str | None = None  # If set, only events that name this bookie are sent.
    principal: str = ""  # The principal that registered the callback.
    created_ms: int = 0

    def takes(self, event: Event) -> bool:
        is_wanted = not self.kinds or event.kind in self.kinds
        return is_wanted and (self.bookie is None or self.bookie in event.bookies)

    def headers(self, event: Event, body: bytes, now_ms: int) -> dict[str, str]:
        """Return the request's headers, including the signature of its time and body (CL4)."""
        time_s = now_ms // 1000
        return {
            "content-type": "application/json",
            "rollbook-callback": self.id,
            "rollbook-event": event.id,
            "rollbook-time": str(time_s),
            "rollbook-signature": f"v1={sign(self.secret, time_s, body)}",
        }


def sign(secret: str, time_s: int, body: bytes) -> str:
    return hmac.new(secret.encode(), b"%d.%b" % (time_s, body), sha256).hexdigest()


def body_of(event: Event) -> bytes:
    return json.dumps(event.facts(), sort_keys=True).encode("ascii")


def is_callback_id(text: str) -> bool:
    return len(text) == _ID_DIGITS and all(each in "0123456789abcdef" for each in text)


# --- Waiting events ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PendingDelivery:
    """A queued event for one callback. `name` is the name of its node."""

    name: str
    event: Event
    queued_ms: int

    @property
    def lanes(self) -> tuple[str, ...]:
        """Return the lanes of an event: one for each of its bookies. Events without a bookie share one lane.
        A test event has its own lane, so it waits for no other event.
        """
        if self.event.kind is EventKind.TEST:
            return (f"test {self.name}",)
        return self.event.bookies or ("",)


class DeliveryOutcome(Enum):
    DELIVERED = "delivered"
    RETRYING = "retrying"
    GIVEN_UP = "given-up"


@dataclass(frozen=True, slots=True)
class DeliveryAnswer:
    """The result of one request. `status` is None if there was no response."""

    status: int | None = None
    problem: str | None = None

    @property
    def is_good(self) -> bool:
        return self.status is not None and 200 <= self.status < 300 and self.problem is None


@dataclass(slots=True)
class _Entry:
    pending: PendingDelivery
    attempts: int = 0
    due_ns: int = 0
    is_sent: bool = False


class CallbackQueue:
    """The queue of one callback, which decides when each event is sent. The queue's owner sends the requests
    and stores the queue.
    """

    def __init__(self, randomness: Random) -> None:
        self._randomness = randomness
        self._entries: dict[str, _Entry] = {}
        self._lanes: dict[str, deque[str]] = {}
        self._unreached: dict[str, None] = {}  # The events whose last attempt got no response.
        self._sent = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    @property
    def is_full(self) -> bool:
        return len(self._entries) >= QUEUED_MAX

    def add(self, pending: PendingDelivery) -> None:
        """Add an event. Calls must follow the order in which the events were queued."""
        assert pending.name not in self._entries, "CL1: an event is queued twice"
        self._entries[pending.name] = _Entry(pending)
        for lane in pending.lanes:
            self._lanes.setdefault(lane, deque()).append(pending.name)

    def take_due(self, now_ns: int) -> list[tuple[PendingDelivery, int]]:
        """Return the requests to send now, with their attempt numbers. The caller reports each result by
        `on_answer`.
        """
        found: list[tuple[PendingDelivery, int]] = []
        for lane, names in self._lanes.items():
            if self._sent == AT_ONCE:
                break
            entry = self._first_of(lane, names)
            if entry is None or entry.is_sent or entry.due_ns > now_ns:
                continue
            entry.is_sent = True
            self._unreached.pop(entry.pending.name, None)
            entry.attempts += 1
            self._sent += 1
            found.append((entry.pending, entry.attempts))
        return found

    def wait_ns(self, now_ns: int) -> int | None:
        """Return the time until a request is due, or None if none is waiting for its time."""
        if self._sent == AT_ONCE:
            return None
        heads = (self._first_of(lane, names) for lane, names in self._lanes.items())
        due = [entry.due_ns for entry in heads if entry is not None and not entry.is_sent]
        return max(min(due) - now_ns, 0) if due else None

    def _first_of(self, lane: str, names: deque[str]) -> _Entry | None:
        """Return the lane's first event, if it is the first event in all of its lanes (CL2). An event with
        several lanes is returned for only one of them.
        """
        entry = self._entries[names[0]]
        lanes = entry.pending.lanes
        if lanes[0] != lane:
            return None
        name = entry.pending.name
        return entry if all(self._lanes[each][0] == name for each in lanes) else None

    def on_answer(
        self, name: str, answer: DeliveryAnswer, now_ns: int, now_ms: int
    ) -> DeliveryOutcome:
        """Take note of the result of an attempt. An event that is not retried leaves the queue."""
        entry = self._entries[name]
        entry.is_sent = False
        self._sent -= 1
        if answer.is_good:
            self._remove(entry)
            # The receiver responds again, so the retries of these events are due now.
            for other in self._unreached:
                self._entries[other].due_ns = now_ns
            self._unreached.clear()
            return DeliveryOutcome.DELIVERED
        age_ms = now_ms - entry.pending.queued_ms
        if entry.pending.event.kind is EventKind.TEST or age_ms >= GIVEN_UP_MS:
            self._remove(entry)
            return DeliveryOutcome.GIVEN_UP
        entry.due_ns = now_ns + round(pause_s(entry.attempts, self._randomness) * _S)
        if answer.status is None:
            self._unreached[name] = None
        return DeliveryOutcome.RETRYING

    def _remove(self, entry: _Entry) -> None:
        del self._entries[entry.pending.name]
        for lane in entry.pending.lanes:
            first = self._lanes[lane].popleft()
            assert first == entry.pending.name, "CL2: an event overtook an earlier one"
            if not self._lanes[lane]:
                del self._lanes[lane]


def pause_s(attempts: int, randomness: Random) -> float:
    """Return how long to wait after this number of failed attempts, with a random part (CL3)."""
    base: float = min(_PAUSE_S * 2 ** min(attempts - 1, 20), PAUSE_S_MAX)
    return min(base * randomness.uniform(1 - _JITTER, 1 + _JITTER), PAUSE_S_MAX)


def attempt_row(
    pending: PendingDelivery,
    number: int,
    answer: DeliveryAnswer,
    outcome: DeliveryOutcome,
    at_ms: int,
    took_ms: int,
) -> dict[str, Any]:
    """Return the fields of an attempt for display."""
    return {
        "event": pending.event.id,
        "kind": pending.event.kind.value,
        "attempt": number,
        "at_ms": at_ms,
        "took_ms": took_ms,
        "status": answer.status,
        "problem": answer.problem[:PROBLEM_MAX] if answer.problem else None,
        "outcome": outcome.value,
    }


# --- Stored form ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EventCursor:
    """The position up to which events were queued: the fingerprints of `core/event_derivation.py`, and the
    number of the next event.
    """

    fingerprints: Mapping[str, str]
    next_number: int = 1

    def with_events(self, fingerprints: Mapping[str, str], count: int) -> "EventCursor":
        return replace(self, fingerprints=fingerprints, next_number=self.next_number + count)


def name_of(number: int) -> str:
    """Return the name of a queued event's node. Names sort in the order of their numbers."""
    return f"{number:016x}"


def pack_callback(callback: RegisteredCallback) -> bytes:
    """Return the JSON of a callback. Since a URL may contain secrets, too, the name of its field is one of
    those whose values are never shown.
    """
    fields = {
        "version": _VERSION,
        "id": callback.id,
        "secret_url": callback.url,
        "secret": callback.secret,
        "kinds": [each.value for each in callback.kinds],
        "bookie": callback.bookie,
        "principal": callback.principal,
        "created_ms": callback.created_ms,
    }
    return json.dumps(fields, sort_keys=True).encode("ascii")


def unpack_callback(data: bytes) -> RegisteredCallback:
    """Return the callback in these bytes. Raises `BadMetadata`, `UnsupportedVersion`."""
    fields = _unpacked(data, "a callback")
    try:
        callback = RegisteredCallback(
            fields["id"],
            fields["secret_url"],
            fields["secret"],
            tuple(map(EventKind, fields["kinds"])),
            fields["bookie"],
            fields["principal"],
            fields["created_ms"],
        )
    except (ValueError, KeyError, TypeError):
        # The original error is left out, since it quotes bytes that contain a secret.
        raise BadMetadata("not a callback") from None
    texts = callback.id, callback.url, callback.secret, callback.principal
    is_right = all(isinstance(each, str) for each in texts) and type(callback.created_ms) is int
    if not is_right or not isinstance(callback.bookie, str | None):
        raise BadMetadata("not a callback")
    return callback


def pack_pending(pending: PendingDelivery) -> bytes:
    fields = {"version": _VERSION, "event": pending.event.facts(), "queued_ms": pending.queued_ms}
    return json.dumps(fields, sort_keys=True).encode("ascii")


def unpack_pending(name: str, data: bytes) -> PendingDelivery:
    """Return the event in these bytes. Raises `BadMetadata`, `UnsupportedVersion`."""
    fields = _unpacked(data, "an event that waits")
    event, queued_ms = fields.get("event"), fields.get("queued_ms")
    if not isinstance(event, dict) or type(queued_ms) is not int:
        raise BadMetadata(f"not an event that waits: {data[:80]!r}")
    return PendingDelivery(name, unpack_event(event), queued_ms)


def pack_rows(rows: Sequence[Mapping[str, Any]]) -> bytes:
    fields = {"version": _VERSION, "rows": list(rows)[-ROWS_MAX:]}
    return json.dumps(fields, sort_keys=True).encode("ascii")


def unpack_rows(data: bytes) -> list[dict[str, Any]]:
    """Return the stored attempts for display. Unreadable attempts are left out."""
    try:
        rows = _unpacked(data, "deliveries")["rows"] if data else []
    except (BadMetadata, UnsupportedVersion, KeyError):
        return []
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def pack_cursor(cursor: EventCursor) -> bytes:
    fields = {
        "version": _VERSION,
        "marks": dict(cursor.fingerprints),
        "next_number": cursor.next_number,
    }
    return zlib.compress(json.dumps(fields, sort_keys=True).encode("ascii"))


def unpack_cursor(data: bytes) -> EventCursor:
    """Return the cursor in these bytes. Raises `BadMetadata`, `UnsupportedVersion`."""
    check_size(data)
    try:
        inflater = zlib.decompressobj()
        text = inflater.decompress(data, 16 * 1024 * 1024)
    except zlib.error:
        raise BadMetadata(f"not a cursor of events: {data[:80]!r}") from None
    fields = _unpacked(text, "a cursor of events", is_bounded=False)
    fingerprints, number = fields.get("marks"), fields.get("next_number")
    if not isinstance(fingerprints, dict) or type(number) is not int or number < 1:
        raise BadMetadata(f"not a cursor of events: {data[:80]!r}")
    if not all(isinstance(each, str) for each in fingerprints.values()):
        raise BadMetadata(f"not a cursor of events: {data[:80]!r}")
    return EventCursor(fingerprints, number)


def _unpacked(data: bytes, what: str, *, is_bounded: bool = True) -> dict[str, Any]:
    if is_bounded:
        check_size(data)
    try:
        fields = json.loads(data)
        version = fields["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadMetadata(f"not {what}") from None
    if not isinstance(fields, dict):
        raise BadMetadata(f"not {what}")
    if version != _VERSION:
        raise UnsupportedVersion(f"{what} of version {version!r:.20}")
    return fields
