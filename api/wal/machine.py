"""`StateMachine`: one of several replicas of a state, which apply the records of a log. A replica follows the log
unless it leads.

    class Counter:
        total = 0

        def apply(self, command: bytes) -> int:
            self.total += int(command)
            return self.total

        def snapshot(self) -> bytes:
            return b"%d" % self.total

        def restore(self, snapshot: bytes) -> None:
            self.total = int(snapshot)

    counter = Counter()
    async with wal.aio.StateMachine(client, "counter", counter, holder="node-1") as machine:
        async with machine.lead() as term:              # Waits for its turn.
            assert await term.propose(b"5") == 5        # The result of `apply`.
        await machine.read(lambda: counter.total)       # On any replica, leading or not.

The rules are in `core/applied_records.py`, `core/term_rules.py` and `core/snapshot_pointer.py`.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol, Self, TypeVar

from rollbook.api.client.async_client import Client
from rollbook.api.client.core.retries_and_outcomes import again
from rollbook.api.client.log import Log
from rollbook.api.client.reader import RecordBatch
from rollbook.api.client.retry_pauses import Pauses
from rollbook.api.wal.core.applied_records import Replica
from rollbook.api.wal.core.snapshot_pointer import SUFFIX, is_due
from rollbook.api.wal.exclusive_writer import LEASE_S, ExclusiveWriter, is_passing
from rollbook.api.wal.shared_tail_request import SharedBarrier
from rollbook.api.wal.snapshots import Snapshots
from rollbook.api.wal.term import Term
from rollbook.logservice import messages
from rollbook.logservice.ids import LogName, Offset, WriterEpoch
from rollbook.logservice.log_config import LogConfig, WriterMode
from rollbook.proto.errors import (
    BadConfig,
    InvalidRequest,
    NoSuchLog,
    Outcome,
    ReaderStalled,
    RollbookError,
    Truncated,
)
from rollbook.proto.tasks import stop_tasks

T = TypeVar("T")
OnApplied = Callable[[WriterEpoch, Any], None]
"""A function that gets the writer epoch of a record, and the result of applying the record."""

SNAPSHOT_EVERY: Final = 10_000


class State(Protocol):
    """The state that a program provides. Every replica applies the same commands in the same order, so `apply` must
    be deterministic: it uses no clock, no randomness and no other input. The methods must also return quickly,
    since they run on the event loop. Even an invalid command must have a result: an exception ends the replica.
    """

    def apply(self, command: bytes) -> Any: ...
    def snapshot(self) -> bytes: ...
    def restore(self, snapshot: bytes) -> None: ...


class StateMachine:
    """A replica of a state. It follows the log within an `async with` block, and leads during a term that `lead`
    returned.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        state: State,
        *,
        holder: str,
        lease_s: float = LEASE_S,
        snapshot_every: int = SNAPSHOT_EVERY,
    ) -> None:
        """`holder` is the name that others see while this machine leads, for example its address. `lease_s`
        is the number of seconds before a dead leader is replaced. `snapshot_every` is roughly the
        maximum number of records that a restart replays.
        """
        self.name = LogName.parse(name)
        self.holder = holder
        self.failure: RollbookError | None = None  # The error that stopped it.
        self.checkpoint_failure: RollbookError | None = (
            None  # The error of the last automatic checkpoint.
        )
        self._client = client
        self._state = state
        self._lease_s = lease_s
        self._snapshot_every = snapshot_every
        self._replica = Replica()
        self._snapshots: Snapshots
        self._log: Log
        self._barrier = SharedBarrier(lambda: self._log.tail_offset(messages.Consistency.BARRIER))
        self._snapshot_at = Offset(0)  # The offset at which the last snapshot was begun.
        self._moved = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._term: Term | None = None
        self._checkpointing: asyncio.Task[None] | None = None

    @property
    def applied(self) -> Offset:
        """Returns the offset below which all records are in the state."""
        return self._replica.applied

    @property
    def epoch(self) -> WriterEpoch:
        """Returns the epoch of the writer of the newest record in the state."""
        return self._replica.epoch

    @property
    def timeout_s(self) -> float:
        """Returns the time-out of the client."""
        return self._client.config.timeout_s

    async def __aenter__(self) -> Self:
        """Creates the log unless it exists. When this returns, the state is restored and follows the log."""
        name = f"{self.name}{SUFFIX}"
        self._log = await self._open(str(self.name), name)
        if self._log.config.writer_mode is not WriterMode.EXCLUSIVE:
            raise BadConfig(
                f"any program may append to {self.name}, so its records are not necessarily commands",
                next_step="create it with writer_mode=WriterMode.EXCLUSIVE",
            )
        self._snapshots = Snapshots(self._log, lambda: self._client.open(name, create=True))
        await self._restore()
        self.follow()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop_following()
        await self._barrier.close()
        await stop_tasks(self._checkpointing)

    # --- For programs -------------------------------------------------------------------------

    def lead(self, mode: messages.AcquireMode | str = messages.AcquireMode.WAIT) -> Term:
        """Returns a term for one period of leadership. Enter it with `async with`, which waits for this machine's
        turn; until then the machine follows the log.
        """
        writer = ExclusiveWriter(self._log, self.holder, mode=mode, lease_s=self._lease_s)
        return Term(self, writer)

    async def leader(self) -> str:
        """Returns the `holder` of the present leader, or an empty string if there is none."""
        state = await self._log.state()
        if state.owner and not state.writer_holder:  # Only the log's owner knows the holder.
            question = messages.GetLog(self.name)
            state = await self._client.ask(question, server=state.owner)
        return state.writer_holder

    async def read(self, query: Callable[[], T]) -> T:
        """Returns the result of `query` on a state that includes all commands that were acknowledged before this
        call.
        """
        await self.barrier()
        return query()

    async def barrier(self) -> None:
        """Waits until every command that was acknowledged before this call is applied. Raises the error that
        stopped the replica, and `ReaderStalled` after the client's time-out.
        """
        tail = await self._barrier.tail()
        try:
            async with asyncio.timeout(self.timeout_s):
                while self.applied < tail:
                    self.check()
                    await self._moved.wait()
        except TimeoutError:
            raise ReaderStalled(log=self.name, position=self.applied, tail=tail) from None

    async def checkpoint(self) -> bool:
        """Writes a snapshot of the present state, and truncates the records before the previous snapshot.

        Returns False if there is a snapshot of this state or a newer one, or if another replica writes one first.
        """
        self.check()
        before = await self._snapshots.newest()
        if before is not None and before[0].offset >= self.applied:
            return False
        applied, epoch, data = self.applied, self.epoch, self._ask(self._state.snapshot)
        self._snapshot_at = applied
        return await self._snapshots.write(data, applied, epoch, before)

    def check(self) -> None:
        """Raises the error that stopped the machine, if there is one."""
        if self.failure is not None:
            raise again(self.failure, Outcome.NOT_APPLIED) from self.failure.__cause__

    # --- Applying -----------------------------------------------------------------------------

    def apply_own(self, offset: Offset, command: bytes, epoch: WriterEpoch) -> Any:
        """Applies the leader's own command when it is acked, without reading the same bytes back."""
        self._replica.on_block(offset, Offset(offset + 1), epoch)
        result = self._apply(command)
        self._tell()
        is_idle = self._checkpointing is None or self._checkpointing.done()
        if is_idle and is_due(self.applied, self._snapshot_at, self._snapshot_every):
            self._checkpointing = asyncio.create_task(self._checkpoint())
        return result

    def _apply(self, command: bytes) -> Any:
        result = self._ask(self._state.apply, command)
        self._replica.on_applied()
        return result

    def _ask(self, question: Callable[..., T], *arguments: bytes) -> T:
        try:
            return question(*arguments)
        except Exception as error:  # The state's own code failed, perhaps midway through a change.
            failure = InvalidRequest(
                f"the state raised {type(error).__name__}: {error}", offset=self.applied
            )
            # A command that raised an exception counts as applied.
            failure.outcome = Outcome.APPLIED
            self._fail(failure)
            raise failure from error

    def _take(self, batch: RecordBatch, on_applied: OnApplied | None) -> None:
        for block in batch.blocks:
            skip = self._replica.on_block(block.base_offset, block.next_offset, block.writer_epoch)
            for command in block.values()[skip : batch.next_offset - block.base_offset]:
                result = self._apply(command)
                if on_applied is not None:
                    on_applied(block.writer_epoch, result)
        self._tell()

    def _tell(self) -> None:
        """Wakes all waiters, so that they check the state again."""
        self._moved.set()
        self._moved = asyncio.Event()

    def _fail(self, error: RollbookError) -> None:
        if self.failure is None:
            self.failure = error
        self._tell()

    # --- Following ----------------------------------------------------------------------------

    def begin(self, term: Term) -> None:
        """Begins a term. Only one term is allowed at a time, so that the state has one source of commands."""
        self.check()
        if self._term is not None:
            raise InvalidRequest("this machine leads already, or waits for its turn")
        self._term = term

    def end(self, term: Term) -> None:
        """Ends a term: the machine follows the log again."""
        assert self._term is term
        self._term = None
        self.follow()

    def follow(self) -> None:
        """Starts to follow the log, unless the machine follows it already."""
        if self._following is None:
            self._following = asyncio.create_task(self._follow())

    async def stop_following(self) -> None:
        """Stops following. After this returns, only a term changes the state."""
        await stop_tasks(self._following)
        self._following = None

    async def _follow(self) -> None:
        try:
            await self.replay(None)
        except RollbookError as error:
            self._fail(error)

    async def replay(self, end: Offset | None, on_applied: OnApplied | None = None) -> None:
        """Applies confirmed records up to `end`, or until the log is sealed, without a time limit.

        With `on_applied`, raises `Truncated` if some of the records were truncated and exist only in a snapshot.
        """
        self.check()
        pauses = Pauses(self._client.config)
        while end is None or self.applied < end:
            batches = (
                self._log.tail_batches(self.applied)
                if end is None
                else self._log.read_batches(self.applied, end)
            )
            try:
                async for batch in batches:
                    self._take(batch, on_applied)
                    pauses.reset()
                if end is None:
                    return
            except Truncated as error:
                if on_applied is not None or not await self._restore():
                    raise error from None
            except RollbookError as error:
                if self.failure is not None or not is_passing(error):
                    raise
                await asyncio.sleep(pauses.next_s(error, is_known=False))
            finally:
                await batches.aclose()  # type: ignore[attr-defined]  # It is a generator.

    # --- Snapshots ----------------------------------------------------------------------------

    async def _open(self, name: str, beside: str) -> Log:
        """Opens the log, or creates it in exclusive mode. A new log gets the same quorum as the log `beside`, which
        is created first, with the server's default quorum, unless it exists. The two logs are created by separate
        requests; if the second request fails, the next call finds the log `beside` and continues.
        """
        try:
            return await self._client.open(name)
        except NoSuchLog:
            quorum = (await self._client.open(beside, create=True)).config.quorum
            config = LogConfig(quorum=quorum, writer_mode=WriterMode.EXCLUSIVE)
            return await self._client.open(name, create=config)

    async def _restore(self) -> bool:
        """Restores the newest snapshot. Returns False if no snapshot is newer than the state."""
        pauses = Pauses(self._client.config)
        while True:
            try:
                newest = await self._snapshots.newest()
                if newest is None or newest[0].offset <= self.applied:
                    return False
                cursor, snapshot = newest
                data = await self._snapshots.load(snapshot)
            except RollbookError as error:
                # `Truncated` means that newer snapshots were written in the meantime.
                if not isinstance(error, Truncated) and not is_passing(error):
                    raise
                await asyncio.sleep(pauses.next_s(error, is_known=False))
                continue
            self._ask(self._state.restore, data)
            self._replica.on_restored(cursor.offset, snapshot.epoch)
            self._snapshot_at = cursor.offset
            self._tell()
            return True

    async def _checkpoint(self) -> None:
        try:
            await self.checkpoint()
        except RollbookError as error:  # The log grows; a later checkpoint tries again.
            self.checkpoint_failure = error
        else:
            self.checkpoint_failure = None
