"""What `rollbook demo` shows: the main job on the embedded store, with real processes and real kills.

At this stage the main job is metadata: a cluster is made in one file, three processes race to close
every ledger in it by compare-and-swap, and whichever process owns the store is killed again and
again. At the end a fresh process reads everything back and compares it with what the racers were
told.
"""

import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import click

from rollbook.proto.cluster.cluster import initialise, open_cluster
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.errors import RollbookError
from rollbook.proto.ids import FIRST_ENTRY, BookieId, EntryId, LedgerId
from rollbook.proto.metadata import Fragment, LedgerMetadata
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.quorum import Quorum
from rollbook.proto.runtime.logs import configure_logs
from rollbook.proto.runtime.metastore import open_metadata_store
from rollbook.proto.wire.digest import DigestType

LEDGERS: Final = 1_000
RACERS: Final = 3
KILLS: Final = 3
DEADLINE_S: Final = 60.0
_CREATED_AT_ONCE: Final = 100


def run_demo() -> None:
    configure_logs(level="error", as_json=False)
    with tempfile.TemporaryDirectory(prefix="rollbook-demo-") as folder:
        asyncio.run(_demo(MetadataUrl.parse(f"sqlite://{folder}/metadata.db")))


@dataclass
class _Told:
    """Which closes were acknowledged: each racer would end a ledger at an entry of its own."""

    closes: dict[LedgerId, list[EntryId]] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class _Racer:
    number: int
    process: asyncio.subprocess.Process
    reading: asyncio.Task[bool]


async def _demo(url: MetadataUrl) -> None:
    started = time.monotonic()
    await _make_cluster(url)
    click.echo(f"a cluster in one SQLite file, with {LEDGERS:,} open ledgers")
    click.echo(f"{RACERS} processes race to close each of them by compare-and-swap;")
    click.echo("one of them owns the file and serves the others, until it is killed:")
    told = _Told()
    async with asyncio.timeout(DEADLINE_S):
        takeovers = await _race(url, told)
    await _verify(url, told)
    click.echo(
        f"{LEDGERS:,} ledgers closed exactly once, {KILLS} owners killed (work went on after "
        f"{min(takeovers):.0f} to {max(takeovers):.0f} ms), 0 acknowledged closes lost, "
        f"{time.monotonic() - started:.1f} s"
    )


async def _make_cluster(url: MetadataUrl) -> None:
    randomness = random.SystemRandom()
    quorum = Quorum(ensemble=3, write=3, ack=2)
    ensemble = (BookieId("bookie-1"), BookieId("bookie-2"), BookieId("bookie-3"))

    def new_ledger(ledger_id: LedgerId) -> LedgerMetadata:
        return LedgerMetadata(
            ledger_id,
            quorum,
            (Fragment(FIRST_ENTRY, ensemble),),
            digest_type=DigestType.CRC32C,
            password=b"",
            created_ms=time.time_ns() // 1_000_000,
            creation_token=randomness.getrandbits(62),
        )

    async with await open_metadata_store(url, create=True) as store:
        cluster = await initialise(store, url.ledgers_root, randomness)
        ledgers = LedgerNodes(store, cluster.root, cluster.layout)
        for _ in range(LEDGERS // _CREATED_AT_ONCE):
            batch = (ledgers.create_new(new_ledger) for _ in range(_CREATED_AT_ONCE))
            await asyncio.gather(*batch)


async def _race(url: MetadataUrl, told: _Told) -> list[float]:
    """Runs until every ledger is closed; ms until work went on after each kill."""
    takeovers: list[float] = []
    async with _racers(url, told) as racers:
        hidden = not sys.stderr.isatty()
        with click.progressbar(
            length=LEDGERS, label="closed", file=sys.stderr, hidden=hidden
        ) as bar:
            kill_at = [LEDGERS * (n + 1) // (KILLS + 1) for n in range(KILLS)]
            while not all(racer.reading.done() for racer in racers):
                await _wait_for_news(told)
                bar.update(len(told.closes) - bar.pos)
                if kill_at and len(told.closes) >= kill_at[0]:
                    del kill_at[0]
                    takeovers.append(await _kill_owner(url, told, racers))
        if not all(racer.reading.result() for racer in racers):
            raise RollbookError("a racer failed; its reason is above")
    return takeovers


@asynccontextmanager
async def _racers(url: MetadataUrl, told: _Told) -> AsyncIterator[list[_Racer]]:
    racers = [await _start_racer(url, number, told) for number in range(RACERS)]
    try:
        yield racers
    finally:
        for racer in racers:
            if racer.process.returncode is None:
                racer.process.kill()
            await racer.process.wait()
            racer.reading.cancel()


async def _start_racer(url: MetadataUrl, number: int, told: _Told) -> _Racer:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "rollbook.api.cli.demo_racer", str(url), str(number)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    return _Racer(number, process, asyncio.create_task(_listen(process, told)))


async def _listen(process: asyncio.subprocess.Process, told: _Told) -> bool:
    """Whether the racer came to its end."""
    assert process.stdout is not None
    try:
        async for line in process.stdout:
            match line.decode().split():
                case ["closed", ledger_id, last_entry]:
                    closes = told.closes.setdefault(LedgerId(int(ledger_id)), [])
                    closes.append(EntryId(int(last_entry)))
                    told.news.set()
                case ["done"]:
                    return True
        return False
    finally:
        told.news.set()


async def _wait_for_news(told: _Told) -> None:
    await told.news.wait()
    told.news.clear()


async def _kill_owner(url: MetadataUrl, told: _Told, racers: list[_Racer]) -> float:
    """SIGKILL, then a new racer in its place; ms until a ledger was closed again."""
    owner = _owner_of(url)
    killed = next(racer for racer in racers if racer.process.pid == owner)
    os.kill(owner, signal.SIGKILL)
    killed_at = time.monotonic()
    await killed.process.wait()
    await killed.reading  # What it was told before it died counts.
    before = len(told.closes)
    newest = max(racer.number for racer in racers)
    racers[racers.index(killed)] = await _start_racer(url, newest + 1, told)
    while len(told.closes) == before:
        await _wait_for_news(told)
    return (time.monotonic() - killed_at) * 1000


def _owner_of(url: MetadataUrl) -> int:
    with open(f"{url.place}.lock") as lock:
        return int(lock.read())


async def _verify(url: MetadataUrl, told: _Told) -> None:
    """A fresh process reads all ledgers back and compares them with what was acknowledged."""
    read_back = 0
    async with await open_metadata_store(url, serve=True) as store:
        cluster = await open_cluster(store, url.ledgers_root)
        ledgers = LedgerNodes(store, cluster.root, cluster.layout)
        async for ledger_id in ledgers.ids():
            last_entry = (await ledgers.read(ledger_id)).metadata.last_entry
            # Nobody was told so only if the answer died with the owner.
            if last_entry is None or told.closes.get(ledger_id, [last_entry]) != [last_entry]:
                raise RollbookError("a promise was broken", ledger_id=ledger_id, found=last_entry)
            read_back += 1
    if read_back != LEDGERS:
        raise RollbookError(f"{LEDGERS - read_back} ledgers are gone")
