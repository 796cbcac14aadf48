"""Converts errors to gRPC statuses, and back.

A call that fails has the status that `proto/errors.py` defines for its error, and these trailers:

    grpc-status-details-bin       StatusDetails (google.rpc.Status) with one ErrorDetail
    log-owner, log-owner-epoch    only for NOT_OWNER, for programs that do not read the details

The client raises the error that the server raised, with its ids. If the client does not know the reason, the
error still has the outcome. Ids that would make the details longer than `_DETAIL_BYTES_MAX` are left out, since a
peer refuses all headers if they are too long.
"""

import asyncio
import re
from collections.abc import Iterable
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from rollbook.api.rpc_methods import LATE, Method
from rollbook.proto.errors import (
    BadFrame,
    ConnectionLost,
    EntryTooLarge,
    InvalidRequest,
    NotOwner,
    Outcome,
    Overloaded,
    QuorumTimeout,
    RollbookError,
    ServerUnreachable,
    Unauthorized,
    UnsupportedVersion,
    error_of_reason,
    retry_after_ms,
)
from rollbook.proto.v1 import error_pb2

DETAILS_KEY: Final = "grpc-status-details-bin"
# The header of an open append stream; a refused stream does not have it.
LISTENS_KEY: Final = "log-listens"
OWNER_KEY: Final = "log-owner"
OWNER_EPOCH_KEY: Final = "log-owner-epoch"

_NOT_CONNECTED: Final = re.compile(
    "failed to connect|dns resolution|errors resolving", re.IGNORECASE
)
_DETAIL_BYTES_MAX: Final = 4096
_TEXT_MAX: Final = 1000
_LIST_MAX: Final = 20
_OUTCOMES: Final = {
    Outcome.APPLIED: error_pb2.OUTCOME_APPLIED,
    Outcome.NOT_APPLIED: error_pb2.OUTCOME_NOT_APPLIED,
    Outcome.UNKNOWN: error_pb2.OUTCOME_UNKNOWN,
}
_HEARD_OUTCOMES: Final = {number: outcome for outcome, number in _OUTCOMES.items()}


def detail_of(error: RollbookError) -> error_pb2.ErrorDetail:
    detail = error_pb2.ErrorDetail(
        reason=error.code.reason,
        outcome=_OUTCOMES[error.outcome],
        retryable=error.retryable,
        retry_after_ms=retry_after_ms(error),
        message=_text(error.message or _title(type(error))),
        next_step=_text(error.next_step),
    )
    for name, value in error.ids.items():
        if value is not None:
            _put(detail.ids[name], value)
            if detail.ByteSize() > _DETAIL_BYTES_MAX:
                del detail.ids[name]
    return detail


def error_of(detail: error_pb2.ErrorDetail) -> RollbookError:
    kind = error_of_reason(detail.reason)
    ids = {name: _value(value) for name, value in sorted(detail.ids.items())}
    message = detail.message if detail.message != _title(kind) else ""
    if kind is RollbookError and detail.reason != kind.code.reason:
        ids["reason"] = detail.reason
    error = kind(message, next_step=detail.next_step)
    error.ids = ids  # Another program chose the ids, so they may have any names.
    error.outcome = _HEARD_OUTCOMES.get(detail.outcome, Outcome.UNKNOWN)
    error.retryable = detail.retryable
    return error


def status_of(error: RollbookError) -> grpc.StatusCode:
    status: grpc.StatusCode = grpc.StatusCode[error.code.grpc]
    return status


def trailers_of(error: RollbookError) -> tuple[tuple[str, str | bytes], ...]:
    details = error_pb2.StatusDetails(
        code=status_of(error).value[0], message=_text(error.message or _title(type(error)))
    )
    details.details.add().Pack(detail_of(error))
    trailers: list[tuple[str, str | bytes]] = [(DETAILS_KEY, details.SerializeToString())]
    if isinstance(error, NotOwner) and (owner := error.ids.get("owner")):
        trailers.append((OWNER_KEY, str(owner)))
        trailers.append((OWNER_EPOCH_KEY, str(error.ids.get("owner_epoch", 0))))
    return tuple(trailers)


def text_of(error: RollbookError) -> str:
    """The status message, for users of programs that show no other part of the error."""
    return _text(f"{error.code.reason}: {error}")


def error_of_call(
    status: grpc.StatusCode, text: str, trailers: Iterable[tuple[str, Any]] | None
) -> RollbookError:
    """The error in a server's response. If the response has no details, the error is made from gRPC's status."""
    for key, value in trailers or ():
        if key == DETAILS_KEY:
            try:
                details = error_pb2.StatusDetails.FromString(value)
                detail = error_pb2.ErrorDetail()
                if details.details and details.details[0].Unpack(detail):
                    return error_of(detail)
            except (DecodeError, TypeError):
                break  # The details have another format.
    return _said_by_grpc(status, text)


def failure_of(method: Method, error: grpc.aio.AioRpcError) -> RollbookError:
    """The error of one call. If `method` changes nothing, the outcome of `ConnectionLost` or `QuorumTimeout` is
    NOT_APPLIED."""
    found = error_of_call(error.code(), error.details() or "", error.trailing_metadata())
    if not method.changes and isinstance(found, ConnectionLost | QuorumTimeout):
        found.outcome = Outcome.NOT_APPLIED
    return found


def hung_up() -> ConnectionLost:
    """The error for a `CancelledError` that gRPC raises because the peer has ended the call.

    If this task was cancelled, re-raises the `CancelledError`.
    """
    task = asyncio.current_task()
    if task is None or task.cancelling():
        raise  # noqa: PLE0704  # The caller is an exception handler.
    return ConnectionLost("the server hung up")


def _said_by_grpc(status: grpc.StatusCode, text: str) -> RollbookError:
    kind = _BY_STATUS.get(status, ConnectionLost)
    if status is grpc.StatusCode.UNAVAILABLE and _NOT_CONNECTED.search(text):
        kind = ServerUnreachable  # No connection was made, so the server did not receive the call.
    elif status is grpc.StatusCode.DEADLINE_EXCEEDED:
        text = LATE  # The text is the same whether client or server reports the deadline.
    elif status is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in text:
        kind = EntryTooLarge
    return kind(text or status.name.lower())


_BY_STATUS: Final[dict[grpc.StatusCode, type[RollbookError]]] = {
    grpc.StatusCode.DEADLINE_EXCEEDED: QuorumTimeout,
    grpc.StatusCode.INTERNAL: BadFrame,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.PERMISSION_DENIED: Unauthorized,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.UNAUTHENTICATED: Unauthorized,
    grpc.StatusCode.UNIMPLEMENTED: UnsupportedVersion,
}


def _title(kind: type[RollbookError]) -> str:
    return (kind.__doc__ or "").partition("\n")[0]


def _text(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"


def _put(into: error_pb2.ErrorValue, value: Any) -> None:
    match value:
        case bool():
            into.flag = value
        case int() if -(2**63) <= value < 2**63:
            into.number = value
        case bytes():
            into.data = value[:_TEXT_MAX]
        case tuple() | list():
            into.list.SetInParent()
            for each in value[:_LIST_MAX]:
                _put(into.list.values.add(), each)
        case _:
            into.text = _text(str(value))


def _value(value: error_pb2.ErrorValue) -> Any:
    kind = value.WhichOneof("kind")
    if kind is None:
        return ""
    if kind == "list":
        return tuple(_value(each) for each in value.list.values)
    return getattr(value, kind)
