"""What befell a log, and where it lies: its list, told to people.

There is no journal beside the list: rolls are told by the segments, the rest by the last events, which
are written in the step that they tell of.
"""

from rollbook.logservice.core.ledger_list import LedgerList
from rollbook.logservice.words import JournalEvent, SegmentState, SegmentView

SEGMENT_BEGUN = "segment_begun"
SEGMENT_CLOSED = "segment_closed"


def journal_of(listed: LedgerList) -> tuple[JournalEvent, ...]:
    """Newest first."""
    found = [
        JournalEvent(
            *(event.at_us, event.kind, event.server_id or "", event.owner_epoch, event.reason),
            {"offset": str(event.offset)} if event.offset else {},
        )
        for event in listed.events
    ]
    for segment in listed.segments:
        about = {"segment": str(segment.segment_id), "ledger": str(segment.ledger_id)}
        found.append(
            JournalEvent(
                *(segment.first_timestamp_us, SEGMENT_BEGUN, "", segment.owner_epoch),
                *(segment.reason, about),
            )
        )
        if segment.last_timestamp_us is not None:
            ends = {"next_offset": str(segment.next_offset), "bytes": str(segment.bytes)}
            found.append(
                JournalEvent(
                    *(segment.last_timestamp_us, SEGMENT_CLOSED, "", segment.owner_epoch, ""),
                    about | ends,
                )
            )
    return tuple(sorted(found, key=lambda event: event.time_us, reverse=True))


def segment_views(listed: LedgerList) -> tuple[SegmentView, ...]:
    """In order. Of one that is not closed it is not known how much is in it."""
    return tuple(
        SegmentView(
            *(segment.segment_id, segment.ledger_id, SegmentState(segment.state.value)),
            *(segment.base_offset, segment.next_offset, segment.first_timestamp_us),
            segment.last_timestamp_us or segment.first_timestamp_us,
            *(segment.bytes or 0, segment.records or 0, segment.reason),
        )
        for segment in listed.segments
    )
