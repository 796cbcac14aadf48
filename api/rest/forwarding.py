"""Asking another log server, for a client that cannot be sent there: one attempt, over gRPC."""

import asyncio
from typing import Any

import grpc

from rollbook.api.client.calls import answer_of
from rollbook.api.client.channels import Channels, Security
from rollbook.api.grpc.methods import BY_REQUEST
from rollbook.api.grpc.status import error_of_call
from rollbook.api.grpc.translation import pack
from rollbook.proto.errors import ConnectionLost, Outcome, QuorumTimeout


class GrpcPeers:
    def __init__(self, security: Security) -> None:
        self._channels = Channels(security)

    async def ask(self, word: Any, address: str, due: float) -> Any:
        method = BY_REQUEST[type(word)]
        left_s = max(due - asyncio.get_running_loop().time(), 0.001)
        call = self._channels.call(address, method.path)
        try:
            answer = await call(
                pack(word).SerializeToString(), timeout=left_s, metadata=self._channels.metadata
            )
        except grpc.aio.AioRpcError as error:
            found = error_of_call(error.code(), error.details() or "", error.trailing_metadata())
            if not method.changes and isinstance(found, ConnectionLost | QuorumTimeout):
                found.outcome = Outcome.NOT_APPLIED
            raise found from None
        return answer_of(method.answer, answer)

    async def close(self) -> None:
        await self._channels.close()
