"""Converts parts of records: keys and headers from text, and event times from datetimes.

Text is encoded as UTF-8. A record's value stays bytes: a program encodes text itself.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from rollbook.logservice.core.record_block import Headers
from rollbook.proto.errors import InvalidRequest

Text = bytes | str
TextHeaders = Mapping[str, bytes] | Mapping[str, str] | Mapping[str, bytes | str]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def as_bytes(text: Any) -> Any:
    """Encodes text as UTF-8; other values are returned unchanged. Raises `InvalidRequest` for a
    lone surrogate."""
    if not isinstance(text, str):
        return text
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"the text {text[:80]!r} cannot be encoded as UTF-8",
            next_step="give bytes, or text without surrogates",
        ) from None


def headers_as_bytes(headers: TextHeaders) -> Headers:
    """Encodes text values; returns the same object if there are none."""
    if any(isinstance(value, str) for value in headers.values()):
        return {name: as_bytes(value) for name, value in headers.items()}
    return headers  # type: ignore[return-value]  # The check above has found no text.


def event_time_us_of(time: datetime | None, time_us: int | None) -> int | None:
    """Returns the event time in microseconds. Raises `InvalidRequest` if both are given, for a time
    without its zone, and for any other type."""
    if time is None:
        return time_us
    if time_us is not None:
        raise InvalidRequest("a record has event_time or event_time_us, not both")
    if not isinstance(time, datetime):  # Many callers do not run a type checker.
        raise InvalidRequest(
            f"event_time={time!r:.80} is not a datetime",
            next_step="give a datetime with its time zone, or event_time_us= for microseconds since 1970",
        )
    as_number: int = as_us(time)
    return as_number


def as_us(time: Any) -> Any:
    """Converts a datetime to microseconds since 1970; other values are returned unchanged. Raises
    `InvalidRequest`."""
    if not isinstance(time, datetime):
        return time
    if time.tzinfo is None:
        raise InvalidRequest(
            f"the event time {time} has no time zone", next_step="give datetime.now(UTC)"
        )
    return (time - _EPOCH) // timedelta(microseconds=1)
