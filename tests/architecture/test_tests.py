"""Tests have short names and few asserts, and do not sleep on real time."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.architecture.source import Module, modules

_NAME_CHARACTERS_MAX: Final = 70
_ASSERTS_MAX: Final = 19

_FOLDERS_WITHOUT_NAPS: Final = (
    "contract",
    "dashboard",
    "hostile",
    "interop",
    "regressions",
    "unit",
)

# Functions that may sleep on real time, with the reason.
_NAPS_ALLOWED: Final = {
    "tests/regressions/test_acked_is_readable.py: "
    "test_follower_at_non_owner_gets_each_acked_batch_within_15_s": (
        "pauses between appends are part of the load"
    ),
    "tests/regressions/test_forgotten_producers.py: test_a_client_appends_after_a_long_silence": (
        "no interface shows that a real server has forgotten a producer"
    ),
    "tests/regressions/test_forgotten_producers.py: test_an_idle_leader_keeps_its_term": (
        "no interface shows that a real server has forgotten a producer"
    ),
    "tests/regressions/test_forgotten_producers.py: test_writer_appends_after_a_long_silence": (
        "no interface shows that a real server has forgotten a producer"
    ),
    "tests/regressions/test_shell_outcomes.py: "
    "test_interrupted_append_reports_number_of_acked_records": (
        "nothing shows that a command has sent what it read to a stopped server"
    ),
    "tests/unit/recovery/test_drain_steward.py: test_drain_completes_although_stewards_die": (
        "each steward dies after a random time"
    ),
    "tests/unit/recovery/test_ledger_index.py: test_index_matches_metadata_after_random_changes": (
        "pauses between changes are random"
    ),
}

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
    """Functions that sleep on real time, as "path: name".

    A sleep in a `while` loop polls for a fact: it is allowed. In unit tests only the bodies of tests
    are checked, since helpers and inner functions may run on a virtual event loop.
    """
    is_unit = module.path.parts[:2] == ("tests", "unit")
    functions = _tests(module) if is_unit else (n for n in module.nodes if isinstance(n, Test))
    return [
        f"{module.path}: {function.name}"
        for function in functions
        if any(_is_nap(node) for node in _straight_on(function.body))
    ]


def _straight_on(nodes: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """The nodes of a body outside its `while` loops and inner functions."""
    for node in nodes:
        if not isinstance(node, Test | ast.Lambda | ast.While):
            yield node
            yield from _straight_on(list(ast.iter_child_nodes(node)))


def _is_nap(node: ast.AST) -> bool:
    if isinstance(node, ast.Await) and isinstance(node.value, ast.Call):
        call, name = node.value, "asyncio.sleep"
    elif isinstance(node, ast.Call):
        call, name = node, "time.sleep"
    else:
        return False
    return ast.unparse(call.func) == name and ast.unparse(call.args[0]) != "0"


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


def test_no_test_sleeps_on_real_time() -> None:
    found = {
        nap
        for folder in _FOLDERS_WITHOUT_NAPS
        for module in modules(f"tests/{folder}")
        if module.path.name.startswith("test_")
        for nap in _naps(module)
    }
    assert not found - _NAPS_ALLOWED.keys(), (
        "poll for a condition instead; to show that nothing happens, wait for a later event"
    )
    assert not _NAPS_ALLOWED.keys() - found, "these exceptions are no longer needed: delete them"


def test_sleep_is_detected_and_polling_is_allowed() -> None:
    code = (
        "async def test_nap():\n    with x:\n        await asyncio.sleep(0.1)\n"
        "async def test_turn():\n    await asyncio.sleep(0)\n"
        "async def test_task():\n    x = create_task(asyncio.sleep(1))\n"
        "async def test_poll():\n    while not x:\n        await asyncio.sleep(0.1)\n"
        "def test_many_naps():\n    for x in y:\n        time.sleep(0.1)\n"
        "def helper():\n    time.sleep(0.1)\n"
    )
    slow_peer = (
        "async def test_slow_peer():\n    async def peer():\n        await asyncio.sleep(1)\n"
    )
    naps, helper = ["test_nap", "test_many_naps"], ["helper"]
    for path, text, expected in (
        ("tests/unit/test_a.py", code + slow_peer, naps),
        ("tests/hostile/test_a.py", code, naps + helper),
    ):
        found = _naps(Module(Path(path), text))
        assert found == [f"{path}: {name}" for name in expected]
