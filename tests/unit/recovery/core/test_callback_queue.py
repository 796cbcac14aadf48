"""Event callbacks: delivery order, retries, signatures and stored formats."""

import hashlib
import hmac
import json
import random
import zlib
from dataclasses import replace

import pytest

from rollbook.proto.errors import BadMetadata, UnsupportedVersion
from rollbook.recovery.core.callback_queue import (
    AT_ONCE,
    GIVEN_UP_MS,
    CallbackQueue,
    DeliveryAnswer,
    DeliveryOutcome,
    EventCursor,
    PendingDelivery,
    RegisteredCallback,
    attempt_row,
    body_of,
    name_of,
    pack_callback,
    pack_cursor,
    pack_pending,
    pack_rows,
    pause_s,
    unpack_callback,
    unpack_cursor,
    unpack_pending,
    unpack_rows,
)
from rollbook.recovery.core.event_derivation import Event, EventKind

S = 1_000_000_000
GOOD, REFUSED, SILENT = (
    DeliveryAnswer(204),
    DeliveryAnswer(500, "it answered 500"),
    DeliveryAnswer(problem="nobody"),
)
CALLBACK = RegisteredCallback("5f" * 16, "https://hooks.example.com/x", "5ec3e7", created_ms=1)


def pending(number: int, *bookies: str, kind: EventKind = EventKind.LIFECYCLE) -> PendingDelivery:
    return PendingDelivery(name_of(number), Event(f"n{number}", kind, number, "n", bookies), 0)


def due(queue: CallbackQueue, now_s: float = 0) -> list[int]:
    return [int(each.name, 16) for each, _ in queue.take_due(round(now_s * S))]


def test_events_of_one_bookie_keep_their_order() -> None:
    """CL2: an event that names two bookies waits for both, and delays both."""
    queue = CallbackQueue(random.Random(1))
    for each in (pending(1, "a"), pending(2, "b"), pending(3, "a", "b"), pending(4, "b")):
        queue.add(each)
    queue.add(pending(5))
    queue.add(pending(6))
    assert due(queue) == [1, 2, 5]
    assert due(queue) == []
    queue.on_answer(name_of(2), GOOD, 0, 0)
    assert due(queue) == [], "3 waits for 1, and 4 for 3"
    queue.on_answer(name_of(1), REFUSED, 0, 0)
    queue.on_answer(name_of(5), GOOD, 0, 0)
    assert due(queue) == [6]
    assert due(queue, 1.3) == [1]
    queue.on_answer(name_of(1), GOOD, 0, 0)
    assert due(queue) == [3]
    queue.on_answer(name_of(3), GOOD, 0, 0)
    assert due(queue) == [4]
    assert (len(queue), name_of(1) in queue) == (2, False)


def test_concurrent_deliveries_are_limited() -> None:
    queue = CallbackQueue(random.Random(1))
    for number in range(10):
        queue.add(pending(number, f"bk-{number}"))
    assert len(due(queue)) == AT_ONCE
    assert queue.wait_ns(0) is None
    queue.on_answer(name_of(0), GOOD, 0, 0)
    assert queue.wait_ns(0) == 0
    assert due(queue) == [4]


def test_retry_pauses_double_up_to_an_hour() -> None:
    """CL3."""
    randomness = random.Random(1)
    for attempts, seconds in ((1, 1), (2, 2), (5, 16), (13, 3_600), (10_000, 3_600)):
        pauses = [pause_s(attempts, randomness) for _ in range(100)]
        assert seconds * 0.8 <= min(pauses) < max(pauses) <= min(seconds * 1.2, 3_600)
        assert len(set(pauses)) > 10


def test_delivery_is_retried_for_a_day() -> None:
    """CL1, CL3."""
    queue = CallbackQueue(random.Random(1))
    queue.add(pending(1, "a"))
    queue.add(pending(2, "a"))
    now_ms, numbers = 0, []
    while True:
        ((sent, number),) = queue.take_due(now_ms * 1_000_000)
        numbers.append(number)
        outcome = queue.on_answer(sent.name, REFUSED, now_ms * 1_000_000, now_ms)
        if outcome is DeliveryOutcome.GIVEN_UP:
            break
        wait_ns = queue.wait_ns(now_ms * 1_000_000)
        assert wait_ns is not None
        now_ms += wait_ns // 1_000_000 + 1
    assert GIVEN_UP_MS <= now_ms <= GIVEN_UP_MS + 3_600_000
    assert numbers == list(range(1, len(numbers) + 1))
    assert 30 < len(numbers) < 45
    assert [each.name for each, _ in queue.take_due(now_ms * 1_000_000)] == [name_of(2)]


def test_success_makes_unanswered_deliveries_due_at_once() -> None:
    """Deliveries that the receiver refused still wait for their pause."""
    queue = CallbackQueue(random.Random(1))
    for number, bookie in enumerate("abc"):
        queue.add(pending(number, bookie))
    due(queue)
    queue.on_answer(name_of(0), SILENT, 0, 0)
    queue.on_answer(name_of(1), REFUSED, 0, 0)
    queue.on_answer(name_of(2), GOOD, 5, 0)
    assert due(queue, 0.001) == [0]


def test_test_event_is_sent_once_and_at_once() -> None:
    queue = CallbackQueue(random.Random(1))
    queue.add(pending(1))
    queue.add(pending(2, kind=EventKind.TEST))
    assert due(queue) == [1, 2]
    assert queue.on_answer(name_of(2), SILENT, 0, 0) is DeliveryOutcome.GIVEN_UP


def test_signature_covers_time_and_body() -> None:
    """CL4: verified the way the operators' page shows."""
    event = Event("lifecycle/bk-1@1f.0", EventKind.LIFECYCLE, 1, "lifecycle/bk-1", ("bk-1",))
    body = body_of(event)
    headers = CALLBACK.headers(event, body, 1_795_219_200_999)
    assert headers["rollbook-time"] == "1795219200"
    signed = b"1795219200." + body
    expected = hmac.new(b"5ec3e7", signed, hashlib.sha256).hexdigest()
    assert headers["rollbook-signature"] == f"v1={expected}"
    assert json.loads(body)["id"] == headers["rollbook-event"] == event.id


def test_callback_filters_by_kind_and_bookie() -> None:
    event = Event("e", EventKind.LIFECYCLE, 1, "n", ("bk-1",))
    for callback, takes in (
        (CALLBACK, True),
        (replace(CALLBACK, kinds=(EventKind.LIFECYCLE,), bookie="bk-1"), True),
        (replace(CALLBACK, kinds=(EventKind.AUDITOR,)), False),
        (replace(CALLBACK, bookie="bk-2"), False),
    ):
        assert callback.takes(event) is takes


def test_callbacks_deliveries_and_cursors_survive_packing() -> None:
    callback = replace(CALLBACK, kinds=(EventKind.AUDITOR,), bookie="bk-1", principal="boss")
    assert unpack_callback(pack_callback(callback)) == callback
    one = pending(1, "bk-1")
    assert unpack_pending(one.name, pack_pending(one)) == one
    cursor = EventCursor({f"lifecycle/bk-{n}": "x" for n in range(1_000)}, 7)
    assert unpack_cursor(pack_cursor(cursor)) == cursor
    rows = [attempt_row(one, n, REFUSED, DeliveryOutcome.RETRYING, 1, 2) for n in range(150)]
    assert unpack_rows(pack_rows(rows)) == rows[50:]
    assert unpack_rows(b"") == unpack_rows(b"nonsense") == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"1",
        b"{}",
        b'{"version": 1}',
        b"[" * 100_000,
        b'{"version": 1, "id": 5}',
    ],
)
def test_unreadable_nodes_raise_without_quoting_secrets(data: bytes) -> None:
    """Error messages must not quote the data, which may contain a secret."""
    for unpack in (unpack_callback, lambda data: unpack_pending("n", data), unpack_cursor):
        with pytest.raises(BadMetadata):
            unpack(data)
    with pytest.raises(BadMetadata):
        unpack_cursor(zlib.compress(data))
    newer = b'{"version": 2}'
    with pytest.raises(UnsupportedVersion):
        unpack_callback(newer)
    with pytest.raises(UnsupportedVersion):
        unpack_cursor(zlib.compress(newer))
    secret = pack_callback(CALLBACK).replace(b'"created_ms": 1', b'"created_ms": "x"')
    with pytest.raises(BadMetadata) as caught:
        unpack_callback(secret)
    assert "5ec3e7" not in str(caught.value)


def test_oversized_cursor_is_rejected() -> None:
    with pytest.raises(BadMetadata):
        unpack_cursor(zlib.compress(b" " * (17 * 1024 * 1024), 1))
