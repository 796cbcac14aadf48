"""A test is one sentence of a specification: its name is read at a glance."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.architecture.source import Module, modules

_NAME_CHARACTERS_MAX: Final = 70

Test = ast.FunctionDef | ast.AsyncFunctionDef


def _tests(module: Module) -> Iterator[Test]:
    for node in module.nodes:
        if isinstance(node, Test) and node.name.startswith("test_"):
            yield node


def _long_names(module: Module) -> list[str]:
    return [test.name for test in _tests(module) if len(test.name) > _NAME_CHARACTERS_MAX]


def test_names_of_tests_are_at_most_70_characters() -> None:
    found = [
        f"{module.path}: {name}" for module in modules("tests") for name in _long_names(module)
    ]
    assert not found, "say the promise in fewer words; conditions belong in the docstring"


def test_a_name_of_71_characters_is_found() -> None:
    fits, too_long = (f"test_{'x' * count}" for count in (65, 66))
    code = f"def {fits}(): ...\nclass A:\n    async def {too_long}(): ...\n"
    assert _long_names(Module(Path("test_a.py"), code)) == [too_long]
