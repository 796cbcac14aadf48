"""A function whose name asks a question changes nothing, so that calling it twice is safe."""

import ast
import re
from pathlib import Path
from typing import Final

from tests.architecture.source import Module, hand_written

_QUESTION: Final = re.compile(
    r"^_*(is|has|may|can|was|were|will|should|must|does|needs|are|had|did)_"
)
# Coroutines that only ask: each reads a file or a node of the metadata store and changes nothing.
_MAY_AWAIT: Final = {
    "was_made": "reads back a node of which the store did not say whether it was written",
    "is_blank_from": "reads a journal file",
    "is_unused": "reads a journal file",
    "_is_sound": "reads the catalog's file",
    "_has_records": "reads the first bytes of a journal file",
    "is_enabled": "reads the switch of re-replication",
    "_is_strangers": "reads a registration",
    "_is_in_doubt": "reads a ledger's metadata",
    "_is_surplus": "reads a ledger's metadata",
    "_is_registered": "reads the folders of live bookies",
    "_is_writable": "reads the folder of writable bookies",
    "_is_overdue": "reads a mark",
    "_is_owed": "reads a mark and a drain's task",
    "_is_short": "computes on long lists, and lets others run in between",
}


def _acts(module: Module) -> list[str]:
    return [
        f"{module.path}:{node.lineno}: {node.name}: {ast.unparse(act)[:60]}"
        for node in module.nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _QUESTION.match(node.name)
        for act in ast.walk(node)
        if _changes(act) or (isinstance(act, ast.Await) and node.name not in _MAY_AWAIT)
    ]


def _changes(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(ctx=ast.Store() | ast.Del()):
            return True
        case ast.Subscript(value=ast.Attribute(), ctx=ast.Store() | ast.Del()):
            return True
        case ast.Call(func=ast.Attribute(attr="create_task" | "call_soon" | "call_later")):
            return True
    return False


def test_predicates_change_nothing() -> None:
    found = [act for module in hand_written() for act in _acts(module)]
    assert not found, "name these by a verb (`check_…`, `try_…`), or let them change nothing"


def test_allowed_awaiting_predicates_still_await() -> None:
    asking = {
        node.name
        for module in hand_written()
        for node in module.nodes
        if isinstance(node, ast.AsyncFunctionDef)
        and any(isinstance(each, ast.Await) for each in ast.walk(node))
    }
    assert set(_MAY_AWAIT) <= asking, "remove from _MAY_AWAIT what no longer awaits"


def test_predicates_that_act_are_detected() -> None:
    code = (
        "def is_a(self): self.x = 1\n"
        "def _has_b(self): del self.y[1]\n"
        "async def may_c(): await d()\n"
        "def was_d(): loop.create_task(e())\n"
        "def is_e(self):\n    x = self.y\n    return x\n"
        "def check_f(self): self.x += 1\n"
    )
    found = [act.split(": ")[1] for act in _acts(Module(Path("asking.py"), code))]
    assert found == ["is_a", "_has_b", "may_c", "was_d"]
