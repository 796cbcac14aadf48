"""Every name of the product is used by the product, so that no dead code stays.

Commands, the names of `import rollbook` and the names in `docs/reference.md` count as used.
Use by a test does not count: code that only tests need belongs in `tests/support`.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

import click

from rollbook.api.cli.lazy_group import LazyGroup
from rollbook.api.cli.main import rollbook
from tests.architecture.source import ROOT, Module, hand_written
from tests.architecture.uses import ROOT_MODULES, Name, Uses, dotted_name

_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_DOCUMENTED: Final = re.compile(
    r"^::: (rollbook[\w.]+)$(?:\n    options:\n      members: \[(.*)\])?", re.MULTILINE
)
_RPC: Final = re.compile(r"^ *rpc (\w+)", re.MULTILINE)
# Modules whose base classes call no methods of their subclasses.
_PLAIN_BASES: Final = ("abc", "enum", "typing", "collections.abc", "pydantic")

_CALLED_ELSEWHERE: Final = {
    # The contract tests of metadata stores (`tests/contract`) inject faults with these.
    "rollbook.proto.metastore.memory.MemoryLine.lose_next_request",
    "rollbook.proto.metastore.memory.MemoryLine.lose_next_answer",
    # kazoo calls `serialize` on each request.
    "rollbook.proto.runtime.metastore.kazoo_link.Request.serialize",
    "rollbook.proto.runtime.metastore.kazoo_link.AddWatch.serialize",
    "rollbook.proto.runtime.metastore.kazoo_link.RemoveWatches.serialize",
    # h11 calls `read_eof` on the reader of a body, and `http.client` calls `makefile` on a socket.
    "rollbook.api.rest.http_connection._ChunkReader.read_eof",
    "rollbook.api.cli.debug.metrics_scrape._Wire.makefile",
}


def _entries() -> Iterator[str]:
    yield from ROOT_MODULES.values()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    yield from (entry.replace(":", ".") for entry in project["scripts"].values())
    yield from (
        dotted_name(module) for module in hand_written() if module.path.name == "__main__.py"
    )
    yield from _lazy_commands(rollbook)
    yield from _documented()


def _lazy_commands(group: click.Group) -> Iterator[str]:
    """Commands that are imported only when they are called."""
    if isinstance(group, LazyGroup):
        yield from (f"{place.module}.{place.attribute}" for place in group.places.values())
    context = click.Context(group)
    for name in group.list_commands(context):
        if isinstance(command := group.get_command(context, name), click.Group):
            yield from _lazy_commands(command)


@lru_cache
def _documented() -> list[str]:
    """The names in `docs/reference.md`; for a module, all its public names."""
    modules = {dotted_name(module): module for module in hand_written()}
    found: list[str] = []
    for name, members in _DOCUMENTED.findall((ROOT / "docs" / "reference.md").read_text()):
        if members:
            found += (f"{name}.{member}" for member in members.split(", "))
        elif name in modules:
            defined = (*_FUNCTIONS, ast.ClassDef)
            found += (
                f"{name}.{each.name}"
                for each in modules[name].tree.body
                if isinstance(each, defined) and not each.name.startswith("_")
            )
        else:
            found.append(name)
    return found


def test_every_name_of_the_product_is_used_by_the_product() -> None:
    uses = Uses(hand_written(), _entries())
    assert [str(name) for name in uses.unused()] == [], "delete them, or move them to tests/support"
    assert uses.unused_modules() == []


def test_every_public_method_is_used_by_the_product() -> None:
    """Compares names only: an unused method passes if any other attribute has its name."""
    said = _said()
    unused = {
        f"{dotted_name(module)}.{shape.name}.{method.name}"
        for module in hand_written()
        for shape in module.tree.body
        if isinstance(shape, ast.ClassDef) and not _is_called_from_outside(module, shape)
        for method in shape.body
        if isinstance(method, _FUNCTIONS) and not method.name.startswith("_")
        if method.name not in said
    }
    assert unused == _CALLED_ELSEWHERE, "delete them, or move them to tests/support"


def _said() -> set[str]:
    """Attributes and strings of the product, and its RPCs, whose methods are found by name."""
    said: set[str] = set()
    for module in hand_written():
        for node in module.nodes:
            if isinstance(node, ast.Attribute):
                said.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                said.add(node.value)
    for path in ROOT.glob("*/v1/*.proto"):
        names = _RPC.findall(path.read_text())
        said |= {re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in names}
    return said


def _is_called_from_outside(module: Module, shape: ast.ClassDef) -> bool:
    """Whether users call it because it is documented, or a library whose class it extends."""
    if f"{dotted_name(module)}.{shape.name}" in _documented():
        return True
    homes = {
        alias.asname or alias.name: node.module or ""
        for node in module.nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    own = {each.name: each for each in module.tree.body if isinstance(each, ast.ClassDef)}
    for base in shape.bases:
        while isinstance(base, ast.Subscript):
            base = base.value
        if isinstance(base, ast.Attribute):  # `asyncio.BufferedProtocol`
            return True
        if isinstance(base, ast.Name) and base.id in own:
            if _is_called_from_outside(module, own[base.id]):
                return True
        elif isinstance(base, ast.Name):
            home = homes.get(base.id, "rollbook.")
            if not home.startswith("rollbook.") and home not in _PLAIN_BASES:
                return True
    return False


def _module(path: str, text: str) -> Module:
    return Module(Path(path), text)


def test_unused_names_and_modules_are_detected() -> None:
    entry = _module(
        "api/entry.py",
        "from rollbook.api.rules import used\n"
        "from rollbook.api import tables\n"
        "def main():\n    used()\n    getattr(tables, 'by_name')\n",
    )
    rules = _module(
        "api/rules.py",
        "LIMIT = 1\nUNUSED = 2\n"
        "def used():\n    return LIMIT\n"
        "def first():\n    second()\n"
        "def second():\n    first()\n",
    )
    tables = _module("api/tables.py", "def by_name(): ...\ndef forgotten(): ...\n")
    lonely = _module("api/lonely.py", "")
    uses = Uses([entry, rules, tables, lonely], ["rollbook.api.entry.main"])
    assert uses.unused() == [
        Name("rollbook.api.rules", "UNUSED"),
        Name("rollbook.api.rules", "first"),
        Name("rollbook.api.rules", "second"),
        Name("rollbook.api.tables", "forgotten"),
    ]
    assert uses.unused_modules() == ["rollbook.api.lonely"]
