"""Named logs over HTTP: client → log server → three bookies, each a process; every ack is synced.

The client is a few sockets that send prebuilt bytes, so that its own cost is not measured.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from rollbook.proto.ports import Address
from tests.bench import Figure, judged
from tests.support import bookies, log_processes
from tests.support.log_processes import LogProcesses
from tests.support.processes import Child
from tests.unit.api.rest.http_client import Connection

BATCH_BYTES: Final = 64 * 1024
RECORD_BYTES: Final = 100
LINE: Final = b'{"data":"' + b"x" * RECORD_BYTES + b'"}\n'
SLOW_READERS: Final = 1_000
IDLE_CONNECTIONS: Final = 10_000
MIB: Final = 1024 * 1024
_PATIENCE_S: Final = 60.0


@dataclass(frozen=True)
class Size:
    seconds: float = 4.0
    connections: int = 4
    alone: int = 500
    tailed: int = 300
    backlog_batches: int = 400


FULL: Final = Size()


def figures(runs: int, size: Size = FULL) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder, log_processes.running(Path(folder)) as cluster:
        server = RestServer(cluster)

        def run(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
            return asyncio.run(work())

        found = [run(lambda: append_batches(server, size)) for _ in range(runs)]
        yield judged(
            "appends of 64 KiB of NDJSON, records of 100 B",
            "records/s",
            150_000,
            [rate for rate, _ in found],
        )
        yield judged(
            "CPU of the log server for each of them", "µs", None, [cpu_us for _, cpu_us in found]
        )
        alone = [run(lambda: append_alone(server, size)) for _ in range(runs)]
        yield judged("a record alone, one after the other: p50", "ms", None, [a for a, _ in alone])
        yield judged("the same: p99", "ms", None, [b for _, b in alone])
        tails = [run(lambda: tail_events(server, size)) for _ in range(runs)]
        yield judged(
            "from the append to the event, at 100/s: p50", "ms", 5.0, [a for a, _ in tails]
        )
        yield judged("the same: p99", "ms", None, [b for _, b in tails])
        for name, kind in (("SSE", "text/event-stream"), ("NDJSON", "application/x-ndjson")):
            followed = [run(partial(follow_backlog, server, size, kind)) for _ in range(runs)]
            yield judged(f"a long log of 100 B, followed as {name}", "records/s", None, followed)
        yield judged(
            f"memory of {SLOW_READERS:,} readers that take nothing of a long log",
            "MiB",
            128,
            [run(lambda: slow_readers(server, size)) for _ in range(1)],
        )
        idle = [run(lambda: idle_connections(server, size)) for _ in range(runs)]
        beside = f"beside {IDLE_CONNECTIONS:,} connections that say nothing"
        yield judged(f"a record alone {beside}: p99, times", "x", 1.5, [a for a, _ in idle])
        yield judged(f"memory {beside}", "MiB", 128, [b for _, b in idle])


class RestServer:
    def __init__(self, cluster: LogProcesses) -> None:
        self.child: Child = cluster.children.start_module(
            "rollbook.api.cli.main",
            "server",
            "log",
            "--metadata",
            cluster.metadata,
            "--server-name",
            "log-1",
            "--listen",
            "127.0.0.1:0",
            "--rest",
            "127.0.0.1:0",
            "--log-level",
            "error",
        )
        while not (line := self.child.line(bookies.PATIENCE_S)).startswith("rest "):
            pass
        host, _, port = line.strip().rpartition("/")[2].partition(":")
        self.place = host, int(port)
        while not self.child.line(bookies.PATIENCE_S).startswith("ready:"):
            pass

    @property
    def address(self) -> Address:
        return Address(*self.place)

    @property
    def cpu_s(self) -> float:
        return bookies.cpu_s(self.child.pid)

    @property
    def resident_bytes(self) -> int:
        lines = Path(f"/proc/{self.child.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) * 1024

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        reader, writer = await asyncio.open_connection(*self.place, limit=MIB)
        try:
            yield Connection(reader, writer)
        finally:
            writer.close()


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    sent = {"host": "127.0.0.1", "content-length": str(len(body)), **headers}
    lines = [f"{method} {path} HTTP/1.1"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in sent.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def log_path(name: str) -> str:
    return f"/v1/namespaces/bench/logs/{name}"


async def made(connection: Connection, name: str) -> str:
    path = log_path(name)
    answer = await connection.ask(request("PUT", path))
    assert answer.status in (200, 201), answer.body
    return path


async def make_logs(server: RestServer, short: str, long: str) -> None:
    """The first one is empty; of the second nobody can take all unread."""
    lines = LINE * (BATCH_BYTES // len(LINE))
    async with server.connection() as connection:
        for path in (short, long):
            answer = await connection.ask(request("PUT", path))
            assert answer.status in (200, 201), answer.body
        said = request("POST", f"{long}/records", lines, content_type="application/x-ndjson")
        for _ in range(50):
            assert (await connection.ask(said)).status == 201


async def is_served(server: RestServer, path: str) -> bool:
    """Whether a record can be appended and read."""
    async with server.connection() as connection:
        said = request("POST", f"{path}/records", b"x", content_type="application/octet-stream")
        appended = await connection.ask(said)
        read = await connection.ask(request("GET", f"{path}/records?from=-1"))
        return (appended.status, read.status) == (201, 200) and b'"data":"x"' in read.body


async def append_batches(server: RestServer, size: Size) -> tuple[float, float]:
    """Records a second, and the server's CPU for each, in µs: one log to a connection."""
    count = BATCH_BYTES // len(LINE)
    lines = LINE * count
    start_cpu = 0.0

    async def work(number: int, is_ready: asyncio.Barrier, until: list[float]) -> int:
        async with server.connection() as connection:
            path = await made(connection, f"batches-{number}")
            said = request("POST", f"{path}/records", lines, content_type="application/x-ndjson")
            await connection.ask(said)
            await is_ready.wait()
            done = 0
            while time.monotonic() < until[0]:
                answer = await connection.ask(said)
                assert answer.status == 201, answer.body
                done += count
            return done

    until = [0.0]
    barrier = asyncio.Barrier(size.connections + 1)
    workers = [
        asyncio.create_task(work(number, barrier, until)) for number in range(size.connections)
    ]
    until[0] = time.monotonic() + 3600
    await barrier.wait()
    start_cpu, started = server.cpu_s, time.monotonic()
    until[0] = started + size.seconds
    done = sum(await asyncio.gather(*workers))
    seconds = time.monotonic() - started
    return done / seconds, (server.cpu_s - start_cpu) / done * 1e6


async def append_alone(server: RestServer, size: Size) -> tuple[float, float]:
    async with server.connection() as connection:
        path = await made(connection, "alone")
        said = request(
            "POST", f"{path}/records", b"x" * RECORD_BYTES, content_type="application/octet-stream"
        )
        taken = []
        for _ in range(size.alone):
            started = time.monotonic()
            answer = await connection.ask(said)
            assert answer.status == 201, answer.body
            taken.append((time.monotonic() - started) * 1000)
        return median(taken), quantiles(taken, n=100)[98]


async def tail_events(server: RestServer, size: Size) -> tuple[float, float]:
    async with server.connection() as writing, server.connection() as reading:
        path = await made(writing, "tailed")
        follow = request("GET", f"{path}/records?from=latest", accept="text/event-stream")
        reading.writer.write(follow)
        assert (await reading.head()).status == 200
        taken: list[float] = []

        async def hear() -> None:
            while len(taken) < size.tailed:
                line = await reading.reader.readuntil(b"\n")
                if line.startswith(b'data: {"records"'):
                    now = time.monotonic()
                    found = json.loads(line[6:])["records"]
                    taken.extend((now - float(each["data"])) * 1000 for each in found)

        hearing = asyncio.create_task(hear())
        while not hearing.done():
            sent = repr(time.monotonic()).encode()
            said = request("POST", f"{path}/records", sent, content_type="application/octet-stream")
            assert (await writing.ask(said)).status == 201
            await asyncio.sleep(0.01)
        await hearing
        return median(taken), quantiles(taken, n=100)[98]


async def follow_backlog(server: RestServer, size: Size, kind: str) -> float:
    """Records a second, by one follower that reads them as fast as they come. All of it, so that its start counts."""
    async with server.connection() as connection:
        path, records = await _made_long(connection, size)
        started = time.monotonic()
        asked = request("GET", f"{path}/records?from=0&until={records}", accept=kind)
        connection.writer.write(asked)
        last = b""
        while b"stopped" not in last:
            part = await connection.reader.read(MIB)
            assert part, "hung up on"
            last = (last + part)[-1000:]
        return records / (time.monotonic() - started)


async def _made_long(connection: Connection, size: Size) -> tuple[str, int]:
    """It, and how many records it has: made once."""
    path = await made(connection, "long")
    count = BATCH_BYTES // len(LINE)
    said = request("POST", f"{path}/records", LINE * count, content_type="application/x-ndjson")
    told = await connection.ask(request("GET", f"{path}/tail"))
    for _ in range(told.json["tail"] // count, size.backlog_batches):
        assert (await connection.ask(said)).status == 201
    return path, count * size.backlog_batches


async def slow_readers(server: RestServer, size: Size) -> float:
    """Cost of slow readers for a server that has the records in its caches."""
    async with server.connection() as connection:
        path, _ = await _made_long(connection, size)
        before = server.resident_bytes
        most = before
        follow = request("GET", f"{path}/records?from=0", accept="text/event-stream")
        held = []
        for number in range(SLOW_READERS):
            _, writer = await asyncio.open_connection(*server.place, limit=1024)
            writer.write(follow)
            held.append(writer)
            if number % 50 == 0:
                most = max(most, server.resident_bytes)
        ended_at = time.monotonic() + 8.0
        while time.monotonic() < ended_at:
            most = max(most, server.resident_bytes)
            await asyncio.sleep(0.1)
        for writer in held:
            writer.transport.abort()
        return (most - before) / MIB


async def idle_connections(server: RestServer, size: Size) -> tuple[float, float]:
    """How many times longer appends take beside them, and what they cost the server.

    Those that are one too many have taken each other's place.
    """
    _, p99_ms = await append_alone(server, size)
    before = server.resident_bytes
    held = [await asyncio.open_connection(*server.place) for _ in range(IDLE_CONNECTIONS)]
    _, beside_ms = await append_alone(server, size)
    cost = server.resident_bytes - before
    for _, writer in held:
        writer.transport.abort()
    return beside_ms / p99_ms, cost / MIB
