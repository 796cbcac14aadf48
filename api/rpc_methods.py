"""Every method of `rollbook.v1`: its service, its request and its response.

The gRPC handlers and the client are made from this table. A method is called like its request, and the service
core's method like both: `GetTail` is asked with a `GetTail` and served by `get_tail`.
"""

import re
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from rollbook.logservice import messages
from rollbook.proto.errors import Outcome, QuorumTimeout

PACKAGE: Final = "rollbook.v1"
DEFAULT_PORT: Final = 7400
MESSAGE_BYTES_MAX: Final = 8 * 1024 * 1024
# Headers of a call that is relayed (RY1): from the client, the server that it wants; from a server, that it relays.
RELAY_KEY: Final = "log-relay"
RELAYED_KEY: Final = "log-relayed"
LATE: Final = "it was not done within the deadline"


class CallKind(Enum):
    CALL = "call"
    WATCH = "watch"  # One request, a stream of answers.
    APPEND_STREAM = "append_stream"


@dataclass(frozen=True, slots=True)
class Method:
    service: str
    name: str
    request: Any  # A class of `logservice.messages`, or a union of them.
    answer: Any
    kind: CallKind
    changes: bool  # Without its response a client does not know whether it was done.

    @property
    def path(self) -> str:
        return f"/{PACKAGE}.{self.service}/{self.name}"

    @property
    def core_name(self) -> str:
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.name).lower()


def late(method: Method) -> QuorumTimeout:
    """The error when the deadline passes before the response."""
    error = QuorumTimeout(LATE)
    if not method.changes:
        error.outcome = Outcome.NOT_APPLIED
    return error


def waits(request: Any) -> bool:
    """Whether the call may last for any time: it waits for records, or for a release of the log."""
    match request:
        case messages.Read(wait_ms=wait_ms) | messages.GetTail(wait_ms=wait_ms):
            return wait_ms > 0
        case messages.AcquireWriter(mode=mode):
            return mode is messages.AcquireMode.WAIT
    return BY_REQUEST[type(request)].kind is CallKind.WATCH


def _method(
    service: str,
    request: Any,
    answer: Any,
    kind: CallKind = CallKind.CALL,
    *,
    changes: bool = False,
) -> Method:
    return Method(service, request.__name__, request, answer, kind, changes)


_LOG: Final = "LogService"
_CURSOR: Final = "CursorService"
_ADMIN: Final = "LogAdmin"
_CLUSTER: Final = "ClusterService"

METHODS: Final = (
    _method(_LOG, messages.Append, messages.AppendAck, changes=True),
    _method(
        _LOG, messages.AppendStream, messages.AppendResult, CallKind.APPEND_STREAM, changes=True
    ),
    _method(_LOG, messages.Read, messages.ReadAnswer),
    _method(_LOG, messages.ReadStream, messages.ReadEvent, CallKind.WATCH),
    _method(_LOG, messages.GetTail, messages.LogTail),
    _method(_LOG, messages.WatchTail, messages.LogTail, CallKind.WATCH),
    _method(_LOG, messages.WatchTails, messages.Tails, CallKind.WATCH),
    _method(_LOG, messages.FindOffset, messages.FoundOffset),
    _method(_LOG, messages.Truncate, messages.TruncateAnswer, changes=True),
    _method(_LOG, messages.Seal, messages.SealAnswer, changes=True),
    _method(_LOG, messages.AcquireWriter, messages.WriterGrant, changes=True),
    _method(_LOG, messages.RenewWriter, messages.WriterGrant, changes=True),
    _method(_LOG, messages.ReleaseWriter, messages.Done, changes=True),
    _method(_LOG, messages.BeginProducer, messages.ProducerProgress, changes=True),
    _method(_CURSOR, messages.GetCursor, messages.Cursor),
    _method(_CURSOR, messages.CommitCursor, messages.Cursor, changes=True),
    _method(_CURSOR, messages.ListCursors, messages.Cursors),
    _method(_CURSOR, messages.DeleteCursor, messages.Done, changes=True),
    _method(_ADMIN, messages.EnsureLog, messages.LogState, changes=True),
    _method(_ADMIN, messages.GetLog, messages.LogState),
    _method(_ADMIN, messages.ListLogs, messages.LogNames),
    _method(_ADMIN, messages.UpdateLog, messages.LogState, changes=True),
    _method(_ADMIN, messages.DeleteLog, messages.DeleteLogAnswer, changes=True),
    _method(_ADMIN, messages.ListDeletedLogs, messages.DeletedLogs),
    _method(_ADMIN, messages.UndeleteLog, messages.LogState, changes=True),
    _method(_ADMIN, messages.RollLog, messages.RollLogAnswer, changes=True),
    _method(_ADMIN, messages.ListSegments, messages.Segments),
    _method(_ADMIN, messages.GetJournal, messages.LogJournal),
    _method(_ADMIN, messages.GetLimits, messages.ServiceLimits),
    _method(_CLUSTER, messages.Lookup, messages.LogOwners),
    _method(_CLUSTER, messages.ListServers, messages.Servers),
    _method(_CLUSTER, messages.TransferLog, messages.LogOwner, changes=True),
    _method(_CLUSTER, messages.DrainServer, messages.DrainAnswer, changes=True),
    _method(_CLUSTER, messages.GetServerStats, messages.ServerStats),
    _method(_CLUSTER, messages.GetOutage, messages.Outage),
)
SERVICES: Final = tuple(dict.fromkeys(f"{PACKAGE}.{each.service}" for each in METHODS))
BY_REQUEST: Final = {each.request: each for each in METHODS}
APPEND_STREAM: Final = BY_REQUEST[messages.AppendStream]
READ_STREAM: Final = BY_REQUEST[messages.ReadStream]
WATCH_TAILS: Final = BY_REQUEST[messages.WatchTails]
