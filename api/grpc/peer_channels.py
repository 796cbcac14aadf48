"""Asks another log server over gRPC, once, on behalf of a client that cannot be redirected there.

The credentials (token, certificate) are read again when their files change; calls in progress end on
the connections on which they began.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import structlog

from rollbook.api.client.channels import Channels, Metadata, Security
from rollbook.api.client.unary_calls import answer_of
from rollbook.api.grpc.protobuf_conversion import pack
from rollbook.api.grpc.status import failure_of
from rollbook.api.rpc_methods import BY_REQUEST, waits
from rollbook.proto.errors import BadConfig
from rollbook.proto.tasks import to_its_end

logger = structlog.get_logger()


class _ChannelSet:
    """gRPC channels with the same credentials."""

    def __init__(self, channels: Channels) -> None:
        self.channels = channels
        self.calls = 0


class GrpcPeers:
    def __init__(
        self,
        security: Callable[[], Security],
        look: Callable[[], object] = lambda: None,
        *,
        options: Sequence[tuple[str, int]] = (),
        shows: Metadata = (),
    ) -> None:
        """`look`: returns another value when the files of `security` have changed. `options`, `shows`: see `Channels`.
        Raises `BadConfig`."""
        self._security, self._look = security, look
        self._options, self._shows = options, shows
        self._seen = look()
        self._line = self._new_line()

    def _new_line(self) -> _ChannelSet:
        return _ChannelSet(Channels(self._security(), options=self._options, shows=self._shows))

    async def ask(self, request: Any, address: str, due: float) -> Any:
        async with self.channels() as channels:
            return await _ask(channels, request, address, due)

    @asynccontextmanager
    async def channels(self) -> AsyncIterator[Channels]:
        """Channels for one call or stream; they stay open until it has ended."""
        line = await self._current()
        line.calls += 1
        try:
            yield line.channels
        finally:
            line.calls -= 1
            if line is not self._line:
                await _end_if_unused(line)

    async def _current(self) -> _ChannelSet:
        if (seen := self._look()) != self._seen:
            self._seen = seen
            old = self._line
            try:
                self._line = self._new_line()
            except BadConfig as error:
                logger.warning("peers_security_not_reloaded", reason=str(error))
            else:
                await _end_if_unused(old)
        return self._line

    async def close(self) -> None:
        await self._line.channels.close()


async def _end_if_unused(old: _ChannelSet) -> None:
    """Closes unused channels; used ones are closed by the last of their calls."""
    if not old.calls:
        await to_its_end(old.channels.close())


async def _ask(channels: Channels, request: Any, address: str, due: float) -> Any:
    method = BY_REQUEST[type(request)]
    left_s = max(due - asyncio.get_running_loop().time(), 0.001)
    call = channels.call(address, method.path, waits=waits(request))
    try:
        answer = await call(
            pack(request).SerializeToString(), timeout=left_s, metadata=channels.shown_to(address)
        )
    except grpc.aio.AioRpcError as error:
        raise failure_of(method, error) from None
    return answer_of(method.answer, answer)
