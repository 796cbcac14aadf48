"""An append stream with access control.

Each bind is checked once. Appends under a refused bind are refused, too, and the rest of the stream
continues. While the principal has appended more than its quota permits, the stream is not read. When
the principal has changed, the stream ends before the next message is processed, so that the client connects
again. Each earlier append has a result or an unknown outcome, as after any broken connection.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from rollbook.api.access.audit import AuditLog
from rollbook.api.access.authenticator import AuthenticatedCaller
from rollbook.api.access.core.grants import may_ask
from rollbook.api.access.core.quota_cost import size_of
from rollbook.api.access.idempotency_keys import with_own_keys
from rollbook.api.access.permission_errors import refusal_of
from rollbook.logservice.messages import AppendResult, Bind, CoreStream, StreamAppend
from rollbook.proto.errors import ConnectionLost, InvalidRequest, Throttled, Unauthorized

_NS_PER_S: Final = 1_000_000_000
_REFUSED_REFS_MAX: Final = 1000
_REFUSALS_MAX: Final = 1000  # While this many refusals wait to be sent, the stream is not read.


class AuthorizedAppendStream:
    def __init__(
        self,
        open_stream: Callable[[], CoreStream],
        caller: AuthenticatedCaller,
        audit: AuditLog,
        now_ns: Callable[[], int],
    ) -> None:
        """Raises `Throttled`."""
        self._caller, self._audit, self._now_ns = caller, audit, now_ns
        self._refused: dict[int, Unauthorized] = {}  # The errors of refused binds, by ref.
        self._refusals = 0  # How many refusals wait to be sent.
        self._are_taken = asyncio.Event()
        self._stack = ExitStack()
        try:
            self._stack.enter_context(caller.account.stream())
        except Throttled as refusal:
            self._on_refused(refusal, "")
            raise
        try:
            self._inner = open_stream()
        except BaseException:
            self._stack.close()
            raise

    def submit(self, binds: Sequence[Bind], appends: Sequence[StreamAppend]) -> None:
        if not self._caller.is_in_force():
            raise ConnectionLost("the caller's access has changed: connect again")
        allowed = [bind for bind in binds if self._may(bind)]
        if self._refused:
            appends = self._without_refused(appends)
        meter = self._caller.account.appends
        if meter.is_limited:
            now_ns = self._now_ns()
            for each in appends:
                meter.take(*size_of(each.block), now_ns)
        self._inner.submit(allowed, with_own_keys(appends, self._caller))

    def _may(self, bind: Bind) -> bool:
        principal = self._caller.principal
        if may_ask(principal.grants, bind):
            self._refused.pop(bind.ref, None)
            return True
        if bind.ref not in self._refused and len(self._refused) >= _REFUSED_REFS_MAX:
            raise InvalidRequest(f"{_REFUSED_REFS_MAX} binds of this stream were refused")
        refusal = self._refused[bind.ref] = refusal_of(principal.name, bind)
        self._on_refused(refusal, str(bind.log))
        return False

    def _without_refused(self, appends: Sequence[StreamAppend]) -> list[StreamAppend]:
        refusals = [
            AppendResult(each.number, error=self._refused[each.ref])
            for each in appends
            if each.ref in self._refused
        ]
        self._refusals += len(refusals)
        self._inner.tell(refusals)
        return [each for each in appends if each.ref not in self._refused]

    def _on_refused(self, refusal: Unauthorized | Throttled, log: str) -> None:
        self._audit.refused(
            refusal,
            principal=self._caller.principal.name,
            peer=self._caller.peer,
            method="AppendStream",
            log=log,
        )

    async def ready(self) -> None:
        await self._inner.ready()
        while self._refusals >= _REFUSALS_MAX:
            self._are_taken.clear()
            await self._are_taken.wait()
        meter = self._caller.account.appends
        while wait_ns := meter.wait_ns(self._now_ns()):  # noqa: ASYNC110  # Only time ends this wait.
            await asyncio.sleep(wait_ns / _NS_PER_S)

    async def results(self) -> Sequence[AppendResult]:
        results = await self._inner.results()
        self._refusals = 0
        self._are_taken.set()
        return results

    async def close(self) -> None:
        self._stack.close()
        await self._inner.close()
