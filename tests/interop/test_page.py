"""The page for users of existing BookKeeper clusters, on one: what it tells them to type works."""

from pathlib import Path

import pytest

from tests.interop.cluster import Cluster
from tests.support import pages

PROGRAMS = pages.blocks(pages.EXISTING_CLUSTERS, "python")


def test_the_shell_blocks_run_as_written(cluster: Cluster, tmp_path: Path) -> None:
    shown = pages.run_shell(pages.EXISTING_CLUSTERS, cluster.metadata, tmp_path)
    assert "sound" in shown


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_the_programs_run_as_written(program: str, cluster: Cluster, tmp_path: Path) -> None:
    pages.run_python(program, cluster.metadata, tmp_path)
