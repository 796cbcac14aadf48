"""Positions and conditions as a caller writes them."""

from datetime import datetime, timedelta

from rollbook.logservice.ids import (
    Ago,
    AtCursor,
    AtOffset,
    AtTime,
    BeforeTail,
    Earliest,
    Latest,
    Offset,
    Position,
    WriterEpoch,
    parse_offset,
    parse_position,
)
from rollbook.logservice.words import Condition
from rollbook.proto.errors import InvalidRequest

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
            return AtTime(max(round(start.timestamp() * 1_000_000), 0))
        case timedelta():
            return Ago(round(start.total_seconds() * 1_000_000))
        case Earliest() | Latest() | AtOffset() | BeforeTail() | AtTime() | Ago() | AtCursor():
            return start


def condition_of(expect: int | None, epoch: int | None, must_be_empty: bool) -> Condition | None:
    if expect is None and epoch is None and not must_be_empty:
        return None
    return Condition(
        None if expect is None else Offset(parse_offset(expect)),
        must_be_empty,
        None if epoch is None else WriterEpoch(epoch),
    )
