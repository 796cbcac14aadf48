"""Calls that a server relays to the owner for a client that cannot reach the owner."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from rollbook.api.access.authenticator import Authenticator
from rollbook.api.access.core.access_file import digest_of
from rollbook.api.access.core.quotas import Meter
from rollbook.api.client.async_client import Client, connect
from rollbook.api.client.channels import Channels, Security
from rollbook.api.grpc.config import GrpcConfig
from rollbook.api.grpc.peer_channels import GrpcPeers
from rollbook.api.grpc.protobuf_conversion import pack
from rollbook.api.grpc.relay import Relay, RelayedAppends, wanted_server
from rollbook.api.grpc.server import GrpcServer
from rollbook.api.grpc.status import LISTENS_KEY, error_of_call, status_of, text_of, trailers_of
from rollbook.api.rpc_methods import BY_REQUEST, RELAY_KEY, RELAYED_KEY
from rollbook.logservice import messages
from rollbook.logservice.core.record_block import pack_block
from rollbook.logservice.ids import LogName
from rollbook.proto.errors import (
    ConnectionLost,
    NotOwner,
    Outcome,
    Overloaded,
    RollbookError,
    ServerUnreachable,
    Unauthorized,
)
from rollbook.proto.ports import Address
from tests.messages import raises_message
from tests.unit.api.client.conftest import PATIENT
from tests.unit.api.grpc.fake_core import FakeCluster, FakeCore

DEADLINE_S = 30.0
LOG = LogName("ns", "log")
OWNER = "b.invalid:7400"
PEERS_TOKEN = "canary-token-of-the-servers-0123456789"


def token_of(name: str) -> str:
    return f"canary-token-of-{name}-0123456789abcdef"


class Inside(GrpcPeers):
    """Connections between servers, which can reach the owner; the client cannot."""

    def __init__(self, owner: str, **settings: Any) -> None:
        self._owner = owner
        self.asked = 0
        super().__init__(lambda: Security(token=PEERS_TOKEN, insecure=True), **settings)

    def _new_line(self) -> Any:
        line, peers = super()._new_line(), self
        channels: Any = line.channels
        connect_to = channels._to

        def connect_inside(address: str, *, waits: bool) -> Any:
            peers.asked += 1
            return connect_to(peers._owner if address == OWNER else address, waits=waits)

        channels._to = connect_inside
        return line


@dataclass
class Site:
    owner: FakeCore
    entry: FakeCore
    servers: tuple[GrpcServer, GrpcServer]
    peers: Inside
    clients: list[Client]
    authenticators: tuple[Authenticator, Authenticator]  # Of the entry and of the owner.

    @property
    def url(self) -> str:
        return f"log://{self.servers[0].address}"

    def client(self, who: str) -> Client:
        self.clients.append(connect(self.url, PATIENT, token=token_of(who)))
        return self.clients[-1]

    async def ask(self, request: Any, who: str, at: int = 0, **headers: str) -> Any:
        channels = Channels(Security(token=token_of(who)))
        method, address = BY_REQUEST[type(request)], str(self.servers[at].address)
        shown = (
            *channels.shown_to(address),
            *((k.replace("_", "-"), v) for k, v in headers.items()),
        )
        try:
            return await channels.call(address, method.path)(
                pack(request).SerializeToString(), timeout=DEADLINE_S, metadata=shown
            )
        except Exception as error:
            if isinstance(error, RollbookError) or not hasattr(error, "trailing_metadata"):
                raise
            failed: Any = error
            raise error_of_call(
                failed.code(), failed.details() or "", failed.trailing_metadata()
            ) from None
        finally:
            await channels.close()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """The entry is `a`, the owner of the log is `b`."""
    token_file, access_file = tmp_path / "token", tmp_path / "access.toml"
    token_file.write_text(PEERS_TOKEN)
    token_file.chmod(0o600)
    rights = {
        "writer": 'read = ["ns/*"]\nappend = ["ns/*"]\nadmin = ["ns/*"]',
        "reader": 'read = ["ns/*"]',
        "counted": 'read = ["ns/*"]\nread_records_per_s = 1000',
        "once": 'append = ["ns/*"]\nread = ["ns/*"]\nstreams = 1',
    }
    access_file.write_text(
        "\n".join(
            f'[principals.{name}]\ntokens = [{{ sha256 = "{digest_of(token_of(name))}" }}]\n{text}'
            for name, text in rights.items()
        )
    )
    cluster = FakeCluster()
    at_a, at_b = (Authenticator(str(token_file), str(access_file)) for _ in "ab")
    owner, entry = FakeCore(cluster, "b"), FakeCore(cluster, "a")
    at_owner = await GrpcServer.start(owner, GrpcConfig(Address("127.0.0.1", 0)), at_b)
    peers = Inside(str(at_owner.address), shows=((RELAYED_KEY, "1"),))
    relay = Relay(peers, lambda address: address == OWNER)
    at_entry = await GrpcServer.start(entry, GrpcConfig(Address("127.0.0.1", 0)), at_a, relay)
    cluster.addresses |= {"a": str(at_entry.address), "b": OWNER}
    cluster.make(str(LOG)).owner = OWNER
    found = Site(owner, entry, (at_entry, at_owner), peers, [], (at_a, at_b))
    yield found
    for client in found.clients:
        await client.close()
    await at_entry.close(0)
    await peers.close()
    await at_owner.close(0)


async def test_client_appends_and_reads_through_a_relay(
    site: Site,
) -> None:
    """RY3: covers a writer, single appends and reads."""
    for who in (
        "writer",
        "once",
    ):  # `once` may open one stream at a time, of appends and then of reads.
        client = site.client(who)
        log = await client.open(LOG)
        first = (await log.append(b"alone")).first_offset
        if who == "once":
            await client.close()
            client = site.client(who)
            log = await client.open(LOG)
        else:
            async with log.writer() as writer:
                for number in range(100):
                    writer.submit(b"%d" % number)
        values = [record.value async for record in log.read(start=first)]
        assert values == [b"alone", *(b"%d" % number for number in range(100))][: len(values)]
        assert len(values) == (101 if who == "writer" else 1)
    assert site.client("writer").owners.routes.unreachable == ()
    assert client.owners.routes.unreachable == (OWNER,)
    assert site.owner.streams
    assert not site.entry.streams, "the append stream is open at the owner"


async def test_seal_is_relayed_to_the_owner(site: Site) -> None:
    """RY1: the entry relays to the owner that it knows."""
    client = site.client("writer")
    log = await client.open(LOG)
    assert (await log.seal()) == 0


async def test_relayed_reads_count_against_the_readers_quota_at_the_entry(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RY2."""
    taken: list[tuple[Meter, int]] = []
    take = Meter.take

    def count(meter: Meter, records: int, size: int, now_ns: int) -> None:
        taken.append((meter, records))
        take(meter, records, size, now_ns)

    monkeypatch.setattr(Meter, "take", count)
    site.owner.cluster.log(LOG).append(pack_block([b"x"] * 10), None)
    client = site.client("counted")
    log = await client.open(LOG)
    assert len([record async for record in log.read()]) == 10
    at_entry, at_owner = (each._accounts.get("counted") for each in site.authenticators)
    assert at_entry is not None
    assert sum(records for meter, records in taken if meter is at_entry.reads) == 10
    assert at_owner is None  # The owner sees only the principal of the servers.


async def test_relay_refuses_what_the_caller_has_no_right_to(site: Site) -> None:
    """RY2: a call that the entry refuses never reaches the owner."""
    append = messages.Append(LOG, pack_block([b"x"]))
    with pytest.raises(Unauthorized):
        await site.ask(append, "reader", log_relay=OWNER)
    client = site.client("reader")
    client.owners.learn(LOG, OWNER, 1)
    log = await client.open(LOG)
    with pytest.raises(Unauthorized):
        await log.append(b"x")
    assert not site.owner.cluster.log(LOG).blocks


async def test_relayed_call_is_never_relayed_again(site: Site) -> None:
    """RY1: two servers that each take the other one for the owner cannot relay in a loop."""
    append = messages.Append(LOG, pack_block([b"x"]))
    before = site.peers.asked
    with pytest.raises(NotOwner):
        await site.ask(append, "writer", log_relay=OWNER, log_relayed="1")
    assert site.peers.asked == before
    assert wanted_server(((RELAY_KEY, OWNER), (RELAYED_KEY, "1"))) == ""
    assert wanted_server(((RELAY_KEY, OWNER),)) == OWNER


async def test_relay_connects_only_to_known_servers(site: Site) -> None:
    """RY1: a relay sends the servers' token only to servers."""
    before = site.peers.asked
    for wanted in ("169.254.169.254:80", "b.invalid:7401", "x" * 5000, "%00"):
        with raises_message(ServerUnreachable):
            await site.ask(messages.GetTail(LOG), "writer", log_relay=wanted)
    assert site.peers.asked == before


async def test_idempotency_key_is_the_same_relayed_and_direct(site: Site) -> None:
    """RY2: a repeat on the other way is a duplicate; a client that claims to relay is not believed."""
    relayed = await site.client("writer").open(LOG)
    first = await relayed.append(b"x", idempotency_key="k")
    url, token = f"log://{site.servers[1].address}", token_of("writer")
    direct = connect(url, PATIENT, token=token, insecure=True)
    site.clients.append(direct)
    channels: Any = direct.channels
    channels._to = _only(direct.channels, str(site.servers[1].address))
    again = await (await direct.open(LOG)).append(b"x", idempotency_key="k")
    assert again.is_duplicate
    assert again.first_offset == first.first_offset
    direct.channels._shows = ((RELAYED_KEY, "1"),)
    direct.channels._shown.clear()
    claimed = await (await direct.open(LOG)).append(b"x", idempotency_key="k")
    assert claimed.is_duplicate


def _only(channels: Channels, address: str) -> Any:
    connect_to = channels._to
    return lambda _, *, waits: connect_to(address, waits=waits)


class Call:
    """A stream to the owner that ends at once with this error."""

    def __init__(self, error: RollbookError, *, listens: bool) -> None:
        self._error, self._listens = error, listens

    async def initial_metadata(self) -> Any:
        return grpc.aio.Metadata((LISTENS_KEY, "1")) if self._listens else None

    async def write(self, _: bytes) -> None:
        await asyncio.sleep(0)

    async def read(self) -> Any:
        await asyncio.sleep(0)
        return grpc.aio.EOF

    async def code(self) -> Any:
        return status_of(self._error)

    async def details(self) -> str:
        return text_of(self._error)

    async def trailing_metadata(self) -> Any:
        return trailers_of(self._error)

    def cancel(self) -> None:
        pass


@pytest.mark.parametrize("kind", [ServerUnreachable, Unauthorized, NotOwner, Overloaded])
async def test_append_on_a_broken_relay_has_outcome_unknown(kind: type[RollbookError]) -> None:
    """RY3: once the owner's stream was open, the entry cannot know what the owner has done."""
    stream = RelayedAppends(Call(kind("why"), listens=True), OWNER)
    await stream.open()
    stream.submit([], [messages.StreamAppend(1, 1, b"x")])
    for wait in (stream.results, stream.ready):
        with pytest.raises(ConnectionLost) as caught:
            await wait()
        assert caught.value.outcome is Outcome.UNKNOWN
    await stream.close()


async def test_refusal_before_the_relay_opens_keeps_its_error() -> None:
    """RY3: nothing was sent, so the client may retry at another server."""
    stream = RelayedAppends(Call(Overloaded("full"), listens=False), OWNER)
    with pytest.raises(Overloaded):
        await stream.open()
    await stream.close()


async def test_owner_refusing_the_relay_is_reported_as_unreachable(site: Site) -> None:
    """RY2: the caller is not at fault and may retry at another server."""
    site.peers._security = lambda: Security(
        token="not-the-token-of-the-servers-012345", insecure=True
    )
    await site.peers.close()
    site.peers._line = site.peers._new_line()
    with raises_message(ServerUnreachable):
        await site.ask(messages.Append(LOG, pack_block([b"x"])), "writer", log_relay=OWNER)
