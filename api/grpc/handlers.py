"""The handlers of all gRPC calls, one for each method of the table in `api/rpc_methods.py`.

They parse the messages themselves, so that an unreadable message is refused like any other invalid request.
Every error becomes a status with details. An unexpected error is logged, and the peer gets no details of it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NoReturn

import grpc
import structlog
from google.protobuf.message import DecodeError, Message

from rollbook.api.access.authenticator import CALLER, AuthenticatedCaller, Authenticator, anybody
from rollbook.api.access.authorized_service import AuthorizedService
from rollbook.api.access.idempotency_keys import with_own_key
from rollbook.api.grpc.append_stream import serve_append_stream
from rollbook.api.grpc.protobuf_conversion import message_of
from rollbook.api.grpc.record_framing import answer_message, event_bytes, unpack_request
from rollbook.api.grpc.relay import OF_ONE_SERVER, Relay, is_relayed, trusted
from rollbook.api.grpc.status import status_of, text_of, trailers_of
from rollbook.api.rpc_methods import METHODS, PACKAGE, CallKind, Method
from rollbook.logservice.messages import Append, Seal
from rollbook.proto.errors import InvalidRequest, RollbookError

logger = structlog.get_logger()

Context = Any  # grpc.aio.ServicerContext, of bytes.
Handler = Callable[[Any, Context], Awaitable[Any]]

_PATIENCE_S: Final = 60.0  # The time limit of a call without a deadline.
_TAKING_S: Final = 60.0  # A client that reads nothing for this long is disconnected.
_SHARE: Final = 0.95  # The service's share of the remaining time; the rest is for the response.


def handlers(
    core: AuthorizedService, authenticator: Authenticator | None, relay: Relay | None = None
) -> list[grpc.GenericRpcHandler]:
    """`relay`: None if this server does not relay calls."""
    found: dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]] = {}
    for method in METHODS:
        found.setdefault(method.service, {})[method.name] = _handler(
            core, method, authenticator, relay
        )
    return [
        grpc.method_handlers_generic_handler(f"{PACKAGE}.{service}", methods)
        for service, methods in found.items()
    ]


def _handler(
    core: AuthorizedService,
    method: Method,
    authenticator: Authenticator | None,
    relay: Relay | None,
) -> "grpc.RpcMethodHandler[Any, Any]":
    match method.kind:
        case CallKind.CALL:
            return grpc.unary_unary_rpc_method_handler(
                _authorized(core, _call(core, method, relay), authenticator, method)
            )
        case CallKind.WATCH:
            return grpc.unary_stream_rpc_method_handler(
                _authorized(core, _watch(core, method, relay), authenticator, method)
            )
        case CallKind.APPEND_STREAM:

            async def serve(_: Any, context: Context) -> None:
                if server := _relayed_to(relay, context):
                    assert relay is not None
                    async with relay.append_stream(server) as relayed:
                        await serve_append_stream(core, context, relayed)
                else:
                    await serve_append_stream(core, context)

            return grpc.stream_stream_rpc_method_handler(
                _authorized(core, serve, authenticator, method)
            )


def _authorized(
    core: AuthorizedService, serve: Handler, authenticator: Authenticator | None, method: Method
) -> Any:
    async def handle(request: Any, context: Context) -> Any:
        try:
            CALLER.set(admitted(authenticator, context))
            return await serve(request, context)
        except RollbookError as error:
            failure = core.explained(error)
        except grpc.aio.BaseError:  # The client has disconnected.
            raise asyncio.CancelledError from None
        except Exception as error:  # Any error of a call becomes a status.
            logger.error("grpc_call_failed", method=method.name, exc_info=error)
            failure = RollbookError("an unexpected error occurred; the server's log has details")
        return await refuse(context, failure)

    return handle


def admitted(authenticator: Authenticator | None, context: Context) -> AuthenticatedCaller:
    """Authenticates the caller. Raises `Unauthorized`."""
    if authenticator is None:
        return anybody(context.peer())
    shown = ""
    for key, value in context.invocation_metadata() or ():
        if key == "authorization":
            shown = str(value)
    names = [name.decode("utf-8", "replace") for name in context.peer_identities() or ()]
    caller = authenticator.admit(shown, names, context.peer())
    return trusted(caller) if is_relayed(context.invocation_metadata()) else caller


async def refuse(context: Context, error: RollbookError) -> NoReturn:
    await context.abort(status_of(error), text_of(error), trailers_of(error))
    raise AssertionError("abort raises")


def _relayed_to(relay: Relay | None, context: Context) -> str:
    """The server to which the call is relayed; empty: this server handles it. Raises `ServerUnreachable`."""
    return relay.server_for(context.invocation_metadata()) if relay is not None else ""


def _call(core: AuthorizedService, method: Method, relay: Relay | None) -> Handler:
    message = message_of(method.request)

    async def handle(data: bytes, context: Context) -> bytes:
        received = parse(message, data)
        request = unpack_request(received, method.request)
        if isinstance(request, Append | Seal):
            request = with_own_key(request, CALLER.get())
        due = _due(context)
        try:
            async with asyncio.timeout_at(due):
                if server := _relayed_to(relay, context):
                    assert relay is not None
                    meant = server if isinstance(request, OF_ONE_SERVER) else ""
                    answer = await core.ask(method, request, due, relay.asks_owner(due), meant)
                else:
                    answer = await core.ask(method, request, due)
        except TimeoutError:
            raise core.late(method) from None
        return bytes(answer_message(received, answer).SerializeToString())

    return handle


def _watch(core: AuthorizedService, method: Method, relay: Relay | None) -> Handler:
    message = message_of(method.request)

    async def handle(data: bytes, context: Context) -> None:
        received = parse(message, data)
        request, through = unpack_request(received, method.request), None
        if server := _relayed_to(relay, context):
            assert relay is not None
            through = partial(relay.follow, server, method, CALLER.get())
        events = core.watch(method, request, through)
        waiting = core.look_if_late()
        try:
            async for event in events:
                waiting.cancel()
                packed = event_bytes(received, event)
                del event  # So an unread event takes one copy in memory, not three.
                await _tell(context, packed)
                del packed  # gRPC has a copy, and the next event may arrive much later.
        finally:
            waiting.cancel()
            await events.aclose()

    return handle


async def _tell(context: Context, packed: bytes) -> None:
    """Sends a message; gRPC waits until the message fits into the peer's flow-control window. A client that reads
    nothing for `_TAKING_S` is disconnected without a status, which would be queued after the unread messages.
    """
    try:
        async with asyncio.timeout(_TAKING_S):
            await context.write(packed)
    except TimeoutError:
        logger.warning("grpc_reader_hung_up_on", silent_s=_TAKING_S)
        raise asyncio.CancelledError from None


def parse(message: type[Message], data: bytes) -> Any:
    try:
        return message.FromString(data)
    except DecodeError:
        name = message.DESCRIPTOR.name
        raise InvalidRequest(f"the message cannot be read as {name}") from None


def _due(context: Context) -> float:
    left = context.time_remaining()
    patience = _PATIENCE_S if left is None else left * _SHARE
    return asyncio.get_running_loop().time() + patience
