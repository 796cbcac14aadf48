"""Each binary layout is defined in one file, which proto/DESIGN.md lists."""

import ast
from collections import defaultdict
from collections.abc import Iterator

from tests.architecture.source import PACKAGES, ROOT, Module, modules

_TABLE = "## Where each format is"


def _layouts(module: Module) -> Iterator[str]:
    """The formats of a module's structs that have more than one field."""
    if "Struct(" not in module.text:
        return
    for node in module.nodes:
        match node:
            case ast.Call(func=ast.Attribute(attr="Struct"), args=[ast.Constant(value=str(text))]):
                if len(text.lstrip("<>")) > 1:
                    yield text


def test_no_layout_is_written_in_two_files() -> None:
    """A layout of several fields is imported from the file that defines it.

    If two formats happen to have the same fields, write one of them differently.
    """
    files: dict[str, set[str]] = defaultdict(set)
    for module in modules(*PACKAGES):
        for layout in _layouts(module):
            files[layout].add(str(module.path))
    assert {layout: sorted(each) for layout, each in files.items() if len(each) > 1} == {}


def test_every_file_with_a_layout_is_in_the_table_of_formats() -> None:
    table = (ROOT / "proto" / "DESIGN.md").read_text().split(_TABLE)[1].split("\n## ")[0]
    missing = {
        str(module.path)
        for module in modules(*PACKAGES)
        if any(_layouts(module)) and module.path.name not in table
    }
    assert missing == set(), f"name it in proto/DESIGN.md, under {_TABLE[3:]!r}"
