"""Positions, conditions and producers as a caller writes them."""

from datetime import datetime, timedelta
from typing import Final

from rollbook.logservice.ids import (
    Ago,
    AtCursor,
    AtOffset,
    AtTime,
    BeforeTail,
    Earliest,
    Latest,
    Position,
    ProducerRef,
    parse_offset,
    parse_position,
    parse_writer_epoch,
    time_us_of,
)
from rollbook.logservice.words import Condition
from rollbook.proto.errors import InvalidRequest

_SECONDS_MAX: Final = 2**32  # More than a hundred years.

Start = int | str | datetime | timedelta | Position


def position_of(start: Start) -> Position:
    """`123`, `-10`, `"earliest"`, `"latest"`, `"ts:…"`, `"ago:15m"`, `"cursor:NAME"`; a datetime with its zone
    is that time, a timedelta that long ago. Raises `InvalidRequest`.
    """
    match start:
        case int():
            return AtOffset(parse_offset(start)) if start >= 0 else BeforeTail(-start)
        case str():
            return parse_position(start)
        case datetime():
            if start.tzinfo is None:
                raise InvalidRequest("the time names no zone")
            return AtTime(time_us_of(start))
        case timedelta():
            return Ago(round(start.total_seconds() * 1_000_000))
        case Earliest() | Latest() | AtOffset() | BeforeTail() | AtTime() | Ago() | AtCursor():
            return start
        case _:  # Whoever checks no types.
            raise InvalidRequest(f"{start!r:.80} is no position")


def milliseconds_of(seconds: float, what: str) -> int:
    """Raises `InvalidRequest` for what no length of time is."""
    if not 0 <= seconds <= _SECONDS_MAX:
        raise InvalidRequest(f"{what} of {seconds} s is no length of time that can be told")
    return round(seconds * 1000)


def condition_of(expect: int | None, epoch: int | None, must_be_empty: bool) -> Condition | None:
    if expect is None and epoch is None and not must_be_empty:
        return None
    return Condition(
        None if expect is None else parse_offset(expect),
        must_be_empty,
        None if epoch is None else parse_writer_epoch(epoch),
    )


def checked_producer(producer: ProducerRef) -> ProducerRef:
    """Raises `InvalidRequest` for one that no block can bear, which types alone do not exclude."""
    if not isinstance(producer, ProducerRef):
        raise InvalidRequest(
            f"producer={producer!r:.80} is no ProducerRef",
            next_step="give rollbook.ProducerRef(id, epoch, seq)",
        )
    if not isinstance(producer.id, bytes):
        raise InvalidRequest(f"a producer's id is bytes, not {type(producer.id).__name__}")
    return producer
