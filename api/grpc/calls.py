"""Calls, heard and answered: each method of the table as gRPC wants to be given it.

Messages are parsed here and not by gRPC, so that what cannot be read is refused like anything else that
is wrong. Whatever is raised becomes a status with its details; what nobody expected is told to the log and
not to the peer.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final, NoReturn, cast

import grpc
import structlog
from google.protobuf.message import DecodeError, Message

from rollbook.api.grpc.append_calls import serve_append_stream
from rollbook.api.grpc.methods import METHODS, PACKAGE, Kind, Method, late
from rollbook.api.grpc.plain_records import answer_message, event_message, request_word
from rollbook.api.grpc.status import status_of, text_of, trailers_of
from rollbook.api.grpc.translation import message_of
from rollbook.api.rest.token import Token
from rollbook.logservice.words import ServiceCore
from rollbook.proto.errors import (
    InvalidRequest,
    RollbookError,
    Unauthorized,
)

logger = structlog.get_logger()

Context = Any  # grpc.aio.ServicerContext, of bytes.
Handler = Callable[[Any, Context], Awaitable[Any]]

_PATIENCE_S: Final = 60.0  # Of calls that come without a deadline.
_TAKING_S: Final = 60.0  # Who takes nothing for so long comes back when he does.
_SHARE: Final = 0.95  # Of the time that is left: what is said later nobody hears.


def handlers(core: ServiceCore, token: Token | None) -> list[grpc.GenericRpcHandler]:
    found: dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]] = {}
    for method in METHODS:
        found.setdefault(method.service, {})[method.name] = _handler(core, method, token)
    return [
        grpc.method_handlers_generic_handler(f"{PACKAGE}.{service}", methods)
        for service, methods in found.items()
    ]


def _handler(
    core: ServiceCore, method: Method, token: Token | None
) -> "grpc.RpcMethodHandler[Any, Any]":
    match method.kind:
        case Kind.CALL:
            return grpc.unary_unary_rpc_method_handler(_guarded(_call(core, method), token, method))
        case Kind.WATCH:
            return grpc.unary_stream_rpc_method_handler(
                _guarded(_watch(core, method), token, method)
            )
        case Kind.APPEND_STREAM:

            async def serve(_: Any, context: Context) -> None:
                await serve_append_stream(core, context)

            return grpc.stream_stream_rpc_method_handler(_guarded(serve, token, method))


def _guarded(serve: Handler, token: Token | None, method: Method) -> Any:
    async def handle(request: Any, context: Context) -> Any:
        try:
            if token is not None:
                _check(token, context)
            return await serve(request, context)
        except RollbookError as error:
            failure = error
        except grpc.aio.BaseError:  # The client is gone.
            raise asyncio.CancelledError from None
        except Exception as error:  # Where a call ends.
            logger.error("grpc_call_failed", method=method.name, exc_info=error)
            failure = RollbookError("something unexpected happened; the server's log says what")
        return await refuse(context, failure)

    return handle


def _check(token: Token, context: Context) -> None:
    for key, value in context.invocation_metadata() or ():
        if key == "authorization":
            scheme, _, shown = str(value).partition(" ")
            if scheme.lower() == "bearer" and token.is_it(shown.strip()):
                return
    raise Unauthorized("show the token: authorization: Bearer …")


async def refuse(context: Context, error: RollbookError) -> NoReturn:
    await context.abort(status_of(error), text_of(error), trailers_of(error))
    raise AssertionError("abort raises")


def _call(core: ServiceCore, method: Method) -> Handler:
    serve = getattr(core, method.core_name)
    message = message_of(method.request)

    async def handle(data: bytes, context: Context) -> bytes:
        request = parse(message, data)
        word = request_word(request, method.request)
        due = _due(context)
        try:
            async with asyncio.timeout_at(due):
                answer = await serve(word, due)
        except TimeoutError:
            raise late(method) from None
        return bytes(answer_message(request, answer).SerializeToString())

    return handle


def _watch(core: ServiceCore, method: Method) -> Handler:
    serve = getattr(core, method.core_name)
    message = message_of(method.request)

    async def handle(data: bytes, context: Context) -> None:
        request = parse(message, data)
        events = cast(AsyncGenerator[Any, None], serve(request_word(request, method.request)))
        try:
            async for event in events:
                told = event_message(request, event).SerializeToString()
                del event  # Whoever does not read keeps one copy here, and not three.
                await _tell(context, told)
        finally:
            await events.aclose()

    return handle


async def _tell(context: Context, told: bytes) -> None:
    """gRPC takes no more than the peer's window has room for; whoever takes nothing is hung up on. A
    status would wait behind what he does not take.
    """
    try:
        async with asyncio.timeout(_TAKING_S):
            await context.write(told)
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
