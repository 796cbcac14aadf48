"""The tails of many logs, for clients that watch them: the table of one server, and the merged reports of all servers.

A server keeps one table for all its watchers, in the order of the logs' last changes. A watcher remembers
the number of the last change that it got, and gets the logs that have changed since. A watcher that does
not read costs nothing, and its next message has each changed log once (TW2).

A client merges the reports of all servers. Two servers may report a log: its owner, and the server that the
log's name suggests, which reads the log's list. The client compares reports by:

    uid                 if another log has the name of a deleted one, the uid of the latest message counts
    epoch               a later owner has a higher epoch
    exactness           a report is exact if it is from the owner, or from a list in which the last segment is closed
    head and tail       for one uid they never go back, even if a server reports less (TW3)

`source_of_report` decides which of the two reports a server has to make, if any.

A log is gone when no server reports it. The reports of a departed server count until all other servers have
looked for its logs (TW4); otherwise each of these logs would be gone for a moment.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final, Self

from rollbook.logservice.core.ledger_list import LedgerList, ListedLogState
from rollbook.logservice.core.log_incarnations import text_of
from rollbook.logservice.core.ownership_rules import IsAlive
from rollbook.logservice.ids import (
    FIRST_OFFSET,
    LogName,
    OwnerEpoch,
    ServerId,
    ServerInfo,
    parse_prefix,
)
from rollbook.logservice.messages import TailOfLog, Tails, WatchTails
from rollbook.proto.errors import InvalidRequest

NAMED_MAX: Final = 10_000  # The most logs and prefixes that one watcher may name.


@dataclass(frozen=True, slots=True)
class Scope:
    """The logs that a watcher wants."""

    logs: Mapping[LogName, None]
    prefixes: tuple[tuple[str, str], ...]  # Namespace and prefix; two empty strings: all logs.

    @classmethod
    def of(cls, request: WatchTails) -> Self:
        """Raises `InvalidRequest`."""
        if max(len(request.logs), len(request.prefixes)) > NAMED_MAX:
            raise InvalidRequest(
                f"{len(request.logs)} logs and {len(request.prefixes)} prefixes; at most {NAMED_MAX} of each fit",
                next_step="name a prefix that the logs share",
            )
        prefixes = dict.fromkeys(map(parse_prefix, request.prefixes))
        return cls(dict.fromkeys(request.logs), tuple(prefixes))

    def covers(self, log: LogName) -> bool:
        return log in self.logs or any(
            not namespace or (log.namespace == namespace and log.name.startswith(prefix))
            for namespace, prefix in self.prefixes
        )


class ReportSource(Enum):
    """The source of a server's report about a log."""

    NOTHING = auto()  # The log is deleted, or only other servers report it.
    OWNER = auto()  # This server owns the log and knows its tail.
    LIST = auto()


def source_of_report(
    listed: LedgerList, owned: tuple[OwnerEpoch, str] | None, *, is_suggested: bool
) -> ReportSource:
    """Decide what this server reports. `owned`: the epoch and uid of the log if this server owns it,
    otherwise None. `is_suggested`: the log's name suggests this server.
    """
    is_owned = owned is not None and owned[0] == listed.owner_epoch
    if listed.state is ListedLogState.DELETED or not (is_owned or is_suggested):
        return ReportSource.NOTHING
    is_same_life = owned == (listed.owner_epoch, text_of(listed.uid))
    return ReportSource.OWNER if is_same_life else ReportSource.LIST


def owner_elsewhere(
    listed: LedgerList, server_id: ServerId, is_alive: IsAlive
) -> ServerInfo | None:
    """The owner, if it is alive and is another server. Returns None if the list names this server: this is called only
    if the log as listed is not open here, so this server has lost it.
    """
    owner = listed.owner
    if owner is None or owner.server_id == server_id or not is_alive(owner.server_id):
        return None
    return owner


def tail_of_list(log: LogName, listed: LedgerList, owner: str) -> TailOfLog:
    """The tail according to the list alone. `owner`: the owner's address if it is alive, otherwise empty."""
    ends = [
        end
        for segment in listed.segments[-3:]
        if (end := segment.next_offset or segment.base_offset) is not None
    ]
    times = [segment.last_timestamp_us or 0 for segment in listed.segments if segment.records]
    tail = listed.tail
    return TailOfLog(
        log=log,
        head=listed.head,
        tail=max((listed.head, tail or FIRST_OFFSET, *ends)),
        is_sealed=listed.state is ListedLogState.SEALED,
        timestamp_us=times[-1] if times else 0,
        uid=text_of(listed.uid),
        is_exact=tail is not None,  # If all segments are closed, the next append needs another one.
        owner=owner,
        owner_epoch=listed.owner_epoch,
    )


class TailTable:
    """The tails that one server knows."""

    def __init__(self) -> None:
        self.number = 0  # The number of the latest change.
        self._tails: dict[LogName, TailOfLog] = {}
        self._changes: dict[
            LogName, int
        ] = {}  # Change numbers in order, also for logs that are gone.

    def __len__(self) -> int:
        return len(self._tails)

    def __contains__(self, log: LogName) -> bool:
        return log in self._tails

    def __iter__(self) -> Iterator[LogName]:
        return iter(self._tails)

    def get(self, log: LogName) -> TailOfLog | None:
        return self._tails.get(log)

    def put(self, tail: TailOfLog) -> bool:
        """Store a tail; returns whether it is new to watchers (TW3)."""
        known = self._tails.get(tail.log)
        if known is not None and known.uid == tail.uid:
            tail = _not_before(tail, known)
        if tail == known:
            return False
        self._tails[tail.log] = tail
        self._on_change(tail.log)
        return True

    def drop(self, log: LogName) -> None:
        """Mark a log as gone: it was deleted, or belongs to another server."""
        if self._tails.pop(log, None) is not None:
            self._on_change(log)

    def keep(self, is_wanted: Callable[[LogName], bool]) -> None:
        """Forget logs without a watcher."""
        for log in [each for each in self._changes if not is_wanted(each)]:
            self._tails.pop(log, None)
            del self._changes[log]

    def changed_since(self, number: int) -> list[LogName]:
        """Logs that changed after this number, in the order of their last changes."""
        found: list[LogName] = []
        for log in reversed(self._changes):
            if self._changes[log] <= number:
                break
            found.append(log)
        found.reverse()
        return found

    def forget_gone(self, number: int) -> None:
        """Forget the logs that were gone by this change, which all watchers know."""
        gone: list[LogName] = []
        for log, changed in self._changes.items():
            if changed > number or len(self._changes) - len(gone) <= len(self._tails):
                break
            if log not in self._tails:
                gone.append(log)
        for log in gone:
            del self._changes[log]

    def _on_change(self, log: LogName) -> None:
        self.number += 1
        self._changes.pop(log, None)
        self._changes[log] = self.number


class MergedTails:
    """The merged reports of all servers, at a client."""

    def __init__(self) -> None:
        self.known: dict[LogName, TailOfLog] = {}
        self._said: dict[str, dict[LogName, TailOfLog]] = {}  # The latest reports of each server.
        self._unconfirmed: dict[
            str, dict[LogName, None]
        ] = {}  # Reports of earlier streams that the present one has not repeated.
        self._complete: dict[
            str, bool
        ] = {}  # Servers with a stream, and whether everything was reported on it.
        self._named: dict[str, tuple[str, ...]] = {}  # The servers that each server named last.
        self._changed: dict[LogName, None] = {}

    @property
    def servers(self) -> list[str]:
        """The servers to watch, as named by the servers that can be reached, or by all if none can be."""
        heard = [named for each, named in self._named.items() if each in self._complete]
        return list(
            dict.fromkeys(each for named in heard or self._named.values() for each in named)
        )

    @property
    def is_complete(self) -> bool:
        """Return whether all servers have reported all that they know."""
        servers = self.servers
        return bool(servers) and all(self._complete.get(each) for each in servers)

    def on_stream(self, server: str) -> None:
        """Take note of a new stream, whose first messages report everything again."""
        self._complete[server] = False
        self._unconfirmed[server] = dict.fromkeys(self._said.get(server, ()))

    def on_broken(self, server: str) -> None:
        """Take note of a broken stream. The server's reports count until it can be reached again,
        or has departed.
        """
        self._complete.pop(server, None)
        self._forget_departed()

    def on_message(self, server: str, message: Tails) -> None:
        said = self._said.setdefault(server, {})
        unconfirmed = self._unconfirmed.get(server, {})
        for tail in message.tails:
            said[tail.log] = tail
            unconfirmed.pop(tail.log, None)
            self._merge(tail.log, tail.uid)
        gone = list(message.gone)
        if message.is_complete:
            gone += unconfirmed
            unconfirmed.clear()
        for log in gone:
            said.pop(log, None)
            self._merge(log)
        self._complete[server] = message.is_complete
        self._named[server] = message.servers
        self._forget_departed()

    def take_changed(self) -> list[LogName]:
        """The logs that have changed since the last call."""
        changed, self._changed = self._changed, {}
        return list(changed)

    def _forget_departed(self) -> None:
        """Forget the reports of departed servers (TW4). A server that can be reached has not departed: the
        others may not know it yet.
        """
        if not self.is_complete:
            return
        servers = self.servers
        for server in [each for each in self._named if each not in (*servers, *self._complete)]:
            del self._named[server]
            self._unconfirmed.pop(server, None)
            for log in self._said.pop(server):
                self._merge(log)

    def _merge(self, log: LogName, uid: str = "") -> None:
        """Choose between the reports about a log. `uid`: the uid in the latest message."""
        found = [said[log] for said in self._said.values() if log in said]
        known = self.known.get(log)
        if not found:
            if self.known.pop(log, None) is not None:
                self._changed[log] = None
            return
        uids = [each.uid for each in found]
        if not uid:
            uid = known.uid if known is not None and known.uid in uids else uids[0]
        of_life = [each for each in found if each.uid == uid]
        best = max(of_life, key=lambda each: (each.owner_epoch, each.is_exact, each.tail))
        for each in of_life:
            best = _not_before(best, each)
        if known is not None and known.uid == uid:
            best = _not_before(best, known)
        if best != known:
            self.known[log] = best
            self._changed[log] = None


def _not_before(tail: TailOfLog, known: TailOfLog) -> TailOfLog:
    """The report, with the head, tail, time and seal of `known` where these are later (TW3)."""
    if (
        tail.tail >= known.tail
        and tail.head >= known.head
        and tail.timestamp_us >= known.timestamp_us
        and tail.is_sealed >= known.is_sealed
    ):
        return tail
    return replace(
        tail,
        head=max(tail.head, known.head),
        tail=max(tail.tail, known.tail),
        timestamp_us=max(tail.timestamp_us, known.timestamp_us),
        is_sealed=tail.is_sealed or known.is_sealed,
        is_exact=tail.is_exact and tail.tail >= known.tail,
    )
