"""The routes of a log's cursors, which are named positions in the log."""

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response

from rollbook.api.rest.log_admin import json_body
from rollbook.api.rest.log_records import LOG, json_response
from rollbook.api.rest.message_json import from_json
from rollbook.api.rest.openapi_route_schemas import ANYWHERE, described
from rollbook.api.rest.route_parameters import Cursor, HowOf, Log, Routing, Version
from rollbook.logservice import messages
from rollbook.proto.errors import CursorAhead, Guarded, MetadataConflict, NoSuchCursor

routes: Final = APIRouter(default_response_class=Response)


@routes.get(f"{LOG}/cursors", tags=["cursors"], **described(messages.Cursors))
async def list_cursors(
    routing: Routing,
    log: Log,
    how: HowOf,
    page_token: Annotated[str, Query(max_length=600)] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
) -> Response:
    """The log's cursors, by name; `next_page` is the `page_token` of the next page."""
    return json_response(await routing.ask(messages.ListCursors(log, page_token, limit), how))


@routes.get(
    f"{LOG}/cursors/{{cursor}}",
    tags=["cursors"],
    **described(messages.Cursor, errors=(*ANYWHERE, NoSuchCursor)),
)
async def get_cursor(routing: Routing, log: Log, how: HowOf, cursor: Cursor) -> Response:
    """A cursor: a named position. A protected cursor is a mark, which holds truncation and retention back."""
    return _cursor_response(await routing.ask(messages.GetCursor(log, cursor), how))


@routes.put(
    f"{LOG}/cursors/{{cursor}}",
    tags=["cursors"],
    **described(
        messages.Cursor,
        errors=(*ANYWHERE, MetadataConflict, CursorAhead, Guarded),
        says=messages.CommitCursor,
        without=("log", "uid", "name", "expected_version"),
    ),
)
async def commit_cursor(
    routing: Routing, request: Request, log: Log, how: HowOf, cursor: Cursor, version: Version
) -> Response:
    """Moves or creates a cursor. `If-Match`: only if it has this version; `If-None-Match: *`: only if there is none."""
    said = await json_body(request, is_required=True)
    given = {"log": log, "name": cursor, "expected_version": version, "uid": how.uid}
    return _cursor_response(await routing.ask(from_json(said, messages.CommitCursor, **given), how))


@routes.delete(
    f"{LOG}/cursors/{{cursor}}",
    tags=["cursors"],
    **described(status=204, errors=(*ANYWHERE, MetadataConflict)),
)
async def delete_cursor(
    routing: Routing, log: Log, how: HowOf, cursor: Cursor, version: Version
) -> Response:
    """Deletes a cursor, which then holds back neither truncation nor retention."""
    await routing.ask(messages.DeleteCursor(log, cursor, version), how)
    return Response(status_code=204)


def _cursor_response(cursor: messages.Cursor) -> Response:
    return json_response(cursor, headers={"etag": f'"{cursor.version}"'})
