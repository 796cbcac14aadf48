"""The routes of a log's records: append, read, follow, read one by its offset, find the tail."""

import asyncio
import re
from contextlib import aclosing
from typing import Annotated, Any, Final, NamedTuple, Self

import google_crc32c
from fastapi import APIRouter, Header, Path, Query, Request, Response
from starlette.convertors import StringConvertor, register_url_convertor

from rollbook.api.access.authenticator import CALLER
from rollbook.api.rest.accept_header import preferred_type
from rollbook.api.rest.event_streams import SSE, Follow, is_end
from rollbook.api.rest.message_json import to_json
from rollbook.api.rest.openapi_route_schemas import (
    ANYWHERE,
    AT_OWNER,
    OF_APPENDS,
    OF_READS,
    READ_ANSWER,
    READ_EXAMPLE,
    RECORD_BODIES,
    described,
)
from rollbook.api.rest.owner_routing import Asking, OwnerRouting
from rollbook.api.rest.problems import response_of
from rollbook.api.rest.record_json import (
    BLOCK,
    JSON,
    NDJSON,
    RAW,
    Encoding,
    block_of,
    dumped,
)
from rollbook.api.rest.record_range_response import RangeResponse
from rollbook.api.rest.route_parameters import (
    Accept,
    By,
    How,
    HowOf,
    If,
    Log,
    Number,
    Routing,
    TakesRecord,
    media_type,
    position,
)
from rollbook.logservice import messages
from rollbook.logservice.core.record_block import Block, Headers
from rollbook.logservice.ids import (
    INT64_MAX,
    TIMESTAMP_US_MAX,
    LogName,
    Offset,
    ProducerRef,
    parse_uid,
)
from rollbook.logservice.log_config import BATCH_BYTES_CEILING
from rollbook.logservice.position_syntax import AtOffset, AtTime
from rollbook.proto.errors import BeyondTail, InvalidRequest, QuorumTimeout

LOG: Final = "/v1/namespaces/{namespace}/logs/{log:before_verb}"

_WAIT_MS_MAX: Final = 60_000
_RECORDS_MAX: Final = 100_000
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_FOR_EVER: Final = "max-age=31536000, immutable"
# Clients store the response, and use it after the server confirms its ETag.
_ASKED_FOR: Final = "no-cache"
_KINDS: Final = (RAW, JSON, NDJSON, BLOCK)
_READ_KINDS: Final = (SSE, NDJSON, BLOCK, JSON)
# A client that accepts any type gets a response that ends.
_ALL_KINDS: Final = (JSON, BLOCK, NDJSON, SSE)
_KINDS_IN: Final = {
    **{kind: (kind,) for kind in _READ_KINDS},
    "*/*": _ALL_KINDS,
    "application/*": (JSON, BLOCK, NDJSON),
    "text/*": (SSE,),
}


class _BeforeVerb(StringConvertor):
    """A log's name in a path. Names have no colon: the part after one is a verb."""

    regex = "[^/:]+"


register_url_convertor("before_verb", _BeforeVerb())

_Followed = messages.ReadStream | messages.WatchTail | messages.WatchTails

From = Annotated[
    str,
    Query(
        alias="from", description="123, 123@UID, -10, earliest, latest, ts:…, ago:15m, cursor:NAME"
    ),
]
Until = Annotated[
    int | None,
    Query(ge=0, le=INT64_MAX, description="The offset before which the range ends."),
]

routes: Final = APIRouter(tags=["records"], default_response_class=Response)


# --- For OpenAPI ------------------------------------------------------------------------------


def _read_described() -> dict[str, Any]:
    found = described(
        errors=OF_READS, more={204: "No record arrived, or the stream has ended.", 406: "INVALID"}
    )
    found["responses"][200] = {
        "description": "Records, or a stream of events.",
        "content": {
            JSON: {"schema": READ_ANSWER, "example": READ_EXAMPLE},
            SSE: {
                "schema": {"type": "string"},
                "example": 'id: 1701\nevent: records\ndata: {"records":[…]}\n\n',
            },
            NDJSON: {
                "schema": {"type": "string"},
                "example": '{"event":"caught_up","tail":1701}\n',
            },
            BLOCK: {"schema": {"type": "string", "format": "binary"}},
        },
    }
    return found


def _record_responses() -> dict[int | str, dict[str, Any]]:
    found: dict[int | str, dict[str, Any]] = described(errors=OF_READS)["responses"]
    found[200] = {
        "description": "The record.",
        "content": {RAW: {"schema": {"type": "string", "format": "binary"}}},
    }
    found[304] = {"description": "The client has the record already."}
    return found


# --- Routes -----------------------------------------------------------------------------------


@routes.post(
    f"{LOG}/records",
    dependencies=[TakesRecord],
    **described(
        messages.AppendAck,
        status=201,
        errors=OF_APPENDS,
        body=RECORD_BODIES,
        more={200: "The batch was appended before; these are its offsets.", 415: "INVALID"},
    ),
)
async def append(
    routing: Routing, request: Request, log: Log, how: HowOf, condition: If, producer: By
) -> Response:
    """Appends one atomic batch. The response comes when the batch is on disk on an ack quorum of bookies.

    A batch that is sent again with the same producer (`Producer-Id`, `Producer-Epoch`, `Producer-Seq`), or with the
    same `Idempotency-Key`, is not appended again: the response has the offsets of the first append.
    """
    block = await block_in(request, producer)
    if isinstance(block, Response):
        return block
    ack: messages.AppendAck = await routing.ask(messages.Append(log, block, condition), how)
    headers = {
        "location": f"{path_of(log)}/records/{ack.first_offset}",
        "log-next-offset": str(ack.next_offset),
        "log-epoch": str(ack.owner_epoch),
    }
    return json_response(ack, status=200 if ack.is_duplicate else 201, headers=headers)


@routes.head(f"{LOG}/records", include_in_schema=False)
@routes.get(f"{LOG}/records", **_read_described())
async def read(
    routing: Routing,
    request: Request,
    log: Log,
    how: HowOf,
    accept: Accept,
    start: From = "earliest",
    until: Until = None,
    until_timestamp_us: Annotated[
        int | None,
        Query(
            ge=0,
            le=TIMESTAMP_US_MAX,
            description="Only records before this time; only for streams (events or lines).",
        ),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=_RECORDS_MAX)] = 10_000,
    max_bytes: Annotated[int, Query(ge=1, le=BATCH_BYTES_CEILING)] = 1024 * 1024,
    wait_ms: Annotated[
        int, Query(ge=0, le=_WAIT_MS_MAX, description="How long to wait for a record before 204.")
    ] = 0,
    encoding: Encoding = Encoding.AUTO,
    at_tail: Annotated[
        messages.AtTail, Query(description="What a stream (events or lines) does at the tail.")
    ] = messages.AtTail.FOLLOW,
    on_truncated: Annotated[
        messages.OnTruncated | None,
        Query(description="Default: skip for a stream, otherwise fail."),
    ] = None,
    heartbeat_ms: Annotated[int, Query(ge=100, le=60_000)] = 5000,
    last_event_id: Annotated[
        str | None, Header(description="Where server-sent events resume, instead of `from`.")
    ] = None,
) -> Response:
    """Reads a range, waits for records (`wait_ms`), or follows the log. A response may have only a part of the
    records: continue at `Log-Next-Offset` until `Log-Up-To-Date` is true. `Accept` selects its format:

    `application/json` · `application/vnd.rollbook.batch` (framed blocks, from `Log-First-Offset`) ·
    `text/event-stream` and `application/x-ndjson`, which follow the log until it is sealed.
    """
    # The signature is long because FastAPI reads the query's parameters and their limits from it.
    kind = preferred_type(accept, _KINDS_IN, JSON)
    if kind is None:
        wanted = ", ".join(_READ_KINDS)
        return response_of(InvalidRequest(f"Accept has to allow one of {wanted}"), status=406)
    last = _LastEvent.parse(last_event_id) if kind == SSE and last_event_id is not None else None
    begin = position((last and last.next) or start, "from")
    uid = parse_uid(last.uid) if last and last.uid else how.uid
    if kind in (SSE, NDJSON):
        if request.method == "HEAD":  # A response to HEAD would never end.
            tail = messages.GetTail(log, messages.Consistency.CACHED)
            return Response(headers=tail_headers(await routing.ask(tail, how)), media_type=kind)
        reading = messages.ReadStream(
            log,
            begin,
            None if until is None else Offset(until),
            until_timestamp_us,
            at_tail=at_tail,
            on_truncated=on_truncated or messages.OnTruncated.SKIP,
            heartbeat_ms=heartbeat_ms,
            uid=uid,
        )
        return await _follow_range(routing, kind, reading, last, how, encoding)
    if until_timestamp_us is not None:
        raise InvalidRequest(
            "until_timestamp_us is for streams: accept text/event-stream or application/x-ndjson"
        )
    fails = on_truncated or messages.OnTruncated.FAIL
    asked = messages.Read(log, begin, limit, max_bytes, wait_ms, fails)
    answer: messages.ReadAnswer = await routing.ask(asked, how, more_ms=wait_ms)
    return _read_response(routing, kind, answer, until, encoding, waited=wait_ms > 0)


@routes.head(f"{LOG}/records/{{offset}}", include_in_schema=False)
@routes.get(
    f"{LOG}/records/{{offset}}",
    status_code=200,
    responses=_record_responses(),
)
async def read_record(
    routing: Routing,
    request: Request,
    log: Log,
    how: HowOf,
    offset: Annotated[int, Path(ge=0, le=INT64_MAX)],
    if_none_match: Annotated[list[str] | None, Header()] = None,
    uid: Annotated[
        str, Query(description="The log's uid; with it, caches may keep the response for ever.")
    ] = "",
) -> Response:
    """One record, as its raw bytes. It never changes while its log exists. Caches may keep a response to a request with
    the log's `uid` for ever; without `uid` they have to validate it each time.
    """
    asked = messages.Read(log, AtOffset(Offset(offset)), 1, 1, uid=parse_uid(uid) if uid else "")
    answer: messages.ReadAnswer = await routing.ask(asked, how)
    if not answer.blocks:
        raise BeyondTail(offset=offset, tail=answer.tail)
    is_for_all = CALLER.get().authenticator is None and "authorization" not in request.headers
    lasts = _FOR_EVER if uid else _ASKED_FOR
    caching = f"{'public' if is_for_all else 'private'}, {lasts}"
    return _record_response(answer, offset, if_none_match or [], caching)


@routes.get(f"{LOG}/tail", **described(messages.LogTail, errors=AT_OWNER))
async def get_tail(
    routing: Routing,
    log: Log,
    how: HowOf,
    accept: Accept,
    consistency: Annotated[
        messages.Consistency,
        Query(description="barrier: a tail after every append that was acked before the request."),
    ] = messages.Consistency.COMMITTED,
    interval_ms: Annotated[int, Query(ge=10, le=60_000)] = 100,
    heartbeat_ms: Annotated[int, Query(ge=100, le=60_000)] = 5000,
    last_event_id: Annotated[
        str | None,
        Header(description="Sent by a browser that reconnects: 204 if the log is sealed."),
    ] = None,
) -> Response:
    """The log's tail. As `text/event-stream` or `application/x-ndjson`: an event whenever the tail has changed, until
    the log is sealed.
    """
    kind = preferred_type(accept, _KINDS_IN, JSON)
    if kind in (SSE, NDJSON):
        asked = messages.WatchTail(log, interval_ms, heartbeat_ms, how.uid)
        is_resumed = kind == SSE and last_event_id is not None
        return await _follow(
            routing, kind, asked, Encoding.AUTO, resumed_by=how if is_resumed else None
        )
    tail: messages.LogTail = await routing.ask(messages.GetTail(log, consistency), how)
    return json_response(tail, headers=tail_headers(tail))


@routes.get("/v1/tails", **described(messages.Tails, errors=ANYWHERE))
async def watch_tails(
    routing: Routing,
    how: How,
    accept: Accept,
    log: Annotated[list[str] | None, Query(description="Only these logs; may be repeated.")] = None,
    prefix: Annotated[
        list[str] | None,
        Query(description="Only logs whose names begin with namespace/prefix; may be repeated."),
    ] = None,
    interval_ms: Annotated[int, Query(ge=10, le=60_000)] = 20,
    heartbeat_ms: Annotated[int, Query(ge=100, le=60_000)] = 5000,
) -> Response:
    """The tails of the logs that this server owns or would be suggested for; of all of them unless `log` or `prefix`
    selects some. No log is opened. As `text/event-stream` or `application/x-ndjson`: first all tails, then the changes.
    """
    named = tuple(map(LogName.parse, log or ()))
    prefixes = tuple(prefix or ()) if named or prefix else ("",)
    asked = messages.WatchTails(named, prefixes, interval_ms, heartbeat_ms)
    kind = preferred_type(accept, _KINDS_IN, JSON)
    if kind in (SSE, NDJSON):
        return await _follow(routing, kind, asked, Encoding.AUTO)
    return json_response(await _all_tails(routing, asked, how))


@routes.post(f"{LOG}:barrier", **described(messages.LogTail, errors=AT_OWNER))
async def barrier(routing: Routing, log: Log, how: HowOf) -> Response:
    """A tail above every append that was acked before the request, by any server."""
    asked = messages.GetTail(log, messages.Consistency.BARRIER)
    tail: messages.LogTail = await routing.ask(asked, how)
    return json_response(tail, headers=tail_headers(tail))


@routes.get(f"{LOG}/offsets", **described(messages.FoundOffset, errors=OF_READS))
async def find_offset(
    routing: Routing,
    log: Log,
    how: HowOf,
    at: Annotated[str | None, Query(description="A position, as in `from`.")] = None,
    timestamp_us: Number | None = None,
) -> Response:
    """The offset of a position, for example of a time, of a cursor, or ten records before the tail."""
    if (at is None) == (timestamp_us is None):
        raise InvalidRequest("give one of at and timestamp_us")
    where = position(at, "at") if at is not None else AtTime(timestamp_us or 0)
    return json_response(await routing.ask(messages.FindOffset(log, where), how))


# --- Answers ----------------------------------------------------------------------------------


def path_of(log: LogName) -> str:
    return f"/v1/namespaces/{log.namespace}/logs/{log.name}"


def json_response(
    message: Any, *, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return Response(dumped(to_json(message)), status, headers, JSON)


def tail_headers(tail: messages.LogTail) -> dict[str, str]:
    return {
        "log-head": str(tail.head),
        "log-tail": str(tail.tail),
        "log-sealed": _flag(tail.is_sealed),
        "log-epoch": str(tail.owner_epoch),
        "log-owner": tail.owner,
        "log-uid": tail.uid,
    }


async def block_in(request: Request, producer: ProducerRef | None) -> bytes | Response:
    """Returns the batch in a body, or the response that refuses it."""
    kind = media_type(request)
    if kind not in _KINDS:
        advice = f"send Content-Type: {' or '.join(_KINDS)}"
        return response_of(
            InvalidRequest(f"{kind[:80]!r} is not a type of records", next_step=advice), status=415
        )
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        return response_of(InvalidRequest("the body must not be compressed"), status=415)
    return block_of(kind, await request.body(), request.headers, producer)


class _LastEvent(NamedTuple):
    """A parsed `Last-Event-ID`: `NEXT..END@UID`, where the last parts may be missing."""

    next: str
    end: str
    uid: str

    @classmethod
    def parse(cls, text: str) -> Self:
        place, _, uid = text.partition("@")
        next_, _, end = place.partition("..")
        return cls(next_, end, uid)


async def _follow_range(
    routing: OwnerRouting,
    kind: str,
    reading: messages.ReadStream,
    last: _LastEvent | None,
    how: Asking,
    encoding: Encoding,
) -> Response:
    """`last`: the last event id of a browser that reconnects."""
    stops = reading.at_tail is not messages.AtTail.FOLLOW
    if last and isinstance(reading.start, AtOffset):
        # Where the tail was at the first request.
        end = _offset_of(last.end, "Last-Event-ID") if last.end else None
        reading = reading.resumed_at(reading.start.offset, end)
    reading = await routing.begun(reading, how)
    return await _follow(
        routing,
        kind,
        reading,
        encoding,
        end=reading.until_offset if stops else None,
        resumed_by=how if last else None,
    )


async def _follow(
    routing: OwnerRouting,
    kind: str,
    asked: _Followed,
    encoding: Encoding,
    *,
    end: Offset | None = None,
    resumed_by: Asking | None = None,
) -> Response:
    """Opens a stream: if the first event is an error, it becomes the response. `end`: as in `Follow`."""
    events = routing.follow(asked)
    try:
        first = await anext(events)
    except BaseException:
        await events.aclose()
        raise
    if resumed_by is not None and await _check_complete(routing, first, asked, resumed_by):
        await events.aclose()
        return Response(status_code=204)  # 204 stops the browser from reconnecting.

    def again(offset: Offset) -> Any:
        if isinstance(asked, messages.ReadStream):
            return routing.follow(asked.resumed_at(offset), offset)
        return routing.follow(asked)

    uid = asked.uid if isinstance(asked, messages.ReadStream) else ""
    return Follow(routing, kind, first, events, again, encoding, end, uid)


async def _all_tails(
    routing: OwnerRouting, asked: messages.WatchTails, how: Asking
) -> messages.Tails:
    """The present tails of all requested logs. Raises `QuorumTimeout`."""
    found: dict[LogName, messages.TailOfLog] = {}
    try:
        async with (
            asyncio.timeout(how.timeout_ms / 1000),
            aclosing(routing.follow(asked)) as events,
        ):
            async for message in events:
                found.update((tail.log, tail) for tail in message.tails)
                for log in message.gone:
                    found.pop(log, None)
                if message.is_complete:
                    return messages.Tails(
                        tuple(found[log] for log in sorted(found)), (), True, message.servers
                    )
    except TimeoutError:
        pass
    raise QuorumTimeout("not all logs could be listed within the deadline")


async def _check_complete(routing: OwnerRouting, first: Any, asked: _Followed, how: Asking) -> bool:
    """Whether the range is complete, or the log is sealed."""
    match first:
        case messages.CaughtUp(place) | messages.Progress(position=place):
            until = asked.until_offset if isinstance(asked, messages.ReadStream) else None
            if until is not None and place >= until:
                return True
            assert not isinstance(asked, messages.WatchTails)  # A watch of tails cannot be resumed.
            tail = messages.GetTail(asked.log, messages.Consistency.CACHED, asked.uid)
            known: messages.LogTail = await routing.ask(tail, how)
            return known.is_sealed and place >= known.tail
    return isinstance(first, messages.Sealed | messages.Stopped) or is_end(first)


def _offset_of(text: str, name: str) -> Offset:
    found = position(text, name)
    if not isinstance(found, AtOffset):
        raise InvalidRequest(f"{name} has to end with an offset, not with {text[:80]!r}")
    return found.offset


def _read_response(
    routing: OwnerRouting,
    kind: str,
    answer: messages.ReadAnswer,
    until: int | None,
    encoding: Encoding,
    *,
    waited: bool,
) -> Response:
    end = answer.next_offset
    if until is not None:
        end = Offset(max(min(end, until), answer.first_offset))
    headers = {
        "log-head": str(answer.head),
        "log-tail": str(answer.tail),
        "log-first-offset": str(answer.first_offset),
        "log-next-offset": str(end),
        "log-up-to-date": _flag(end >= answer.tail and not answer.is_tail_uncertain),
        "log-sealed": _flag(answer.is_sealed),
        "log-uid": answer.uid,
        "cache-control": "no-cache",
        "x-content-type-options": "nosniff",
    }
    if waited and not answer.blocks:
        return Response(status_code=204, headers=headers)
    if kind == BLOCK:
        return Response(b"".join(answer.blocks), 200, headers, BLOCK)
    return RangeResponse(routing.newcomers, answer, end, encoding, headers)


def _record_response(
    answer: messages.ReadAnswer, offset: int, known: list[str], caching: str
) -> Response:
    block = Block(answer.blocks[0])
    index = offset - block.base_offset
    value = block.value(index)
    etag = f'"{answer.uid}-{google_crc32c.value(value):08x}-{len(value):x}"'
    headers = {
        "etag": etag,
        "cache-control": caching,
        "log-uid": answer.uid,
        "log-offset": str(offset),
        "log-timestamp-us": str(block.timestamp_us),
        "x-content-type-options": "nosniff",
        "content-security-policy": "sandbox",
    }
    if _is_known(etag, known):
        return Response(status_code=304, headers=headers)
    headers |= _key_and_meta_headers(block.keys()[index], block.headers()[index])
    if (event_time := block.event_times()[index]) is not None:
        headers["log-event-time-us"] = str(event_time)
    return Response(value, 200, headers, RAW)


def _is_known(etag: str, known: list[str]) -> bool:
    """`known`: the values of `If-None-Match`."""
    tags = (each.strip().removeprefix("W/") for line in known for each in line.split(","))
    return any(each in (etag, "*") for each in tags)


def _key_and_meta_headers(key: bytes | None, headers: Headers) -> dict[str, str]:
    """The key and the headers that fit HTTP headers; `GET …/records?from=N&limit=1` returns all of them."""
    found: dict[str, str] = {}
    omitted = 0
    for name, value in [("Log-Key", key), *((f"Log-Meta-{n}", v) for n, v in headers.items())]:
        if value is None:
            continue
        text = value.decode("latin-1")
        if _TOKEN.fullmatch(name) and text.isascii() and text.isprintable() and len(text) <= 1024:
            found[name] = text
        else:
            omitted += 1
    if omitted:
        found["Log-Omitted"] = str(omitted)
    return found


def _flag(value: bool) -> str:
    return "true" if value else "false"
