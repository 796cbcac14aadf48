"""The goals on the security page have tests, and its statements about the sources hold."""

import ast
import re

import pytest

from tests.architecture.source import ROOT, Module, hand_written
from tests.architecture.test_invariants import tags_in

PAGE = (ROOT / "docs" / "security.md").read_text()
ROWS = re.findall(r"^\| (G\d+) \| .+ \| `(tests/[^:]+)::(\w+)` \|$", PAGE, re.MULTILINE)
RUNS_WHAT_IT_IS_SENT = {"pickle", "marshal", "shelve", "dill", "yaml", "xml"}


def test_every_security_goal_has_a_test_that_cites_it() -> None:
    """G13"""
    assert {goal for goal, _, _ in ROWS} == {f"G{number}" for number in range(1, 14)}
    for goal, path, name in ROWS:
        docstring = _docstring_of(path, name)
        assert goal in tags_in(docstring), f"{path}::{name} does not cite {goal}"


def _docstring_of(path: str, test: str) -> str:
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == test:
            return ast.get_docstring(node) or ""
    raise AssertionError(f"docs/security.md names {path}::{test}, which does not exist")


@pytest.mark.parametrize("module", hand_written(), ids=lambda m: str(m.path))
def test_no_module_can_execute_received_data(module: Module) -> None:
    """G11"""
    for name in module.imports():
        assert name.partition(".")[0] not in RUNS_WHAT_IT_IS_SENT, f"{name} is not allowed"
    for node in module.nodes:
        if isinstance(node, ast.Call):
            assert _name_of(node.func) not in ("eval", "exec", "os.system", "os.popen"), node.lineno
            for keyword in node.keywords:
                is_shell = keyword.arg == "shell" and ast.unparse(keyword.value) != "False"
                assert not is_shell, f"{module.path}:{node.lineno}"


def _name_of(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return f"{owner}.{name}"
    return ""


def test_only_one_module_creates_tls_contexts() -> None:
    """The docstring of `trusting_context` explains why no other module may create one."""
    made = [str(each.path) for each in hand_written() if "create_default_context" in each.text]
    assert made == ["proto/runtime/tls.py"]


def test_locked_requirements_have_hashes() -> None:
    """G12"""
    for name in ("requirements.lock", "requirements-check.lock", "requirements-test.lock"):
        text = (ROOT / name).read_text().replace("\\\n", " ")
        lines = [line for line in text.splitlines() if re.match(r"[a-z0-9]", line)]
        assert len(lines) > 10
        assert all("==" in line and "--hash=sha256:" in line for line in lines), name
