"""Calls that one server relays to another one, for a client that cannot reach that one."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from rollbook.api.access.authenticator import Authenticator
from rollbook.api.access.core.access_file import digest_of
from rollbook.api.client.channels import Channels, Security
from rollbook.api.client.client import Client, connect
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
    """Servers know where the owner is; the client does not."""

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

    @property
    def url(self) -> str:
        return f"log://{self.servers[0].address}"

    def client(self, who: str) -> Client:
        self.clients.append(connect(self.url, PATIENT, token=token_of(who)))
        return self.clients[-1]

    async def ask(self, word: Any, who: str, at: int = 0, **headers: str) -> Any:
        channels = Channels(Security(token=token_of(who)))
        method, address = BY_REQUEST[type(word)], str(self.servers[at].address)
        shown = (
            *channels.shown_to(address),
            *((k.replace("_", "-"), v) for k, v in headers.items()),
        )
        try:
            return await channels.call(address, method.path)(
                pack(word).SerializeToString(), timeout=DEADLINE_S, metadata=shown
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
    authenticators = [Authenticator(str(token_file), str(access_file)) for _ in "ab"]
    owner, entry = FakeCore(cluster, "b"), FakeCore(cluster, "a")
    at_owner = await GrpcServer.start(owner, GrpcConfig(Address("127.0.0.1", 0)), authenticators[1])
    peers = Inside(str(at_owner.address), shows=((RELAYED_KEY, "1"),))
    relay = Relay(peers, lambda address: address == OWNER)
    at_entry = await GrpcServer.start(
        entry, GrpcConfig(Address("127.0.0.1", 0)), authenticators[0], relay
    )
    cluster.addresses |= {"a": str(at_entry.address), "b": OWNER}
    cluster.make(str(LOG)).owner = OWNER
    found = Site(owner, entry, (at_entry, at_owner), peers, [])
    yield found
    for client in found.clients:
        await client.close()
    await at_entry.close(0)
    await peers.close()
    await at_owner.close(0)


async def test_client_that_cannot_reach_the_owner_appends_and_reads_all_the_same(
    site: Site,
) -> None:
    """RY3: a writer, lone appends, reads, a tail, and calls that the owner alone answers."""
    for who in (
        "writer",
        "once",
    ):  # One stream of appends, and then one of reads: quotas hold at the entry.
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
    assert not site.entry.streams, "the owner has the stream"


async def test_calls_of_the_owner_alone_are_relayed(site: Site) -> None:
    """RY1: the entry asks the owner that it knows."""
    client = site.client("writer")
    log = await client.open(LOG)
    assert (await log.seal()) == 0


async def test_reader_with_a_quota_is_counted_at_the_entry(site: Site) -> None:
    """RY2: by what it was sent."""
    site.owner.cluster.log(LOG).append(pack_block([b"x"] * 10), None)
    client = site.client("counted")
    log = await client.open(LOG)
    assert len([record async for record in log.read()]) == 10


async def test_rights_are_those_of_the_caller_and_the_owner_is_not_asked(site: Site) -> None:
    """RY2: what is refused at the entry never gets further."""
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
    """RY1: two servers that both believe that the other one owns the log do not send a call round."""
    append = messages.Append(LOG, pack_block([b"x"]))
    before = site.peers.asked
    with pytest.raises(NotOwner):
        await site.ask(append, "writer", log_relay=OWNER, log_relayed="1")
    assert site.peers.asked == before
    assert wanted_server(((RELAY_KEY, OWNER), (RELAYED_KEY, "1"))) == ""
    assert wanted_server(((RELAY_KEY, OWNER),)) == OWNER


async def test_address_that_is_of_no_server_is_not_connected_to(site: Site) -> None:
    """RY1: an entry shows the servers' token to servers alone."""
    before = site.peers.asked
    for wanted in ("169.254.169.254:80", "b.invalid:7401", "x" * 5000, "%00"):
        with raises_message(ServerUnreachable):
            await site.ask(messages.GetTail(LOG), "writer", log_relay=wanted)
    assert site.peers.asked == before


async def test_idempotency_key_is_the_same_relayed_and_direct(site: Site) -> None:
    """RY2: a repetition on the other way is recognised; nobody but a server is believed to relay."""
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
    """A stream to the owner that ends at once, with that status."""

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
async def test_append_on_a_relay_that_breaks_is_in_doubt(kind: type[RollbookError]) -> None:
    """RY3: whatever the owner's stream ends with, once it was open the entry cannot know what the owner has done."""
    stream = RelayedAppends(Call(kind("why"), listens=True), OWNER)
    await stream.open()
    stream.submit([], [messages.StreamAppend(1, 1, b"x")])
    for wait in (stream.results, stream.ready):
        with pytest.raises(ConnectionLost) as caught:
            await wait()
        assert caught.value.outcome is Outcome.UNKNOWN
    await stream.close()


async def test_refusal_before_the_stream_is_open_says_so() -> None:
    """RY3: nothing was sent, and the client may try elsewhere."""
    stream = RelayedAppends(Call(Overloaded("full"), listens=False), OWNER)
    with pytest.raises(Overloaded):
        await stream.open()
    await stream.close()


async def test_owner_that_does_not_let_the_entry_in_is_no_fault_of_the_caller(site: Site) -> None:
    """RY2: the caller hears that the owner cannot be reached, and may try elsewhere."""
    site.peers._security = lambda: Security(
        token="not-the-token-of-the-servers-012345", insecure=True
    )
    await site.peers.close()
    site.peers._line = site.peers._new_line()
    with raises_message(ServerUnreachable):
        await site.ask(messages.Append(LOG, pack_block([b"x"])), "writer", log_relay=OWNER)
