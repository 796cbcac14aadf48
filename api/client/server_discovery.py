"""Refreshes the client's list of servers.

A client with one configured address must learn others before that server is gone. Therefore it
requests the list as soon as a server answers, and again at intervals, because servers join and
leave; after a failure it retries soon. The last known list is kept until there is a newer one.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final

from rollbook.api.client.owner_cache import OwnerCache
from rollbook.proto.errors import RollbookError
from rollbook.proto.tasks import stop_tasks

_EVERY_S: Final = 20.0
_AGAIN_S: Final = 0.5
_FIRST_S: Final = 1.0  # How long a caller waits for the first response.

_chance: Final = random.Random()


class ServerDiscovery:
    def __init__(self, owners: OwnerCache, ask: Callable[[], Awaitable[Iterable[str]]]) -> None:
        """`ask` returns the addresses of all servers."""
        self._owners, self._ask = owners, ask
        self._task: asyncio.Task[None] | None = None
        self._has_met = asyncio.Event()

    async def begin(self) -> None:
        """Waits until the servers are known, but at most a second."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._meet_on())
        if not self._has_met.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_FIRST_S):
                    await self._has_met.wait()

    async def close(self) -> None:
        await stop_tasks(self._task)

    async def _meet_on(self) -> None:
        while True:
            try:
                self._owners.meet_all(await self._ask())
            except RollbookError:
                pause_s = _AGAIN_S
            else:
                self._has_met.set()
                pause_s = _EVERY_S
            await asyncio.sleep(pause_s * _chance.uniform(0.75, 1.25))
