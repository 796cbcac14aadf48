"""The routes for log servers: owners of logs, live servers, counters, limits, outages, and draining."""

from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Response

from rollbook.api.rest.log_records import json_response
from rollbook.api.rest.message_json import to_json
from rollbook.api.rest.openapi_route_schemas import AT_OWNER, described
from rollbook.api.rest.record_json import JSON, dumped
from rollbook.api.rest.route_parameters import How, Routing
from rollbook.logservice import messages
from rollbook.logservice.ids import LogName
from rollbook.proto.errors import NoSuchServer

_NAMES_MAX: Final = 1000
_SERVER: Final = "/v1/servers/{server}"
Server = Annotated[str, Path(description="A server's name or id.", max_length=300)]

routes: Final = APIRouter(default_response_class=Response)


@routes.get("/v1/owners", tags=["cluster"], **described(messages.LogOwners))
async def lookup(
    routing: Routing,
    how: How,
    log: Annotated[list[str], Query(max_length=_NAMES_MAX, description="namespace/log")],
) -> Response:
    """The owners of these logs, or the servers that should own them. Logs that do not exist are left out."""
    names = tuple(LogName.parse(each) for each in log)
    return json_response(await routing.ask(messages.Lookup(names), how))


@routes.get("/v1/servers", tags=["cluster"], **described(messages.Servers))
async def list_servers(routing: Routing, how: How) -> Response:
    """The live log servers. `url` is the HTTP address of a server, or empty if it has none."""
    found = to_json(await routing.ask(messages.ListServers(), how))
    for each in found["servers"]:
        each["url"] = routing.url_of(each["address"])
    return Response(dumped(found), media_type=JSON)


@routes.get("/v1/stats", tags=["cluster"], **described(messages.ServerStats))
async def get_server_stats(routing: Routing, how: How) -> Response:
    """The counters of this server."""
    return json_response(await routing.ask(messages.GetServerStats(), how))


@routes.get("/v1/outage", tags=["cluster"], **described(messages.Outage))
async def get_outage(routing: Routing, how: How) -> Response:
    """The outages of bookies and of the metadata store that this server knows of. Responds within a second."""
    return json_response(await routing.ask(messages.GetOutage(), how))


@routes.get("/v1/limits", tags=["cluster"], **described(messages.ServiceLimits))
async def get_limits(routing: Routing, how: How) -> Response:
    """The limits of logs and requests."""
    return json_response(await routing.ask(messages.GetLimits(), how))


@routes.post(
    f"{_SERVER}:drain",
    tags=["cluster"],
    **described(messages.DrainAnswer, status=202, errors=(*AT_OWNER, NoSuchServer)),
)
async def drain(routing: Routing, how: How, server: Server) -> Response:
    """Drains a server: it hands over its logs and opens no more. Repeat the request to see how many logs are left."""
    return json_response(await routing.ask(messages.DrainServer(server), how), status=202)


@routes.post(
    f"{_SERVER}:resume",
    tags=["cluster"],
    **described(messages.DrainAnswer, errors=(*AT_OWNER, NoSuchServer)),
)
async def resume(routing: Routing, how: How, server: Server) -> Response:
    """Ends a drain: the server accepts logs again."""
    return json_response(await routing.ask(messages.DrainServer(server, resume=True), how))
