"""A class name is defined in one file of the product, so that a search for it finds one thing."""

import ast
from collections import defaultdict
from pathlib import Path
from typing import Final

from tests.architecture.source import hand_written

_FOR_THREADS: Final = "the public class under its own name for threads, beside the one for asyncio"
_MAY_BE_TWO: Final = {
    "Cursor": "one cursor: the user's handle, and its state as the server returns it",
    "ExclusiveWriter": _FOR_THREADS,
    "StateMachine": _FOR_THREADS,
    "Term": _FOR_THREADS,
}


def _files_of_classes() -> dict[str, set[Path]]:
    found: dict[str, set[Path]] = defaultdict(set)
    for module in hand_written():
        for node in module.nodes:
            if isinstance(node, ast.ClassDef):
                found[node.name].add(module.path)
    return found


def test_each_class_name_is_defined_in_one_file() -> None:
    found = {
        name: sorted(map(str, files))
        for name, files in _files_of_classes().items()
        if len(files) > 1 and name not in _MAY_BE_TWO
    }
    assert not found, "these class names are defined in several files: rename or import them"


def test_allowed_duplicate_names_are_still_duplicates() -> None:
    files = _files_of_classes()
    unused = {name for name in _MAY_BE_TWO if len(files[name]) != 2}
    assert not unused, f"remove from _MAY_BE_TWO, no longer defined twice: {sorted(unused)}"
