"""Messages reject values that a log could not store, both before sending and on receipt."""

from dataclasses import FrozenInstanceError, is_dataclass, replace
from typing import Any

import pytest

from rollbook.api.grpc.protobuf_conversion import pack, unpack
from rollbook.logservice import messages
from rollbook.logservice.ids import LogName, Offset
from rollbook.logservice.messages import (
    HOLDER_CHARACTERS_MAX,
    AcquireMode,
    AcquireWriter,
    AppendAck,
    AtTail,
    ReadStream,
)
from rollbook.logservice.position_syntax import AtOffset, Earliest
from rollbook.proto.errors import InvalidRequest
from rollbook.proto.v1 import log_pb2

LOG = LogName("default", "orders")


def test_messages_are_hashable_and_frozen() -> None:
    """Users may put acks into sets, and a shared message must not change."""
    acks = [AppendAck(*range(8)), AppendAck(*range(8))]
    assert len(set(acks)) == 1
    with pytest.raises(FrozenInstanceError):
        acks[0].entry_id = acks[0].entry_id  # type: ignore[misc]  # It is frozen.
    kinds: list[Any] = [each for each in vars(messages).values() if is_dataclass(each)]
    changeable = [each for each in kinds if not each.__dataclass_params__.frozen]
    assert changeable == [messages.StreamAppend, messages.AppendResult]


def test_longest_holder_survives_a_round_trip() -> None:
    """The holder is in the first entry of every segment: one too long would prevent rolls and openings."""
    longest = AcquireWriter(LOG, "é" * HOLDER_CHARACTERS_MAX)
    assert unpack(pack(longest), AcquireWriter) == longest


@pytest.mark.parametrize("holder", ["", "h" * (HOLDER_CHARACTERS_MAX + 1), "h" * 3_000_000])
def test_empty_and_too_long_holders_are_refused(holder: str) -> None:
    """An empty holder means that the epoch was released."""
    with pytest.raises(InvalidRequest):
        AcquireWriter(LOG, holder)
    with pytest.raises(InvalidRequest):
        unpack(log_pb2.AcquireWriterRequest(log=str(LOG), holder=holder), AcquireWriter)


def test_attempt_is_limited_to_32_characters() -> None:
    longest = AcquireWriter(LOG, "me", attempt="é" * 32)
    assert unpack(pack(longest), AcquireWriter) == longest
    with pytest.raises(InvalidRequest):
        AcquireWriter(LOG, "me", attempt="é" * 32 + "a")


@pytest.mark.parametrize(
    ("until", "tail", "resumed_at", "end"),
    [
        (None, 9, 3, 9),
        (5, 9, 3, 5),
        (9, 5, 3, 5),
        (None, None, 3, None),
        (None, 9, 12, 12),
        (5, None, 7, 7),
        (5, 9, 7, 7),
    ],
)
def test_resumed_read_to_the_tail_stays_within_its_range(
    until: Offset | None, tail: Offset | None, resumed_at: Offset, end: Offset | None
) -> None:
    """The read may resume beyond its end if the last event was a gap."""
    reading = ReadStream(LOG, Earliest(), until, at_tail=AtTail.STOP)
    resumed = reading.resumed_at(resumed_at, tail)
    assert (resumed.start, resumed.until_offset) == (AtOffset(resumed_at), end)
    assert resumed.at_tail is (AtTail.STOP if tail is None else AtTail.FOLLOW)
    follows = replace(reading, at_tail=AtTail.FOLLOW).resumed_at(resumed_at, tail)
    assert follows.until_offset == (None if until is None else max(until, resumed_at))


@pytest.mark.parametrize("ttl_ms", [-1, 1 << 32])
def test_lease_outside_32_bits_is_rejected(ttl_ms: int) -> None:
    with pytest.raises(InvalidRequest):
        AcquireWriter(LOG, "me", AcquireMode.STEAL, ttl_ms)
