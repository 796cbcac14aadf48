"""Runs `rollbook demo`: appends and reads records with real processes and real kills, and verifies everything.

Three bookies and two log servers share an embedded metadata store. A writer appends each record exactly once,
and a reader follows the log. A bookie is killed and restarted; the server that owns the log is killed, and the
other server takes over. Then the log is read back and sealed, every copy of every entry is checked, and the log
is truncated. The demo fails if it takes too long.
"""

import asyncio
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import click

from rollbook.api.cli.demo.checking_clients import Appending, check, make_records, require
from rollbook.api.cli.demo.cluster import LOG_SERVERS, DemoCluster, demo_cluster
from rollbook.api.cli.latencies import percentiles
from rollbook.api.client.async_client import Client, connect
from rollbook.api.client.config import LogClientConfig
from rollbook.api.client.log import Log
from rollbook.ledger.core.copy_comparison import CopyState
from rollbook.ledger.open_client import connect as connect_to_ledgers
from rollbook.logservice.log_config import LogConfig
from rollbook.proto.errors import LogSealed, NoSuchLedger, RollbookError, Truncated
from rollbook.proto.runtime.logging_setup import configure_logs

ALONE: Final = 1_000
AT_SPEED: Final = 59_000
AT_PACE: Final = 40_000
RECORDS: Final = ALONE + AT_SPEED + AT_PACE
PER_SECOND: Final = 10_000
KEPT_FROM: Final = 70_000
# Small segments, so that there are many and some can be freed.
_CONFIG: Final = LogConfig(roll_bytes=1 << 20)
_CLIENT: Final = LogClientConfig(timeout_s=60, silences_max=12)  # Long enough for a slow machine.
_NAME: Final = "demo"
_BOOKIE: Final = "bk-2"
_PATIENCE_S: Final = 180.0  # Long enough for a busy machine.


def run_demo() -> None:
    """Raises `RollbookError`."""
    configure_logs(level="error", as_json=False)
    with tempfile.TemporaryDirectory(prefix="rollbook-demo-", ignore_cleanup_errors=True) as folder:
        try:
            asyncio.run(_run(folder))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


async def _run(folder: str) -> None:
    started_s = time.monotonic()
    task = asyncio.current_task()
    assert task is not None
    # SIGTERM stops the demo like Ctrl-C.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        async with asyncio.timeout(_PATIENCE_S), demo_cluster(folder) as cluster:
            ready_s = time.monotonic() - started_s
            _tell(
                "cluster",
                f"3 bookies and 2 log servers, each a process, ready after {ready_s:.1f} s",
            )
            await _use(cluster)
    except TimeoutError:
        raise RollbookError(f"the demo did not end within {_PATIENCE_S:.0f} s") from None
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    click.echo(f"every promise was kept, in {time.monotonic() - started_s:.1f} s")


def _tell(what: str, line: str) -> None:
    click.echo(f"{what:<9} {line}")


async def _use(cluster: DemoCluster) -> None:
    records = make_records(RECORDS)
    servers = ",".join(cluster.addresses[name] for name in LOG_SERVERS)
    async with connect(f"log://{servers}", _CLIENT) as client, asyncio.TaskGroup() as group:
        log = await client.open(_NAME, create=_CONFIG)
        tail = group.create_task(check(log.tail_batches("earliest"), records))
        await _append(cluster, client, log, records)
        await _read_back(log, records)
        await _seal(log)
        seen = await tail
        require(seen == RECORDS, "the tail gets every record", seen=seen)
        _tell("tail", f"{seen:,} records as they arrived: each once, in order, byte for byte")
        await _verify_copies(cluster.url)
        await _truncate(log, records)


# --- Appending, with kills ----------------------------------------------------------------------


async def _append(cluster: DemoCluster, client: Client, log: Log, records: Sequence[bytes]) -> None:
    async with log.writer() as writer, asyncio.TaskGroup() as group:
        appending = Appending(writer, records)
        watching = group.create_task(appending.watch())
        took = percentiles(await appending.alone(ALONE))
        p50_ms, p99_ms = took["p50_ms"], took["p99_ms"]
        assert p50_ms is not None, "the demo has enough appends for a median"
        assert p99_ms is not None, "the demo has enough appends for a p99"
        _tell("append", f"{ALONE:,} one by one: acked after {p50_ms:.1f} ms, p99 {p99_ms:.1f} ms")
        took_s = await appending.at_speed(AT_SPEED)
        _tell("append", f"{AT_SPEED:,} as fast as possible: {AT_SPEED / took_s:,.0f} records/s")

        async def kill_bookie() -> str:
            await cluster.kill(_BOOKIE)
            return f"{_BOOKIE}, a bookie"

        async def kill_owner() -> str:
            owner = await _owner(cluster, client)
            await cluster.kill(owner)
            return f"{owner}, which owns the log"

        await _append_through(group, appending, kill_bookie)
        await cluster.start_bookie(_BOOKIE)
        await _append_through(group, appending, kill_owner)
        watching.cancel()


async def _append_through(
    group: asyncio.TaskGroup, appending: Appending, kill: Callable[[], Awaitable[str]]
) -> None:
    """Appends half of the paced records, and kills a process after a quarter of them is acked."""
    before = appending.acked
    paced = group.create_task(appending.at_pace(AT_PACE // 2, PER_SECOND))
    await appending.reach(before + AT_PACE // 8)
    appending.reset_gap()
    killed = await kill()
    await paced
    await appending.reach(before + AT_PACE // 2)
    gap_ms = appending.longest_gap_s * 1000
    _tell("kill -9", f"{killed}, at {PER_SECOND:,} records/s: {gap_ms:,.0f} ms without an ack")


async def _owner(cluster: DemoCluster, client: Client) -> str:
    names = {cluster.addresses[name]: name for name in LOG_SERVERS}
    while True:
        (found,) = await client.lookup([_NAME])
        if found.is_owner and found.address in names:
            return names[found.address]
        await asyncio.sleep(0.05)  # A long pause of the machine can make the log change its owner.


# --- Reading, truncating, sealing -----------------------------------------------------------------


async def _read_back(log: Log, records: Sequence[bytes]) -> None:
    started_s = time.monotonic()
    found = await check(log.read_batches("earliest"), records)
    rate = found / (time.monotonic() - started_s)
    require(found == RECORDS, "every acked record can be read", found=found)
    _tell("read", f"{found:,} records, each once, in order, byte for byte: {rate:,.0f} records/s")


async def _truncate(log: Log, records: Sequence[bytes]) -> None:
    answer = await log.truncate(KEPT_FROM)
    freed = f"{len(answer.segments)} ledgers, {answer.freed_bytes / 1e6:.1f} MB"
    _tell("truncate", f"before {KEPT_FROM:,}: {freed} are freed")
    require(answer.new_head == KEPT_FROM, "the log is truncated at the requested offset")
    try:
        await check(log.read_batches(KEPT_FROM - 1), records, KEPT_FROM - 1)
        require(False, "truncated records cannot be read")
    except Truncated:
        pass
    found = await check(log.read_batches("earliest"), records, KEPT_FROM)
    require(found == RECORDS - KEPT_FROM, "records that were kept can be read", found=found)


async def _seal(log: Log) -> None:
    tail = await log.seal()
    require(tail == RECORDS, "the log ends after its last record", tail=tail)
    try:
        await log.append(b"one more")
        require(False, "a sealed log accepts no record")
    except LogSealed:
        pass


# --- Copies ---------------------------------------------------------------------------------------


async def _verify_copies(url: str) -> None:
    """Verifies every copy of every entry."""
    copies: Counter[CopyState] = Counter()
    entries = below_ack = 0
    async with connect_to_ledgers(url) as ledgers:
        for ledger_id in [each async for each in ledgers.list()]:
            try:
                verdict = await ledgers.verify(ledger_id)
            except NoSuchLedger:
                continue  # Truncation has deleted the ledger.
            copies += verdict.copies
            entries += verdict.entries
            below_ack += verdict.below_ack
    bad = copies.total() - copies[CopyState.GOOD] - copies[CopyState.MISSING]
    require(not below_ack, "each entry has at least two sound copies", entries=below_ack)
    require(not bad, "no copy is bad", copies=bad)
    missing = copies[CopyState.MISSING]
    late = f", but {missing:,} with two: {_BOOKIE} was dead then" if missing else ""
    _tell("copies", f"{entries:,} entries with three sound copies each{late}")
