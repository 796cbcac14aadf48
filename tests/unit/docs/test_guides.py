"""The guides work as written, on one cluster, and links of pages to pages and tests are valid."""

import ast
import importlib
import os
import re
import sys
import unicodedata
from collections.abc import Iterator
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from rollbook.api.client import aio
from rollbook.api.rpc_methods import METHODS
from rollbook.logservice import log_config
from tests import site
from tests.support import pages
from tests.support.dev import RunningDev, running_dev
from tests.support.processes import REPOSITORY

DOCS: Final = REPOSITORY / "docs"
GENERATED: Final = ("reference-rest.md", "reference-grpc.md", "reference-commands.md")
_LINK: Final = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
_HEADING: Final = re.compile(r"^#+ +(.+)$", re.MULTILINE)
_TEST: Final = re.compile(r"`(tests/[\w/]+\.py)`")


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDev]:
    with running_dev(tmp_path_factory.mktemp("dev") / "data", bookies=3) as running:
        yield running


def run(page: str, dev: RunningDev, folder: Path) -> list[str]:
    """Runs block by block, because each block has its own time-out."""
    (rest,) = re.findall(r"^rest +http://(\S+)/v1$", dev.said, re.MULTILINE)
    (dashboard,) = re.findall(r"^dashboard +http://(\S+)$", dev.said, re.MULTILINE)
    environment = {**os.environ, "XDG_CONFIG_HOME": str(folder)}
    if page != "operations.md":  # operations.md uses a context instead.
        environment["ROLLBOOK_SERVER"] = f"log://{dev.address}"
    told: list[str] = []
    for block in pages.blocks(DOCS / page, "sh"):
        script = block.replace("127.0.0.1:7400", dev.address).replace("127.0.0.1:7480", rest)
        script = script.replace("127.0.0.1:7500", dashboard)
        told += pages.run(["sh", "-euc", script], folder, environment).splitlines()
    return told


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", ["tutorial.md", "services.md", "dashboard.md"])
def test_commands_of_a_guide_print_what_it_shows(
    page: str, dev: RunningDev, tmp_path: Path
) -> None:
    assert run(page, dev, tmp_path) == "".join(pages.blocks(DOCS / page, "text")).splitlines()


@pytest.mark.timeout(600)
def test_commands_of_the_truncation_page_work_as_written(dev: RunningDev, tmp_path: Path) -> None:
    told = run("truncation.md", dev, tmp_path)
    held = told.index("held back: 4")
    assert told[held - 1] == "500"
    assert told[held + 1 : held + 3] == ["1000", "1000"]
    assert re.match(r"invoices +1000 +0 +yes", told[-1])


@pytest.mark.timeout(600)
def test_commands_of_the_operations_page_work_as_written(dev: RunningDev, tmp_path: Path) -> None:
    told = run("operations.md", dev, tmp_path)
    acts = [line.split()[:2] for line in told if line.startswith(("+ ", "~ ", "= "))]
    assert acts == [["+", "shop/orders"], ["+", "shop/carts"]] * 2
    assert "100" in told
    assert told.count("3") == 1, "three stages, each with its count"
    assert [line for line in told if re.fullmatch(r"rollbook_log_logs_owned \d+\.0", line)]
    assert "rollbook/log-shop-orders.json" in told


@pytest.mark.timeout(600)
def test_commands_of_the_coming_from_page_work_as_written(dev: RunningDev, tmp_path: Path) -> None:
    told = run("coming-from.md", dev, tmp_path)
    assert [line for line in told if line.startswith(("0 ", "1 ", "2 "))] == [
        "0 17 paid",
        "1  shipped",
        "2  returned",
    ]
    ended = ["shipped", "returned", "3", "default/orders", "2", "0", "2", "orders"]
    assert told[-len(ended) :] == ended


def test_first_day_example_prints_the_expected_lines(dev: RunningDev, tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(REPOSITORY / "examples" / "first_day.py"),
        f"log://{dev.address}",
    ]
    lines = pages.run(command, tmp_path, {**os.environ}).splitlines()
    assert lines == [
        "paid at offset 0 now",
        "the last of many at 1000",
        "paid b'17' {'source': b'shop'} 2026-01-31 12:00:00+00:00",
        "1001 records",
        "billing is at 1001",
        "NoSuchLog not_applied",
        "NoSuchCursor not_applied",
        "first-day/orders",
        "the newest is item 999",
    ]


@pytest.fixture(scope="module")
def site_pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    site.gather(folder)
    return folder


def test_links_of_the_site_have_targets(site_pages: Path) -> None:
    """Checks pages and anchors. Links may not leave the folder of the site."""
    found = list(dead_links(site_pages))
    assert not found


def test_dead_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# One\n\n[a](b.md) [b](a.md#one) [c](#two) [d](../a.md)\n")
    assert [link for _, link in dead_links(tmp_path)] == ["b.md", "#two", "../a.md"]


def dead_links(folder: Path) -> Iterator[tuple[str, str]]:
    for page in sorted(folder.rglob("*.md")):
        for name, part in _LINK.findall(pages.prose(page)):
            target = (page.parent / name).resolve() if name else page
            is_there = target.is_file() and target.is_relative_to(folder.resolve())
            link = f"{name}#{part}" if part else name
            if not is_there or (part and part not in parts(target)):
                yield page.name, link


def parts(page: Path) -> set[str]:
    """The anchors of a page's headings, computed like Python-Markdown's `toc`.

    `make site` checks the links again.
    """
    found: set[str] = set()
    for heading in _HEADING.findall(pages.prose(page)):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        ascii_alone = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
        part = re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", ascii_alone).strip().lower())
        count = 0
        while not part or part in found:
            count += 1
            part = f"{part.removesuffix(f'_{count - 1}')}_{count}"
        found.add(part)
    return found


def test_anchors_are_those_that_python_markdown_makes(tmp_path: Path) -> None:
    """The expected anchors were made by Python-Markdown 3.11."""
    made = {
        "How fast, here": "how-fast-here",
        "Größe — in `MiB`": "groe-in-mib",
        "Again": "again",
        "`rollbook log read`": "rollbook-log-read",
        "a - b  c": "a-b-c",
        "[Reads](http.md), twice": "reads-twice",
    }
    page = tmp_path / "page.md"
    page.write_text("".join(f"## {heading}\n\n" for heading in (*made, "Again", "Again")))
    assert parts(page) == {*made.values(), "again_1", "again_2"}


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_links_and_test_paths_of_pages_exist(page: Path, site_pages: Path) -> None:
    """Links must exist in the repository, too, except for generated pages."""
    text = page.read_text()
    for name, _ in _LINK.findall(pages.prose(page)):
        is_made = name in GENERATED and (site_pages / name).exists()
        assert is_made or (DOCS / name).exists(), name
    for test in _TEST.findall(text):
        assert (REPOSITORY / test).exists(), test


def test_navigation_of_the_site_lists_every_page(site_pages: Path) -> None:
    named = set(re.findall(r"[\w/-]+\.md", (REPOSITORY / "mkdocs.yml").read_text()))
    assert named == {str(page.relative_to(site_pages)) for page in site_pages.rglob("*.md")}


def test_references_list_all_routes_rpcs_and_main_commands(site_pages: Path) -> None:
    told = {name: (site_pages / name).read_text() for name in GENERATED}
    for document in (site.openapi(), site.openapi_of_management()):
        for path, by_method in document["paths"].items():
            for method in by_method:
                assert f"### {method.upper()} {path}\n" in told["reference-rest.md"]
    for words in ("log append", "server log", "cursor", "recovery heal", "version"):
        assert f"# rollbook {words}\n" in told["reference-commands.md"]
    for method in METHODS:
        assert f"rpc {method.request.__name__}(" in told["reference-grpc.md"]


def test_names_in_the_reference_exist_and_have_docstrings() -> None:
    """Finds wrong names before the site is built."""
    for name in re.findall(r"^::: ([\w.]+)$", (DOCS / "reference.md").read_text(), re.MULTILINE):
        module, _, last = name.rpartition(".")
        found = getattr(importlib.import_module(module), last, None)  # A class or a function.
        found = found or importlib.import_module(name)  # Otherwise a module.
        assert found.__doc__, name


def test_reference_covers_all_names_of_rollbook_aio() -> None:
    told = re.findall(r"^::: ([\w.]+)$", (DOCS / "reference.md").read_text(), re.MULTILINE)
    for name in aio.__all__:
        module = getattr(aio, name).__module__
        assert module in told or f"{module}.{name}" in told, name


def test_each_setting_of_a_log_has_a_docstring_for_the_reference() -> None:
    """The reference shows docstrings below fields, but not trailing comments."""
    tree = ast.parse(Path(log_config.__file__).read_text())
    (body,) = (
        node.body
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == "ConfigValues"
    )
    told = {
        field.target.id
        for field, below in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and str(below.value.value).endswith(".")
    }
    assert told == {field.name for field in fields(log_config.LogConfig)}
    page = (DOCS / "reference.md").read_text()
    (options,) = re.findall(r"(?m)^::: rollbook\S+\.LogConfig\n((?: .*\n)+)", page)
    assert "inherited_members: true" in options, "the fields are inherited"
