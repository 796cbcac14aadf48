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


def test_packed_blocks_are_small_and_unpack_to_500_mib(cost: PackedCost) -> None:
    assert cost.stored_bytes < 2 * BOMB_BYTES
    assert cost.unpacked_bytes > 500 * _MIB


def test_consumer_of_packed_blocks_grows_by_less_than_64_mib(cost: PackedCost) -> None:
    assert cost.consumer_bytes < 64 * _MIB


def test_server_that_unpacks_blocks_grows_by_less_than_64_mib(cost: PackedCost) -> None:
    assert cost.taken_apart_bytes < 64 * _MIB


def test_server_that_checks_appends_grows_by_less_than_64_mib(cost: PackedCost) -> None:
    assert cost.appended_bytes < 64 * _MIB


def test_other_calls_take_under_1_s_while_blocks_are_checked(cost: PackedCost) -> None:
    """The server unpacks a hundred blocks to check them, and handles other calls in between."""
    assert cost.others_waited_s < 1.0
