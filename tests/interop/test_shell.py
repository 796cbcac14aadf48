"""`bookkeeper shell` on our cluster: its commands exit 0 and print correct facts."""

import re

import pytest

from tests.interop.cluster import Cluster
from tests.interop.expectations import ALL
from tests.interop.puppet import Client, Ledger, Protocol, Shape
from tests.interop.shell import Tell


@pytest.fixture(scope="module")
def ledger(clients: dict[Protocol, Client]) -> Ledger:
    """A closed ledger with the entries `number 0` to `number 9` on every bookie. Its password is empty, like
    the shell's.
    """
    writer = clients[Protocol.V3].create(Shape(3, 3, 3), password="")
    writer.append([b"number %d" % number for number in range(10)])
    writer.close()
    return writer


@pytest.fixture
def tell(cluster: Cluster) -> Tell:
    return Tell(cluster.bookies[0].config_path)


def test_listbookies(tell: Tell, cluster: Cluster) -> None:
    for which in ("-rw", "-a"):
        listed = tell("listbookies", which)
        for bookie in cluster.bookies:
            assert f"BookieID:{bookie.bookie_id}, IP:127.0.0.1, Port:" in listed
    assert "No bookie exists!" in tell("listbookies", "-ro")


def test_simpletest(tell: Tell) -> None:
    said = tell(
        "simpletest", "-ensemble", 3, "-writeQuorum", 3, "-ackQuorum", 2, "-numEntries", 100
    )
    assert "100 entries written to ledger" in said


def test_ledgermetadata(tell: Tell, ledger: Ledger) -> None:
    said = tell("ledgermetadata", "-ledgerid", ledger.ledger_id)
    assert "state=CLOSED" in said
    assert "lastEntryId=9" in said


def test_readledger(tell: Tell, ledger: Ledger) -> None:
    said = tell("readledger", "-m", "-fe", 3, "-le", 5, "-ledgerid", ledger.ledger_id)
    assert re.findall(r"number \d", said) == ["number 3", "number 4", "number 5"]


def test_readledger_of_one_bookie(tell: Tell, ledger: Ledger, cluster: Cluster) -> None:
    said = tell(
        "readledger",
        "-m",
        "-fe",
        0,
        "-le",
        9,
        "-ledgerid",
        ledger.ledger_id,
        "-bookie",
        cluster.bookies[2].bookie_id,
    )
    numbers = [f"number {number}" for number in range(9)]  # It stops one entry before `-le`.
    assert re.findall(r"number \d", said) == numbers


def test_readledger_recovers(tell: Tell, v3: Client) -> None:
    writer = v3.create(ALL, password="")
    writer.append([b"number %d" % number for number in range(10)])
    said = tell("readledger", "-m", "-r", "-fe", 0, "-le", 9, "-ledgerid", writer.ledger_id)
    assert len(set(re.findall(r"number \d", said))) == 10
    assert v3.metadata(writer.ledger_id)["state"] == "CLOSED"


def test_listledgers(tell: Tell, ledger: Ledger) -> None:
    assert re.search(rf"\b{ledger.ledger_id}\b", tell("listledgers"))
    assert "state=CLOSED" in tell("listledgers", "-m")


def test_deleteledger(tell: Tell, v3: Client) -> None:
    writer = v3.create(ALL)
    writer.close()
    tell("deleteledger", "-force", "-ledgerid", writer.ledger_id)
    assert writer.ledger_id not in v3.ledgers()


def test_bookieinfo(tell: Tell, cluster: Cluster) -> None:
    said = tell("bookieinfo")
    for bookie in cluster.bookies:
        ((free, total),) = re.findall(
            rf"BookieID:{bookie.bookie_id},.* free=(\d+)\(.*total=(\d+)\(", said
        )
        assert 0 < int(free) <= int(total)


def test_whatisinstanceid(tell: Tell, cluster: Cluster) -> None:
    assert cluster.instance_id in tell("whatisinstanceid")


def test_cookie_get(tell: Tell, cluster: Cluster) -> None:
    bookie = cluster.bookies[0].bookie_id
    said = tell("cookie_get", bookie)
    assert f'bookieHost: "{bookie}"' in said
    assert f'instanceId: "{cluster.instance_id}"' in said


def test_endpointinfo(tell: Tell, cluster: Cluster) -> None:
    bookie = cluster.bookies[0].bookie_id
    said = tell("endpointinfo", "-b", bookie)
    assert "bookie-rpc" in said
    assert f"host=127.0.0.1, port={bookie.rpartition(':')[2]}" in said


def test_clusterinfo(tell: Tell) -> None:
    said = tell("clusterinfo")
    assert re.search(r'"totalBookiesCount" : 3', said)
