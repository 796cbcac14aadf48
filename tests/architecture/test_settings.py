"""Each numeric setting documents what a larger and a smaller value costs."""

import ast
import re
from typing import Final

import pytest

from tests.architecture.source import Module, hand_written

_MORE: Final = re.compile(r"\b(Larger|Longer):")
_LESS: Final = re.compile(r"\b(Smaller|Shorter):")
_BOUNDS: Final = "Bounds"  # Limits of an HTTP server.
_A_CHOICE: Final = ("protocol_version",)  # Numbers that only identify a choice.
_RULE: Final = "# ---"


def _settings() -> list[tuple[Module, ast.ClassDef]]:
    return [
        (module, node)
        for module in hand_written()
        for node in module.tree.body
        if isinstance(node, ast.ClassDef)
        and (node.name.endswith(("Config", "ConfigValues")) or node.name == _BOUNDS)
    ]


def _text(module: Module, fields: list[ast.stmt], at: int) -> str:
    """The comments above and beside a field, and the docstring below it."""
    lines, field = module.text.splitlines(), fields[at]
    found: list[str] = []
    line = field.lineno - 2
    while lines[line].lstrip().startswith("#") and not lines[line].lstrip().startswith(_RULE):
        found.insert(0, lines[line].strip(" #"))
        line -= 1
    found += [each.partition("  # ")[2] for each in lines[field.lineno - 1 : field.end_lineno]]
    match fields[at + 1 : at + 2]:
        case [ast.Expr(value=ast.Constant(value=str() as text))]:
            found.append(text)
    return " ".join(filter(None, found))


def _numbers() -> list[tuple[str, str]]:
    return [
        (f"{module.path}: {shape.name}.{field.target.id}", _text(module, shape.body, at))
        for module, shape in _settings()
        for at, field in enumerate(shape.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and field.target.id not in _A_CHOICE
        and {"int", "float"} & set(ast.unparse(field.annotation).split(" | "))
    ]


@pytest.mark.parametrize(("name", "text"), _numbers(), ids=[name for name, _ in _numbers()])
def test_numeric_settings_state_cost_of_larger_and_smaller(name: str, text: str) -> None:
    assert _MORE.search(text), f"{name}: state the cost after `Larger:` or `Longer:`, not {text!r}"
    assert _LESS.search(text), (
        f"{name}: state the cost after `Smaller:` or `Shorter:`, not {text!r}"
    )


def test_search_for_settings_finds_known_ones() -> None:
    names = {name.partition(": ")[2] for name, _ in _numbers()}
    assert len(names) > 100
    assert {"StorageConfig.cache_bytes", "ConfigValues.roll_bytes", "Bounds.backlog"} <= names
