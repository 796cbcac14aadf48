"""Decides what a principal may do to which log. gRPC, HTTP and the dashboard all use these rules (G5).

A principal has a list of logs for each right, and a list `deny` of logs that it may never access, whatever
the other lists say:

    read     read, follow, find offsets, segments, journal; make cursors and move them
    append   append; be a log's exclusive writer
    admin    make, change, delete, truncate, seal, roll, transfer; protect a cursor, or delete one

    ns/log   this log      ns/a*   logs of ns whose names begin with a      ns/*   all logs of ns      *   all logs

A request that is not granted is refused, and no right implies another one. A caller with any right on a
log may see the log's tail, state and owner. Every authenticated caller may see the servers and their limits.
To see a server's counters, or to drain a server, a caller needs `admin` on all logs; for the counters `monitor`
is enough. `operate` is for bookies and repair (`Duty`): it includes `monitor`, and gives no right on
any log except in the dashboard (`may_steer`). A list of logs has only logs on which the caller has a
right. A request for any other log gets the same error whether the log exists or not.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from rollbook.logservice import messages
from rollbook.logservice.ids import NAME, LogName, parse_prefix
from rollbook.proto.errors import BadConfig

_PATTERN: Final = re.compile(rf"\*|{NAME}/(?:\*|{NAME}\*?)", re.ASCII)
EVERY_LOG: Final = "*"


class Duty(Enum):
    """Kinds of operations on the cluster itself. The value is the setting in the access file that permits them."""

    LOOK = "monitor"
    OPERATE = "operate"  # Drain, audit, pause repairs, set their pace, verify and recover ledgers.
    # Remove bookies, mark them drained, force operations that would be refused, write cookies, delete ledgers and read
    # their entries, clear possible losses, create, delete and test callbacks for cluster events.
    REMOVE = 'admin = ["*"]'


class Right(Enum):
    READ = "read"
    APPEND = "append"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Grants:
    """Patterns of log names for each right."""

    read: tuple[str, ...] = ()
    append: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    monitor: bool = False  # May see servers' counters, which include names of logs.
    operate: bool = False  # May operate bookies and repair; includes `monitor`.

    def __post_init__(self) -> None:
        for pattern in (*self.read, *self.append, *self.admin, *self.deny):
            if not _PATTERN.fullmatch(pattern):
                raise BadConfig(
                    f"{pattern[:100]!r} names no logs",
                    next_step="write namespace/log, namespace/prefix* or *",
                )

    def may(self, right: Right, log: str) -> bool:
        allowed: tuple[str, ...] = getattr(self, right.value)
        return _is_any(allowed, log) and not _is_any(self.deny, log)

    def may_any(self, rights: Collection[Right], log: str) -> bool:
        return any(self.may(right, log) for right in rights)

    def may_steer(self, right: Right, log: str) -> bool:
        """Whether the principal may act on the log in the dashboard: by the right, or by `operate` (except READ)."""
        if self.may(right, log):
            return True
        by_duty = right is not Right.READ and self.may_manage(Duty.OPERATE)
        return by_duty and not _is_any(self.deny, log)

    def may_steer_any(self, log: str) -> bool:
        return any(self.may_steer(right, log) for right in Right)

    @property
    def is_operator(self) -> bool:
        """Whether the principal is an operator of the whole cluster."""
        return EVERY_LOG in self.admin and not self.deny

    def may_manage(self, duty: Duty) -> bool:
        if self.is_operator or (self.operate and duty is not Duty.REMOVE):
            return True
        return self.monitor and duty is Duty.LOOK

    @property
    def shows_all(self) -> bool:
        return EVERY_LOG in (*self.read, *self.append, *self.admin) and not self.deny


@dataclass(frozen=True, slots=True)
class VisibleLogs:
    """Where to look for logs that a principal may see."""

    logs: tuple[str, ...]  # Full names of logs.
    prefixes: tuple[tuple[str, str], ...]  # Namespace and prefix; no pair covers another.


def shown_by(grants: Grants, namespace: str, prefix: str) -> VisibleLogs | None:
    """Where to look for visible logs with this prefix in a namespace (empty: in all namespaces). None: anywhere.

    With this, the cost of a list depends on the number of visible logs, not on the number of all logs.
    """
    patterns = {*grants.read, *grants.append, *grants.admin}
    if EVERY_LOG in patterns:
        return None
    logs, prefixes = set[str](), set[tuple[str, str]]()
    for pattern in patterns:
        place, _, name = pattern.partition("/")
        if namespace not in ("", place):
            continue
        begins = name.removesuffix("*")
        if begins == name:
            if name.startswith(prefix):
                logs.add(pattern)
        elif begins.startswith(prefix) or prefix.startswith(begins):
            prefixes.add((place, max(begins, prefix, key=len)))
    widest = {
        each
        for each in prefixes
        if not any(
            other != each and other[0] == each[0] and each[1].startswith(other[1])
            for other in prefixes
        )
    }
    return VisibleLogs(tuple(sorted(logs)), tuple(sorted(widest)))


def narrowed(grants: Grants, asked: messages.WatchTails) -> messages.WatchTails:
    """Reduces the request to names and prefixes that may have visible logs. The caller must still leave out denied
    names."""
    if grants.shows_all:
        return asked
    logs = dict.fromkeys(log for log in asked.logs if is_visible(grants, str(log)))
    prefixes: dict[str, None] = {}
    for each in asked.prefixes:
        shown = shown_by(grants, *parse_prefix(each))
        if shown is None:
            prefixes[each] = None
            continue
        logs |= dict.fromkeys(map(LogName.parse, shown.logs))
        prefixes |= dict.fromkeys(f"{namespace}/{prefix}" for namespace, prefix in shown.prefixes)
    return replace(asked, logs=tuple(logs), prefixes=tuple(prefixes))


def visible_of(grants: Grants, message: messages.Tails) -> messages.Tails:
    if grants.shows_all:
        return message
    tails = tuple(each for each in message.tails if is_visible(grants, str(each.log)))
    gone = tuple(log for log in message.gone if is_visible(grants, str(log)))
    return replace(message, tails=tails, gone=gone)


EVERYTHING: Final = Grants((EVERY_LOG,), (EVERY_LOG,), (EVERY_LOG,))


def _is_any(patterns: tuple[str, ...], log: str) -> bool:
    for pattern in patterns:
        if log.startswith(pattern[:-1]) if pattern[-1] == "*" else log == pattern:
            return True
    return False


# --- Requests ---------------------------------------------------------------------------------

_ANY: Final = (Right.READ, Right.APPEND, Right.ADMIN)
_READS: Final = (Right.READ,)
_APPENDS: Final = (Right.APPEND,)
_ADMINS: Final = (Right.ADMIN,)

# Rights on the log that a request names; one of them is enough.
_ON_ITS_LOG: Final[dict[type, tuple[Right, ...]]] = {
    messages.Append: _APPENDS,
    messages.Bind: _APPENDS,
    messages.AcquireWriter: _APPENDS,
    messages.RenewWriter: _APPENDS,
    messages.ReleaseWriter: _APPENDS,
    messages.BeginProducer: _APPENDS,
    messages.Read: _READS,
    messages.ReadStream: _READS,
    messages.FindOffset: _READS,
    messages.GetCursor: _READS,
    messages.CommitCursor: _READS,
    messages.ListCursors: _READS,
    messages.ListSegments: _READS,
    messages.GetJournal: _READS,
    messages.GetTail: _ANY,
    messages.WatchTail: _ANY,
    messages.GetLog: _ANY,
    messages.EnsureLog: _ADMINS,
    messages.UpdateLog: _ADMINS,
    messages.DeleteLog: _ADMINS,
    messages.UndeleteLog: _ADMINS,
    messages.Truncate: _ADMINS,
    messages.Seal: _ADMINS,
    messages.RollLog: _ADMINS,
    messages.TransferLog: _ADMINS,
    messages.DeleteCursor: _ADMINS,
}
_SHOWN_TO_ALL: Final = (
    messages.WatchTails,
    messages.ListLogs,
    messages.ListDeletedLogs,
    messages.Lookup,
    messages.ListServers,
    messages.GetLimits,
    messages.GetOutage,
)
_FOR_OPERATORS: Final = (messages.DrainServer, messages.GetServerStats)


def rights_for(request: Any) -> tuple[Right, ...]:
    """The rights on the request's log; the caller needs one of them. Empty: the request does not name one log."""
    if type(request) is messages.CommitCursor and request.is_protected is not None:
        # Protecting a cursor prevents truncation by others, and unprotecting allows it.
        return _ADMINS
    return _ON_ITS_LOG.get(type(request), ())


def may_ask(grants: Grants, request: Any) -> bool:
    """Whether the caller may make this request. Every caller may request lists, since they leave out hidden logs."""
    kind = type(request)
    if rights := rights_for(request):
        if (
            kind is messages.UndeleteLog
            and request.to
            and not grants.may_any(rights, str(request.to))
        ):
            return False
        return grants.may_any(rights, str(request.log))
    if kind in _SHOWN_TO_ALL:
        return True
    if kind is messages.GetServerStats and grants.may_manage(Duty.LOOK):
        return True
    return kind in _FOR_OPERATORS and grants.is_operator


def is_visible(grants: Grants, log: str) -> bool:
    return grants.may_any(_ANY, log)


def is_act(request: Any) -> bool:
    """Whether the request is an act, so that the audit records it. Appending, moving a cursor and renewing a writer
    are not acts."""
    kind = type(request)
    if kind is messages.Truncate:
        return not request.dry_run
    if kind is messages.CommitCursor:
        return request.is_protected is not None
    return _ON_ITS_LOG.get(kind) == _ADMINS or kind in (
        messages.DrainServer,
        messages.AcquireWriter,
    )
