"""Hostile connections to the gRPC and HTTP ports of a log server behind TLS with client certificates.

Each gets a response or is closed and costs little, and other clients are served.
"""

import asyncio
import random
import socket
import ssl
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import grpc
import pytest

from rollbook.api.rpc_methods import BY_REQUEST, MESSAGE_BYTES_MAX
from rollbook.logservice import messages
from rollbook.proto.errors import OutcomeUnknown, Unavailable
from rollbook.proto.ports import Address
from rollbook.proto.v1 import admin_pb2, log_pb2
from tests.hostile.attacks import Attack, End, Mob, all_have_ended
from tests.hostile.grpc_attacks import IDLE, grpc_attacks, pings, slow_grpc_attacks, taken_back
from tests.hostile.guarded import LOG, TOKENS, GuardedServer
from tests.hostile.http_attacks import LOG as PATH
from tests.hostile.http_attacks import http_attacks
from tests.support import log_processes
from tests.unit.api.rest.http_client import Client as HttpClient

_COUNT: Final = 20
_IDLE: Final = 1_000
_PATIENCE_S: Final = 60.0
_STUCK_S: Final = 5.0  # A client that can send nothing for this long is stuck.
_PING_ANSWERED: Final = b"\x08\x06\x01"  # Header of an answer to a ping, after two bytes.
_LINGER_S: Final = 0.2  # Time for connections that stay open to have an effect.
_MIB: Final = 1024 * 1024
_GROWN_MIB_MAX: Final = 64  # Limit for each kind. A call that is held open takes 20 KiB.
_APPEND: Final = BY_REQUEST[messages.Append].path
_GET_LOG: Final = BY_REQUEST[messages.GetLog].path
_EACH: Final = 10  # Attackers of each kind, where all kinds attack at once.
_HUNG_UP: Final = 0
_NOTHING: Final = MappingProxyType(dict[str, str]())


class Victim:
    """The server, and the event loop on which all clients run that are no attackers."""

    def __init__(self, server: GuardedServer, runner: asyncio.Runner) -> None:
        self.server = server
        self._runner = runner

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(work)

    def besieged(
        self,
        *crowds: tuple[Address, Attack, int, ssl.SSLContext | None],
        others_may_wait: bool = False,
    ) -> tuple[Sequence[Any], float]:
        """Run attacks until they end as required, while others are served. Returns the attackers, and the server's growth
        in MiB.

        `others_may_wait`: other clients may have to retry.
        """
        server, process = self.server, self.server.process
        before = process.resident_bytes
        process.forget_peak()
        with Mob(server.grpc) as mob:
            for place, attack, count, tls in crowds:
                mob.add(attack, count, tls, place)
            assert mob.run(all_have_ended, _PATIENCE_S), [
                member.attack.name for member in mob.members if not member.has_ended
            ]
            lasts_until = time.monotonic() + _LINGER_S
            mob.run(lambda _: time.monotonic() > lasts_until, _PATIENCE_S)
            assert self.run(_served_in_the_end(server) if others_may_wait else server.is_served())
            return mob.members, (process.most_resident_bytes - before) / _MIB


async def _served_in_the_end(server: GuardedServer) -> bool:
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            try:
                return await server.is_served()
            except (Unavailable, OutcomeUnknown):
                await asyncio.sleep(0.1)


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    folder = tmp_path_factory.mktemp("tls")
    with (
        log_processes.running(tmp_path_factory.mktemp("cluster")) as cluster,
        asyncio.Runner() as runner,
    ):
        server = GuardedServer(cluster, folder)
        runner.run(server.make_logs())
        yield Victim(server, runner)


# --- Authentication and limits ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "token", "at_grpc", "at_http"),
    [
        ("member", "", "OK", 200),
        ("stranger", "", "PERMISSION_DENIED", 401),
        ("stranger", "elsewhere", "PERMISSION_DENIED", 403),
        ("stranger", "expired", "PERMISSION_DENIED", 401),
        ("member", "expired", "PERMISSION_DENIED", 401),
        ("over", "", "UNAVAILABLE", _HUNG_UP),
        (None, "elsewhere", "UNAVAILABLE", _HUNG_UP),
    ],
)
def test_grpc_and_http_authenticate_alike(
    victim: Victim, who: str | None, token: str, at_grpc: str, at_http: int
) -> None:
    """Cases: no token, wrong scope, expired token, expired certificate, no certificate."""
    shown = {"authorization": f"Bearer {TOKENS[token]}"} if token else {}
    asked = admin_pb2.GetLogRequest(log=str(LOG)).SerializeToString()
    assert victim.run(_status(victim.server, _GET_LOG, asked, who, shown)) == at_grpc
    assert victim.run(_http_status(victim.server, who, shown)) == at_http


async def _status(
    server: GuardedServer,
    path: str,
    message: bytes,
    who: str | None = "member",
    shown: Mapping[str, str] = _NOTHING,
    compression: grpc.Compression = grpc.Compression.NoCompression,
) -> str:
    pems = [server.authority.certificate]
    if who:
        pems += [server.shown[who].key, server.shown[who].certificate]
    credentials = grpc.ssl_channel_credentials(*(Path(pem).read_bytes() for pem in pems))
    options = (
        ("grpc.max_send_message_length", -1),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_metadata_size", _MIB),
    )
    async with grpc.aio.secure_channel(str(server.grpc), credentials, options) as channel:
        ask: Any = channel.unary_unary(path)
        metadata = tuple(shown.items())
        call = ask(message, timeout=_PATIENCE_S, metadata=metadata, compression=compression)
        code: grpc.StatusCode = await call.code()
        return code.name


async def _http_status(server: GuardedServer, who: str | None, shown: Mapping[str, str]) -> int:
    try:
        answer = await HttpClient(server.http, tls=server.context(who)).get(PATH, **shown)
    except (OSError, ValueError, IndexError):  # Closed before or after the request.
        return _HUNG_UP
    return answer.status


@pytest.mark.parametrize(
    "path",
    [
        "/rollbook.v1.LogAdmin/../LogAdmin/GetLog",
        "/rollbook.v1.LogAdmin%2FGetLog",
        "/rollbook.v1.LogAdmin/GetLog/",
        "/rollbook.v1.LogAdmin/getlog",
        "//rollbook.v1.LogAdmin/GetLog",
        "/",
    ],
)
def test_variant_of_a_method_path_is_unimplemented(victim: Victim, path: str) -> None:
    asked = admin_pb2.GetLogRequest(log=str(LOG)).SerializeToString()
    assert victim.run(_status(victim.server, path, asked)) == "UNIMPLEMENTED"


@pytest.mark.parametrize("name", ["", "bench/../x", "bench%2Fx", "bench/ä", "a/b/c", "/", "a/\0"])
def test_invalid_log_name_is_refused(victim: Victim, name: str) -> None:
    asked = admin_pb2.GetLogRequest(log=name).SerializeToString()
    assert victim.run(_status(victim.server, _GET_LOG, asked)) == "INVALID_ARGUMENT"


@pytest.mark.parametrize("zipped", [False, True], ids=["as it is", "zipped"])
def test_a_message_that_is_too_large_is_refused(victim: Victim, zipped: bool) -> None:
    """A compressed message is small until it is unpacked."""
    size = 64 * _MIB if zipped else MESSAGE_BYTES_MAX + 1
    asked = log_pb2.AppendRequest(log=str(LOG), block=bytes(size)).SerializeToString()
    how = grpc.Compression.Gzip if zipped else grpc.Compression.NoCompression
    process = victim.server.process
    before = process.resident_bytes
    process.forget_peak()
    status = victim.run(_status(victim.server, _APPEND, asked, compression=how))
    assert status == "RESOURCE_EXHAUSTED"
    assert process.most_resident_bytes - before <= 32 * _MIB


def test_too_large_metadata_is_refused(victim: Victim) -> None:
    asked = admin_pb2.GetLogRequest(log=str(LOG)).SerializeToString()
    shown = {f"h{number}": "x" * 1000 for number in range(100)}
    status = victim.run(_status(victim.server, _GET_LOG, asked, "member", shown))
    assert status == "RESOURCE_EXHAUSTED"


# --- Attacks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("attack", grpc_attacks(), ids=lambda attack: attack.name)
def test_an_attack_on_grpc_costs_little(attack: Attack, victim: Victim) -> None:
    server = victim.server
    _, grown = victim.besieged((server.grpc, attack, _COUNT, server.context("member", alpn="h2")))
    assert grown <= _GROWN_MIB_MAX


@pytest.mark.parametrize("attack", http_attacks(), ids=lambda attack: attack.name)
def test_attack_on_http_gets_its_expected_response(attack: Attack, victim: Victim) -> None:
    if attack.name == "HTTP/2":  # Known clients may use any host name.
        attack = replace(attack, end=End.ANSWERED, answer=b"HTTP/1.1 404")
    server = victim.server
    members, grown = victim.besieged((server.http, attack, _COUNT, server.context("member")))
    assert [each.heard[:60] for each in members if not each.heard.startswith(attack.answer)] == []
    assert grown <= _GROWN_MIB_MAX


def test_strangers_get_only_400_401_and_health_responses(victim: Victim) -> None:
    """An unreadable request gets 400 and others 401; only the health check is answered."""
    server = victim.server
    at_grpc, at_http = server.context("stranger", alpn="h2"), server.context("stranger")
    members, grown = victim.besieged(
        *((server.grpc, attack, _EACH, at_grpc) for attack in grpc_attacks()),
        *((server.http, attack, _EACH, at_http) for attack in http_attacks()),
    )
    for attack in http_attacks():
        allowed = {b"", b"HTTP/1.1 400 Bad Request", b"HTTP/1.1 401 Unauthorized"}
        if b"/healthz" in attack.first:
            allowed.add(b"HTTP/1.1 200 OK")
        told = [each.heard for each in members if each.attack == attack]
        assert {heard.partition(b"\r\n")[0] for heard in told} <= allowed, attack.name
    assert grown <= 128


def test_clients_without_a_certificate_get_no_response(victim: Victim) -> None:
    """gRPC must not parse their frames, since parsing costs more than sending."""
    server = victim.server
    nobody = server.context(None, alpn="h2")
    refused = [replace(attack, end=End.HUNG_UP) for attack in grpc_attacks()]
    members, grown = victim.besieged(*((server.grpc, attack, _EACH, nobody) for attack in refused))
    assert {each.heard for each in members} == {b""}
    assert grown <= _GROWN_MIB_MAX


def test_cancelled_calls_use_bounded_memory(victim: Victim) -> None:
    """Cancelled calls wait until gRPC looks at them; the queue of all connections together has a limit."""
    server = victim.server
    context = server.context("stranger", alpn="h2")
    crowd = (server.grpc, taken_back(5_000), _COUNT, context)
    _, grown = victim.besieged(crowd, others_may_wait=True)
    assert grown <= 384


def test_pings_are_not_read_while_their_answers_are_unread(victim: Victim) -> None:
    """The client sends more pings than fit into any buffers. While it is stuck, others are served.

    Once it reads, each ping is answered, so unread answers were the only reason.
    """
    server, process = victim.server, victim.server.process
    before = process.resident_bytes
    process.forget_peak()
    place = server.grpc.host, server.grpc.port
    with socket.create_connection(place) as plain, _stranger(server, plain) as connection:
        connection.settimeout(_STUCK_S)
        connection.sendall(IDLE.first)
        sent = _send_pings_until_stuck(connection)
        assert victim.run(server.is_served())
        connection.settimeout(_PATIENCE_S)
        _take_answers(connection, sent)
    assert (process.most_resident_bytes - before) / _MIB <= _GROWN_MIB_MAX


def _send_pings_until_stuck(connection: ssl.SSLSocket) -> int:
    """Returns the number of pings that were sent completely."""
    count = _MIB // 16 // 17
    for sent in range(0, 64 * 16 * count, count):
        try:
            connection.sendall(pings(count))
        except TimeoutError:
            return sent
    raise AssertionError("64 MiB of pings were read")


def _take_answers(connection: ssl.SSLSocket, count: int) -> None:
    taken, rest = 0, b""
    while taken < count:
        told = connection.recv(1 << 16)
        assert told, f"hung up on after {taken} of {count}"
        heard = rest + told
        taken += heard.count(_PING_ANSWERED)
        rest = heard[1 - len(_PING_ANSWERED) :]


def _stranger(server: GuardedServer, plain: socket.socket) -> ssl.SSLSocket:
    context = server.context("stranger", alpn="h2")
    return context.wrap_socket(plain, server_hostname=server.grpc.host)


# --- Slow and silent clients --------------------------------------------------------------------


def before_tls() -> list[Attack]:
    """Attacks in place of a TLS handshake; each is closed, at the latest after a while."""
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
    return [
        Attack("noise", random.Random(666).randbytes(64 * 1024), End.HUNG_UP),
        Attack("HTTP in the clear", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", End.HUNG_UP),
        Attack("HTTP/2 in the clear", IDLE.first, End.HUNG_UP),
        Attack("half a handshake", hello, End.HUNG_UP),
        Attack("half a handshake, and gone", hello, End.HUNG_UP, leaves=True),
        Attack("a handshake at one byte a second", hello[:1], End.HUNG_UP, drip=hello[1:]),
        Attack("nothing at all", b"", End.HUNG_UP),
    ]


def test_slow_and_broken_handshakes_are_closed(victim: Victim) -> None:
    """All kinds attack both ports at once, so that together they take as long as one."""
    server = victim.server
    before = [
        (place, attack, _COUNT, None)
        for place in (server.grpc, server.http)
        for attack in before_tls()
    ]
    behind = server.context("stranger", alpn="h2")
    slow = [(server.grpc, attack, _COUNT, behind) for attack in slow_grpc_attacks()]
    _, grown = victim.besieged(*before, *slow)
    assert grown <= _GROWN_MIB_MAX


@pytest.mark.parametrize("door", ["gRPC", "HTTP"])
def test_thousand_idle_connections_do_not_block_clients(victim: Victim, door: str) -> None:
    """Each has completed its TLS handshake. Afterwards the server closes their files."""
    server = victim.server
    files = server.process.open_files
    place, alpn = {"gRPC": (server.grpc, "h2"), "HTTP": (server.http, "http/1.1")}[door]
    attack = IDLE if door == "gRPC" else Attack("idle", b"", End.EITHER)
    _, grown = victim.besieged((place, attack, _IDLE, server.context("stranger", alpn=alpn)))
    assert grown <= 128
    deadline = time.monotonic() + _PATIENCE_S
    while server.process.open_files > files + _COUNT:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_server_still_serves_after_all_attacks(victim: Victim) -> None:
    assert victim.server.process.is_running
    assert victim.run(victim.server.is_served())
