"""The routes that create, list, configure, seal, truncate, move and delete logs."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request, Response

from rollbook.api.rest.log_records import LOG, block_in, json_response, path_of, tail_headers
from rollbook.api.rest.message_json import field_names, from_json, to_json
from rollbook.api.rest.message_schema import schema_of
from rollbook.api.rest.openapi_route_schemas import (
    ANYWHERE,
    AT_OWNER,
    OF_APPENDS,
    RECORD_BODIES,
    described,
)
from rollbook.api.rest.owner_routing import Asking, OwnerRouting
from rollbook.api.rest.problems import problem_of
from rollbook.api.rest.record_json import JSON, dumped, parse_body
from rollbook.api.rest.route_parameters import (
    By,
    ETag,
    How,
    HowOf,
    If,
    Log,
    Page,
    Routing,
    TakesRecord,
    media_type,
)
from rollbook.logservice import messages
from rollbook.logservice.ids import LogName
from rollbook.logservice.log_config import DELETE_GRACE_MS_MAX, ConfigValues, LogConfig
from rollbook.proto.errors import (
    BadConfig,
    Guarded,
    InvalidRequest,
    LogExists,
    MetadataConflict,
    Missing,
    NoSuchServer,
    RollbookError,
)

# States in one page. Each may need several reads, some of them from bookies, and a take-over of the log.
_STATES_MAX: Final = 100
_STATES_AT_ONCE: Final = 10

Grace = Annotated[
    int | None,
    Query(
        ge=0,
        le=DELETE_GRACE_MS_MAX,
        description="How long the records are kept after the deletion. Default: the log's setting.",
    ),
]
View = Annotated[
    Literal["names", "full"],
    Query(
        description=f"full: the state of each log, as GET returns it, or `error`; at most {_STATES_MAX} in a page, "
        "and fewer if the deadline passes. A log is opened for this if its owner died."
    ),
]

routes: Final = APIRouter(default_response_class=Response)


# --- Logs -------------------------------------------------------------------------------------


def _list_described() -> dict[str, Any]:
    found = described(messages.LogNames)
    names = found["responses"][200]["content"][JSON]
    full = schema_of(messages.LogNames)
    full["title"] = "LogStates"
    failed = {
        "type": "object",
        "title": "LogFailure",
        "properties": {
            "log": {"type": "string"},
            "error": {"$ref": "#/components/schemas/Problem"},
        },
        "required": ["log", "error"],
    }
    each = {"anyOf": [schema_of(messages.LogState), failed]}
    full["properties"]["logs"] = {"type": "array", "items": each}
    names["schema"] = {"anyOf": [names["schema"], full]}
    return found


def _config_schema() -> dict[str, Any]:
    return schema_of(LogConfig, is_request=True)


async def _listed(
    routing: OwnerRouting, namespace: str, prefix: str, token: str, limit: int, view: View, how: How
) -> Response:
    asked = messages.ListLogs(namespace, prefix, token, limit)
    if view == "names":
        return json_response(await routing.ask(asked, how))
    loop = asyncio.get_running_loop()
    due = loop.time() + how.timeout_ms / 1000
    few = replace(asked, limit=min(limit, _STATES_MAX))
    page: messages.LogNames = await routing.ask(few, how, due=due)
    states: list[Any] = []
    next_page = page.next_page
    for start in range(0, len(page.logs), _STATES_AT_ONCE):
        if start and loop.time() >= due:
            # The first states are returned in any case, so that each page makes progress.
            next_page = str(page.logs[start - 1])
            break
        states += await _states_of(routing, page.logs[start:][:_STATES_AT_ONCE], how, due)
        await asyncio.sleep(0)  # Lets pending appends get their responses.
    return Response(dumped({"logs": states, "next_page": next_page}), media_type=JSON)


async def _states_of(
    routing: OwnerRouting, logs: Sequence[LogName], how: Asking, due: float
) -> list[Any]:
    """The logs' states, requested concurrently, in order. Logs deleted since they were listed are left out."""
    asked = (routing.ask(messages.GetLog(log), how, due=due) for log in logs)
    states = await asyncio.gather(*asked, return_exceptions=True)
    found: list[Any] = []
    for log, state in zip(logs, states, strict=True):
        if isinstance(state, messages.LogState):
            found.append(to_json(state))
        elif not isinstance(state, RollbookError):
            raise state
        # One log's error must not hide the other logs of the list.
        elif not isinstance(state, Missing):
            found.append({"log": str(log), "error": problem_of(state)})
    return found


@routes.get("/v1/logs", tags=["logs"], **_list_described())
async def list_all_logs(
    routing: Routing,
    how: How,
    prefix: Annotated[str, Query(max_length=255)] = "",
    page_token: Annotated[str, Query(max_length=600)] = "",
    limit: Page = 1000,
    view: View = "names",
) -> Response:
    """The logs of all namespaces, by name; `next_page` is the `page_token` of the next page."""
    return await _listed(routing, "", prefix, page_token, limit, view, how)


@routes.get("/v1/namespaces/{namespace}/logs", tags=["logs"], **_list_described())
async def list_logs(
    routing: Routing,
    how: How,
    namespace: str,
    prefix: Annotated[str, Query(max_length=255)] = "",
    page_token: Annotated[str, Query(max_length=600)] = "",
    limit: Page = 1000,
    view: View = "names",
) -> Response:
    """The logs of a namespace, by name."""
    known = LogName(namespace, "any").namespace
    return await _listed(routing, known, prefix, page_token, limit, view, how)


@routes.put(
    LOG,
    tags=["logs"],
    **described(
        messages.LogState,
        errors=(*ANYWHERE, LogExists, BadConfig),
        body={JSON: {"schema": _config_schema(), "example": {"retention_age_s": 86400}}},
        body_required=False,
        more={201: "The log was created."},
    ),
)
async def ensure_log(routing: Routing, request: Request, log: Log, how: How) -> Response:
    """Creates the log unless it exists. A new log gets the server's defaults for the fields that the body does not
    name. An existing log stays as it is; if it differs in a named field, the response is 409.
    """
    wanted = await json_body(request) or {}
    config = from_json(wanted, ConfigValues) if wanted else None
    names = tuple(field_names(LogConfig)[each] for each in wanted)
    state: messages.LogState = await routing.ask(messages.EnsureLog(log, config, names), how)
    return _state_response(state, 201 if state.was_created else 200)


@routes.get(LOG, tags=["logs"], **described(messages.LogState))
async def get_log(routing: Routing, log: Log, how: HowOf) -> Response:
    """A summary of the log's state. The `ETag` changes with the configuration."""
    return _state_response(await routing.ask(messages.GetLog(log), how))


@routes.head(LOG, tags=["logs"], **described())
async def head_log(routing: Routing, log: Log, how: HowOf) -> Response:
    """Returns `Log-Head`, `Log-Tail`, `Log-Sealed`, `Log-Epoch`, `Log-Owner` and `Log-Uid`, as this server knows
    them.
    """
    asked = messages.GetTail(log, messages.Consistency.CACHED)
    return Response(headers=tail_headers(await routing.ask(asked, how)))


@routes.patch(
    LOG,
    tags=["logs"],
    **described(
        messages.LogState,
        errors=(*AT_OWNER, MetadataConflict, BadConfig),
        body={JSON: {"schema": _config_schema(), "example": {"retention_age_s": 86400}}},
    ),
)
async def update_log(
    routing: Routing, request: Request, log: Log, how: HowOf, etag: ETag
) -> Response:
    """Changes the fields of the configuration that the body names. If the request has `If-Match`, the configuration
    must still have this `ETag`.
    """
    wanted = await json_body(request, is_required=True)
    config = from_json(wanted, ConfigValues)
    names = tuple(field_names(LogConfig)[each] for each in wanted)
    return _state_response(await routing.ask(messages.UpdateLog(log, config, names, etag), how))


@routes.delete(
    LOG,
    tags=["logs"],
    **described(
        messages.DeleteLogAnswer, status=202, errors=(*AT_OWNER, MetadataConflict, Guarded)
    ),
)
async def delete_log(
    routing: Routing, log: Log, how: HowOf, etag: ETag, grace_ms: Grace = None
) -> Response:
    """Deletes the log, which then cannot be used. Its records are freed after the grace period."""
    answer = await routing.ask(messages.DeleteLog(log, etag, grace_ms), how)
    return json_response(answer, status=202)


@routes.post(
    f"{LOG}:undelete",
    tags=["logs"],
    **described(
        messages.LogState,
        errors=(*ANYWHERE, LogExists, MetadataConflict),
        says=messages.UndeleteLog,
    ),
)
async def undelete_log(routing: Routing, request: Request, log: Log, how: HowOf) -> Response:
    """Restores a deleted log with its records. `uid`: the log's uid, if several logs were deleted under the name. `to`:
    a new name, if the old one is taken.
    """
    said = await json_body(request) or {}
    message = from_json(said, messages.UndeleteLog, log=log)
    return json_response(await routing.ask(message, how))


@routes.get("/v1/deleted-logs", tags=["logs"], **described(messages.DeletedLogs))
async def list_deleted_logs(
    routing: Routing,
    how: How,
    namespace: Annotated[str, Query(max_length=255)] = "",
    prefix: Annotated[str, Query(max_length=255)] = "",
    limit: Page = 1000,
) -> Response:
    """The deleted logs whose records are still kept, by name."""
    known = LogName(namespace, "any").namespace if namespace else ""
    return json_response(await routing.ask(messages.ListDeletedLogs(known, prefix, limit), how))


def _state_response(state: messages.LogState, status: int = 200) -> Response:
    headers = {"etag": f'"{state.etag}"', "location": path_of(state.log), "log-uid": state.uid}
    if status != 201:
        del headers["location"]
    return json_response(state, status=status, headers=headers)


async def json_body(request: Request, *, is_required: bool = False) -> Any:
    """The JSON body; None if it is empty. Raises `InvalidRequest`."""
    body = await request.body()
    if not body and not is_required:
        return None
    if media_type(request) not in (JSON, "application/merge-patch+json"):
        raise InvalidRequest("send Content-Type: application/json")
    said = parse_body(body)
    if not isinstance(said, dict):
        raise InvalidRequest("the body has to be an object")
    return said


# --- Verbs ------------------------------------------------------------------------------------


@routes.post(
    f"{LOG}:truncate",
    tags=["logs"],
    **described(messages.TruncateAnswer, errors=(*AT_OWNER, Guarded), says=messages.Truncate),
)
async def truncate(routing: Routing, request: Request, log: Log, how: HowOf) -> Response:
    """Removes the records before a position. `dry_run`: only returns what would be removed."""
    said = await json_body(request, is_required=True)
    return json_response(
        await routing.ask(from_json(said, messages.Truncate, log=log, uid=how.uid), how)
    )


@routes.post(
    f"{LOG}:seal",
    tags=["logs"],
    dependencies=[TakesRecord],
    **described(
        messages.SealAnswer,
        errors=OF_APPENDS,
        body=RECORD_BODIES,
        body_required=False,
        more={415: "INVALID"},
    ),
)
async def seal(
    routing: Routing, request: Request, log: Log, how: HowOf, condition: If, producer: By
) -> Response:
    """Seals the log: no more records can be appended. Records in the body become the log's last records."""
    block: bytes | Response | None = None
    if await request.body() or media_type(request):
        block = await block_in(request, producer)
    if isinstance(block, Response):
        return block
    return json_response(await routing.ask(messages.Seal(log, block, condition), how))


@routes.post(f"{LOG}:roll", tags=["logs"], **described(messages.RollLogAnswer, errors=AT_OWNER))
async def roll(routing: Routing, log: Log, how: HowOf) -> Response:
    """Starts a new segment, unless the one that is written is still empty."""
    return json_response(await routing.ask(messages.RollLog(log), how))


@routes.post(
    f"{LOG}:transfer",
    tags=["cluster"],
    **described(messages.LogOwner, errors=(*AT_OWNER, NoSuchServer), says=messages.TransferLog),
)
async def transfer(routing: Routing, request: Request, log: Log, how: HowOf) -> Response:
    """Hands the log over to another server. No append fails because of it."""
    said = await json_body(request, is_required=True)
    return json_response(
        await routing.ask(from_json(said, messages.TransferLog, log=log, uid=how.uid), how)
    )
