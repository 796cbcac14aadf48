"""Tests have short names and few asserts, and unit tests do not sleep on real time."""

import ast
from collections.abc import Iterator, Sequence
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


def _naps(module: Module) -> list[str]:
    """Tests that sleep on real time.

    A sleep in a loop polls for a fact, and an inner function runs on a virtual event loop: both are
    allowed.
    """
    return [
        test.name
        for test in _tests(module)
        if isinstance(test, ast.AsyncFunctionDef)
        if any(_is_nap(node) for node in _straight_on(test.body))
    ]


def _straight_on(nodes: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """The nodes of a body outside its loops and inner functions."""
    for node in nodes:
        if not isinstance(node, Test | ast.Lambda | ast.While | ast.For | ast.AsyncFor):
            yield node
            yield from _straight_on(list(ast.iter_child_nodes(node)))


def _is_nap(node: ast.AST) -> bool:
    if not isinstance(node, ast.Await) or not isinstance(node.value, ast.Call):
        return False
    call = node.value
    return ast.unparse(call.func) == "asyncio.sleep" and ast.unparse(call.args[0]) != "0"


def test_names_of_tests_are_at_most_70_characters() -> None:
    found = [
        f"{module.path}: {name}" for module in modules("tests") for name in _long_names(module)
    ]
    assert not found, "shorten these names; conditions belong in the docstring"


def test_a_name_of_71_characters_is_found() -> None:
    fits, too_long = (f"test_{'x' * count}" for count in (65, 66))
    code = f"def {fits}(): ...\nclass A:\n    async def {too_long}(): ...\n"
    assert _long_names(Module(Path("test_a.py"), code)) == [too_long]


def test_no_test_has_20_asserts() -> None:
    found = [
        f"{module.path}: {name}" for module in modules("tests") for name in _long_scripts(module)
    ]
    assert not found, "split these into tests that check one behaviour each and share a fixture"


def test_a_test_of_20_asserts_is_found() -> None:
    few, many = ("    assert x\n" * count for count in (19, 20))
    code = f"def test_few():\n{few}def helper():\n{many}async def test_many():\n{many}"
    assert _long_scripts(Module(Path("test_a.py"), code)) == ["test_many"]


def test_no_unit_test_sleeps_on_real_time() -> None:
    found = [f"{module.path}: {name}" for module in modules("tests/unit") for name in _naps(module)]
    assert not found, (
        "poll for a condition instead; to show that nothing happens, wait for a later event"
    )


def test_sleep_is_detected_and_polling_is_allowed() -> None:
    code = (
        "async def test_nap():\n    with x:\n        await asyncio.sleep(0.1)\n"
        "async def test_turn():\n    await asyncio.sleep(0)\n"
        "async def test_poll():\n    while not x:\n        await asyncio.sleep(0.1)\n"
        "async def test_slow_peer():\n    async def peer():\n        await asyncio.sleep(1)\n"
    )
    assert _naps(Module(Path("test_a.py"), code)) == ["test_nap"]
