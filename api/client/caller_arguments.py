"""Parses positions, conditions and producers that a caller passes."""

from datetime import datetime, timedelta
from typing import Final

from rollbook.logservice.ids import (
    ONCE,
    PRODUCER_ID_BYTES_MAX,
    ProducerRef,
    parse_offset,
    parse_prefix,
    parse_writer_epoch,
)
from rollbook.logservice.messages import Condition
from rollbook.logservice.position_syntax import (
    Ago,
    AtCursor,
    AtOffset,
    AtTime,
    BeforeTail,
    Earliest,
    Latest,
    Position,
    parse_position,
    time_us_of,
)
from rollbook.proto.errors import InvalidRequest

_SECONDS_MAX: Final = 2**32  # This is more than a hundred years.

Start = int | str | datetime | timedelta | Position


def position_of(start: Start) -> Position:
    """Accepts `123`, `-10`, `"earliest"`, `"latest"`, `"ts:…"`, `"ago:15m"`, `"cursor:NAME"`, a
    datetime with its zone, and a timedelta, which is a time before now. Raises `InvalidRequest`.
    """
    match start:
        case int():
            return AtOffset(parse_offset(start)) if start >= 0 else BeforeTail(-start)
        case str():
            return parse_position(start)
        case datetime():
            if start.tzinfo is None:
                raise InvalidRequest("the time has no time zone")
            return AtTime(time_us_of(start))
        case timedelta():
            return Ago(round(start.total_seconds() * 1_000_000))
        case Earliest() | Latest() | AtOffset() | BeforeTail() | AtTime() | Ago() | AtCursor():
            return start
        case _:  # Callers may pass any type.
            raise InvalidRequest(f"{start!r:.80} is not a position")


def listed(namespace: str, prefix: str) -> tuple[str, str]:
    """Parses a filter: `ns`, `ns/`, `ns/pre*`, `pre*`, which is in namespace `default`, or `*`.
    Raises `InvalidRequest`."""
    if not namespace or namespace == "*":
        return "", prefix
    pattern = namespace.removesuffix("*")
    if "/" not in namespace and pattern == namespace:
        return namespace, prefix
    if prefix:
        raise InvalidRequest(f"logs({namespace!r}, {prefix!r}): the prefix is given twice")
    if "*" in pattern or (pattern == namespace and not namespace.endswith("/")):
        raise InvalidRequest(
            f"{namespace!r:.80} is not a pattern of log names",
            next_step='write "namespace", "namespace/prefix*", "prefix*" or "*"',
        )
    return parse_prefix(pattern)


def milliseconds_of(seconds: float, what: str) -> int:
    """Raises `InvalidRequest` for an invalid length of time."""
    if not 0 <= seconds <= _SECONDS_MAX:
        raise InvalidRequest(
            f"{what} of {seconds} s is too long or negative; expected 0 to {_SECONDS_MAX} s"
        )
    return round(seconds * 1000)


def condition_of(expect: int | None, epoch: int | None, must_be_empty: bool) -> Condition | None:
    if expect is None and epoch is None and not must_be_empty:
        return None
    return Condition(
        None if expect is None else parse_offset(expect),
        must_be_empty,
        None if epoch is None else parse_writer_epoch(epoch),
    )


def producer_of_key(key: str) -> ProducerRef:
    """Returns the producer of a batch with this idempotency key, which is the same as over HTTP.
    Raises `InvalidRequest`."""
    longest = PRODUCER_ID_BYTES_MAX - len(ONCE)
    if type(key) is not str or not key.isascii() or not 1 <= len(key) <= longest:
        raise InvalidRequest(
            f"an idempotency key is text of 1 to {longest} ASCII characters, not {key!r:.80}"
        )
    return ProducerRef(ONCE + key.encode(), 0, 0)


def checked_producer_name(name: str) -> str:
    """Checks the name of a producer that continues after restarts. Raises `InvalidRequest`."""
    if (
        type(name) is not str
        or not 1 <= len(name.encode(errors="replace")) <= PRODUCER_ID_BYTES_MAX
    ):
        raise InvalidRequest(
            f"a producer's name is text of 1 to {PRODUCER_ID_BYTES_MAX} bytes, not {name!r:.80}",
            next_step="give a name that no other program uses for this log",
        )
    if name.startswith(ONCE.decode()) or not name.isprintable():
        raise InvalidRequest(
            f"{name!r} is not a valid producer name",
            next_step=f"choose printable text that does not begin with {ONCE.decode()!r}",
        )
    return name


def checked_producer(producer: ProducerRef) -> ProducerRef:
    """Raises `InvalidRequest` for a producer that no block can hold, which its type alone does not
    exclude."""
    if not isinstance(producer, ProducerRef):
        raise InvalidRequest(
            f"producer={producer!r:.80} is not a ProducerRef",
            next_step="give rollbook.ProducerRef(id, epoch, seq)",
        )
    if not isinstance(producer.id, bytes):
        raise InvalidRequest(f"a producer's id is bytes, not {type(producer.id).__name__}")
    return producer
