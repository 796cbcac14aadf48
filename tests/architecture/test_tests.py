"""A test is one sentence of a specification: its name is read at a glance, and it fails for one reason."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.architecture.source import Module, modules

_NAME_CHARACTERS_MAX: Final = 70
_ASSERTS_MAX: Final = 19

Test = ast.FunctionDef | ast.AsyncFunctionDef


def _tests(module: Module) -> Iterator[Test]:
    for node in module.nodes:
        if isinstance(node, Test) and node.name.startswith("test_"):
            yield node


def _long_names(module: Module) -> list[str]:
    return [test.name for test in _tests(module) if len(test.name) > _NAME_CHARACTERS_MAX]


def _long_scripts(module: Module) -> list[str]:
    return [
        test.name
        for test in _tests(module)
        if sum(isinstance(node, ast.Assert) for node in ast.walk(test)) > _ASSERTS_MAX
    ]


def test_names_of_tests_are_at_most_70_characters() -> None:
    found = [
        f"{module.path}: {name}" for module in modules("tests") for name in _long_names(module)
    ]
    assert not found, "say the promise in fewer words; conditions belong in the docstring"


def test_a_name_of_71_characters_is_found() -> None:
    fits, too_long = (f"test_{'x' * count}" for count in (65, 66))
    code = f"def {fits}(): ...\nclass A:\n    async def {too_long}(): ...\n"
    assert _long_names(Module(Path("test_a.py"), code)) == [too_long]


def test_no_test_has_20_asserts() -> None:
    found = [
        f"{module.path}: {name}" for module in modules("tests") for name in _long_scripts(module)
    ]
    assert not found, "split it into tests that are named by their promises and share a fixture"


def test_a_test_of_20_asserts_is_found() -> None:
    few, many = ("    assert x\n" * count for count in (19, 20))
    code = f"def test_few():\n{few}def helper():\n{many}async def test_many():\n{many}"
    assert _long_scripts(Module(Path("test_a.py"), code)) == ["test_many"]
