"""Keeps this bookie registered, as writable or as read-only, while it serves.

The bookie sets the wanted mode. This loop registers the bookie in that mode, and registers it again
after a lost session, an outage of the store or a pause. The loop fails only if another process uses
the same id.
"""

import asyncio
from typing import Final

import structlog

from rollbook.proto.cluster.registration import BookieRegistration, RegisteredMode
from rollbook.proto.errors import OutcomeUnknown, SessionExpired, Unavailable
from rollbook.proto.formats.service_info import BookieServiceInfo
from rollbook.proto.tasks import first_failure, stop_tasks

logger = structlog.get_logger()

_RETRY_PAUSE_S: Final = 0.5


class RegistrationLoop:
    def __init__(self, registration: BookieRegistration, standing: RegisteredMode) -> None:
        self._registration = registration
        self._wanted = standing
        self._standing: RegisteredMode | None = None
        self._has_news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def standing(self) -> RegisteredMode | None:
        """The mode in which the bookie was last registered; None before the first registration."""
        return self._standing

    def want(self, standing: RegisteredMode) -> None:
        if standing is not self._wanted:
            self._wanted = standing
            self._has_news.set()

    def describe(self, info: BookieServiceInfo) -> None:
        """Sets the facts about the bookie that its registration publishes."""
        self._registration.describe(info)
        self._has_news.set()

    async def join(self) -> None:
        """Waits, without a limit, until others can see the bookie.

        Raises `NodeExists` if another process keeps the id.
        """
        await self._register()
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._follow()),
            loop.create_task(self._registration.keep()),
        ]

    async def failed(self) -> BaseException:
        """Returns `NodeExists` if another process keeps the id; this process then has to end."""
        return await first_failure(self._tasks)

    async def close(self) -> None:
        """Ends the loop; the registration ends with the session."""
        await stop_tasks(*self._tasks)

    async def _follow(self) -> None:
        while True:
            await self._has_news.wait()
            await self._register()

    async def _register(self) -> None:
        while True:
            self._has_news.clear()
            wanted = self._wanted
            try:
                await self._registration.register(wanted)
            except (Unavailable, OutcomeUnknown, SessionExpired) as error:
                logger.warning("bookie_not_registered", reason=error.code.reason)
                await asyncio.sleep(_RETRY_PAUSE_S)
            else:
                self._standing = wanted
                return
