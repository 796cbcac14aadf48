"""Asking another log server, for a client that cannot be sent there: one attempt, over gRPC.

What is shown to it (token, certificate) is read again when its files change; calls that are under way end
on the connections on which they began.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import structlog

from rollbook.api.client.channels import Channels, Security
from rollbook.api.client.unary_calls import answer_of
from rollbook.api.grpc.protobuf_codec import pack
from rollbook.api.grpc.status import failure_of
from rollbook.api.methods import BY_REQUEST, waits
from rollbook.proto.errors import BadConfig
from rollbook.proto.tasks import to_its_end

logger = structlog.get_logger()


class _Line:
    """Connections that show the same."""

    def __init__(self, security: Security) -> None:
        self.channels = Channels(security)
        self.calls = 0


class GrpcPeers:
    def __init__(
        self, security: Callable[[], Security], look: Callable[[], object] = lambda: None
    ) -> None:
        """`look`: changes when what `security` reads does. Raises `BadConfig`."""
        self._security, self._look = security, look
        self._seen = look()
        self._line = _Line(security())

    async def ask(self, word: Any, address: str, due: float) -> Any:
        line = await self._current()
        line.calls += 1
        try:
            return await _ask(line.channels, word, address, due)
        finally:
            line.calls -= 1
            if line is not self._line:
                await _end_if_unused(line)

    async def _current(self) -> _Line:
        if (seen := self._look()) != self._seen:
            self._seen = seen
            old = self._line
            try:
                self._line = _Line(self._security())
            except BadConfig as error:
                logger.warning("peers_security_not_reloaded", reason=str(error))
            else:
                await _end_if_unused(old)
        return self._line

    async def close(self) -> None:
        await self._line.channels.close()


async def _end_if_unused(old: _Line) -> None:
    """Else the last of its calls does."""
    if not old.calls:
        await to_its_end(old.channels.close())


async def _ask(channels: Channels, word: Any, address: str, due: float) -> Any:
    method = BY_REQUEST[type(word)]
    left_s = max(due - asyncio.get_running_loop().time(), 0.001)
    call = channels.call(address, method.path, waits=waits(word))
    try:
        answer = await call(
            pack(word).SerializeToString(), timeout=left_s, metadata=channels.shown_to(address)
        )
    except grpc.aio.AioRpcError as error:
        raise failure_of(method, error) from None
    return answer_of(method.answer, answer)
