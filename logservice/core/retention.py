"""Decides which records have been kept for long enough.

A closed segment has expired when its youngest record has reached the age `retention_age_s`, or when the later
closed segments alone have at least `retention_bytes`. Segments expire whole and from the front. A segment
that a protected cursor needs does not expire. Records in the segment being written expire only after a roll;
owners roll idle segments, too.

Ages count only time in which servers were present (LT1), so setting a clock does not make records old.

The last segment of a log without an owner stays in the list, since it has the newest snapshot of the log's
state. Its records expire nevertheless; its ledger is deleted after an owner has begun another segment.
"""

from dataclasses import dataclass
from typing import Final

from rollbook.logservice.core.age_without_downtime import NO_GAPS, LivedTime
from rollbook.logservice.core.ledger_list import LedgerList, ListedLogState, Segment
from rollbook.logservice.ids import Offset
from rollbook.logservice.log_config import LogConfig

_US: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Expiry:
    """The expired part of a log: everything below `head`."""

    head: Offset
    # Whether an owner is needed to remove the whole expired part: to close a segment without a writer, to
    # replace the last segment, or to know that an unclosed segment has begun.
    needs_owner: bool


def find_expired(
    listed: LedgerList, now_us: int, lowest_guard: Offset | None, lived: LivedTime = NO_GAPS
) -> Expiry | None:
    """The part of the log that has expired now; None if nothing has."""
    config = listed.config
    if listed.state is ListedLogState.DELETED or not listed.segments:
        return None
    head = listed.head
    rest_bytes = listed.closed_bytes
    for segment in listed.segments:
        if not segment.is_closed or segment.next_offset is None:
            break
        age_us = lived.age_us(segment.last_timestamp_us or 0, now_us)
        if not _is_expired(segment, config, age_us, rest_bytes):
            break
        if lowest_guard is not None and segment.next_offset > lowest_guard:
            break
        rest_bytes -= segment.bytes or 0
        head = max(head, segment.next_offset)
    frees = listed.first_kept(head, is_begun=True)
    is_stuck = frees < len(listed.segments) and _holds_only_expired(listed.segments[frees], head)
    is_left_open = bool(listed.unclosed) and _is_forgotten(listed, now_us, lived)
    if head == listed.head and not frees and not is_stuck and not is_left_open:
        return None
    needs_owner = is_stuck or is_left_open or frees > listed.first_kept(head, is_begun=False)
    # A sealed log has no owner that could replace its last ledger.
    if listed.state is ListedLogState.SEALED:
        return Expiry(head, needs_owner=False) if head > listed.head else None
    return Expiry(head, needs_owner)


def _is_expired(segment: Segment, config: LogConfig, age_us: int, rest_bytes: int) -> bool:
    age_s, bytes_max, size = config.retention_age_s, config.retention_bytes, segment.bytes or 0
    is_old = age_s is not None and age_us >= age_s * _US
    return is_old or (bytes_max is not None and rest_bytes - size >= bytes_max)


def _holds_only_expired(segment: Segment, head: Offset) -> bool:
    """Return whether the last segment of an idle log has records, and all of them are below the head."""
    return (
        segment.is_closed
        and bool(segment.records)
        and segment.next_offset is not None
        and segment.next_offset <= head
    )


def _is_forgotten(listed: LedgerList, now_us: int, lived: LivedTime) -> bool:
    """Return whether an unclosed segment is so old that an owner would have closed it if it had records, and
    that all its records would have expired.
    """
    config = listed.config
    if config.retention_age_s is None:
        return False
    begun_us = listed.unclosed[0].first_timestamp_us
    wait_us = (2 * roll_age_s(config) + config.retention_age_s) * _US
    return lived.age_us(begun_us, now_us) >= wait_us


def is_free(listed: LedgerList, now_us: int, lived: LivedTime = NO_GAPS) -> bool:
    """Return whether the log was deleted and its grace is over."""
    if listed.state is not ListedLogState.DELETED:
        return False
    deleted_us = listed.deleted_us
    return lived.age_us(deleted_us, now_us) >= listed.free_at_us - deleted_us


def roll_age_s(config: LogConfig) -> int:
    """The age at which a segment ends at the latest. It is at most the retention age, since only records in
    a closed segment can expire.
    """
    if config.retention_age_s is None:
        return config.roll_age_s
    return min(config.roll_age_s, config.retention_age_s)
