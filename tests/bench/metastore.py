"""Performance of the metadata stores of one machine, with values of 200 bytes and real syncs."""

import asyncio
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from statistics import median
from typing import Final

from rollbook.proto.metastore.memory import MemoryService
from rollbook.proto.ports import MetadataStore
from rollbook.proto.runtime.clock import SystemClock
from rollbook.proto.runtime.logging_setup import configure_logs
from rollbook.proto.runtime.metastore import open_metadata_store
from tests.bench import Figure, figure

VALUE: Final = bytes(200)
CALLERS: Final = 50
SETS_OF_EACH: Final = 100
ALONE: Final = 200

Open = Callable[[], AbstractAsyncContextManager[MetadataStore]]

# A process that owns the store until its standard input is closed.
OWNER: Final = """
import asyncio, sys
from rollbook.proto.runtime.logging_setup import configure_logs
from rollbook.proto.runtime.metastore import open_metadata_store

async def main(url):
    async with await open_metadata_store(url, create=True, serve=True):
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

configure_logs(level="error")
asyncio.run(main(sys.argv[1]))
"""


def figures(runs: int) -> list[Figure]:
    configure_logs(level="error")
    stores = (("in memory", _memory), ("in the owner", _owner), ("over its socket", _socket))
    measures = (
        (f"CAS of {CALLERS} callers", "CAS/s", _grouped_sets),
        ("one CAS alone, p50", "µs", _set_alone),
        ("one get alone, p50", "µs", _get_alone),
    )
    return [
        figure(f"{what}, {where}", unit, None, runs, partial(_measure, store, measure))
        for where, store in stores
        for what, unit, measure in measures
    ]


def _measure(open_store: Open, do: Callable[[MetadataStore], Awaitable[float]]) -> float:
    async def run() -> float:
        async with open_store() as store:
            return await do(store)

    return asyncio.run(run())


@asynccontextmanager
async def _memory() -> AsyncIterator[MetadataStore]:
    service = MemoryService(SystemClock(), random.Random(1))
    async with await service.connect() as store:
        yield store
    await service.close()


@asynccontextmanager
async def _owner() -> AsyncIterator[MetadataStore]:
    with tempfile.TemporaryDirectory() as folder:
        async with await open_metadata_store(
            f"sqlite://{folder}/metadata.db", create=True, serve=True
        ) as store:
            yield store


@asynccontextmanager
async def _socket() -> AsyncIterator[MetadataStore]:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite://{folder}/metadata.db"
        with subprocess.Popen(
            [sys.executable, "-c", OWNER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as owner:
            assert owner.stdin is not None
            assert owner.stdout is not None
            assert owner.stdout.readline() == b"ready\n"
            async with await open_metadata_store(url) as store:
                yield store
            owner.stdin.close()


async def _grouped_sets(store: MetadataStore) -> float:
    async def caller(number: int) -> None:
        path = await store.create(f"/{number}", VALUE)
        for version in range(SETS_OF_EACH):
            await store.set(path, VALUE, version)

    started = time.perf_counter()
    await asyncio.gather(*map(caller, range(CALLERS)))
    return CALLERS * SETS_OF_EACH / (time.perf_counter() - started)


async def _set_alone(store: MetadataStore) -> float:
    path = await store.create("/alone", VALUE)
    return await _p50_us(lambda turn: store.set(path, VALUE, turn))


async def _get_alone(store: MetadataStore) -> float:
    path = await store.create("/alone", VALUE)
    return await _p50_us(lambda _: store.get(path))


async def _p50_us(call: Callable[[int], Awaitable[object]]) -> float:
    times = []
    for turn in range(ALONE):
        started = time.perf_counter()
        await call(turn)
        times.append(time.perf_counter() - started)
    return median(times) * 1e6
