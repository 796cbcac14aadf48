"""Every method of `rollbook.v1`: its service, the word it is asked with, the word it answers with.

The door and the client are made from this table. A method is called like its request, and the service
core's method like both: `GetTail` is asked with a `GetTail` and served by `get_tail`.
"""

import re
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from rollbook.logservice import words
from rollbook.proto.errors import Outcome, QuorumTimeout

PACKAGE: Final = "rollbook.v1"
DEFAULT_PORT: Final = 7400
MESSAGE_BYTES_MAX: Final = 8 * 1024 * 1024
LATE: Final = "it was not done within the deadline"


class Kind(Enum):
    CALL = "call"
    WATCH = "watch"  # One request, a stream of answers.
    APPEND_STREAM = "append_stream"


@dataclass(frozen=True, slots=True)
class Method:
    service: str
    name: str
    request: Any  # A class of `words`, or a union of them.
    answer: Any
    kind: Kind
    changes: bool  # Whoever does not hear the answer does not know whether it was done.

    @property
    def path(self) -> str:
        return f"/{PACKAGE}.{self.service}/{self.name}"

    @property
    def core_name(self) -> str:
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.name).lower()


def late(method: Method) -> QuorumTimeout:
    """What is heard when the deadline passes before the answer."""
    error = QuorumTimeout(LATE)
    if not method.changes:
        error.outcome = Outcome.NOT_APPLIED
    return error


def waits(word: Any) -> bool:
    """Whether it may stay for as long as it likes: for records, or for somebody to let go of the log."""
    match word:
        case words.Read(wait_ms=wait_ms) | words.GetTail(wait_ms=wait_ms):
            return wait_ms > 0
        case words.AcquireWriter(mode=mode):
            return mode is words.AcquireMode.WAIT
    return BY_REQUEST[type(word)].kind is Kind.WATCH


def _method(
    service: str, request: Any, answer: Any, kind: Kind = Kind.CALL, *, changes: bool = False
) -> Method:
    return Method(service, request.__name__, request, answer, kind, changes)


_LOG: Final = "LogService"
_CURSOR: Final = "CursorService"
_ADMIN: Final = "LogAdmin"
_CLUSTER: Final = "ClusterService"

METHODS: Final = (
    _method(_LOG, words.Append, words.AppendAck, changes=True),
    _method(_LOG, words.AppendStream, words.AppendResult, Kind.APPEND_STREAM, changes=True),
    _method(_LOG, words.Read, words.ReadAnswer),
    _method(_LOG, words.ReadStream, words.ReadEvent, Kind.WATCH),
    _method(_LOG, words.GetTail, words.LogTail),
    _method(_LOG, words.WatchTail, words.LogTail, Kind.WATCH),
    _method(_LOG, words.WatchTails, words.Tails, Kind.WATCH),
    _method(_LOG, words.FindOffset, words.FoundOffset),
    _method(_LOG, words.Truncate, words.TruncateAnswer, changes=True),
    _method(_LOG, words.Seal, words.SealAnswer, changes=True),
    _method(_LOG, words.AcquireWriter, words.WriterGrant, changes=True),
    _method(_LOG, words.RenewWriter, words.WriterGrant, changes=True),
    _method(_LOG, words.ReleaseWriter, words.Done, changes=True),
    _method(_CURSOR, words.GetCursor, words.Cursor),
    _method(_CURSOR, words.CommitCursor, words.Cursor, changes=True),
    _method(_CURSOR, words.ListCursors, words.Cursors),
    _method(_CURSOR, words.DeleteCursor, words.Done, changes=True),
    _method(_ADMIN, words.EnsureLog, words.LogState, changes=True),
    _method(_ADMIN, words.GetLog, words.LogState),
    _method(_ADMIN, words.ListLogs, words.LogNames),
    _method(_ADMIN, words.UpdateLog, words.LogState, changes=True),
    _method(_ADMIN, words.DeleteLog, words.DeleteLogAnswer, changes=True),
    _method(_ADMIN, words.RollLog, words.RollLogAnswer, changes=True),
    _method(_ADMIN, words.ListSegments, words.Segments),
    _method(_ADMIN, words.GetJournal, words.Journal),
    _method(_ADMIN, words.GetLimits, words.ServiceLimits),
    _method(_CLUSTER, words.Lookup, words.LogOwners),
    _method(_CLUSTER, words.ListServers, words.Servers),
    _method(_CLUSTER, words.TransferLog, words.LogOwner, changes=True),
    _method(_CLUSTER, words.DrainServer, words.DrainAnswer, changes=True),
    _method(_CLUSTER, words.GetServerStats, words.ServerStats),
    _method(_CLUSTER, words.GetOutage, words.Outage),
)
SERVICES: Final = tuple(dict.fromkeys(f"{PACKAGE}.{each.service}" for each in METHODS))
BY_REQUEST: Final = {each.request: each for each in METHODS}
APPEND_STREAM: Final = BY_REQUEST[words.AppendStream]
READ_STREAM: Final = BY_REQUEST[words.ReadStream]
WATCH_TAILS: Final = BY_REQUEST[words.WatchTails]
