"""The examples on the page for users of existing BookKeeper clusters work on such a cluster."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.cluster import ROLLBOOK, Cluster, Make, empty
from tests.support import pages
from tests.support.processes import REPOSITORY
from tests.support.zookeeper import ZooKeeperServer, tree

PROGRAMS = pages.blocks(pages.EXISTING_CLUSTERS, "python")


@pytest.fixture(scope="module")
def existing(
    java: None, zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """A cluster of Java bookies without other ledgers, since the page verifies all of them."""
    folder = tmp_path_factory.mktemp("existing")
    with tree(zookeeper_server) as own, empty(own, folder) as cluster:
        command = [*ROLLBOOK, "cluster", "init", "--metadata", cluster.metadata]
        subprocess.run(command, cwd=REPOSITORY, check=True)
        for _ in range(3):
            cluster.add_bookie(Make.JAVA)
        cluster.start()
        yield cluster


def test_the_shell_blocks_run_as_written(existing: Cluster, tmp_path: Path) -> None:
    shown = pages.run_shell(pages.EXISTING_CLUSTERS, existing.metadata, tmp_path)
    assert "sound" in shown


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_the_programs_run_as_written(program: str, existing: Cluster, tmp_path: Path) -> None:
    pages.run_python(program, existing.metadata, tmp_path)
