"""The routes for a log's writers: exclusive writers with their epochs, and producers."""

from typing import Annotated, Final

from fastapi import APIRouter, Path, Request, Response

from rollbook.api.rest.log_admin import json_body
from rollbook.api.rest.log_records import LOG, json_response
from rollbook.api.rest.message_json import from_json
from rollbook.api.rest.openapi_route_schemas import AT_OWNER, described
from rollbook.api.rest.route_parameters import Epoch, HowOf, Log, Routing
from rollbook.logservice import messages
from rollbook.proto.errors import StaleEpoch, WriterHeld

Producer = Annotated[str, Path(description="The producer's id.", min_length=1, max_length=64)]

routes: Final = APIRouter(default_response_class=Response)


@routes.post(
    f"{LOG}/writer",
    tags=["writer"],
    **described(
        messages.WriterGrant,
        status=201,
        errors=(*AT_OWNER, WriterHeld, StaleEpoch),
        says=messages.AcquireWriter,
    ),
)
async def acquire_writer(routing: Routing, request: Request, log: Log, how: HowOf) -> Response:
    """Makes the caller the log's exclusive writer, with a new epoch. Refused if another writer holds the log, unless
    `mode` is `wait` or `steal`. Earlier writers are fenced: their acknowledged records are below `fence_offset`, and no
    later append of theirs is acknowledged.
    """
    said = await json_body(request, is_required=True)
    grant = await routing.ask(from_json(said, messages.AcquireWriter, log=log, uid=how.uid), how)
    return json_response(grant, status=201)


@routes.put(
    f"{LOG}/writer",
    tags=["writer"],
    **described(messages.WriterGrant, errors=(*AT_OWNER, StaleEpoch)),
)
async def renew_writer(routing: Routing, log: Log, how: HowOf, epoch: Epoch) -> Response:
    """Renews the writer epoch for the granted time."""
    return json_response(await routing.ask(messages.RenewWriter(log, epoch), how))


@routes.delete(
    f"{LOG}/writer", tags=["writer"], **described(status=204, errors=(*AT_OWNER, StaleEpoch))
)
async def release_writer(routing: Routing, log: Log, how: HowOf, epoch: Epoch) -> Response:
    """Releases the writer epoch, so that another writer can acquire the log."""
    await routing.ask(messages.ReleaseWriter(log, epoch), how)
    return Response(status_code=204)


@routes.post(
    f"{LOG}/producers/{{producer}}",
    tags=["records"],
    **described(messages.ProducerProgress, status=201, errors=AT_OWNER),
)
async def begin_producer(routing: Routing, log: Log, how: HowOf, producer: Producer) -> Response:
    """Begins the next epoch of a producer, and returns how many records the producer has appended. Appends in this
    epoch have `Producer-Seq` 0, 1, 2, …; older epochs are refused.
    """
    message = messages.BeginProducer(log, producer.encode())
    return json_response(await routing.ask(message, how), status=201)
