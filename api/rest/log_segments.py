"""The routes that show how a log is stored, and what happened to it: its segments and its journal."""

from typing import Final

from fastapi import APIRouter, Response

from rollbook.api.rest.log_records import LOG, json_response
from rollbook.api.rest.openapi_route_schemas import described
from rollbook.api.rest.route_parameters import HowOf, Log, Number, Page, Routing
from rollbook.logservice import messages
from rollbook.logservice.ids import SegmentId

routes: Final = APIRouter(default_response_class=Response)


@routes.get(f"{LOG}/segments", tags=["logs"], **described(messages.Segments))
async def list_segments(
    routing: Routing, log: Log, how: HowOf, start: Number = 0, limit: Page = 1000
) -> Response:
    """The log's segments and their ledgers."""
    return json_response(
        await routing.ask(messages.ListSegments(log, SegmentId(start), limit), how)
    )


@routes.get(f"{LOG}/journal", tags=["logs"], **described(messages.LogJournal))
async def get_journal(routing: Routing, log: Log, how: HowOf, limit: Page = 100) -> Response:
    """The log's event history, newest first."""
    return json_response(await routing.ask(messages.GetJournal(log, limit), how))
