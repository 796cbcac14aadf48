"""What product code may not do if it is to run in a simulation, found in its source.

Cores and shells see the machine only through ports, and nothing in them may depend on addresses or
hash seeds. Cores, moreover, know no loop and no log. `proto/runtime` is the machine: exempt.
"""

import ast
from collections.abc import Iterator
from typing import Final

_PORTS: Final = "use the ports"
_MODULES: Final = {
    "time": "time comes from the Clock port or the event loop",
    "uuid": "names are drawn from the Randomness that is handed in",
    "secrets": "names are drawn from the Randomness that is handed in",
    "threading": "threads live in proto/runtime",
    "_thread": "threads live in proto/runtime",
    "concurrent": "threads live in proto/runtime",
    "multiprocessing": _PORTS,
    "subprocess": _PORTS,
    "socket": _PORTS,
    "select": _PORTS,
    "selectors": _PORTS,
    "signal": _PORTS,
    "fcntl": _PORTS,
    "mmap": _PORTS,
    "shutil": _PORTS,
    "tempfile": _PORTS,
    "pathlib": _PORTS,
    "sqlite3": _PORTS,
}
_CORE_MODULES: Final = {
    "asyncio": "a core runs without a loop",
    "os": "a core runs without a machine",
    "structlog": "a core answers with values; shells log",
    "logging": "a core answers with values; shells log",
}
_DIFFERS: Final = "differs from process to process"
_ADDRESS_ORDER: Final = "goes by memory address"
_ATTRIBUTES: Final = {
    "asyncio.TaskGroup": f"{_ADDRESS_ORDER}: use rollbook.proto.tasks.TaskGroup",
    "asyncio.wait": _ADDRESS_ORDER,
    "asyncio.as_completed": _ADDRESS_ORDER,
    "asyncio.all_tasks": _ADDRESS_ORDER,
    "asyncio.to_thread": "threads live in proto/runtime",
    "asyncio.open_connection": _PORTS,
    "asyncio.start_server": _PORTS,
    "asyncio.open_unix_connection": _PORTS,
    "asyncio.start_unix_server": _PORTS,
    "asyncio.create_subprocess_exec": _PORTS,
    "asyncio.create_subprocess_shell": _PORTS,
    "asyncio.get_event_loop": "use asyncio.get_running_loop()",
    "asyncio.new_event_loop": "loops are made where processes start",
    "asyncio.run": "loops are made where processes start",
    "weakref.WeakSet": _ADDRESS_ORDER,
    "datetime.datetime.now": "time comes from the Clock port",
    "datetime.datetime.utcnow": "time comes from the Clock port",
    "datetime.datetime.today": "time comes from the Clock port",
    "datetime.date.today": "time comes from the Clock port",
}
_METHODS: Final = {
    "run_in_executor": "threads live in proto/runtime",
    "call_soon_threadsafe": "threads live in proto/runtime",
}
_EXEMPT: Final = (
    "_pb2.py",
    "__main__.py",  # Starts a process.
    "proto/tasks.py",  # Makes asyncio.TaskGroup orderly.
)
_OS_MAY: Final = frozenset(("path", "strerror", "fspath", "PathLike"))
_RANDOM_MAY: Final = frozenset(("Random",))
_ORDERED: Final = frozenset(
    ("dict", "enumerate", "filter", "iter", "list", "map", "reversed", "tuple", "zip")
)
# Functions to which the order of what they are given makes no difference.
_ORDERLESS: Final = frozenset(
    ("all", "any", "bool", "frozenset", "len", "max", "min", "set", "sorted", "sum")
)


def banned_calls(path: str) -> list[str]:
    """One line for each thing found: `path:line: what: why`. `path` lies below the repository."""
    where = path.replace("\\", "/")
    if "proto/runtime/" in where or where.endswith(_EXEMPT):
        return []
    with open(path, encoding="utf-8") as file:
        return banned_in(file.read(), where)


def banned_in(source: str, path: str) -> list[str]:
    tree = ast.parse(source, path)
    finder = _Finder(is_core="/core/" in f"/{path}")
    finder.find_sets(tree)
    finder.visit(tree)
    return [f"{path}:{line}: {text}" for line, text in sorted(dict.fromkeys(finder.found))]


class _Finder(ast.NodeVisitor):
    def __init__(self, *, is_core: bool) -> None:
        self.found: list[tuple[int, str]] = []
        self._modules = _MODULES | (_CORE_MODULES if is_core else {})
        self._imported: dict[
            str, str
        ] = {}  # What a name stands for: `TaskGroup`, `asyncio.TaskGroup`.
        self._orderless: list[ast.AST] = []  # Generators whose order makes no difference.
        self._indexes: list[ast.AST] = []
        self._sets: set[str] = set()  # Names and attributes that hold sets somewhere in the module.

    def _report(self, node: ast.AST, what: str, why: str) -> None:
        self.found.append((getattr(node, "lineno", 0), f"{what}: {why}"))

    # --- Imports and names --------------------------------------------------------------------

    def visit_Import(self, node: ast.Import) -> None:  # ast's name.
        for alias in node.names:
            top = alias.name.partition(".")[0]
            if (why := self._modules.get(top)) is not None:
                self._report(node, f"import {alias.name}", why)
            self._imported[alias.asname or top] = alias.name if alias.asname else top

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        why = self._modules.get(module.partition(".")[0])
        for alias in node.names:
            full = f"{module}.{alias.name}"
            if why is not None:
                self._report(node, f"from {module} import {alias.name}", why)
            self._imported[alias.asname or alias.name] = full
            self._check_name(node, full)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        full = self._full_name(node)
        if full is not None:
            self._check_name(node, full)
        if node.attr in _METHODS:
            self._report(node, f".{node.attr}", _METHODS[node.attr])
        self.generic_visit(node)

    def _full_name(self, node: ast.expr) -> str | None:
        """`dt.datetime.now` as `datetime.datetime.now`, if it starts with an imported name."""
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self._imported:
            return None
        return ".".join((self._imported[node.id], *reversed(names)))

    def _check_name(self, node: ast.AST, full: str) -> None:
        if (why := _ATTRIBUTES.get(full)) is not None:
            self._report(node, full, why)
            return
        module, _, rest = full.partition(".")
        name = rest.partition(".")[0]
        if module == "os" and name and name not in _OS_MAY and "os" not in self._modules:
            self._report(node, full, _PORTS)
        if module == "random" and name and name not in _RANDOM_MAY:
            self._report(node, full, "draw from the random.Random that is handed in")

    # --- Calls --------------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name == "open" and name not in self._imported:
            self._report(node, "open()", _PORTS)
        elif name == "hash":
            self._report(node, "hash()", _DIFFERS)
        elif name == "id" and node not in self._indexes:
            self._report(node, "id()", _DIFFERS)
        for keyword in node.keywords:
            key = keyword.value
            if keyword.arg == "key" and isinstance(key, ast.Name) and key.id in ("id", "hash"):
                self._report(node, f"key={key.id}", _DIFFERS)
        if name in _ORDERLESS:
            self._orderless += node.args
        else:
            self._check_arguments(node, name)
        match node:
            case ast.Call(ast.Attribute(value=popped, attr="pop"), []) if self._is_set(popped):
                self._report(node, "pop() of a set", _ADDRESS_ORDER)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._indexes.append(node.slice)  # `known[id(x)]` asks which one, not in which order.
        self.generic_visit(node)

    def _check_arguments(self, node: ast.Call, name: str) -> None:
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                if self._is_set(argument.value):
                    self._report(argument, "a set unpacked", _ADDRESS_ORDER)
            elif name in _ORDERED and self._is_set(argument):
                self._report(argument, f"{name}() of a set", _ADDRESS_ORDER)

    # --- Iteration over sets ------------------------------------------------------------------

    def find_sets(self, tree: ast.AST) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.AnnAssign) and _is_set_type(node.annotation):
                self._sets.update(_names_of(node.target))
            elif isinstance(node, ast.arg) and _is_set_type(node.annotation):
                self._sets.add(node.arg)
            elif isinstance(node, ast.Assign) and _is_set_value(node.value):
                for target in node.targets:
                    self._sets.update(_names_of(target))

    def _is_set(self, node: ast.expr) -> bool:
        return _is_set_value(node) or any(name in self._sets for name in _names_of(node))

    def _check_iterated(self, node: ast.expr) -> None:
        if self._is_set(node):
            self._report(node, "iteration over a set", _ADDRESS_ORDER)

    def visit_For(self, node: ast.For) -> None:
        self._check_iterated(node.iter)
        self.generic_visit(node)

    def visit_AsyncFor(self, node: ast.AsyncFor) -> None:
        self._check_iterated(node.iter)
        self.generic_visit(node)

    def _check_generators(self, generators: list[ast.comprehension]) -> None:
        for generator in generators:
            self._check_iterated(generator.iter)

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self._check_generators(node.generators)
        self.generic_visit(node)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._check_generators(node.generators)
        self.generic_visit(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        if node not in self._orderless:
            self._check_generators(node.generators)
        self.generic_visit(node)


def _is_set_type(annotation: ast.expr | None) -> bool:
    if isinstance(annotation, ast.Subscript):
        annotation = annotation.value
    name = annotation.id if isinstance(annotation, ast.Name) else ""
    return name in ("set", "frozenset", "Set", "AbstractSet", "MutableSet")


def _is_set_value(node: ast.expr) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    called = node.func if isinstance(node, ast.Call) else None
    return isinstance(called, ast.Name) and called.id in ("set", "frozenset")


def _names_of(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield f".{node.attr}"
