"""Parses and formats positions: where a reader of a log starts. Commands, URLs and the client accept these forms:

    123            that offset                    earliest   the head: the first record that is kept
    123@UID        that offset, if the log has this uid; a log that is created again has another uid
    -10            ten records before the tail    latest     the tail: only records appended from now on
    ts:TIME        the first record at or after that time, in ISO 8601 with its zone
    ago:15m        the first record that is at most 15 minutes old; units: w, d, h, m, s, ms; also `1h30m`
    cursor:NAME    the offset of that cursor

Clients import this module, so it imports nothing heavy.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from rollbook.logservice.ids import (
    TIMESTAMP_US_MAX,
    CursorName,
    Offset,
    parse_cursor_name,
    parse_offset,
    parse_uid,
)
from rollbook.proto.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Earliest:
    def __str__(self) -> str:
        return "earliest"


@dataclass(frozen=True, slots=True)
class Latest:
    def __str__(self) -> str:
        return "latest"


@dataclass(frozen=True, slots=True)
class AtOffset:
    offset: Offset
    uid: str = ""  # The uid of the log that the offset belongs to; empty: not known.

    def __str__(self) -> str:
        return f"{self.offset}@{self.uid}" if self.uid else str(self.offset)


@dataclass(frozen=True, slots=True)
class BeforeTail:
    records: int  # At least 1. A shorter log is read from its head.

    def __str__(self) -> str:
        return f"-{self.records}"


@dataclass(frozen=True, slots=True)
class AtTime:
    timestamp_us: int

    def __str__(self) -> str:
        time = _EPOCH + timedelta(microseconds=self.timestamp_us)
        return f"ts:{time.isoformat().removesuffix('+00:00')}Z"


@dataclass(frozen=True, slots=True)
class Ago:
    age_us: int

    def __str__(self) -> str:
        rest, text = self.age_us // 1000, ""
        for unit, milliseconds in _UNITS_MS.items():
            count, rest = divmod(rest, milliseconds)
            text += f"{count}{unit}" if count else ""
        return f"ago:{text or '0s'}"


@dataclass(frozen=True, slots=True)
class AtCursor:
    name: CursorName

    def __str__(self) -> str:
        return f"cursor:{self.name}"


Position = Earliest | Latest | AtOffset | BeforeTail | AtTime | Ago | AtCursor

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER: Final = re.compile(r"[0-9]{1,19}", re.ASCII)
_UNITS_MS: Final = {
    "w": 604_800_000,
    "d": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1000,
    "ms": 1,
}
_AGE: Final = re.compile(r"(?:[0-9]{1,15}(?:ms|[wdhms]))+", re.ASCII)
_AGE_PART: Final = re.compile(r"([0-9]+)(ms|[wdhms])", re.ASCII)


def parse_position(text: str) -> Position:
    """Parse a position. Raises `InvalidRequest`."""
    kind, colon, rest = text.partition(":")
    if colon and kind == "ts":
        return AtTime(_parse_time_us(rest))
    if colon and kind == "ago":
        return Ago(parse_age_us(rest))
    if colon and kind == "cursor":
        return AtCursor(parse_cursor_name(rest))
    if text == "earliest":
        return Earliest()
    if text == "latest":
        return Latest()
    number, at, uid = text.partition("@")
    if _NUMBER.fullmatch(number):
        return AtOffset(parse_offset(int(number)), parse_uid(uid) if at else "")
    if text.startswith("-") and _NUMBER.fullmatch(text[1:]) and int(text) < 0:
        return BeforeTail(parse_offset(int(text[1:])))
    raise InvalidRequest(
        f"{text[:80]!r} is not a position",
        next_step="write 123, -10, earliest, latest, ts:2026-01-31T10:00:00Z, ago:15m or cursor:NAME",
    )


def parse_age_us(text: str) -> int:
    """Parse an age such as `15m`, `1h30m` or `250ms`, in microseconds. Raises `InvalidRequest`."""
    if not _AGE.fullmatch(text[:200]) or len(text) > 200:
        raise InvalidRequest(f"{text[:80]!r} is not a length of time; write 15m, 1h30m, 250ms")
    age_us = sum(int(count) * _UNITS_MS[unit] for count, unit in _AGE_PART.findall(text)) * 1000
    if age_us > TIMESTAMP_US_MAX:
        raise InvalidRequest(f"{text!r} is longer than 8000 years")
    return age_us


def _parse_time_us(text: str) -> int:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(
            f"{text[:80]!r} is not a time; write 2026-01-31T10:00:00Z or 2026-01-31T11:00+01:00"
        ) from None
    if time.tzinfo is None:
        raise InvalidRequest(f"{text[:80]!r} names no time zone; end it with Z for UTC")
    return time_us_of(time)


def time_us_of(time: datetime) -> int:
    """Convert a time with its zone to microseconds since 1970. A time before 1970 or after 9999 becomes the
    nearest time in that range, since no record has a time outside it.
    """
    since = (time - _EPOCH) // timedelta(microseconds=1)
    return min(max(since, 0), TIMESTAMP_US_MAX)
