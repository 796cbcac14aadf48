"""Sends one request to the right server, returns its response, and retries if that does no harm.

All changes that can be requested are idempotent. If an attempt had an unknown outcome, a later
refusal proves nothing, and is raised with an unknown outcome. The acquisition of a log names its
attempt, so that a retry is not refused because of the first request.
"""

import asyncio
import os
from dataclasses import replace
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from rollbook.api.client.channels import Channels, Metadata
from rollbook.api.client.config import LogClientConfig
from rollbook.api.client.core.retries_and_outcomes import RequestAttempts, shows_a_server
from rollbook.api.client.owner_cache import OwnerCache
from rollbook.api.client.retry_pauses import Pauses
from rollbook.api.grpc.protobuf_conversion import message_of, pack, unpack
from rollbook.api.grpc.status import failure_of, hung_up
from rollbook.api.rpc_methods import BY_REQUEST, Method, waits
from rollbook.logservice import messages
from rollbook.logservice.ids import LogName
from rollbook.proto.errors import (
    BadFrame,
    ClientClosed,
    InvalidRequest,
    NotOwner,
    OutcomeUnknown,
    RollbookError,
    ServerUnreachable,
)

_ATTEMPT_BYTES: Final = 8


class UnaryCalls:
    def __init__(self, channels: Channels, owners: OwnerCache, config: LogClientConfig) -> None:
        self._channels = channels
        self._owners = owners
        self._config = config
        self.is_closed = False
        self._was_answered = False  # Whether a server has answered before.

    async def ask(
        self, request: Any, *, timeout_s: float | None = None, server: str | None = None
    ) -> Any:
        """Returns the response. With `server`, it asks only this server."""
        outages = self._owners.outages
        if type(request) in BY_REQUEST and waits(request):
            return await self._ask(request, timeout_s, server)
        try:
            with outages.waiting():
                return await self._ask(request, timeout_s, server)
        except RollbookError as error:
            outages.explained(error)
            raise

    async def _ask(self, request: Any, timeout_s: float | None, server: str | None) -> Any:
        loop = asyncio.get_running_loop()
        method = BY_REQUEST.get(type(request))
        if method is None:
            raise InvalidRequest(f"{request!r:.80} is not a request with a single response")
        log: LogName | None = getattr(request, "log", None)
        if isinstance(request, messages.AcquireWriter) and not request.attempt:
            request = replace(request, attempt=new_attempt())
        data = _packed(request)
        due = loop.time() + self._config.timeout_of(timeout_s)
        connect_due = min(due, loop.time() + self._config.connect_s)
        pauses = Pauses(self._config)
        attempts = RequestAttempts(due, connect_due, is_change=method.changes)
        referred_to = ""  # Requests for one server, or for no log, may be redirected, too.
        while True:
            if self.is_closed:
                raise ClientClosed
            address = server or referred_to or self._owners.address_of(log)
            left = due - loop.time()
            try:
                call = self._channels.call(address, method.path, waits=waits(request))
                shown = self._channels.shown_to(address)
                answer = await self._attempt(call, shown, method, data, self._share_of(left))
            except RollbookError as error:
                failure = error
            else:
                self._channels.on_answered(address)
                return answer
            attempts.note_failure(failure)
            if not isinstance(failure, ServerUnreachable | OutcomeUnknown):
                self._channels.on_answered(address)
            is_known = self._owners.on_error(log, address, failure)
            if log is None:
                referred_to = (
                    str(failure.ids.get("owner", "")) if isinstance(failure, NotOwner) else ""
                )
                is_known = is_known or bool(referred_to)
            pause_s = pauses.next_s(failure, is_known=is_known)
            self._was_answered |= shows_a_server(failure)
            again_s = loop.time() + pause_s
            if not attempts.may_continue(failure, again_s, was_answered=self._was_answered):
                if isinstance(failure, ServerUnreachable) and server is None:
                    failure = self._owners.nobody_answers(failure)
                raise attempts.result(failure)
            await asyncio.sleep(pause_s)

    def _share_of(self, left_s: float) -> float:
        """Returns the part of the remaining time for one attempt, so that time is left for another."""
        return max(left_s / 2, min(left_s, self._config.attempt_s), 0.001)

    async def try_once(
        self, request: Any, server: str, timeout_s: float, *, is_direct: bool = False
    ) -> Any:
        """Asks this server once; with `is_direct`, not through a relay."""
        method = BY_REQUEST[type(request)]
        if is_direct:
            call = self._channels.direct_call(server, method.path)
            shown = self._channels.shown_directly(server)
        else:
            call = self._channels.call(server, method.path, waits=False)
            shown = self._channels.shown_to(server)
        answer = await self._attempt(call, shown, method, _packed(request), timeout_s)
        if is_direct:
            self._channels.routes.on_answered(server)
        else:
            self._channels.on_answered(server)
        return answer

    async def _attempt(
        self, call: Any, shown: Metadata, method: Method, data: bytes, timeout_s: float
    ) -> Any:
        try:
            answer = await call(data, timeout=timeout_s, metadata=shown)
        except grpc.aio.AioRpcError as error:
            raise failure_of(method, error) from None
        except asyncio.CancelledError:
            lost = hung_up()
            raise ClientClosed if self.is_closed else lost from None
        self._was_answered = True
        return answer_of(method.answer, answer)


def _packed(request: Any) -> bytes:
    """Packs a request. Raises `InvalidRequest` for arguments that fit into no message."""
    try:
        data: bytes = pack(request).SerializeToString()
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidRequest(f"{type(request).__name__}: {error}") from None
    return data


def new_attempt() -> str:
    """Returns a name for one acquisition of a writer epoch, even if it is requested several times."""
    return os.urandom(_ATTEMPT_BYTES).hex()


def answer_of(kind: Any, data: bytes) -> Any:
    """Unpacks a response. Raises `BadFrame` if it is invalid."""
    try:
        return unpack(message_of(kind).FromString(data), kind)
    except (DecodeError, InvalidRequest) as error:
        raise BadFrame(f"the server sent an invalid response: {error}") from None
