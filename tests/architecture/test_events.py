"""What a bookie logs is what its design says that it logs."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.architecture.source import ROOT, Module, modules

_ROW: Final = re.compile(r"^\| `([a-z_]+)` \| (info|warning|error) \| (.+) \|$", re.MULTILINE)
_LEVELS: Final = ("info", "warning", "error")
_ELSEWHERE: Final = (
    *("api/cli/bookie_server.py", "proto/cluster/registration.py", "api/access/doorkeeper.py"),
)


def _logging() -> list[Module]:
    found = [*modules("bookie"), *modules("api"), *modules("proto")]
    return [
        each
        for each in found
        if each.package == "bookie"
        or (each.path.parts[:2] == ("api", "rest") and each.path.name != "forwarding.py")
        or str(each.path) in _ELSEWHERE
    ]


def _events(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Name and level; the level is empty if it is picked at run time."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        match node.func:
            case ast.Attribute(value=ast.Name(id="logger"), attr=attr) if attr in _LEVELS:
                level = attr
            case ast.Name(id="say"):
                level = ""
            case _:
                continue
        for part in ast.walk(node.args[0]):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value, level


def test_the_design_has_the_table_of_events() -> None:
    logged = {event for module in _logging() for event in _events(module.tree)}
    table = _ROW.findall((ROOT / "bookie" / "DESIGN.md").read_text())
    levels = {name: level for name, level, _ in table}
    assert len(levels) == len(table), "an event has two rows"
    names = {name for name, _ in logged}
    assert names - set(levels) == set(), "bookie/DESIGN.md lacks a row for these"
    assert set(levels) - names == set(), "nobody logs these any more"
    wrong = {(name, level) for name, level in logged if level and levels[name] != level}
    assert not wrong, "bookie/DESIGN.md gives these another level"


@pytest.mark.parametrize("module", _logging(), ids=lambda m: str(m.path))
def test_events_are_constant_names(module: Module) -> None:
    """Whatever is variable is a keyword: only so can a log be searched."""
    for node in ast.walk(module.tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="logger"), attr=attr), args=args):
                if attr in (*_LEVELS, "debug", "critical", "exception"):
                    assert len(args) == 1
                    assert attr in _LEVELS, f"{module.path}:{node.lineno}: level {attr}"
                    assert isinstance(args[0], ast.Constant | ast.IfExp), node.lineno


def test_the_search_finds_events() -> None:
    code = "logger.info('a', x=1)\nlogger.warning('b' if y else 'c')\nsay('d')\nprint('e')"
    assert set(_events(ast.parse(code))) == {
        *(("a", "info"), ("b", "warning"), ("c", "warning"), ("d", "")),
    }
    assert Path(_ELSEWHERE[0]).name == "bookie_server.py"
