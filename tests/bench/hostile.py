"""CPU and memory that hostile connections cost a bookie process, by kind and with 1,000 at once.

CPU is that of the whole process from before the attack until it is quiet again; memory is the
growth of the resident peak. Each kind of attack gets a new bookie, because freed memory is not
always returned to the system and would hide the cost of later kinds. Each kind runs once, because
CPU and memory of fifty connections hardly vary; the effect of all kinds on other clients is
measured in several runs.

The second part attacks a log server's HTTP with each kind, twenty connections per second from
another process, and measures p99 of single appends during the attack and in the seconds before and
after. The third part does the same with gRPC and TLS: attackers with unknown certificates, the part
of that which is gRPC's own (a server without Rollbook), and attackers without a certificate.
`--only "HTTP, noise"` tries one kind alone.
"""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

import grpc

from rollbook.proto.ports import Address
from rollbook.proto.runtime.tls import TlsFiles
from tests.bench import Figure, judged, parts_of, rest, show_progress
from tests.bench.rest import RestServer
from tests.hostile import guarded
from tests.hostile.attacks import Attack, attacks
from tests.hostile.bare_grpc import ECHO
from tests.hostile.grpc_attacks import OF_GRPC_ITSELF, lasting_grpc_attacks
from tests.hostile.guarded import GuardedServer
from tests.hostile.http_attacks import LOG, LONG_LOG, http_attacks
from tests.hostile.run import bookie, cost_of, cost_of_all
from tests.support import log_processes, processes
from tests.support.bookies import RunningBookie
from tests.support.certificates import Authority
from tests.support.processes import Child, Family

_EACH: Final = 50
_MANY: Final = 1_000
_KIB: Final = 1024
_EACH_SECOND: Final = 20
_SECONDS: Final = 2.0
_MOB_STARTS_S: Final = 1.5
_MOB_S: Final = _SECONDS + 2  # Counted when it has started.
_ASKED_EVERY_S: Final = 0.005
_RAW: Final = "application/octet-stream"
_BARE: Final = "gRPC with nothing of ours"
_NAMELESS: Final = "gRPC, without a certificate"


def figures(runs: int, *, only: Collection[str] | None = None) -> Iterator[Figure]:
    """`only`: keys of `PARTS`, or single kinds of attacks on a log server (`HTTP, noise`)."""
    parts = PARTS | (_single_kinds() if only else {})
    wanted = parts_of(parts, only)
    for name, part in parts.items():
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


@dataclass(frozen=True)
class _Door:
    """An interface of a log server and the attacks on it."""

    name: str
    kinds: Sequence[Attack]
    mob_of: Callable[[Attack], Child]  # It comes for `_MOB_S`.
    p99_ms: Callable[[], float]  # Of somebody who appends a record at a time, for `_SECONDS`.
    resident_bytes: Callable[[], int]
    beyond_us: Collection[str] = ()  # Kinds that are shown without a target.


def _beside_mobs(
    open_door: Callable[[], AbstractContextManager[_Door]], runs: int, kind: str = ""
) -> Iterator[Figure]:
    """`kind`: that one alone."""
    with open_door() as door:
        kinds = [each for each in door.kinds if each.name == kind] if kind else door.kinds
        before = door.resident_bytes()
        p99s_alone = [door.p99_ms() for _ in range(2)]
        for at, attack in enumerate(kinds):
            show_progress(attack.name, at, len(kinds))
            p99s = []
            for _ in range(runs):
                mob = door.mob_of(attack)
                time.sleep(_MOB_STARTS_S)
                p99s.append(door.p99_ms())
                assert mob.wait() == 0, f"the mob failed: {attack.name}"
                p99s_alone.append(door.p99_ms())
            alone = median(p99s_alone[-runs - 1 :])
            show_progress("", 1, 1)
            name = f"{door.name}, {attack.name}: p99 of others, times"
            target = None if attack.name in door.beyond_us else 1.5
            yield judged(name, "x", target, [each / alone for each in p99s])
        grown = (door.resident_bytes() - before) / _KIB**2
        what = kind or "all kinds"
        yield judged(f"{door.name}, {what}: memory in all", "MiB", 64.0, [grown])


@contextmanager
def _http() -> Iterator[_Door]:
    with tempfile.TemporaryDirectory() as folder, log_processes.running(Path(folder)) as cluster:
        server = RestServer(cluster)
        asyncio.run(rest.make_logs(server, LOG, LONG_LOG))

        def mob_of(attack: Attack) -> Child:
            return cluster.children.start_module(
                "tests.hostile.http_attacks",
                server.address.host,
                str(server.address.port),
                attack.name,
                str(_MOB_S),
                str(_EACH_SECOND),
            )

        yield _Door(
            "HTTP",
            http_attacks(),
            mob_of,
            p99_ms=lambda: asyncio.run(_p99_over_http_ms(server)),
            resident_bytes=lambda: server.resident_bytes,
        )


@contextmanager
def _grpc(*, has_certificates: bool = True) -> Iterator[_Door]:
    with (
        tempfile.TemporaryDirectory() as folder,
        log_processes.running(Path(folder)) as cluster,
        asyncio.Runner() as runner,
    ):
        certificates = Path(folder) / "tls"
        certificates.mkdir()
        server = GuardedServer(cluster, certificates)
        runner.run(server.make_logs())
        shown = server.shown["stranger"] if has_certificates else TlsFiles("")
        name, kinds = (
            ("gRPC", lasting_grpc_attacks()) if has_certificates else (_NAMELESS, _worst())
        )
        yield _Door(
            name,
            kinds,
            partial(_grpc_mob, cluster.children, server.grpc, server.authority, shown),
            p99_ms=lambda: runner.run(_p99_over_grpc_ms(server)),
            resident_bytes=lambda: server.process.resident_bytes,
            beyond_us=OF_GRPC_ITSELF if has_certificates else (),
        )


@contextmanager
def _bare_grpc() -> Iterator[_Door]:
    with (
        tempfile.TemporaryDirectory() as folder,
        processes.family() as children,
        asyncio.Runner() as runner,
    ):
        authority = Authority.make(Path(folder))
        of_server = authority.issue("server", "IP:127.0.0.1")
        shown = authority.issue("stranger", "DNS:stranger.example")
        of_all = of_server.certificate, of_server.key, authority.certificate
        child = children.start_module("tests.hostile.bare_grpc", *of_all)
        process = RunningBookie(child)
        place = process.wait_ready()
        yield _Door(
            _BARE,
            _worst(),
            partial(_grpc_mob, children, place, authority, shown),
            p99_ms=lambda: runner.run(_p99_of_bare_grpc_ms(place, shown)),
            resident_bytes=lambda: process.resident_bytes,
            beyond_us=OF_GRPC_ITSELF,
        )


def _worst() -> list[Attack]:
    return [each for each in lasting_grpc_attacks() if each.name in OF_GRPC_ITSELF]


def _grpc_mob(
    children: Family, place: Address, authority: Authority, shown: TlsFiles, attack: Attack
) -> Child:
    return children.start_module(
        "tests.hostile.grpc_attacks",
        place.host,
        str(place.port),
        attack.name,
        str(_MOB_S),
        str(_EACH_SECOND),
        authority.certificate,
        shown.certificate,
        shown.key,
    )


async def _p99_over_http_ms(server: RestServer) -> float:
    said = rest.request("POST", f"{LOG}/records", bytes(100), content_type=_RAW)
    async with server.connection() as connection:

        async def append() -> None:
            answer = await connection.ask(said)
            assert answer.status == 201, answer.body

        return await _p99_on_time_ms(append)


async def _p99_over_grpc_ms(server: GuardedServer) -> float:
    """Of the member."""
    async with server.client("member") as client:
        log = await client.open(str(guarded.LOG))
        return await _p99_on_time_ms(lambda: log.append(bytes(100)))


async def _p99_of_bare_grpc_ms(place: Address, shown: TlsFiles) -> float:
    pems = shown.authorities, shown.key, shown.certificate
    credentials = grpc.ssl_channel_credentials(*(Path(pem).read_bytes() for pem in pems))
    async with grpc.aio.secure_channel(str(place), credentials) as channel:
        echo: Any = channel.unary_unary(ECHO)
        return await _p99_on_time_ms(lambda: echo(bytes(100)))


async def _p99_on_time_ms(ask: Callable[[], Awaitable[object]]) -> float:
    """p99 of requests at fixed times, measured from their due times.

    A client that waits for each response would send few requests during a stall and hide it.
    """
    await ask()  # It connects.
    taken: list[float] = []
    due = time.monotonic()
    ends_at = due + _SECONDS
    while due < ends_at:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        await ask()
        taken.append((time.monotonic() - due) * 1000)
        due += _ASKED_EVERY_S
    return quantiles(taken, n=100)[98]


_DOORS: Final[dict[str, Callable[[], AbstractContextManager[_Door]]]] = {
    "HTTP": _http,
    "gRPC": _grpc,
    _BARE: _bare_grpc,
    _NAMELESS: partial(_grpc, has_certificates=False),
}
PARTS: Final[dict[str, Callable[[int], Iterator[Figure]]]] = {
    "kinds": _kinds,
    "many": _many,
    **{name: partial(_beside_mobs, open_door) for name, open_door in _DOORS.items()},
}


def _single_kinds() -> dict[str, Callable[[int], Iterator[Figure]]]:
    """Each kind of attack on each interface, by the name of its figure: `HTTP, noise`."""
    kinds = {
        "HTTP": http_attacks(),
        "gRPC": lasting_grpc_attacks(),
        _BARE: _worst(),
        _NAMELESS: _worst(),
    }
    return {
        f"{name}, {each.name}": partial(_beside_mobs, _DOORS[name], kind=each.name)
        for name, found in kinds.items()
        for each in found
    }
