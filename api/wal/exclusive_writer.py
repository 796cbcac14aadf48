"""`ExclusiveWriter`: acquires, renews and releases a log's writer epoch.

Only the epoch decides who may write; the lease tells others when they can take the epoch without disturbing
an active writer. A writer that could not renew its lease for a while therefore continues, unless another one
has taken its place.

A writer waits for its turn without a time limit, even while the log cannot be served at all. While this lasts,
the writer logs one warning for each kind of error.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from rollbook.api.client.config import LogClientConfig
from rollbook.api.client.core.retries_and_outcomes import again
from rollbook.api.client.log import Log
from rollbook.api.client.producer_batch import Submission
from rollbook.api.client.retry_pauses import Pauses
from rollbook.api.client.unacked_appends_report import attach
from rollbook.api.client.unary_calls import new_attempt
from rollbook.api.client.writer import Writer
from rollbook.logservice.ids import Offset, WriterEpoch
from rollbook.logservice.messages import AcquireMode, WriterGrant
from rollbook.proto.errors import (
    BadConfig,
    NotEnoughBookies,
    Outcome,
    OutcomeUnknown,
    OwnerFenced,
    RollbookError,
    StaleEpoch,
    Unavailable,
    WriterHeld,
)

# Only servers depend on structlog; a library for programs uses `logging`.
logger = logging.getLogger("rollbook.wal")

LEASE_S: Final = 1.0
_RENEWALS: Final = 3  # The number of renewals during one lease.
_FAILURES_LOGGED: Final = 3  # A change of the log's owner causes fewer failures than this.


def is_passing(error: RollbookError) -> bool:
    """Returns whether a retry may help, even for a request that may have been applied."""
    return isinstance(error, Unavailable | OutcomeUnknown | OwnerFenced)


class ExclusiveWriter:
    """Appends as the log's only writer within an `async with` block, until another writer fences it.

    All records that were acknowledged before are below `fence`. No other writer's record is between its own records.
    """

    def __init__(
        self,
        log: Log,
        holder: str,
        *,
        mode: AcquireMode | str = AcquireMode.WAIT,
        lease_s: float = LEASE_S,
    ) -> None:
        """While there is another writer, `mode` `"wait"` waits, `"steal"` takes its place, and `"fail"`
        raises `WriterHeld`.
        """
        if lease_s <= 0:
            raise BadConfig("lease_s has to be above 0")
        self.holder = holder
        self.epoch: WriterEpoch
        self.fence: Offset
        self.failure: RollbookError | None = None  # The reason why it is no longer the writer.
        self.on_lost: Callable[[], None] = lambda: None  # Called when `failure` is set.
        self._log = log
        self._mode = AcquireMode(mode)
        self._lease_s = lease_s
        self._writer: Writer
        self._renewing: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        """Waits for its turn, without a time limit. Raises `WriterHeld`, `LogSealed`, `Missing`."""
        grant = await self._acquire()
        self.epoch, self.fence = grant.writer_epoch, grant.fence_offset
        self._writer = self._log.writer(epoch=self.epoch)
        self._renewing = asyncio.create_task(self._renew())
        return self

    async def ready(self) -> None:
        """Waits until the writer has room for a record. Raises the error that ended the writer."""
        self._check()
        await self._writer.ready()

    def submit(self, value: bytes) -> Submission:
        """Submits a record like `Writer.submit`. Raises `StaleEpoch` if the writer was fenced."""
        self._check()
        return self._writer.submit(value)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Sends the submitted records, and then releases the epoch, so that another writer can follow at
        once.

        Raises the error that ended the writer, with the number of unacknowledged records, if the caller has not
        seen it.
        """
        await self.leave()
        if (loss := self._writer.take_loss()) is not None:
            if error is None:
                raise loss.error()
            attach(loss.error(), error)

    async def leave(self) -> None:
        """Does the same as `__aexit__`, but does not report unacknowledged records: the caller checks each
        submission.
        """
        try:
            try:
                await self._writer.drain()
            except asyncio.CancelledError:
                self._writer.warn_of_pending()
                raise
            # If the release fails, another writer has a newer epoch already, or the lease expires by itself.
            with suppress(RollbookError):
                await self._log.release_writer(self.epoch)
        finally:
            self.end()
            await asyncio.gather(self._renewing, return_exceptions=True)

    def end(self) -> None:
        """Ends the writer immediately, without waiting for records in flight."""
        self._renewing.cancel()
        self._writer.end()

    async def _acquire(self) -> WriterGrant:
        pauses, logged, failures = Pauses(LogClientConfig()), set[str](), 0
        # Retries keep the name of the attempt: with a new name, a writer that lost the response would wait for
        # its own grant.
        attempt = new_attempt()
        while True:
            try:
                return await self._log.acquire_writer(
                    self.holder, self._mode, ttl_s=self._lease_s, attempt=attempt
                )
            except RollbookError as error:
                was_released = isinstance(
                    error, StaleEpoch
                )  # True: the grant was released before its response arrived.
                is_in_order = was_released or isinstance(error, WriterHeld)
                if self._mode is not AcquireMode.WAIT or not (is_in_order or is_passing(error)):
                    raise
                if was_released:  # The old attempt's name gets no more grants.
                    attempt = new_attempt()
                failures = 0 if is_in_order else failures + 1  # The number of consecutive failures.
                lasts = isinstance(error, NotEnoughBookies) or failures >= _FAILURES_LOGGED
                if lasts and error.code.reason not in logged:
                    logged.add(error.code.reason)
                    logger.warning("%s waits for %s: %s", self.holder, self._log.name, error)
                await asyncio.sleep(pauses.next_s(error, is_known=False))

    async def _renew(self) -> None:
        while self.failure is None:
            await asyncio.sleep(self._lease_s / _RENEWALS)
            try:
                await self._log.renew_writer(self.epoch)
            except RollbookError as error:
                if not is_passing(error):
                    self.failure = error
                    self.on_lost()

    def _check(self) -> None:
        if self.failure is not None:
            raise again(self.failure, Outcome.NOT_APPLIED)
