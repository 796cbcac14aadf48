"""The guides work as written, on one cluster; and what pages say of tests and pages is so."""

import importlib
import os
import re
from pathlib import Path
from typing import Final

import pytest

from tests.support import pages
from tests.support.dev import running_dev
from tests.support.processes import REPOSITORY

DOCS: Final = REPOSITORY / "docs"
_LINK: Final = re.compile(r"\]\((?!https?:)([^)#]+)")
_TEST: Final = re.compile(r"`(tests/[\w/]+\.py)`")


def test_truncation_and_operations_work_as_written(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    with running_dev(tmp_path / "data", bookies=1) as dev:
        (rest,) = re.findall(r"^rest +http://(\S+)/v1$", dev.said, re.MULTILINE)

        def run(name: str) -> list[str]:
            script = "\n".join(pages.blocks(DOCS / name, "sh"))
            script = script.replace("127.0.0.1:7400", dev.address).replace("127.0.0.1:7480", rest)
            return pages.run(["sh", "-euc", script], tmp_path, environment).splitlines()

        environment["ROLLBOOK_SERVER"] = f"log://{dev.address}"
        told = run("truncation.md")
        assert told[told.index("held back: 4") - 1] == "500"
        assert told[told.index("held back: 4") + 1 :][:2] == ["1000", "1000"]
        assert re.match(r"invoices +1000 +0 +yes", told[-1])
        del environment["ROLLBOOK_SERVER"]
        told = run("operations.md")
    acts = [line.split()[:2] for line in told if line.startswith(("+ ", "~ ", "= "))]
    assert acts == [["+", "shop/orders"], ["+", "shop/carts"]] * 2
    assert "100" in told
    assert told.count("3") == 1, "three stages, each with its count"
    assert "rollbook_log_logs_owned 1.0" in told or "rollbook_log_logs_owned 2.0" in told
    assert "rollbook/log-shop-orders.json" in told


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_links_and_tests_are_there(page: Path) -> None:
    text = page.read_text()
    for link in _LINK.findall(text):
        assert (DOCS / link).exists(), link
    for test in _TEST.findall(text):
        assert (REPOSITORY / test).exists(), test


def test_the_site_has_every_page() -> None:
    named = set(re.findall(r"[\w-]+\.md", (REPOSITORY / "mkdocs.yml").read_text()))
    assert named == {page.name for page in DOCS.glob("*.md")}


def test_the_reference_names_what_exists() -> None:
    """So that it is found here, and not when the site is built."""
    for name in re.findall(r"^::: ([\w.]+)$", (DOCS / "reference.md").read_text(), re.MULTILINE):
        module, _, last = name.rpartition(".")
        if last[0].isupper():
            assert getattr(importlib.import_module(module), last).__doc__, name
        else:
            assert importlib.import_module(name).__doc__, name
