"""gRPC's health and reflection services.

Every caller may check the server's health. A call of `Health.Watch` or reflection lasts as long as the
caller wants, and counts towards the limit on concurrent calls that all callers share. So only authenticated
callers may make these calls, and each call counts as one of the caller's streams.
"""

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from rollbook.api.access.authenticator import Authenticator
from rollbook.api.grpc.handlers import admitted, refuse
from rollbook.proto.errors import RollbookError


class HealthService(health.aio.HealthServicer):  # type: ignore[misc]  # grpcio-health-checking has no types.
    def __init__(self, authenticator: Authenticator | None) -> None:
        super().__init__()
        self._authenticator = authenticator

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802  # gRPC's name.
        async with _let_in(self._authenticator, context):
            await super().Watch(request, context)


class ReflectionService(reflection.aio.ReflectionServicer):  # type: ignore[misc]  # grpcio-reflection has no types.
    def __init__(self, names: tuple[str, ...], authenticator: Authenticator | None) -> None:
        super().__init__(names)
        self._authenticator = authenticator

    async def ServerReflectionInfo(  # noqa: N802  # gRPC's name.
        self, request_iterator: Any, unused_context: Any
    ) -> AsyncIterator[Any]:
        async with _let_in(self._authenticator, unused_context):
            async for answer in super().ServerReflectionInfo(request_iterator, unused_context):
                yield answer


@asynccontextmanager
async def _let_in(authenticator: Authenticator | None, context: Any) -> AsyncIterator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(admitted(authenticator, context).account.stream())
        except RollbookError as error:
            await refuse(context, error)
        yield
