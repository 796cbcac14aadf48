"""Messages refuse what a log could not carry: clients hear of it before they ask, doors as they listen."""

from dataclasses import FrozenInstanceError, is_dataclass, replace
from typing import Any

import pytest

from rollbook.api.grpc.protobuf_conversion import pack, unpack
from rollbook.logservice import messages
from rollbook.logservice.ids import AtOffset, Earliest, LogName, Offset
from rollbook.logservice.messages import (
    HOLDER_CHARACTERS_MAX,
    AcquireMode,
    AcquireWriter,
    AppendAck,
    AtTail,
    ReadStream,
)
from rollbook.proto.errors import InvalidRequest
from rollbook.proto.v1 import log_pb2

LOG = LogName("default", "orders")


def test_whatever_users_hold_is_a_value() -> None:
    """They may put acks into a set, and nobody changes one that another has."""
    acks = [AppendAck(*range(8)), AppendAck(*range(8))]
    assert len(set(acks)) == 1
    with pytest.raises(FrozenInstanceError):
        acks[0].entry_id = acks[0].entry_id  # type: ignore[misc]  # It is frozen.
    kinds: list[Any] = [each for each in vars(messages).values() if is_dataclass(each)]
    changeable = [each for each in kinds if not each.__dataclass_params__.frozen]
    assert changeable == [messages.StreamAppend, messages.AppendResult]


def test_whoever_holds_a_log_fits_into_its_memory() -> None:
    """It is in the first entry of every segment, and nobody could roll or open the log again."""
    longest = AcquireWriter(LOG, "é" * HOLDER_CHARACTERS_MAX)
    assert unpack(pack(longest), AcquireWriter) == longest


@pytest.mark.parametrize("holder", ["", "h" * (HOLDER_CHARACTERS_MAX + 1), "h" * 3_000_000])
def test_empty_and_too_long_holders_are_refused(holder: str) -> None:
    """A log without a holder is one that was released."""
    with pytest.raises(InvalidRequest):
        AcquireWriter(LOG, holder)
    with pytest.raises(InvalidRequest):
        unpack(log_pb2.AcquireWriterRequest(log=str(LOG), holder=holder), AcquireWriter)


def test_an_attempt_fits_into_the_memory_of_a_log() -> None:
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
def test_who_reads_to_the_tail_resumes_within_his_range(
    until: Offset | None, tail: Offset | None, resumed_at: Offset, end: Offset | None
) -> None:
    """Wherever the tail was; the last event may have been a gap that went beyond."""
    reading = ReadStream(LOG, Earliest(), until, at_tail=AtTail.STOP)
    resumed = reading.resumed_at(resumed_at, tail)
    assert (resumed.start, resumed.until_offset) == (AtOffset(resumed_at), end)
    assert resumed.at_tail is (AtTail.STOP if tail is None else AtTail.FOLLOW)
    follows = replace(reading, at_tail=AtTail.FOLLOW).resumed_at(resumed_at, tail)
    assert follows.until_offset == (None if until is None else max(until, resumed_at))


@pytest.mark.parametrize("ttl_ms", [-1, 1 << 32])
def test_leases_are_numbers_of_32_bits(ttl_ms: int) -> None:
    with pytest.raises(InvalidRequest):
        AcquireWriter(LOG, "me", AcquireMode.STEAL, ttl_ms)
