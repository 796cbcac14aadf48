"""What hostile connections cost a real bookie process: CPU and memory of each kind, and of 1,000 at once.

CPU is that of the whole process from before the attack until it is quiet again; memory is the most
that was resident over what was before. What is let go of is not always given back to the system, so
a kind that comes late may seem to cost nothing: each kind meets a bookie of its own. It meets it once:
CPU and memory of fifty hardly vary; what all of them do to others, at the same time, is measured in runs.

Then what each kind of attack on a log server's HTTP, twenty a second from another process, does to somebody
who appends a record at a time: p99 beside it, against p99 of the seconds before and after. And the same of gRPC behind
TLS, where those who attack have certificates that nobody knows.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Final

from tests.bench import Figure, judged, parts_of, rest, show_progress
from tests.bench.rest import RestServer
from tests.hostile import guarded
from tests.hostile.attacks import attacks
from tests.hostile.grpc_attacks import lasting_grpc_attacks
from tests.hostile.guarded import GuardedServer
from tests.hostile.http_attacks import LOG, LONG_LOG, http_attacks
from tests.hostile.run import bookie, cost_of, cost_of_all
from tests.support import log_processes

_EACH: Final = 50
_MANY: Final = 1_000
_KIB: Final = 1024
_EACH_SECOND: Final = 20
_SECONDS: Final = 2.0
_RAW: Final = "application/octet-stream"


def figures(runs: int, *, only: Collection[str] | None = None) -> Iterator[Figure]:
    """`only`: keys of `PARTS`."""
    wanted = parts_of(PARTS, only)
    for name, part in PARTS.items():
        if name in wanted:
            yield from part(runs)


def _kinds(_: int) -> Iterator[Figure]:
    kinds = attacks()
    for at, attack in enumerate(kinds):
        show_progress(attack.name, at, len(kinds))
        with tempfile.TemporaryDirectory() as folder, bookie(Path(folder)) as found:
            cost = cost_of(found, attack, _EACH)
        show_progress("", 1, 1)
        yield judged(f"{attack.name}: CPU", "ms", 10.0, [cost.cpu_ms_each])
        yield judged(f"{attack.name}: memory", "KiB", 1024.0, [cost.bytes_each / _KIB])


def _many(runs: int) -> Iterator[Figure]:
    costs, p99s, refused = [], [], []
    for run in range(runs):
        show_progress("all of them at once", run, runs)
        with tempfile.TemporaryDirectory() as folder, bookie(Path(folder)) as found:
            cost, good = asyncio.run(cost_of_all(found, _MANY))
            costs.append(cost)
            p99s.append(1000 * quantiles(good.latencies_s, n=100)[98])
            refused.append(good.refused)
    show_progress("", 1, 1)
    name = f"{_MANY:,} connections of all kinds"
    grown = [cost.grown_bytes / _KIB**2 for cost in costs]
    yield judged(f"{name}: CPU of each", "ms", 10.0, [cost.cpu_ms_each for cost in costs])
    yield judged(f"{name}: memory in all", "MiB", 64.0, grown)
    yield judged(f"{name}: adds of others refused", "adds", 0.0, refused)
    yield judged(f"{name}: ten adds of others, p99", "ms", None, p99s)


def _over_http(runs: int) -> Iterator[Figure]:
    kinds = http_attacks()
    with tempfile.TemporaryDirectory() as folder, log_processes.running(Path(folder)) as cluster:
        server = RestServer(cluster)
        asyncio.run(rest.make_logs(server, LOG, LONG_LOG))
        before = server.resident_bytes
        p99s_alone = [asyncio.run(_p99_ms(server)) for _ in range(2)]
        for at, attack in enumerate(kinds):
            show_progress(attack.name, at, len(kinds))
            p99s = []
            for _ in range(runs):
                command = (str(server.address.host), str(server.address.port), attack.name)
                mob = cluster.children.start_module(
                    "tests.hostile.http_attacks", *command, str(_SECONDS + 2), str(_EACH_SECOND)
                )
                time.sleep(1.0)  # It starts.
                p99s.append(asyncio.run(_p99_ms(server)))
                assert mob.wait() == 0, f"the mob failed: {attack.name}"
                p99s_alone.append(asyncio.run(_p99_ms(server)))
            alone = median(p99s_alone[-runs - 1 :])
            show_progress("", 1, 1)
            name = f"HTTP, {attack.name}: p99 of others, times"
            yield judged(name, "x", 1.5, [each / alone for each in p99s])
        grown = (server.resident_bytes - before) / _KIB**2
        yield judged("HTTP, all kinds: memory in all", "MiB", 64.0, [grown])


async def _p99_ms(server: RestServer) -> float:
    """Of a record alone, for a while."""
    said = rest.request("POST", f"{LOG}/records", bytes(100), content_type=_RAW)
    taken: list[float] = []
    async with server.connection() as connection:
        ends_at = time.monotonic() + _SECONDS
        while (began := time.monotonic()) < ends_at:
            status, body = await connection.ask(said)
            assert status == 201, body
            taken.append((time.monotonic() - began) * 1000)
    return quantiles(taken, n=100)[98]


def _over_grpc(runs: int) -> Iterator[Figure]:
    kinds = lasting_grpc_attacks()
    with (
        tempfile.TemporaryDirectory() as folder,
        log_processes.running(Path(folder)) as cluster,
        asyncio.Runner() as runner,
    ):
        certificates = Path(folder) / "tls"
        certificates.mkdir()
        server = GuardedServer(cluster, certificates)
        runner.run(server.make_logs())
        before = server.process.resident_bytes
        shown = server.shown["stranger"]
        p99s_alone = [runner.run(_p99_over_grpc_ms(server)) for _ in range(2)]
        for at, attack in enumerate(kinds):
            show_progress(attack.name, at, len(kinds))
            p99s = []
            for _ in range(runs):
                mob = cluster.children.start_module(
                    *("tests.hostile.grpc_attacks", server.grpc.host, str(server.grpc.port)),
                    *(attack.name, str(_SECONDS + 2), str(_EACH_SECOND)),
                    *(shown.authorities, shown.certificate, shown.key),
                )
                time.sleep(1.5)  # It starts.
                p99s.append(runner.run(_p99_over_grpc_ms(server)))
                assert mob.wait() == 0, f"the mob failed: {attack.name}"
                p99s_alone.append(runner.run(_p99_over_grpc_ms(server)))
            alone = median(p99s_alone[-runs - 1 :])
            show_progress("", 1, 1)
            name = f"gRPC, {attack.name}: p99 of others, times"
            yield judged(name, "x", 1.5, [each / alone for each in p99s])
        grown = (server.process.resident_bytes - before) / _KIB**2
        yield judged("gRPC, all kinds: memory in all", "MiB", 64.0, [grown])


async def _p99_over_grpc_ms(server: GuardedServer) -> float:
    """As `_p99_ms`, of the member."""
    taken: list[float] = []
    async with server.client("member") as client:
        log = await client.open(str(guarded.LOG))
        await log.append(bytes(100))  # It connects.
        ends_at = time.monotonic() + _SECONDS
        while (began := time.monotonic()) < ends_at:
            await log.append(bytes(100))
            taken.append((time.monotonic() - began) * 1000)
    return quantiles(taken, n=100)[98]


PARTS: Final[dict[str, Callable[[int], Iterator[Figure]]]] = {
    "kinds": _kinds,
    "many": _many,
    "HTTP": _over_http,
    "gRPC": _over_grpc,
}
