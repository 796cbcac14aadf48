"""Each requirement of recovery and bookie lifecycle names an existing test that cites its number."""

import ast
import re
from functools import cache
from typing import Final

import pytest

from tests.architecture.test_invariants import defined_tags
from tests.support.processes import REPOSITORY

PAGE: Final = REPOSITORY / "recovery" / "DESIGN.md"
_ROW: Final = re.compile(r"^\| ((?:AR|BL)\d+) \| [^|]+ \| `([\w/]+\.py)::(\w+)` \|$", re.MULTILINE)
_CITED: Final = re.compile(r"\b(AR|BL)(\d+)(?: to \1(\d+))?\b")
ROWS: Final = _ROW.findall(PAGE.read_text())


@cache
def cited_in(path: str) -> dict[str, set[str]]:
    """Numbers cited by each function, including those that the module docstring cites for all."""
    tree = ast.parse((REPOSITORY / "tests" / path).read_text())
    shared = _numbers(ast.get_docstring(tree))
    return {
        node.name: shared | _numbers(ast.get_docstring(node))
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def _numbers(text: str | None) -> set[str]:
    return {
        f"{part}{number}"
        for part, first, last in _CITED.findall(text or "")
        for number in range(int(first), int(last or first) + 1)
    }


def test_every_requirement_has_a_row() -> None:
    of_lifecycle = (*range(1, 31), 32)
    wanted = [f"AR{number}" for number in range(1, 43)] + [f"BL{number}" for number in of_lifecycle]
    assert [number for number, _, _ in ROWS] == wanted


def test_no_invariant_has_the_tag_of_a_requirement() -> None:
    assert not {number for number, _, _ in ROWS} & defined_tags().keys()


@pytest.mark.parametrize(("number", "path", "test"), ROWS, ids=[row[0] for row in ROWS])
def test_requirement_is_cited_by_its_named_test(number: str, path: str, test: str) -> None:
    assert number in cited_in(path).get(test, set()), f"tests/{path}::{test} must cite {number}"
