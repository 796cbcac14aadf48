"""Grants, renews and releases the epochs of a log's exclusive writers (LS8).

A grant is an entry of the log, so it fences older epochs at a definite place in the order of appends, and
stays in force when the owner changes. The lease of an epoch does not fence: it only shows other writers when
they may acquire the log without disturbing the holder.
"""

import asyncio
from contextlib import suppress

from rollbook.logservice.append_path import AppendPath, resolver_of
from rollbook.logservice.core.control_blocks import WriterReleased
from rollbook.logservice.ids import WriterEpoch
from rollbook.logservice.messages import AcquireMode, WriterGrant
from rollbook.proto.errors import LogSealed, RollbookError, WriterHeld
from rollbook.proto.ports import Clock


class WriterEpochs:
    def __init__(self, append_path: AppendPath, clock: Clock) -> None:
        self._append_path, self._clock = append_path, clock
        self._changed = asyncio.Event()
        append_path.sequencer.on_owner_changed(clock.monotonic_ns(), clock.wall_us())

    async def acquire(
        self, holder: str, mode: AcquireMode, ttl_ms: int, attempt: str = ""
    ) -> WriterGrant:
        """Grant a writer epoch (LS8). Raises `WriterHeld`, `LogSealed`, `StaleEpoch`, `OwnerLost`,
        `AppendUnsettled`, `OwnerChanging`.
        """
        append_path, sequencer = self._append_path, self._append_path.sequencer
        while True:
            append_path.use()
            if sequencer.was_asked_by(holder, attempt) and not append_path.memory.is_sealed:
                epoch = append_path.memory.writer_epoch
                await append_path.barrier()
                # This raises `StaleEpoch` if the epoch was released or stolen in the meantime.
                return self.renew(epoch)
            now_ns = self._clock.monotonic_ns()
            try:
                acquired = sequencer.acquire(holder, mode, ttl_ms, now_ns, attempt)
            except WriterHeld as refusal:
                if mode is AcquireMode.FAIL:
                    await append_path.refused(refusal)
                await self._change(sequencer.held_for_ns(now_ns))
                continue
            except LogSealed as refusal:
                await append_path.refused(refusal)
                raise
            grant = WriterGrant(acquired.epoch, append_path.memory.tail, holder, ttl_ms)
            waiter: asyncio.Future[WriterGrant] = asyncio.get_running_loop().create_future()
            append_path.say(acquired, resolver_of(waiter), grant)
            sequencer.on_acquired(acquired, now_ns)
            append_path.keep_short()
            self.tell()
            return await waiter

    def renew(self, epoch: WriterEpoch) -> WriterGrant:
        """Renew the lease of an epoch. The caller must have awaited a barrier. Raises `StaleEpoch`."""
        sequencer, memory = self._append_path.sequencer, self._append_path.memory
        sequencer.check_epoch(epoch)
        sequencer.on_renewed(self._clock.monotonic_ns())
        return WriterGrant(epoch, memory.fence_offset, memory.holder, memory.ttl_ms)

    async def release(self, epoch: WriterEpoch) -> None:
        """End a writer epoch. Raises `StaleEpoch`, `OwnerLost`, `AppendUnsettled`, `OwnerChanging`."""
        append_path = self._append_path
        append_path.use()
        try:
            append_path.sequencer.check_epoch(epoch)
        except RollbookError as refusal:
            await append_path.refused(refusal)
        if append_path.memory.is_sealed:  # A sealed log needs no release.
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        append_path.say(WriterReleased(epoch), resolver_of(waiter))
        append_path.memory.on_released(epoch)
        append_path.keep_short()
        self.tell()
        await waiter

    def tell(self) -> None:
        """Make all waiting acquisitions check the epoch again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _change(self, at_most_ns: int | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(None if at_most_ns is None else at_most_ns / 1e9):
                await self._changed.wait()
