"""The classes of `rollbook.wal` for programs without an event loop. They run on the thread of their client.

    with wal.StateMachine(client, "counter", counter, holder="node-1") as machine:
        with machine.lead() as term:
            assert term.propose(b"5") == 5
        machine.read(lambda: counter.total)

Only that thread uses the state, and it also runs the functions that are passed to `read`, so the state needs no
lock.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from rollbook.api.client.sync import SyncClient, SyncLog, with_docstrings_of
from rollbook.api.wal import exclusive_writer, machine, term
from rollbook.logservice.ids import Offset, WriterEpoch
from rollbook.logservice.messages import AcquireMode
from rollbook.proto.errors import RollbookError
from rollbook.proto.runtime.loop_thread import LoopThread

T = TypeVar("T")

_logger: Final = logging.getLogger("rollbook.wal")


class _Entered:
    """Enters and leaves the asyncio counterpart of this object, on the client's thread."""

    def __init__(self, thread: LoopThread, twin: AbstractAsyncContextManager[Any, None]) -> None:
        self._thread = thread
        self._twin = twin

    def __enter__(self) -> Self:
        self._thread.run(self._twin.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.run(self._twin.__aexit__(kind, error, traceback))


@with_docstrings_of(exclusive_writer.ExclusiveWriter)
class ExclusiveWriter(_Entered):
    """`wal.aio.ExclusiveWriter` for threads."""

    def __init__(
        self,
        log: SyncLog,
        holder: str,
        *,
        mode: AcquireMode | str = AcquireMode.WAIT,
        lease_s: float = exclusive_writer.LEASE_S,
    ) -> None:
        thread, core = log.inside()
        self._writer = exclusive_writer.ExclusiveWriter(core, holder, mode=mode, lease_s=lease_s)
        self._pending: set[Future[Offset]] = set()
        self._failed = 0
        super().__init__(thread, self._writer)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Waits for all submitted records, also those that wait for room, and then does the same as its asyncio
        counterpart.
        """
        wait(self._pending.copy())
        if self._failed:
            _logger.warning("records_unacked: %d of %s", self._failed, self._writer.holder)
        super().__exit__(kind, error, traceback)

    def _on_done(self, future: "Future[Offset]") -> None:
        self._pending.discard(future)
        if future.cancelled() or future.exception() is not None:
            self._failed += 1

    @property
    def epoch(self) -> WriterEpoch:
        """Returns the writer epoch that was granted."""
        return self._writer.epoch

    @property
    def fence(self) -> Offset:
        """Returns the fence: all records of earlier writers are below this offset."""
        return self._writer.fence

    @property
    def failure(self) -> RollbookError | None:
        """Returns the error that ended the writer, or None if it has not ended."""
        return self._writer.failure

    def append(self, value: bytes) -> Offset:
        """Appends a record, which is durable when this returns."""
        return self.submit(value).result()

    def submit(self, value: bytes) -> "Future[Offset]":
        """Submits a record, which is sent after all records that this thread submitted earlier."""
        future = self._thread.submit(self._append(value))
        self._pending.add(future)
        future.add_done_callback(self._on_done)
        return future

    async def _append(self, value: bytes) -> Offset:
        await self._writer.ready()
        return await self._writer.submit(value)


@with_docstrings_of(machine.StateMachine)
class StateMachine(_Entered):
    """`wal.aio.StateMachine` for threads."""

    def __init__(
        self,
        client: SyncClient,
        name: str,
        state: machine.State,
        *,
        holder: str,
        lease_s: float = exclusive_writer.LEASE_S,
        snapshot_every: int = machine.SNAPSHOT_EVERY,
    ) -> None:
        thread, core = client.inside()
        self._machine = machine.StateMachine(
            core, name, state, holder=holder, lease_s=lease_s, snapshot_every=snapshot_every
        )
        super().__init__(thread, self._machine)

    @property
    def applied(self) -> Offset:
        return self._machine.applied

    @property
    def epoch(self) -> WriterEpoch:
        return self._machine.epoch

    @property
    def failure(self) -> RollbookError | None:
        """Returns the error that ended the machine, or None if it has not ended."""
        return self._machine.failure

    def lead(self, mode: AcquireMode | str = AcquireMode.WAIT) -> "Term":
        return Term(self._thread, self._machine.lead(mode))

    def leader(self) -> str:
        return self._thread.run(self._machine.leader())

    def read(self, query: Callable[[], T]) -> T:
        return self._thread.run(self._machine.read(query))

    def barrier(self) -> None:
        self._thread.run(self._machine.barrier())

    def checkpoint(self) -> bool:
        return self._thread.run(self._machine.checkpoint())


@with_docstrings_of(term.Term)
class Term(_Entered):
    """`wal.aio.Term` for threads."""

    def __init__(self, thread: LoopThread, core: term.Term) -> None:
        super().__init__(thread, core)
        self._term = core

    @property
    def epoch(self) -> WriterEpoch:
        return self._term.epoch

    @property
    def is_over(self) -> bool:
        return self._term.is_over

    def propose(self, command: bytes) -> Any:
        return self._thread.run(self._term.propose(command))

    def submit(self, command: bytes) -> "Future[Any]":
        """Proposes a command like `propose`, but does not wait for the result."""
        return self._thread.submit(self._term.propose(command))

    def over(self) -> RollbookError:
        return self._thread.run(self._term.over())
