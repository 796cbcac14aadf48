"""The parameters of routes in paths, queries and headers, defined once: how they are parsed, and how OpenAPI
describes them."""

from dataclasses import replace
from typing import Annotated, Final

from fastapi import Depends, Header, Path, Query, Request

from rollbook.api.access.authenticator import CALLER
from rollbook.api.access.idempotency_keys import once
from rollbook.api.rest.owner_routing import (
    TIMEOUT_MS,
    TIMEOUT_MS_MAX,
    Asking,
    Forward,
    OwnerRouting,
)
from rollbook.logservice.ids import (
    INT64_MAX,
    ONCE,
    PRODUCER_EPOCH_MAX,
    PRODUCER_ID_BYTES_MAX,
    CursorName,
    LogName,
    Offset,
    ProducerRef,
    WriterEpoch,
    parse_cursor_name,
    parse_uid,
)
from rollbook.logservice.messages import NO_CURSOR, Condition
from rollbook.logservice.position_syntax import Position, parse_position
from rollbook.proto.errors import InvalidRequest

_PAGE_MAX: Final = 10_000
_NAME_PATTERN: Final = {"pattern": "^[a-z0-9][a-z0-9._-]{0,254}$"}

_Name = Annotated[str, Path(json_schema_extra=_NAME_PATTERN)]


async def _routing(request: Request) -> OwnerRouting:
    routing: OwnerRouting = request.app.state.routing
    return routing


async def _log_name(namespace: _Name, log: _Name) -> LogName:
    return LogName(namespace, log)


async def _cursor_name(cursor: _Name) -> CursorName:
    return parse_cursor_name(cursor)


async def _asking(
    log_timeout_ms: Annotated[
        int,
        Header(ge=1, le=TIMEOUT_MS_MAX, description="Milliseconds after which the request fails."),
    ] = TIMEOUT_MS,
    log_forward: Annotated[
        Forward | None,
        Header(
            description="auto: the server asks the log's owner; never: it redirects to the owner, or responds 503 "
            "if the owner has no HTTP."
        ),
    ] = None,
) -> Asking:
    return Asking(log_timeout_ms, log_forward)


async def _asking_of(
    how: Annotated[Asking, Depends(_asking)],
    log_uid: Annotated[
        str,
        Header(description="The uid that the log must have, otherwise LOG_REPLACED."),
    ] = "",
) -> Asking:
    return replace(how, uid=parse_uid(log_uid) if log_uid else "")


async def _condition(
    log_expected_offset: Annotated[
        int | None,
        Header(ge=0, le=INT64_MAX, description="Only if the first record gets this offset."),
    ] = None,
    log_writer_epoch: Annotated[
        int | None, Header(ge=0, le=INT64_MAX, description="Only if this writer epoch is in force.")
    ] = None,
    if_match: Annotated[
        str | None, Header(description='"42": the same as Log-Expected-Offset: 42.')
    ] = None,
    if_none_match: Annotated[
        str | None, Header(description="*: only if nothing was ever appended.")
    ] = None,
) -> Condition | None:
    """The request's condition; None if it has none."""
    if if_none_match not in (None, "*"):
        raise InvalidRequest("If-None-Match has to be *: nothing was ever appended")
    matched = version_of(if_match)
    if matched is not None and log_expected_offset not in (None, matched):
        raise InvalidRequest("If-Match and Log-Expected-Offset expect different offsets")
    expected = log_expected_offset if matched is None else matched
    if expected is None and log_writer_epoch is None and if_none_match is None:
        return None
    return Condition(
        None if expected is None else Offset(expected),
        if_none_match is not None,
        None if log_writer_epoch is None else WriterEpoch(log_writer_epoch),
    )


async def _producer(
    producer_id: Annotated[
        str | None,
        Header(description="The id of the batch's producer; needs Producer-Seq."),
    ] = None,
    producer_epoch: Annotated[int | None, Header(ge=0, le=PRODUCER_EPOCH_MAX)] = None,
    producer_seq: Annotated[
        int | None,
        Header(ge=0, le=INT64_MAX, description="The batch's number in its epoch, from 0."),
    ] = None,
    idempotency_key: Annotated[
        str | None,
        Header(
            description="In place of a producer: a batch with a known key is not appended again."
        ),
    ] = None,
) -> ProducerRef | None:
    given = (producer_id, producer_epoch, producer_seq)
    if idempotency_key is not None:
        if given != (None, None, None):
            raise InvalidRequest("give a producer or an Idempotency-Key, not both")
        if not 1 <= len(idempotency_key) <= PRODUCER_ID_BYTES_MAX - len(ONCE):
            longest = PRODUCER_ID_BYTES_MAX - len(ONCE)
            raise InvalidRequest(f"an Idempotency-Key has 1 to {longest} characters")
        return ProducerRef(once(idempotency_key, CALLER.get()), 0, 0)
    if given == (None, None, None):
        return None
    if producer_id is None or producer_seq is None:
        raise InvalidRequest("a producer needs Producer-Id and Producer-Seq, and may have an epoch")
    return ProducerRef(producer_id.encode("latin-1"), producer_epoch or 0, producer_seq)


async def _of_one_record(
    log_key: Annotated[
        str | None, Header(description="The key, if the body is one record.")
    ] = None,
    log_event_time_us: Annotated[
        str | None,
        Header(description="The record's event time.", json_schema_extra={"format": "int64"}),
    ] = None,
    log_meta: Annotated[
        str | None,
        Header(alias="log-meta-*", description="The record's headers, one for each name."),
    ] = None,
) -> None:
    """Declares the headers that `block_of` reads itself, for OpenAPI and for `unknown_parameters.py`."""


async def _writer_epoch(
    log_writer_epoch: Annotated[int, Header(ge=0, le=INT64_MAX, description="The granted epoch.")],
) -> WriterEpoch:
    return WriterEpoch(log_writer_epoch)


async def _accept(
    request: Request,
    accept: Annotated[str, Header(description="The most preferred type is returned.")] = "*/*",
) -> str:
    return ",".join(request.headers.getlist("accept")) or accept


async def _etag(
    if_match: Annotated[str | None, Header(description="The ETag that the log must have.")] = None,
) -> str:
    """The ETag in `If-Match`; empty: any version matches."""
    return "" if if_match in (None, "*") else str(if_match).strip().strip('"')


async def _expected_version(
    if_match: Annotated[str | None, Header(description='"3": only if it has this version.')] = None,
    if_none_match: Annotated[
        str | None, Header(description="*: only if the cursor does not exist.")
    ] = None,
) -> int | None:
    if if_none_match is None:
        return version_of(if_match)
    if if_none_match != "*" or if_match is not None:
        raise InvalidRequest("give If-None-Match: * or If-Match, not both")
    return NO_CURSOR


def version_of(if_match: str | None) -> int | None:
    """The version in an ETag such as `"42"`."""
    if if_match is None:
        return None
    text = if_match.strip().strip('"')
    if not (text.isascii() and text.isdigit() and len(text) <= 19) or int(text) > INT64_MAX:
        raise InvalidRequest('If-Match has to be a number in quotes: "42"')
    return int(text)


def position(text: str, name: str) -> Position:
    try:
        return parse_position(text)
    except InvalidRequest as error:
        raise InvalidRequest(f"{name}: {error.message}", next_step=error.next_step) from None


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


# The application's routing, which `log_app.make_app` sets.
Routing = Annotated[OwnerRouting, Depends(_routing)]
Log = Annotated[LogName, Depends(_log_name)]
Cursor = Annotated[CursorName, Depends(_cursor_name)]
How = Annotated[Asking, Depends(_asking)]
HowOf = Annotated[Asking, Depends(_asking_of)]  # `Asking` of routes with a single log.
If = Annotated[Condition | None, Depends(_condition)]
By = Annotated[ProducerRef | None, Depends(_producer)]
TakesRecord: Final = Depends(_of_one_record)
Accept = Annotated[str, Depends(_accept)]
Epoch = Annotated[WriterEpoch, Depends(_writer_epoch)]
ETag = Annotated[str, Depends(_etag)]
Version = Annotated[int | None, Depends(_expected_version)]
Number = Annotated[int, Query(ge=0, le=INT64_MAX)]
Page = Annotated[int, Query(ge=1, le=_PAGE_MAX)]
