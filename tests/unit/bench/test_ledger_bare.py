"""The bare Python benchmark sends complete adds, which bookies store and two of three acknowledge."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollbook.proto.wire.add_columns import Adds
from rollbook.proto.wire.frames import LENGTH_BYTES
from rollbook.proto.wire.request_decoder import RequestDecoder
from tests.bench import ledger_bare
from tests.bench.ledger_bare import BareBookie, BareCluster
from tests.bench.load.work import entry_bytes
from tests.support.processes import Child

PATIENCE_S = 120.0
COUNT = 500
PAYLOAD_BYTES = 100


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BareCluster]:
    with ledger_bare.running(tmp_path / "bare") as bare:
        yield bare


def _ask(client: Child, window: int) -> None:
    job = {"do": "adds", "client": "bare", "size": PAYLOAD_BYTES, "window": window}
    client.say(json.dumps(job | {"count": COUNT, "seconds": PATIENCE_S}))


def _found(client: Child) -> Any:
    return json.loads(client.line(PATIENCE_S))["value"]


def _kept(bookie: BareBookie) -> list[int]:
    """The entry ids in the bookie's file, from the beginning."""
    numbers = []
    with bookie.path.open("rb") as file:
        while size := int.from_bytes(file.read(LENGTH_BYTES)):
            entry = file.read(size)[-entry_bytes(PAYLOAD_BYTES) :]
            numbers.append(int.from_bytes(entry[8:16]))  # The entry id follows the ledger id.
    return numbers


@pytest.mark.parametrize("window", [1, 100])
def test_each_bookie_stores_all_added_entries(cluster: BareCluster, window: int) -> None:
    client = cluster.start_client()
    for _ in range(2):  # The second job must find the bookies in the same state.
        _ask(client, window)
        found = _found(client)
        count = found["count"]
        assert COUNT <= count < COUNT + window
        assert 0 < found["p50_ns"] <= found["p99_ns"] < found["seconds"] * 1e9
        for bookie in cluster.bookies:
            numbers = _kept(bookie)
            assert numbers == list(range(numbers[0], numbers[0] + count))


def test_requests_are_adds_of_version_3(cluster: BareCluster) -> None:
    client = cluster.start_client()
    _ask(client, 1)
    _found(client)
    with cluster.bookies[0].path.open("rb") as file:
        prefix = file.read(LENGTH_BYTES)
        (adds,) = RequestDecoder().feed(prefix + file.read(int.from_bytes(prefix)))
    assert isinstance(adds, Adds)


def test_adds_succeed_while_one_of_three_bookies_is_stopped(cluster: BareCluster) -> None:
    """Otherwise the two running bookies would get no more adds than the window."""
    client = cluster.start_client()
    hung, *others = cluster.bookies
    hung.life.stop()
    _ask(client, 10)
    give_up_at = time.monotonic() + PATIENCE_S
    while not all(len(_kept(bookie)) >= COUNT for bookie in others):
        assert time.monotonic() < give_up_at
    hung.life.resume()
    assert _found(client)["count"] == len(_kept(hung)) >= COUNT
