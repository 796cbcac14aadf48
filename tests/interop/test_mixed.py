"""Bookies of both makes in one cluster that Java initialised, with Java's autorecovery."""

import asyncio

import pytest

from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId
from rollbook.proto.wire.messages import EntryRead, ReadReply
from tests.interop import shell
from tests.interop.cluster import Bookie, Cluster
from tests.interop.expectations import PAIR, entries, payloads, refused
from tests.interop.puppet import Client, Digest, Protocol, Shape
from tests.support.bookie_client import connect

EVERYWHERE = Shape(3, 3, 3)
WRITTEN = payloads(40, 100)


@pytest.fixture(scope="module")
def clients(mixed: Cluster) -> dict[Protocol, Client]:
    puppet = mixed.puppet()
    return {protocol: puppet.connect(mixed.metadata, protocol) for protocol in Protocol}


@pytest.mark.parametrize("digest", Digest, ids=lambda digest: str(digest.value))
def test_both_makes_keep_the_entries_of_one_ledger(
    client: Client, v3: Client, mixed: Cluster, digest: Digest
) -> None:
    written = payloads(50, 300)
    writer = client.create(EVERYWHERE, digest)
    writer.append(written)
    writer.close()
    for bookie in mixed.bookies:
        assert v3.entries_on(bookie.bookie_id, writer.ledger_id, 49) == list(range(50))
    assert client.open(writer.ledger_id, digest, recover=False).read(0, 49) == entries(written)


def test_both_makes_are_fenced_by_recovery(client: Client) -> None:
    written = payloads(50, 300)
    writer = client.create(Shape(3, 2, 2))
    writer.append(written)
    reader = client.open(writer.ledger_id, recover=True)
    assert reader.read(0, 49) == entries(written)
    with refused("BKLedgerFencedException"):
        writer.append([b"late"])


def test_javas_autorecovery_copies_between_makes(v3: Client, mixed: Cluster) -> None:
    """The test kills one of our bookies, and later the Java bookie."""
    for ledger_id in v3.ledgers():  # Two bookies cannot repair a ledger of three.
        v3.delete(ledger_id)
    ledgers = []
    for _ in range(12):
        writer = v3.create(PAIR)
        writer.append(WRITTEN)
        writer.close()
        ledgers.append(writer.ledger_id)
    ours, _, theirs = mixed.bookies
    mixed.start_autorecovery()
    for lost in (ours, theirs):
        lost.kill()
        for ledger_id in ledgers:
            mixed.wait_until(
                lambda: lost.bookie_id not in ensemble(v3, ledger_id),  # noqa: B023
                f"ledger {ledger_id} is copied from {lost.bookie_id}",
            )
        for ledger_id in ledgers:
            for bookie in ensemble(v3, ledger_id):
                assert v3.entries_on(bookie, ledger_id, 39) == list(range(40))
        lost.start()
    for ledger_id in ledgers:
        assert v3.open(ledger_id, recover=False).read(0, 39) == entries(WRITTEN)
    said = shell.run(ours.config_path, "whoisauditor")
    assert f"auditor={ours.bookie_id}" in said  # Autorecovery has this bookie's id.


def ensemble(client: Client, ledger_id: int) -> list[str]:
    (fragment,) = client.metadata(ledger_id)["fragments"]
    members: list[str] = fragment["ensemble"]
    return members


def test_both_makes_acknowledge_a_second_add_of_an_entry(
    mixed: Cluster,
) -> None:
    """No correct client sends one; `bookie/DESIGN.md` explains why it is not refused."""

    async def add_twice(bookie: Bookie) -> bytes:
        async with await connect(bookie.address) as client:
            ledger = client.ledger(4_000_000_000)
            for payload in (b"first", b"second"):
                answered = asyncio.get_running_loop().create_future()
                client.on_adds = answered.set_result
                client.send(ledger.pack(0, NO_ENTRY, payload))
                async with asyncio.timeout(60.0):
                    assert (await answered).error is None
            reply = await client.call(EntryRead(LedgerId(4_000_000_000), EntryId(0)))
        assert isinstance(reply, ReadReply)
        assert reply.body
        return bytes(reply.body)

    answers = [asyncio.run(add_twice(bookie)) for bookie in mixed.bookies]
    assert [answer.endswith(b"second") for answer in answers] == [True, True, False]
    assert answers[-1].endswith(b"first")  # The Java bookie, while both are in memory.
