"""The product's sources for the tests of conventions: read once, and parsed when a test asks."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final

# Entry points for users' programs: they connect the runtime to shells that know only ports.
DOORS: Final = ("ledger/open_client.py", "ledger/sync.py")

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("proto", "ledger", "bookie", "recovery", "logservice", "api")


@dataclass(frozen=True)
class Module:
    path: Path  # Relative to the root.
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the tree. Several tests walk them."""
        return tuple(ast.walk(self.tree))

    @property
    def package(self) -> str:
        return self.path.parts[0]

    @property
    def is_core(self) -> bool:
        return "core" in self.path.parts[:-1]

    @property
    def is_runtime(self) -> bool:
        """Whether this is the runtime layer or an entry point that builds processes."""
        is_machine = self.path.parts[:2] == ("proto", "runtime")
        return is_machine or self.package == "api" or str(self.path) in DOORS

    @property
    def is_generated(self) -> bool:
        return self.path.name.endswith("_pb2.py")

    def imports(self) -> Iterator[str]:
        """Absolute names of all imports, also of those inside functions."""
        for node in self.nodes:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.path}: relative import"
                for alias in node.names:
                    yield f"{node.module}.{alias.name}"


def modules(*folders: str) -> tuple[Module, ...]:
    return tuple(module for folder in folders or PACKAGES for module in _modules(folder))


@lru_cache
def _modules(folder: str) -> tuple[Module, ...]:
    return tuple(
        Module(path.relative_to(ROOT), path.read_text())
        for path in sorted((ROOT / folder).rglob("*.py"))
    )


def hand_written(*folders: str) -> list[Module]:
    return [module for module in modules(*folders) if not module.is_generated]
