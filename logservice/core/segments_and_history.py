"""Converts the list of a log into the service's messages."""

from collections.abc import Collection, Iterator
from dataclasses import replace

from rollbook.logservice.core.ledger_list import NOT_COUNTED, LedgerList, Segment, Size, Sizes
from rollbook.logservice.ids import NO_OWNER_YET, SegmentId
from rollbook.logservice.messages import (
    JournalEvent,
    LogJournal,
    Segments,
    SegmentState,
    SegmentView,
)
from rollbook.proto.ids import LedgerId


def segments_page(
    listed: LedgerList, start: SegmentId, limit: int, written: Sizes = NOT_COUNTED
) -> Segments:
    found = [segment for segment in listed.segments if segment.segment_id >= start]
    page, rest = found[:limit], found[limit:]
    return Segments(
        tuple(_view(each, each.size(written)) for each in page),
        next_segment=rest[0].segment_id if page and rest else None,
    )


def _began_us(segment: Segment) -> int:
    """When the segment was begun, as precisely as is known."""
    return segment.began_us or segment.first_timestamp_us


def with_lost(page: Segments, lost: Collection[LedgerId]) -> Segments:
    if not lost:
        return page
    return replace(
        page,
        segments=tuple(
            replace(each, state=SegmentState.LOST) if each.ledger_id in lost else each
            for each in page.segments
        ),
    )


def _view(segment: Segment, size: Size) -> SegmentView:
    return SegmentView(
        segment_id=segment.segment_id,
        ledger_id=segment.ledger_id,
        state=SegmentState.CLOSED if segment.is_closed else SegmentState.OPEN,
        base_offset=segment.base_offset,
        next_offset=segment.next_offset,
        first_timestamp_us=segment.first_timestamp_us,
        last_timestamp_us=segment.last_timestamp_us or segment.first_timestamp_us,
        bytes=size.bytes,
        records=size.records,
        reason=segment.reason,
        degraded_to=segment.degraded_to,
        began_us=_began_us(segment),
    )


def history_of(listed: LedgerList, limit: int) -> LogJournal:
    """The log's events, newest first. Rolls are derived from the segments that are still listed."""
    events = sorted((*_events(listed), *_rolls(listed)), key=lambda each: each.time_us)
    return LogJournal(tuple(reversed(events[-limit:] if limit > 0 else ())))


def _events(listed: LedgerList) -> Iterator[JournalEvent]:
    for event in listed.events:
        details = {"offset": str(event.offset)} if event.offset else {}
        server, epoch = event.server_id or "", event.owner_epoch
        yield JournalEvent(event.at_us, event.kind, server, epoch, event.reason, details)


def _rolls(listed: LedgerList) -> Iterator[JournalEvent]:
    """Rolls with their servers, as far as the events still name the server that opened the log."""
    servers = {event.owner_epoch: event.server_id or "" for event in listed.events}
    for segment in listed.segments:
        details = {
            "segment_id": str(segment.segment_id),
            "ledger_id": str(segment.ledger_id),
            "base_offset": "" if segment.base_offset is None else str(segment.base_offset),
        }
        if segment.degraded_to:
            details["degraded_to"] = f"{segment.degraded_to} bookies"
        epoch, reason = segment.owner_epoch or NO_OWNER_YET, segment.reason
        server, at_us = servers.get(epoch, ""), _began_us(segment)
        yield JournalEvent(at_us, "segment_started", server, epoch, reason, details)
