"""Keeps unauthenticated callers from using up the limit on concurrent calls that all callers share (G8).

gRPC waits for the message of a call before it calls the handler, and the message may never arrive. So a caller
without a valid token is refused as soon as its metadata arrives, before the message. Only a handler sees the
caller's certificate. A server that accepts certificates therefore handles a call without a token like a stream of
requests: the handler checks the caller before the first message. Health checks are open to all callers, and have a
separate limit.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2

from rollbook.api.access.authenticator import Authenticator
from rollbook.api.grpc.handlers import admitted, refuse
from rollbook.proto.errors import InvalidRequest, RollbookError, Throttled, Unauthorized

_CHECK: Final = f"/{health.SERVICE_NAME}/Check"
_CHECKS_MAX: Final = 64  # Health checks that may run at the same time.
_CHECK_S: Final = 10.0


class Strangers(grpc.aio.ServerInterceptor):
    def __init__(self, authenticator: Authenticator, servicer: Any, *, knows_names: bool) -> None:
        """`knows_names`: callers may authenticate with certificates."""
        self._authenticator = authenticator
        self._knows_names = knows_names
        self._health = servicer
        self._checks = 0
        self._refusal: Any = grpc.stream_stream_rpc_method_handler(self._refuse)
        self._check: Any = grpc.stream_unary_rpc_method_handler(
            self._answer_check,
            request_deserializer=health_pb2.HealthCheckRequest.FromString,
            response_serializer=health_pb2.HealthCheckResponse.SerializeToString,
        )

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        if handler_call_details.method == _CHECK:
            return self._check
        for key, value in handler_call_details.invocation_metadata or ():
            if key == "authorization":
                if self._authenticator.knows(str(value)):
                    return await continuation(handler_call_details)
                return self._refusal
        if self._knows_names:
            return self._known_first(await continuation(handler_call_details))
        return self._refusal

    def _known_first(self, handler: Any) -> Any:
        """Wraps a handler, so that the caller is checked before the message arrives."""
        # Handlers of request streams check their callers themselves.
        if handler is None or handler.request_streaming:
            return handler
        formats = handler.request_deserializer, handler.response_serializer
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(
                self._after_a_look(handler.unary_stream), *formats
            )
        return grpc.stream_unary_rpc_method_handler(
            self._after_a_look(handler.unary_unary), *formats
        )

    def _after_a_look(self, serve: Callable[[Any, Any], Awaitable[Any]]) -> Any:
        """Wraps a handler, so that the caller is checked before the message arrives. The handler checks the caller
        again when the message arrives: that may be days later, when the caller's access may have ended.
        """

        async def look_and_serve(requests: AsyncIterator[Any], context: Any) -> Any:
            try:
                admitted(self._authenticator, context)
            except RollbookError as error:
                await refuse(context, error)
            async for request in requests:
                return await serve(request, context)
            return await refuse(context, InvalidRequest("the call has no request"))

        return look_and_serve

    async def _refuse(self, _: Any, context: Any) -> None:
        try:
            admitted(self._authenticator, context)
        except RollbookError as error:
            await refuse(context, error)
        await refuse(
            context,
            Unauthorized(
                "the token was not valid when the call arrived, but is valid now: retry the call"
            ),
        )

    async def _answer_check(self, questions: AsyncIterator[Any], context: Any) -> Any:
        if self._checks >= _CHECKS_MAX:
            await refuse(context, Throttled("too many health checks", retry_after_ms=1000))
        self._checks += 1
        try:
            async with asyncio.timeout(_CHECK_S):
                async for question in questions:
                    return await self._health.Check(question, context)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no request arrived")
        finally:
            self._checks -= 1
