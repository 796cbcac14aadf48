"""The commands on the page for users of existing clusters work as written."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbook.ledger.config import ClientConfig
from tests.support import pages, processes
from tests.support.ledger_cluster import ProcessCluster

PAGE = pages.EXISTING_CLUSTERS
PROGRAMS = pages.blocks(PAGE, "python")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with processes.family() as children:
        yield ProcessCluster(children, tmp_path_factory.mktemp("cluster")).url


def test_the_shell_blocks_run_as_written(url: str, tmp_path: Path) -> None:
    shown = pages.run_shell(PAGE, url, tmp_path)
    assert '{"entry_id": 1, "bytes": 6, "payload": "second"}' in shown
    assert "sound" in shown
    assert "adds_per_s" in shown


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_the_programs_run_as_written(program: str, url: str, tmp_path: Path) -> None:
    shown = pages.run_python(program, url, tmp_path)
    assert "it ends at entry" not in program or shown == "it ends at entry 0\n"


def test_settings_named_on_the_page_exist() -> None:
    table = PAGE.read_text().partition("## Settings")[2]
    named = set(re.findall(r"`([a-z_]+)`", re.sub(r"\|[^|]*\|\n", "|\n", table)))
    fields = {field.name for field in dataclasses.fields(ClientConfig)}
    named -= {"connect"}
    assert named
    assert {name for name in named if "_" in name} <= fields
