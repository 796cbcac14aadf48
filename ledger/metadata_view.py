"""The metadata of one ledger, as a reader knows it.

A plain reader reads the metadata again after a failure. A follower watches the metadata, and also
reads it periodically.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from rollbook.proto.cluster.ledger_nodes import LedgerNodes, StoredLedger
from rollbook.proto.errors import (
    MetadataUnavailable,
    NoSuchLedger,
    OutcomeUnknown,
    RollbookError,
    SessionExpired,
    Unavailable,
)
from rollbook.proto.metadata import LedgerMetadata
from rollbook.proto.ports import Watch
from rollbook.proto.tasks import stop_tasks

logger = structlog.get_logger()

LOOK_AGAIN_S: Final = 5.0
# The metadata is watched for this long after a wait, because a follower listens only while it
# waits.
_LINGER_S: Final = 10.0
_PAUSE_S: Final = 0.2


class LedgerView:
    def __init__(self, stored: StoredLedger, nodes: LedgerNodes) -> None:
        self._stored = stored
        self._nodes = nodes
        # The error after which changes of the metadata are no longer reported.
        self.failure: RollbookError | None = None
        self.is_stopped = False
        self._listeners: dict[Callable[[], None], None] = {}
        self._left_at = 0.0  # When the last caller stopped listening.
        self._task: asyncio.Task[None] | None = None

    @property
    def metadata(self) -> LedgerMetadata:
        return self._stored.metadata

    async def refresh(self) -> bool:
        """Reads the metadata. Returns whether it has changed. Raises `NoSuchLedger`, or an error of
        the metadata store."""
        try:
            found = await self._nodes.read(self.metadata.ledger_id, fresh=True)
        except NoSuchLedger as error:
            self._fail(error)
            raise
        if found.version <= self._stored.version:
            return False
        self._stored = found
        self._tell()
        return True

    # --- Following ----------------------------------------------------------------------------

    def listen(self, on_change: Callable[[], None]) -> None:
        """Calls `on_change` after every change until `ignore` is called. The metadata is watched
        while a caller listens now and then."""
        self._listeners[on_change] = None
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._follow())

    def ignore(self, on_change: Callable[[], None]) -> None:
        self._listeners.pop(on_change, None)
        self._left_at = asyncio.get_running_loop().time()

    @property
    def _is_wanted(self) -> bool:
        if self.metadata.is_closed or self.failure is not None:
            return False
        is_heard = self._left_at + _LINGER_S > asyncio.get_running_loop().time()
        return bool(self._listeners) or is_heard

    async def close(self) -> None:
        """Ends the watch, and notifies the listeners a last time."""
        self.is_stopped = True
        self._tell()
        self._listeners.clear()
        await stop_tasks(self._task)

    def _fail(self, error: RollbookError) -> None:
        self.failure = error
        self._tell()

    def _tell(self) -> None:
        for on_change in list(self._listeners):
            on_change()

    async def _follow(self) -> None:
        while self._is_wanted:
            try:
                watch = await self._nodes.watch(self.metadata.ledger_id)
                try:
                    await self._heed(watch)
                finally:
                    await watch.close()
            except (Unavailable, OutcomeUnknown, SessionExpired) as error:
                logger.debug(
                    "ledger_not_watched",
                    ledger_id=self.metadata.ledger_id,
                    reason=error.code.reason,
                )
                await asyncio.sleep(_PAUSE_S)
            except RollbookError as error:  # The ledger was deleted or cannot be read.
                self._fail(error)

    async def _heed(self, watch: Watch) -> None:
        """Reads the metadata after each event of a watch, until no caller listens any more, or the
        watch ends."""
        while self._is_wanted:
            await self.refresh()
            if self.metadata.is_closed:
                return
            try:
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await anext(watch)
            except TimeoutError:
                pass
            except StopAsyncIteration:
                self._fail(MetadataUnavailable("the metadata store was closed"))
                return
