"""Finds out from the lifecycle node whether this bookie should leave the cluster
(`proto/formats/lifecycle.py`).

The node is read before the bookie registers, so that a bookie that starts during a drain is never
writable, and is watched from then on (B15). If the node is unreadable, the bookie counts as
leaving. Writes to a drained bookie may be lost, while the writers of any other bookie can use
another one.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from rollbook.proto.cluster.bookie_lifecycle_nodes import LifecycleNodes
from rollbook.proto.errors import (
    BadMetadata,
    MetadataUnavailable,
    OutcomeUnknown,
    SessionExpired,
    Unavailable,
    UnsupportedVersion,
)
from rollbook.proto.formats.lifecycle import LifecycleState
from rollbook.proto.ids import BookieId

logger = structlog.get_logger()

_LOOK_AGAIN_S: Final = 30.0
_RETRY_PAUSE_S: Final = 0.5


class LifecycleWatch:
    def __init__(self, nodes: LifecycleNodes, bookie: BookieId) -> None:
        self._nodes = nodes
        self._bookie = bookie
        # None if the node cannot be read.
        self.state: LifecycleState | None = LifecycleState.ACTIVE

    def __bool__(self) -> bool:
        return self.state is not LifecycleState.ACTIVE

    @property
    def reason(self) -> str:
        """Why the bookie accepts no entries; empty if it accepts them."""
        if not self:
            return ""
        if self.state is None:
            return "its lifecycle cannot be read"
        return f"its lifecycle is {self.state.value}: rollbook bookie undrain makes it writable"

    async def look(self) -> None:
        """Reads the node. Raises `MetadataUnavailable`, `ConnectionLost`, `SessionExpired`."""
        before = self.state
        try:
            self.state = (await self._nodes.read(self._bookie)).lifecycle.state
        except (BadMetadata, UnsupportedVersion) as error:
            self.state = None
            if before is not None:
                logger.error("lifecycle_not_read", path=error.ids.get("path"), reason=error.message)
        if self.state is not before:
            logger.info("lifecycle_heard", state=self.state.value if self.state else None)

    async def follow(self, on_change: Callable[[], None]) -> None:
        """Watches the node until it is cancelled. While the metadata store is unavailable, the last
        known state stays in force."""
        while True:
            try:
                await self._follow_once(on_change)
            except (Unavailable, OutcomeUnknown, SessionExpired):
                await asyncio.sleep(_RETRY_PAUSE_S)

    async def _follow_once(self, on_change: Callable[[], None]) -> None:
        watch = await self._nodes.watch(self._bookie)
        try:
            while True:
                before = self.state
                await self.look()
                if self.state is not before:
                    on_change()
                try:
                    async with asyncio.timeout(_LOOK_AGAIN_S):
                        await anext(watch)
                except TimeoutError:
                    pass
                except StopAsyncIteration:
                    raise MetadataUnavailable("the metadata store was closed") from None
        finally:
            await watch.close()
