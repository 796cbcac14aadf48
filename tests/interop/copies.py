"""Ledgers that lose copies in tests, and checks that all copies exist again."""

import json
from typing import Any, Final

import click
from click.testing import CliRunner

from tests.interop.cluster import Bookie, Cluster
from tests.interop.expectations import PAIR, entries, payloads
from tests.interop.puppet import Client

ENTRIES: Final = 30
WRITTEN: Final = payloads(ENTRIES, 100)
LEDGERS: Final = 8


def write_ledgers(client: Client) -> list[int]:
    """Write ledgers of two copies each; the last one is left open."""
    ids = []
    for number in range(LEDGERS):
        writer = client.create(PAIR)
        writer.append(WRITTEN)
        if number + 1 < LEDGERS:
            writer.close()
        ids.append(writer.ledger_id)
    return ids


def members(client: Client, ledger_id: int) -> dict[str, None]:
    """All bookies that the ledger's metadata names."""
    fragments = client.metadata(ledger_id)["fragments"]
    return {bookie: None for fragment in fragments for bookie in fragment["ensemble"]}


def naming(client: Client, ids: list[int], bookie: Bookie) -> list[int]:
    return [ledger_id for ledger_id in ids if bookie.bookie_id in members(client, ledger_id)]


def busiest(cluster: Cluster, client: Client, ids: list[int]) -> Bookie:
    """The bookie that most of these ledgers name."""
    return max(cluster.bookies, key=lambda bookie: len(naming(client, ids, bookie)))


def wait_whole(
    cluster: Cluster, client: Client, ids: list[int], lost: Bookie, *, by_java: bool = False
) -> None:
    """Wait until no ledger names the bookie and none is marked, then check the members' entries.

    Java's worker may leave the mark of a ledger that it has closed.
    """
    cluster.wait_until(
        lambda: not naming(client, ids, lost), f"no ledger names {lost.bookie_id} any more"
    )
    if not by_java:
        cluster.wait_until(lambda: not cluster.marked(), "no ledger is marked any more")
    check_copies(client, ids)


def check_copies(client: Client, ids: list[int]) -> None:
    for ledger_id in ids:
        for bookie in members(client, ledger_id):
            found = client.entries_on(bookie, ledger_id, ENTRIES - 1)
            assert found == list(range(ENTRIES)), (ledger_id, bookie)
        reader = client.open(ledger_id, recover=True)
        assert reader.read(0, ENTRIES - 1) == entries(WRITTEN)


def rollbook(cluster: Cluster, group: click.Group, *words: str, code: int = 0) -> Any:
    """The JSON output of one of our commands for the cluster."""
    return json.loads(run(cluster, group, *words, "-o", "json", code=code))


def run(cluster: Cluster, group: click.Group, *words: str, code: int = 0) -> str:
    done = CliRunner().invoke(group, [*words, "--metadata", cluster.metadata])
    assert done.exit_code == code, (done.output, done.exception)
    return done.stdout
