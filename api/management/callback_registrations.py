"""Management of callbacks for HTTP and the dashboard. `recovery/callback_nodes.py` stores them, and
`recovery/callback_sender.py` sends their events.
"""

import asyncio
import secrets
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Protocol, TypeVar

from rollbook.api.rest.callback_target import parse_target, require_allowed
from rollbook.proto.errors import InvalidRequest, Missing, OutcomeUnknown
from rollbook.proto.ids import parse_bookie_id
from rollbook.proto.ports import Clock
from rollbook.recovery.callback_nodes import CallbackNodes
from rollbook.recovery.cluster_event_log import ClusterEventLog
from rollbook.recovery.core.callback_queue import RegisteredCallback
from rollbook.recovery.core.event_derivation import Event, EventKind

T = TypeVar("T")
Facts = dict[str, Any]

_SECRET_BYTES: Final = 32
_LOOK_AGAIN_S: Final = 0.1
_TEST_S: Final = 15.0  # Longer than the 10 s within which a receiver has to respond.


class _Deadlines(Protocol):
    async def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


class ClusterCallbacks:
    """Lists, creates, deletes and tests callbacks. `look` and `act` give calls to the metadata store a deadline."""

    def __init__(
        self,
        nodes: CallbackNodes,
        events: ClusterEventLog,
        clock: Clock,
        hosts: Sequence[str],
        look: _Deadlines,
        act: _Deadlines,
    ) -> None:
        self._nodes = nodes
        self._events = events
        self._clock = clock
        self._hosts = tuple(hosts)
        self._look, self._act = look, act

    async def list(self, *, shows_urls: bool) -> Sequence[Facts]:
        """Returns all callbacks, oldest first. With `shows_urls`, their whole URLs are shown, not only the
        origins.
        """

        async def read() -> Sequence[Facts]:
            found = [await self._facts(each, shows_urls) for each in await self._nodes.list()]
            return [each for each in found if each]

        return await self._look(read())

    async def read(self, callback_id: str, *, shows_urls: bool) -> Facts:
        """Raises `Missing`."""

        async def read() -> Facts:
            found = await self._facts(await self._nodes.read(callback_id), shows_urls)
            return found or await self._nothing(callback_id)

        return await self._look(self._known(read()))

    async def create(
        self, url: str, kinds: Sequence[str], bookie: str | None, principal: str
    ) -> Facts:
        """Creates a callback, and returns it with its secret, which is not shown again. Raises
        `InvalidRequest`, `Overloaded`.
        """
        require_allowed(parse_target(url), self._hosts)
        if bookie is not None:
            bookie = str(parse_bookie_id(bookie))
        if EventKind.TEST.value in kinds:
            raise InvalidRequest(
                "the kind `test` cannot be requested: to send a test event, use `:test`"
            )
        tracks = await self._look(self._events.known())
        callback = RegisteredCallback(
            secrets.token_hex(16),
            url,
            secrets.token_hex(_SECRET_BYTES),
            tuple(dict.fromkeys(map(EventKind, kinds))),
            bookie,
            principal,
            self._now_ms(),
        )
        await self._act(self._nodes.create(callback, tracks))
        found = await self.read(callback.id, shows_urls=True)
        return found | {"secret": callback.secret}

    async def delete(self, callback_id: str) -> Facts:
        """Raises `Missing`."""

        async def delete() -> Facts:
            found = await self._facts(await self._nodes.read(callback_id), shows_urls=True)
            await self._nodes.delete(callback_id)
            return found or await self._nothing(callback_id)

        return await self._act(self._known(delete()))

    async def deliveries(self, callback_id: str) -> Facts:
        """Returns the last hundred delivery attempts, newest first, and the number of waiting events. Raises
        `Missing`.
        """

        async def read() -> Facts:
            rows, waiting = await self._nodes.rows(callback_id)
            return {"deliveries": rows[::-1], "waiting": waiting}

        return await self._look(self._known(read()))

    async def test(self, callback_id: str) -> Facts:
        """Sends one test event once, and waits for the result. Raises `Missing`, `OutcomeUnknown`."""
        token, now_ms = secrets.token_hex(8), self._now_ms()
        event = Event(
            f"test@{token}", EventKind.TEST, now_ms, "", text="A person requested this test."
        )
        work = self._nodes.queue_test(callback_id, event, token, now_ms)
        await self._act(self._known(work))
        try:
            async with asyncio.timeout(_TEST_S):
                while True:
                    found = await self.deliveries(callback_id)
                    for row in found["deliveries"]:
                        if row["event"] == event.id:
                            return dict(row)
                    await asyncio.sleep(_LOOK_AGAIN_S)
        except TimeoutError:
            raise OutcomeUnknown(
                f"the test was not sent within {_TEST_S:g} s",
                event=event.id,
                next_step="send GET /api/v1/recovery to see whether a process leads the part `operations`, "
                f"then GET /api/v1/callbacks/{callback_id}/deliveries",
            ) from None

    async def _facts(self, callback: RegisteredCallback, shows_urls: bool) -> Facts | None:
        """Returns the callback's facts, or None if it has been deleted since it was listed."""
        try:
            rows, waiting = await self._nodes.rows(callback.id)
        except Missing:
            return None
        return {
            "id": callback.id,
            "url": callback.url if shows_urls else f"{parse_target(callback.url).origin}/…",
            "kinds": [each.value for each in callback.kinds],
            "bookie": callback.bookie,
            "principal": callback.principal,
            "created_ms": callback.created_ms,
            "waiting": waiting,
            "last": rows[-1] if rows else None,
        }

    async def _known(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return await work
        except Missing as error:
            error.next_step = "send GET /api/v1/callbacks to list the callbacks"
            raise

    async def _nothing(self, callback_id: str) -> Facts:
        raise Missing(f"there is no callback {callback_id[:80]}", callback=callback_id[:80])

    def _now_ms(self) -> int:
        return self._clock.wall_us() // 1000
