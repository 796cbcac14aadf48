"""Finds which names of the product are reachable from its entry points.

A statement at the top of a module binds names: a function, a class, a constant. It is used if an
entry point leads to it, through other statements that are used. Two functions that only call each
other are therefore unused, and so is a function that only a test calls.

Names that are looked up at run time count as used, too. If a module's name is in a string (the
table of a lazy `__getattr__`), or a module is passed as an object, then its names count as used if
they are strings or attributes somewhere in the product.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tests.architecture.source import Module

# `rollbook/__init__.py` and its neighbours are these files (`hatch_build.py`).
ROOT_MODULES: Final = {
    "rollbook": "rollbook.api.package_init",
    "rollbook.aio": "rollbook.api.public_aio",
    "rollbook.errors": "rollbook.api.public_errors",
    "rollbook.spark": "rollbook.api.public_spark",
    "rollbook.wal": "rollbook.api.public_wal",
}
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


class Name(NamedTuple):
    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


def dotted_name(module: Module) -> str:
    parts = ("rollbook", *module.path.with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@dataclass
class _Source:
    """One module: the statements that bind its names, and those that run on import."""

    name: str
    module: Module
    statements: dict[str, list[ast.stmt]] = field(default_factory=lambda: defaultdict(list))
    imported: dict[str, Name] = field(default_factory=dict)
    effects: list[ast.stmt] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._sort(self.module.tree.body)

    def _sort(self, statements: Iterable[ast.stmt]) -> None:
        for each in statements:
            if isinstance(each, (*_FUNCTIONS, ast.ClassDef)):
                self.statements[each.name].append(each)
                if any(self._is_registered(decorator) for decorator in each.decorator_list):
                    self.effects.append(each)
            elif isinstance(each, ast.Import | ast.ImportFrom):
                self.imported |= dict(_imported(each))
            elif isinstance(each, ast.If | ast.Try):
                self._sort(ast.iter_child_nodes(each))  # type: ignore[arg-type]  # Others are skipped.
            elif names := [*_assigned(each)]:
                for name in names:
                    self.statements[name].append(each)
            elif isinstance(each, ast.stmt):
                self.effects.append(each)

    def _is_registered(self, decorator: ast.expr) -> bool:
        """Whether the decorator registers the function: `@group.command()`, `@routes.get(…)`."""
        while isinstance(decorator, ast.Call | ast.Attribute):
            decorator = decorator.func if isinstance(decorator, ast.Call) else decorator.value
        if not isinstance(decorator, ast.Name):
            return False
        if target := self.imported.get(decorator.id):
            return target.module.startswith("rollbook.") or target.name == "atexit"
        return decorator.id in self.statements

    def uses(self, statement: ast.AST) -> Iterator[Name]:
        """Names that a statement mentions, in any module."""
        nodes = [*ast.walk(statement)]
        imported = dict(self.imported)
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                imported |= dict(_imported(node))
        yield from (target for name, target in imported.items() if name not in self.imported)
        for node in nodes:
            if isinstance(node, ast.Name):
                yield imported.get(node.id, Name(self.name, node.id))
            elif isinstance(node, ast.Attribute):
                if (of := _module_in(node.value, imported)) is not None:
                    yield Name(of, node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                if node.value.startswith("rollbook."):
                    yield Name(*node.value.rpartition(".")[::2])
                elif node.value.isidentifier():  # Perhaps a quoted annotation.
                    yield imported.get(node.value, Name(self.name, node.value))

    @property
    def strings(self) -> set[str]:
        nodes = self.module.nodes
        return {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}

    @property
    def attributes(self) -> set[str]:
        return {n.attr for n in self.module.nodes if isinstance(n, ast.Attribute)}

    def passed_on(self) -> Iterator[str]:
        """Imported names that are used other than as `module.name`, which may be modules."""
        nodes = self.module.nodes
        owners = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
        loaded = {n.id for n in nodes if isinstance(n, ast.Name) and id(n) not in owners}
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield from (str(at) for name, at in _imported(node) if name in loaded)


def _module_in(node: ast.expr, imported: Mapping[str, Name]) -> str | None:
    """The module that an expression may refer to, such as `completion` or `rollbook.ledger`."""
    if isinstance(node, ast.Name):
        target = imported.get(node.id)
        return None if target is None else f"{target.module}.{target.name}".strip(".")
    if isinstance(node, ast.Attribute) and (of := _module_in(node.value, imported)):
        return f"{of}.{node.attr}"
    return None


def _imported(statement: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Name]]:
    for alias in statement.names:
        if isinstance(statement, ast.ImportFrom):
            yield alias.asname or alias.name, Name(statement.module or "", alias.name)
        elif alias.asname:
            module, _, name = alias.name.rpartition(".")
            yield alias.asname, Name(module, name)
        else:
            yield alias.name.partition(".")[0], Name("", alias.name.partition(".")[0])
            yield alias.name, Name(*alias.name.rpartition(".")[::2])


def _assigned(statement: ast.AST) -> Iterator[str]:
    match statement:
        case ast.Assign(targets=targets):
            pass
        case ast.AnnAssign():
            targets = [statement.target]
        case _:
            return
    for each in targets:
        for node in ast.walk(each):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id


class Uses:
    def __init__(self, modules: Iterable[Module], entries: Iterable[str]) -> None:
        """`entries`: dotted names of modules, or of names in them."""
        self._sources = {dotted_name(each): _Source(dotted_name(each), each) for each in modules}
        self.modules: set[str] = set()
        self.names: set[Name] = set()
        self._waiting: list[tuple[_Source, ast.AST]] = []
        self.users: defaultdict[Name, set[str]] = defaultdict(set)
        sources = self._sources.values()
        self._said = set[str]().union(*(each.strings | each.attributes for each in sources))
        self._found_by_name = {ROOT_MODULES.get(each, each) for each in self._said}
        for source in sources:
            self._found_by_name |= {*source.passed_on()}
        for entry in entries:
            module, _, name = entry.rpartition(".")
            self._reach(Name(module, name))
            assert self._waiting or Name(module, name) in self.names or entry in self.modules, entry
            self._follow()

    def unused(self) -> list[Name]:
        return [
            Name(source.name, name)
            for source in self._sources.values()
            for name in source.statements
            if Name(source.name, name) not in self.names and not name.startswith("__")
        ]

    def unused_modules(self) -> list[str]:
        return [name for name in self._sources if name not in self.modules]

    def _follow(self) -> None:
        while self._waiting:
            source, statement = self._waiting.pop()
            for name in source.uses(statement):
                self._reach(name, source.name)

    def _reach(self, found: Name, user: str = "") -> None:
        whole = f"{found.module}.{found.name}".strip(".")
        self._reach_module(ROOT_MODULES.get(whole, whole))
        module = ROOT_MODULES.get(found.module, found.module)
        self._reach_module(module)
        source = self._sources.get(module)
        if source is None:
            return
        name = Name(module, found.name)
        self.users[name].add(user)
        if name in self.names:
            return
        if found.name in source.imported and found.name not in source.statements:
            self.names.add(name)
            self._reach(source.imported[found.name], user)
        elif found.name in source.statements:
            self.names.add(name)
            self._waiting += ((source, each) for each in source.statements[found.name])

    def _reach_module(self, name: str) -> None:
        source = self._sources.get(name)
        if source is None or name in self.modules:
            return
        self.modules.add(name)
        self._reach_module(name.rpartition(".")[0])
        self._waiting += ((source, each) for each in source.effects)
        for effect in source.effects:
            if isinstance(effect, (*_FUNCTIONS, ast.ClassDef)):
                self.names.add(Name(name, effect.name))
        for target in source.imported.values():  # Importing a module runs its imports.
            self._reach_module(ROOT_MODULES.get(target.module, target.module))
            self._reach_module(str(target))
        for dunder in ("__getattr__", "__all__"):
            self._reach(Name(name, dunder))
        if name in self._found_by_name:
            for each in (*source.statements, *source.imported):
                if each in self._said:
                    self._reach(Name(name, each))
