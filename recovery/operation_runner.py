"""Runs lasting operations while it is elected, and continues those that another process began.

    <own root>/operations ──watch──► round ──► a task for each that is due, 8 at once
                                                  └──► work (handed in) ──► Done, Failed, Cancelled

An operation's work may be stopped anywhere and run again: its progress is in metadata. Each write names the
vote, so a runner that was replaced without noticing cannot end an operation (OP4).
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from rollbook.proto.cluster.cluster_root import Cluster
from rollbook.proto.cluster.election import Vote
from rollbook.proto.errors import (
    ConnectionLost,
    InvalidRequest,
    MetadataUnavailable,
    Missing,
    OperationEnded,
    RollbookError,
    SessionExpired,
)
from rollbook.proto.ports import Clock, MetadataStore, Watch
from rollbook.proto.tasks import TaskGroup, first_of
from rollbook.recovery.core.operations import LastingOperation
from rollbook.recovery.metastore_outage_retries import patiently, until_done
from rollbook.recovery.operation_nodes import OperationNodes

logger = structlog.get_logger()

Facts = Mapping[str, Any]

_AT_ONCE: Final = 8
_TELL_S: Final = 2.0
_LOOK_AGAIN_S: Final = 60.0
_RETRY_PAUSE_S: Final = 0.5
_FORGET_MS: Final = 3_600_000


class OperationProgress:
    """The facts that the runner gives to an operation's work, and the progress that the work reports."""

    def __init__(self, operation: LastingOperation, keep: Callable[[Facts], Awaitable[None]]):
        self.about = operation.about
        self.notes: Facts = operation.notes or {}
        self.done, self.total = operation.done, operation.total
        self._keep = keep

    def on_progress(self, done: int, total: int) -> None:
        self.done, self.total = done, total

    async def note(self, notes: Facts) -> None:
        """Store notes durably; they are in `notes` after a restart."""
        await self._keep(notes)
        self.notes = notes


@dataclass(frozen=True, slots=True)
class OperationKind:
    work: Callable[[OperationProgress], Awaitable[Facts]]
    # Called after the work of a cancelled operation has stopped.
    undo: Callable[[OperationProgress], Awaitable[None]] | None = None


class OperationRunner:
    def __init__(
        self,
        store: MetadataStore,
        cluster: Cluster,
        clock: Clock,
        kinds: Mapping[str, OperationKind],
        describe: Callable[[RollbookError], Facts],
    ) -> None:
        """Create a runner for these kinds of operations. `describe` turns an error into the form of RFC 9457."""
        self._nodes = OperationNodes(store, cluster)
        self._clock = clock
        self._kinds = kinds
        self._describe = describe
        self._running: dict[str, asyncio.Task[None]] = {}
        self._to_cancel: dict[str, None] = {}
        # Ended operations never change, so they are not read again.
        self._ended: dict[str, None] = {}
        self._forget_ms = 0
        self._has_ended = asyncio.Event()

    async def lead(self, vote: Vote) -> None:
        """Runs operations until cancelled."""
        await until_done("operations", self._nodes.prepare)
        self._running, self._to_cancel = {}, {}
        async with TaskGroup() as group:
            await patiently("operations", lambda: self._follow(vote, group))

    async def _follow(self, vote: Vote, group: TaskGroup) -> None:
        watch = await self._nodes.watch()
        try:
            while True:
                self._has_ended.clear()
                await self._look(vote, group)
                await self._next(watch)
        finally:
            await watch.close()

    async def _next(self, watch: Watch) -> None:
        """Wait until an operation has changed or can be started, or until the next regular look is due."""

        async def hear() -> None:
            try:
                await anext(watch)
            except StopAsyncIteration:
                raise MetadataUnavailable("the metadata store was closed") from None

        async def see_an_end() -> None:
            await self._has_ended.wait()

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_AGAIN_S):
                await first_of(hear(), see_an_end())

    async def _look(self, vote: Vote, group: TaskGroup) -> None:
        if self._now_ms() >= self._forget_ms:
            await self._nodes.forget(self._now_ms())
            self._ended.clear()
            self._forget_ms = self._now_ms() + _FORGET_MS
        for stored in reversed(await self._nodes.list(self._ended)):
            operation = stored.operation
            if operation.state.has_ended:
                self._ended[operation.id] = None
                continue
            running = self._running.get(operation.id)
            if running is not None:
                if operation.is_cancel_asked and operation.id not in self._to_cancel:
                    self._to_cancel[operation.id] = None
                    running.cancel()
            elif len(self._running) < _AT_ONCE:
                task = group.create_task(self._run(vote, operation))
                self._running[operation.id] = task

    async def _run(self, vote: Vote, operation: LastingOperation) -> None:
        try:
            await self._carry_out(vote, operation)
        except (OperationEnded, Missing):
            pass  # The operation was cancelled before it began.
        finally:
            self._running.pop(operation.id, None)
            self._to_cancel.pop(operation.id, None)
            self._has_ended.set()

    async def _carry_out(self, vote: Vote, operation: LastingOperation) -> None:
        async def change(step: Callable[[LastingOperation], LastingOperation]) -> LastingOperation:
            return await until_done(
                "operations",
                lambda: self._nodes.change(
                    operation.id, step, checks=[vote.check], session=vote.session
                ),
            )

        async def keep(notes: Facts) -> None:
            await change(lambda each: each.with_notes(notes))

        operation = await change(lambda each: each.begun(self._now_ms()))
        run, kind = OperationProgress(operation, keep), self._kinds.get(operation.kind)

        async def end(step: Callable[[LastingOperation], LastingOperation]) -> LastingOperation:
            """End the operation with its last progress, which may be newer than the last write."""
            return await change(lambda each: step(each.with_progress(run.done, run.total)))

        logger.info("operation_started", operation=operation.id, kind=operation.kind)
        try:
            if kind is None:
                raise InvalidRequest(
                    f"this release does not know the operation {operation.kind!r:.40}"
                )
            if not operation.is_cancel_asked:
                result = await self._work(kind, run, change)
                self._tell_end(await end(lambda each: each.finished(self._now_ms(), result)))
                return
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if operation.id not in self._to_cancel or task is None:
                raise
            if task.uncancel():
                raise  # The second cancellation means that this process is no longer the leader.
        except RollbookError as error:
            problem = self._describe(error)
            self._tell_end(await end(lambda each: each.failed(self._now_ms(), problem)))
            return
        except Exception as error:
            logger.error("operation_failed", operation=operation.id, exc_info=error)
            problem = self._describe(
                RollbookError(next_step="read the log of its runner, then start another operation")
            )
            self._tell_end(await end(lambda each: each.failed(self._now_ms(), problem)))
            return
        if kind is not None and kind.undo is not None:
            undo = kind.undo
            await until_done("operations", lambda: undo(run))
        self._tell_end(await end(lambda each: each.cancelled(self._now_ms())))

    async def _work(
        self,
        kind: OperationKind,
        run: OperationProgress,
        change: Callable[[Callable[[LastingOperation], LastingOperation]], Awaitable[Any]],
    ) -> Facts:
        """Call the work, and call it again after an outage of the metadata store."""

        async def tell() -> None:
            while True:
                await asyncio.sleep(_TELL_S)
                await change(lambda each: each.with_progress(run.done, run.total))

        telling = asyncio.create_task(tell())
        try:
            while True:
                try:
                    return await kind.work(run)
                except (ConnectionLost, MetadataUnavailable, SessionExpired):
                    await asyncio.sleep(_RETRY_PAUSE_S)
        finally:
            telling.cancel()
            with contextlib.suppress(asyncio.CancelledError, RollbookError):
                await telling

    def _tell_end(self, ended: LastingOperation) -> None:
        logger.info("operation_ended", operation=ended.id, outcome=ended.state.value)

    def _now_ms(self) -> int:
        return self._clock.wall_us() // 1000
