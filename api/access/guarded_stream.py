"""A stream of appends behind its rules.

Each bind is judged once. What is appended under a bind that was refused is refused with it, and the rest of
the stream goes on. A stream beyond its quota is read no further until it has waited its debt off. Once its
principal has changed the stream breaks before anything more of it is read, so that its client comes in
again; what was taken before is settled, or in doubt, as on any line that breaks.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from rollbook.api.access.audit import Audit
from rollbook.api.access.core.grants import may_ask
from rollbook.api.access.doorkeeper import Caller
from rollbook.api.access.refusals import refusal_of, size_of
from rollbook.logservice.words import AppendResult, AppendStream, Bind, StreamAppend
from rollbook.proto.errors import ConnectionLost, InvalidRequest, Throttled, Unauthorized

_NS_PER_S: Final = 1_000_000_000
_REFUSED_REFS_MAX: Final = 1000
_REFUSALS_MAX: Final = 1000  # That nobody has taken; then the stream is read no further.


class GuardedStream:
    def __init__(
        self,
        open_stream: Callable[[], AppendStream],
        caller: Caller,
        audit: Audit,
        now_ns: Callable[[], int],
    ) -> None:
        """Raises `Throttled`."""
        self._caller, self._audit, self._now_ns = caller, audit, now_ns
        self._refused: dict[int, Unauthorized] = {}  # By ref.
        self._refusals: list[AppendResult] = []  # Not told yet.
        self._has_refused = asyncio.Event()
        self._are_taken = asyncio.Event()
        self._asking: asyncio.Task[Sequence[AppendResult]] | None = None
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
            raise ConnectionLost("what it may do has changed: come in again")
        allowed = [bind for bind in binds if self._may(bind)]
        if self._refused:
            appends = [each for each in appends if not self._is_refused(each)]
        meter = self._caller.account.appends
        if meter.is_limited:
            now_ns = self._now_ns()
            for each in appends:
                meter.take(*size_of(each.block), now_ns)
        self._inner.submit(allowed, appends)

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

    def _is_refused(self, append: StreamAppend) -> bool:
        refusal = self._refused.get(append.ref)
        if refusal is None:
            return False
        self._refusals.append(AppendResult(append.number, error=refusal))
        self._has_refused.set()
        return True

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
        while len(self._refusals) >= _REFUSALS_MAX:
            self._are_taken.clear()
            await self._are_taken.wait()
        meter = self._caller.account.appends
        while wait_ns := meter.wait_ns(self._now_ns()):  # noqa: ASYNC110  # Time is the event.
            await asyncio.sleep(wait_ns / _NS_PER_S)

    async def results(self) -> Sequence[AppendResult]:
        """A refusal does not wait for the results of others, and none of those is lost over it."""
        while True:
            if self._refusals:
                found, self._refusals = self._refusals, []
                self._has_refused.clear()
                self._are_taken.set()
                return found
            if self._asking is None:
                self._asking = asyncio.ensure_future(self._inner.results())
            told = asyncio.ensure_future(self._has_refused.wait())
            try:
                await asyncio.wait((self._asking, told), return_when=asyncio.FIRST_COMPLETED)
            finally:
                told.cancel()
            if self._asking.done():
                asking, self._asking = self._asking, None
                return asking.result()

    async def close(self) -> None:
        self._stack.close()
        self._are_taken.set()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        await self._inner.close()
