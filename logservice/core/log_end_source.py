"""Decides which part of the system is asked where a log ends.

    its owner     knows every append that was acknowledged
    its list      knows as much once the last segment is closed: the next append needs another listed segment
    its bookies   may not know that the last acknowledged block is confirmed

A reader reports that it has read everything only if the owner or the list says so (RL6). A server that is asked
for the end takes it from the first of these:

    the owner, if that is this server
    the list, if the last segment is closed
    the owner, at the server that has the log
    the owner, after the log was opened: an owner that died may have confirmed appends that no bookie reports
    the bookies, if none of these responds in time; the response then says that the tail is uncertain

A valid offset may be beyond the tail that bookies report: a reader that followed the log from its owner's memory
may be ahead of them. Such an offset is refused only after the owner or the list has been asked again.
"""

from dataclasses import replace
from enum import Enum, auto

from rollbook.logservice.core.ledger_list import LedgerList, ListedLogState
from rollbook.logservice.core.log_incarnations import text_of
from rollbook.logservice.ids import Offset
from rollbook.logservice.messages import LogTail
from rollbook.proto.errors import BeyondTail


class EndSource(Enum):
    LIST = auto()
    OWNER = auto()  # The owner is another server.
    OPENING = auto()


def source_of_end(listed: LedgerList, owner: str, own_address: str) -> EndSource:
    """The source to ask, for a server that does not own the log. `owner`: the owner's address if it is alive,
    otherwise empty.
    """
    if listed.tail is not None:
        return EndSource.LIST
    return EndSource.OPENING if owner in ("", own_address) else EndSource.OWNER


def listed_end(listed: LedgerList, tail: Offset, owner: str) -> LogTail:
    """The log's end at `tail`. `owner`: the owner's address. All other values are from the list."""
    return LogTail(
        head=listed.head,
        tail=max(tail, listed.head),
        is_sealed=listed.state is ListedLogState.SEALED,
        timestamp_us=0,
        owner=owner,
        owner_epoch=listed.owner_epoch,
        uid=text_of(listed.uid),
    )


def unowned_end(listed: LedgerList) -> LogTail | None:
    """The end of a log whose list names no owner and whose segments are all closed (RL7, LS14); otherwise None."""
    if listed.owner is not None or listed.tail is None:
        return None
    return listed_end(listed, listed.tail, "")


def closed_end(listed: LedgerList) -> Offset | None:
    """The end of the last closed segment, or None if no segment is closed."""
    ends = [each.next_offset for each in listed.segments if each.next_offset is not None]
    return ends[-1] if ends else None


def end_of_closed_range(
    listed: LedgerList, start: Offset, until: Offset, owner: str
) -> LogTail | None:
    """The end of the closed segments if they contain the range, otherwise None. The owner knows no more
    about such a range.
    """
    end = closed_end(listed)
    if end is None or max(start, until) > end:
        return None
    return listed_end(listed, end, owner)


def may_have_grown(offset: Offset, tail: LogTail) -> bool:
    """Return whether the owner or the list has to confirm that the offset is beyond the end."""
    return offset > tail.tail and not tail.is_sealed


def require_within(offset: Offset, tail: LogTail) -> None:
    """Raises `BeyondTail` for an offset beyond the tail."""
    if offset > tail.tail:
        raise BeyondTail(offset=offset, tail=tail.tail)


class TailWatch:
    """Decides when a client that watches a log's end is sent the tail: after each change, and with each heartbeat.

    The time of the last record is looked up once, and again after a pause if it was not found.
    """

    def __init__(self, heartbeat_s: float, pause_s: float) -> None:
        self._heartbeat_s = heartbeat_s
        self._pause_s = pause_s
        self._sent: LogTail | None = None
        # None: nothing was sent yet.
        self.heartbeat_due_s: float | None = None
        self._looked: LogTail | None = None  # The latest tail for which a time was looked up.
        self._look_again_s = 0.0  # The time of the same tail is not looked up again before this.

    def is_due(self, tail: LogTail, now_s: float) -> bool:
        due_s = self.heartbeat_due_s
        return due_s is None or now_s >= due_s or tail != self._sent

    def on_sent(self, tail: LogTail, now_s: float) -> None:
        self._sent, self.heartbeat_due_s = tail, now_s + self._heartbeat_s

    def with_time(self, tail: LogTail) -> LogTail:
        """The tail with the time that was found for it."""
        looked = self._looked
        if looked is None or is_dated(tail) or not _ends_alike(looked, tail):
            return tail
        return replace(tail, timestamp_us=looked.timestamp_us)

    def wants_time(self, tail: LogTail, now_s: float) -> bool:
        if is_dated(tail):
            return False
        looked = self._looked
        return looked is None or not _ends_alike(looked, tail) or now_s >= self._look_again_s

    def on_looked(self, tail: LogTail, now_s: float) -> None:
        self._looked, self._look_again_s = tail, now_s + self._pause_s


def _ends_alike(one: LogTail, other: LogTail) -> bool:
    return (one.tail, one.owner_epoch) == (other.tail, other.owner_epoch)


def is_dated(tail: LogTail) -> bool:
    """Return whether the tail has the time of its last record, or there is no record."""
    return tail.timestamp_us > 0 or tail.head == tail.tail
