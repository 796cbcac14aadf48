"""The action of `rollbook ledger bench`."""

import asyncio
import os
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from rollbook.api.cli.latencies import new_latencies, percentiles
from rollbook.api.cli.ledger.connection import LedgerAccess, custom_of
from rollbook.api.cli.output import tell
from rollbook.api.cli.progress_bars import bar
from rollbook.ledger.config import ClientConfig
from rollbook.ledger.ledgers import Ledgers
from rollbook.ledger.writer import LedgerWriter
from rollbook.proto.runtime.gc_tuning import calm_collector
from rollbook.proto.runtime.malloc_tuning import keep_freed_memory
from rollbook.proto.wire.digest import DigestType


def measure(
    access: LedgerAccess,
    ensemble: int,
    write: int,
    ack: int,
    digest: str,
    custom: Sequence[str],
    size: int,
    window: int,
    seconds: float,
    keep: bool,
    output: str,
) -> None:
    async def run(ledgers: Ledgers) -> dict[str, Any]:
        writer = await ledgers.create(
            ensemble=ensemble,
            write=write,
            ack=ack,
            digest=DigestType[digest.upper()],
            custom=custom_of(custom),
        )
        try:
            facts = {"ledger_id": writer.ledger_id, "protocol": ledgers.config.protocol_version}
            async with writer:
                facts |= await _measure_appends(writer, size, window, seconds)
            facts |= await _measure_reads(ledgers, writer.ledger_id)
        finally:
            if not keep:
                await ledgers.delete(writer.ledger_id)
        return facts

    entries = max(window, ClientConfig.writer_window_entries)
    tell(access.run(run, writer_window_entries=entries), output, "adds_per_s")


async def _measure_appends(
    writer: LedgerWriter, size: int, window: int, seconds: float
) -> dict[str, Any]:
    """Keeps `window` entries in flight, and submits a tenth of them at a time. The first second is a warm-up and
    does not count.
    """
    payload = os.urandom(size)
    together = max(1, window // 10)
    latencies = new_latencies()
    pending: deque[asyncio.Future[range]] = deque()
    calm_collector()
    keep_freed_memory()
    warm_at = time.perf_counter() + min(1.0, seconds / 2)
    started, cpu_started, counted_from = 0.0, 0.0, 0
    end = warm_at + seconds

    def note(asked_at: float, future: "asyncio.Future[range]") -> None:
        if started and not future.cancelled() and future.exception() is None:
            latencies.observe(round((time.perf_counter() - asked_at) * 1e9))

    with bar("appending", int(seconds * 10)) as advance:
        shown_at = 0
        while (now := time.perf_counter()) < end:
            if not started and now >= warm_at:
                started, cpu_started = now, time.process_time()
                counted_from = writer.last_add_confirmed
            if started and (tenths := int((now - started) * 10)) > shown_at:
                advance(tenths - shown_at)
                shown_at = tenths
            if len(pending) * together >= window:
                await pending.popleft()
                continue
            await writer.ready(together, together * size)
            future = writer.append_many([payload] * together)
            future.add_done_callback(partial(note, now))
            pending.append(future)
        elapsed, cpu = time.perf_counter() - started, time.process_time() - cpu_started
        count = writer.last_add_confirmed - counted_from
        await writer.flush()
    return {
        "entry_bytes": size,
        "window": window,
        "adds": count,
        "adds_per_s": round(count / elapsed),
        "mib_per_s": round(count * size / elapsed / 2**20, 1),
        **percentiles(latencies),
        "client_cpu_us_per_add": round(cpu / max(1, count) * 1e6, 2),
    }


async def _measure_reads(ledgers: Ledgers, ledger_id: int) -> dict[str, Any]:
    count = size = 0
    started = time.perf_counter()
    async with await ledgers.open(ledger_id) as reader:
        with bar("reading", reader.last_add_confirmed + 1) as advance:
            async with reader.read() as stream:
                while entries := await stream.next_run():
                    count += len(entries)
                    size += sum(len(entry.payload) for entry in entries)
                    advance(len(entries))
    elapsed = time.perf_counter() - started
    return {
        "reads": count,
        "reads_per_s": round(count / elapsed),
        "read_mib_per_s": round(size / elapsed / 2**20, 1),
    }
