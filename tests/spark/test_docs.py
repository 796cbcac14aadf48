"""The programs and options of docs/spark.md are correct."""

import re
from pathlib import Path
from typing import Any

import pytest

from rollbook.api.client.sync import SyncClient
from rollbook.api.spark.core.options import OPTIONS
from tests.regressions.lone_server import Site
from tests.support import pages
from tests.support.processes import REPOSITORY

PAGE = REPOSITORY / "docs" / "spark.md"
_PLACE = "log://127.0.0.1:7400"


@pytest.mark.timeout(300)
def test_programs_of_the_page_print_what_it_shows(
    spark: Any,
    site: Site,
    client: SyncClient,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    orders, _ = client.open("orders", create=True), client.open("paid", create=True)
    orders.append_many([b"paid 1", b"shipped 1", b"paid 2", b"shipped 2"])
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for program in pages.blocks(PAGE, "python"):
        here = program.replace(_PLACE, site.url).replace(
            'checkpointLocation="checkpoint"', f'checkpointLocation="{tmp_path}/checkpoint"'
        )
        exec(compile(here, str(PAGE), "exec"), names)
    shown = [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert shown == "".join(pages.blocks(PAGE, "text")).splitlines()


def test_readme_has_the_lines_of_the_first_program() -> None:
    first = pages.blocks(PAGE, "python")[0]
    readme = (REPOSITORY / "README.md").read_text()
    for line in first.splitlines():
        if line.startswith(("import rollbook.spark", "orders")):
            assert f"\n{line}\n" in readme


def test_page_documents_every_option() -> None:
    named = dict.fromkeys(re.findall(r"`([A-Za-z]+)`", PAGE.read_text()))
    assert [option.name for option in OPTIONS if option.name not in named] == []
