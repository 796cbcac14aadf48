"""128 KiB of packed blocks that unpack to gigabytes cost a consumer and a server little (LB3)."""

from collections.abc import Iterator

import pytest

from tests.hostile.packed import BOMB_BYTES, PackedCost, cost_of_packed
from tests.support import log_processes

_MIB = 1024 * 1024


@pytest.fixture(scope="module")
def cost(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackedCost]:
    with log_processes.running(tmp_path_factory.mktemp("packed")) as cluster:
        yield cost_of_packed(cluster.start_server("log-1"))


def test_blocks_are_small_and_unpack_to_much(cost: PackedCost) -> None:
    assert cost.stored_bytes < 2 * BOMB_BYTES
    assert cost.unpacked_bytes > 500 * _MIB


def test_consumer_that_reads_them_all_grows_by_little(cost: PackedCost) -> None:
    assert cost.consumer_bytes < 64 * _MIB


def test_server_that_takes_them_apart_grows_by_little(cost: PackedCost) -> None:
    assert cost.taken_apart_bytes < 64 * _MIB


def test_server_that_checks_a_message_of_them_grows_by_little(cost: PackedCost) -> None:
    assert cost.appended_bytes < 64 * _MIB


def test_others_are_served_while_a_message_of_them_is_checked(cost: PackedCost) -> None:
    """Each of a hundred blocks is unpacked to be checked; others have their turn in between."""
    assert cost.others_waited_s < 1.0
