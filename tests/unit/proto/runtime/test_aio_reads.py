"""Reads by the kernel's AIO: ownership of buffers and wake-ups."""

import asyncio
import ctypes
import errno
import os
import random
from collections.abc import AsyncIterator

import pytest

from rollbook.proto.runtime import aio_reads
from rollbook.proto.runtime.aio_reads import KernelRead, KernelReads

CONTENTS = random.Random(1).randbytes(1_000_000)
PATIENCE_S = 30


class Kernel:
    """Completes reads when the test calls `end`."""

    def __init__(self) -> None:
        self.orders: list[aio_reads._Iocb] = []
        self.ended: list[tuple[int, int]] = []
        self.takes_orders = True
        self.contexts = 0
        self.calls = aio_reads._Calls(self._setup, self._destroy, self._submit, self._getevents)

    def _setup(self, *_: int) -> int:
        self.contexts += 1
        return 0

    def _destroy(self, *_: int) -> int:
        assert not self.orders
        self.contexts -= 1
        return 0

    def _submit(self, _context: int, _count: int, orders: int, *_: int) -> int:
        if not self.takes_orders:
            return -1
        self.orders.append(aio_reads._Iocb.from_address(ctypes.c_uint64.from_address(orders).value))
        return 1

    def _getevents(self, _context: int, least: int, most: int, events: int, *_: int) -> int:
        if least and not self.ended:
            self.end()
        count = min(most, len(self.ended))
        for at in range(count):
            event = aio_reads._Event.from_address(events + at * ctypes.sizeof(aio_reads._Event))
            event.data, event.res = self.ended.pop(0)
        return count

    def end(self, at: int = 0, error: int = 0) -> None:
        iocb = self.orders.pop(at)
        found = CONTENTS[iocb.aio_offset : iocb.aio_offset + iocb.aio_nbytes]
        if not error:
            ctypes.memmove(iocb.aio_buf, found, len(found))
        self.ended.append((iocb.aio_data, -error or len(found)))
        os.eventfd_write(iocb.aio_resfd, 1)


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
async def reads(kernel: Kernel) -> AsyncIterator[KernelReads]:
    reads = KernelReads(kernel.calls, 1, 8192)
    yield reads
    reads.close()


def started(reads: KernelReads, position: int, length: int = 4096) -> KernelRead:
    read = reads.start(0, position, length)
    assert read is not None
    return read


async def test_completed_read_returns_pieces(kernel: Kernel, reads: KernelReads) -> None:
    many = [started(reads, position) for position in range(0, 40_960, 4096)]
    assert not any(read.poll() for read in many)
    for _ in many:
        kernel.end(random.Random(2).randrange(len(kernel.orders)))
    for at, read in enumerate(many):
        await read.wait()
        assert read.piece(96, 4000) == CONTENTS[4096 * at + 96 : 4096 * (at + 1)]
        read.let_go()
    at_the_end = started(reads, 999_424)
    kernel.end()
    await at_the_end.wait()
    assert at_the_end.piece(0, 576) == CONTENTS[-576:]
    assert at_the_end.piece(0, 577) is None
    assert reads.start(0, 0, 8193) is None


async def test_buffer_is_not_reused_before_its_read_completes(
    kernel: Kernel, reads: KernelReads
) -> None:
    first = started(reads, 0)
    first.let_go()
    first.let_go()  # Letting go again has no effect.
    second = started(reads, 4096)
    kernel.end()
    kernel.end()
    assert first.poll()
    assert second.piece(0, 4096) == CONTENTS[4096:8192]
    third, fourth = started(reads, 8192), started(reads, 12_288)
    addresses = {iocb.aio_buf for iocb in kernel.orders}
    assert len(addresses) == 2
    kernel.end()
    kernel.end()
    assert third.poll()
    assert second.piece(0, 4096) == CONTENTS[4096:8192]
    assert third.piece(0, 4096) == CONTENTS[8192:12_288]
    assert fourth.piece(0, 4096) == CONTENTS[12_288:16_384]


async def test_waiter_wakes_when_read_ends_and_cancelled_waiter_waits(
    kernel: Kernel, reads: KernelReads
) -> None:
    many = [started(reads, position) for position in (0, 4096, 8192)]
    waiting = [asyncio.create_task(read.wait()) for read in many]
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S):
        kernel.end(2)
        await waiting[2]
        waiting[1].cancel()
        kernel.end(0)
        await waiting[0]
        assert not waiting[1].done()
        kernel.end()
        with pytest.raises(asyncio.CancelledError):
            await waiting[1]
    again = started(reads, 0)  # Waiting works again after a time without waiters.
    task = asyncio.create_task(again.wait())
    await asyncio.sleep(0)
    kernel.end()
    await asyncio.wait_for(task, PATIENCE_S)


async def test_failed_read_returns_no_piece(kernel: Kernel, reads: KernelReads) -> None:
    read = started(reads, 0)
    kernel.end(error=errno.EIO)
    await read.wait()
    assert read.piece(0, 1) is None


@pytest.mark.parametrize("takes_orders", [True, False])
async def test_kernel_that_always_refuses_is_not_used_for_a_while(
    kernel: Kernel, reads: KernelReads, monkeypatch: pytest.MonkeyPatch, takes_orders: bool
) -> None:
    """A device may have to wait for each read, or a file system may lack AIO."""
    now_s = 100.0
    monkeypatch.setattr("rollbook.proto.runtime.aio_reads.time.monotonic", lambda: now_s)
    kernel.takes_orders = takes_orders
    for _ in range(aio_reads._REFUSALS_MAX):
        read = reads.start(0, 0, 4096)
        assert (read is not None) == takes_orders
        if read is not None:
            kernel.end(error=errno.EAGAIN)
            await read.wait()
            read.let_go()
    kernel.takes_orders = True
    assert reads.start(0, 0, 4096) is None
    now_s += 1000.0
    assert reads.start(0, 0, 4096) is not None


async def test_occasional_refusals_are_tolerated(kernel: Kernel, reads: KernelReads) -> None:
    for number in range(300):
        read = started(reads, 0)
        kernel.end(error=errno.EAGAIN if number % aio_reads._REFUSALS_MAX else 0)
        await read.wait()
        read.let_go()


async def test_number_of_reads_is_limited(reads: KernelReads) -> None:
    many = [reads.start(0, 0, 4096) for _ in range(aio_reads._READS_MAX + 1)]
    assert None not in many[:-1]
    assert many[-1] is None


async def test_close_waits_for_running_reads(kernel: Kernel) -> None:
    kernel.contexts = 1
    reads = KernelReads(kernel.calls, 1, 8192)
    read = started(reads, 0)
    waiting = asyncio.create_task(read.wait())
    await asyncio.sleep(0)
    reads.close()
    await asyncio.wait_for(waiting, PATIENCE_S)
    assert read.piece(0, 4096) == CONTENTS[:4096]
    assert kernel.contexts == 0
    assert reads.start(0, 0, 4096) is None
