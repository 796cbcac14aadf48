"""Reads that bypass the page cache and that the system does without a thread, by Linux's `io_submit`.

A thread would have to be woken for each read, and would take the interpreter from the loop twice.
Here the loop makes one system call for each read, and one that collects all reads that have ended.
The kernel wakes the loop only if a caller waits there.

The kernel owns a buffer until its read has ended, even if the caller gave up. The buffer is used
again only after that.
"""

import asyncio
import ctypes
import errno
import math
import mmap
import os
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, Self

from rollbook.proto.ports import Buffer
from rollbook.proto.runtime.system_calls import call

# The maximum number of reads that run, or have ended and were not collected.
_READS_MAX: Final = 64
_REFUSALS_MAX: Final = 16  # After this many refusals in a row, no read is started for `_REST_S`.
# Some devices never accept reads without waiting; others accept only few at a time.
_REST_S: Final = 60.0
# The numbers of the system calls in `_Calls`, by type of machine.
_NUMBERS: Final[Mapping[str, tuple[int, int, int, int]]] = {
    "x86_64": (206, 207, 209, 208),
    "aarch64": (0, 1, 2, 4),
}
_READ, _NO_WAIT, _TELL_EVENTS = 0, 8, 1  # IOCB_CMD_PREAD, RWF_NOWAIT, IOCB_FLAG_RESFD


class _Calls(NamedTuple):
    setup: Callable[..., int]
    destroy: Callable[..., int]
    submit: Callable[..., int]
    getevents: Callable[..., int]


class _Iocb(ctypes.Structure):
    """The `struct iocb` of little-endian machines."""

    _fields_ = (
        ("aio_data", ctypes.c_uint64),
        ("aio_key", ctypes.c_uint32),
        ("aio_rw_flags", ctypes.c_int32),
        ("aio_lio_opcode", ctypes.c_uint16),
        ("aio_reqprio", ctypes.c_int16),
        ("aio_fildes", ctypes.c_uint32),
        ("aio_buf", ctypes.c_uint64),
        ("aio_nbytes", ctypes.c_uint64),
        ("aio_offset", ctypes.c_int64),
        ("aio_reserved2", ctypes.c_uint64),
        ("aio_flags", ctypes.c_uint32),
        ("aio_resfd", ctypes.c_int32),
    )


class _Event(ctypes.Structure):
    """`struct io_event`."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("obj", ctypes.c_uint64),
        ("res", ctypes.c_int64),
        ("res2", ctypes.c_int64),
    )


class _Buffer:
    """A page-aligned buffer, and the `iocb` of the read that fills it."""

    def __init__(self, name: int, size: int, events: int) -> None:
        memory = mmap.mmap(-1, size)  # The buffer has its own pages, as direct reads require.
        memory.madvise(mmap.MADV_DONTFORK)
        self.view = memoryview(memory)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.iocb = _Iocb(
            aio_data=name,
            aio_rw_flags=_NO_WAIT,
            aio_lio_opcode=_READ,
            aio_buf=address,
            aio_flags=_TELL_EVENTS,
            aio_resfd=events,
        )
        self.iocbs = (ctypes.c_uint64 * 1)(ctypes.addressof(self.iocb))


class KernelRead:
    def __init__(self, reads: "KernelReads", buffer: _Buffer) -> None:
        self._reads = reads
        self._buffer = buffer
        self._result: int | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._is_wanted = True

    def poll(self) -> bool:
        """Takes completed reads from the kernel, and returns whether this read has ended."""
        if self._result is None:
            self._reads.look()
        return self._result is not None

    async def wait(self) -> None:
        """Waits until the read has ended, even if the waiting task is cancelled. Only one caller
        may wait at a time.
        """
        cancelled: asyncio.CancelledError | None = None
        while not self.poll():
            self._waiter = self._reads.tell_when_one_ends()
            try:
                await self._waiter
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled:
            raise cancelled

    @property
    def is_awaited(self) -> bool:
        return self._waiter is not None and not self._waiter.done()

    def piece(self, start: int, length: int) -> Buffer | None:
        """Returns a part of the buffer, which is valid until the buffer is released, or None if
        that part was not read.
        """
        if self._result is None or self._result < start + length:
            return None
        return self._buffer.view[start : start + length]

    def let_go(self) -> None:
        """Releases the buffer. No part of it may be in use any more."""
        if not self._is_wanted:
            return
        self._is_wanted = False
        if self._result is not None:
            self._reads.free.append(self._buffer)

    def on_end(self, result: int) -> None:
        self._result = result
        if not self._is_wanted:
            self._reads.free.append(self._buffer)
        if self._waiter and self.is_awaited:
            with suppress(RuntimeError):  # If the loop was closed, there is no waiter any more.
                self._waiter.set_result(None)


class KernelReads:
    """The reads of one disk, each of at most `bytes_max` bytes."""

    def __init__(self, calls: "_Calls", context: int, bytes_max: int) -> None:
        self.free: list[_Buffer] = []  # The free buffers; the last one was used most recently.
        self._calls = calls
        self._context = context
        self._bytes_max = bytes_max
        self._buffers = 0
        self._under_way: dict[int, KernelRead] = {}
        self._refusals = 0
        self._rests_until_s = 0.0
        self._ended = (_Event * _READS_MAX)()
        self._events = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # The loop while a caller waits, otherwise None.
        self._listener: asyncio.AbstractEventLoop | None = None

    @classmethod
    def begin(cls, bytes_max: int) -> Self | None:
        """Sets up the kernel's interface. Returns None if the system lacks it or has reached its limit."""
        numbers, context = _NUMBERS.get(platform.machine()), ctypes.c_ulong(0)
        if call is None or numbers is None:
            return None
        calls = _Calls(*(partial(call, number) for number in numbers))
        if calls.setup(_READS_MAX, ctypes.addressof(context), 0, 0, 0) < 0:
            return None
        return cls(calls, context.value, bytes_max)

    def start(self, descriptor: int, position: int, length: int) -> KernelRead | None:
        """Starts a read of whole blocks that bypasses the page cache. Returns None if that is not
        possible now.
        """
        if length > self._bytes_max or time.monotonic() < self._rests_until_s:
            return None
        if self.free:
            buffer = self.free.pop()
        elif self._buffers < _READS_MAX:
            buffer = _Buffer(self._buffers, self._bytes_max, self._events)
            self._buffers += 1
        else:
            return None
        iocb = buffer.iocb
        iocb.aio_fildes, iocb.aio_offset, iocb.aio_nbytes = descriptor, position, length
        if self._calls.submit(self._context, 1, ctypes.addressof(buffer.iocbs), 0, 0) != 1:
            self._count(is_refused=True)
            self.free.append(buffer)
            return None
        read = self._under_way[iocb.aio_data] = KernelRead(self, buffer)
        return read

    def look(self, *, wait: bool = False) -> None:
        """Collects the reads that have ended."""
        address = ctypes.addressof(self._ended)
        count = self._calls.getevents(self._context, int(wait), _READS_MAX, address, 0)
        for event in self._ended[: max(count, 0)]:
            self._count(is_refused=event.res == -errno.EAGAIN)
            self._under_way.pop(event.data).on_end(event.res)

    def _count(self, *, is_refused: bool) -> None:
        self._refusals = self._refusals + 1 if is_refused else 0
        if self._refusals == _REFUSALS_MAX:
            self._refusals = 0
            self._rests_until_s = time.monotonic() + _REST_S

    def tell_when_one_ends(self) -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        if self._listener is None:
            self._listener = loop
            loop.add_reader(self._events, self._on_event)
        return loop.create_future()

    def _on_event(self) -> None:
        os.eventfd_read(self._events)
        self.look()
        if not any(read.is_awaited for read in self._under_way.values()):
            self._stop_listening()

    def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.remove_reader(self._events)

    def close(self) -> None:
        """Returns when all requested reads have ended."""
        while self._under_way:
            self.look(wait=True)
        self._stop_listening()
        self._calls.destroy(self._context, 0, 0, 0, 0)
        os.close(self._events)
        self._rests_until_s = math.inf
