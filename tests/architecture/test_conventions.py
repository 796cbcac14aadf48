"""Conventions of the repository that a test can check."""

import ast
import dataclasses
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbook.api.cli.main import module_of
from tests.architecture.source import PACKAGES, ROOT, Module, hand_written, modules

NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)?::(test_\w+)`")
TEST_FUNCTION = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)


def _named_tests(line: str) -> Iterator[tuple[str, str]]:
    """File and test; `::test_…` without a file refers to the file named before it."""
    path = ""
    for file, name in NAMED_TEST.findall(line):
        path = file or path
        yield path, name


@pytest.mark.parametrize("package", PACKAGES)
def test_every_test_that_a_design_names_exists(package: str) -> None:
    tests = {
        (str(module.path), name)
        for module in modules("tests")
        for name in TEST_FUNCTION.findall(module.text)
    }
    lines = (ROOT / package / "DESIGN.md").read_text().splitlines()
    named = {test for line in lines for test in _named_tests(line)}
    assert not named - tests, f"{package}/DESIGN.md names tests that do not exist"


def test_the_table_of_rules_names_pure_files_that_exist() -> None:
    """Each file of the table begins with a docstring that states its rule."""
    design = (ROOT / "proto" / "DESIGN.md").read_text()
    section = design.partition("## Where each rule is\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([a-z].+) \| `([\w/.]+)` \|$", section, re.MULTILINE)
    assert len(rows) >= 20
    assert len(set(rows)) == len(dict(rows)) == len({path for _, path in rows})
    of = {str(module.path): module for module in modules()}
    for rule, path in rows:
        assert path in of, f"{rule}: {path} does not exist"
        assert of[path].is_core or (path.count("/") == 1 and path.startswith("proto/")), (
            f"{path} is neither in a core nor at the top of proto"
        )
        assert ast.get_docstring(of[path].tree), f"{path} needs a module docstring"


def _imported_by(module: Module) -> set[str]:
    """The paths of the product's modules that this one imports, such as `ledger/core/acks.py`."""
    found = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rollbook."):
            base = str(node.module).removeprefix("rollbook.").replace(".", "/")
            found |= {f"{base}.py", *(f"{base}/{each.name}.py" for each in node.names)}
    return found


def test_drawing_of_the_append_path_names_what_its_files_import() -> None:
    """A file on the right of the drawing is imported on the left, or by what is imported there."""
    of = {str(module.path): module for module in modules()}
    imports = {path: _imported_by(module) & of.keys() for path, module in of.items()}
    design = (ROOT / "proto" / "DESIGN.md").read_text()
    section = design.partition("One append passes these twelve files")[2].partition("\n```\n")[0]
    rows = re.findall(r"^ ?(\d+) ([\w/]+\.py) +(.+)$", section, re.MULTILINE)
    assert [int(number) for number, *_ in rows] == list(range(1, 13))
    for _, path, text in rows:
        near = imports[path].union(*(imports[each] for each in imports[path]))
        for name in re.findall(r"[\w/]+\.py", text):
            assert any(f"/{each}".endswith(f"/{name}") for each in near), f"{path} uses no {name}"


def test_every_ruling_names_its_tests() -> None:
    design = (ROOT / "ledger" / "DESIGN.md").read_text()
    rows = re.findall(r"^(\| (\d+) .*)$", design, re.MULTILINE)
    assert {number for _, number in rows} == {"2", "4", "5", "7", "10"}
    for row, _ in rows:
        assert list(_named_tests(row)), row


def test_every_package_has_its_design_and_is_typed() -> None:
    for package in PACKAGES:
        assert (ROOT / package / "DESIGN.md").read_text().startswith(f"# {package}")
        assert (ROOT / package / "py.typed").exists()


@pytest.mark.parametrize(
    "module",
    [each for each in modules(*PACKAGES, "examples") if each.path.name == "__init__.py"],
    ids=lambda m: str(m.path),
)
def test_every_package_docstring_begins_with_a_sentence(module: Module) -> None:
    said = ast.get_docstring(module.tree) or ""
    first = said.partition("\n\n")[0].replace("\n", " ")
    assert first.endswith("."), f"{module.path} must begin with a sentence, not {first!r}"
    assert not first.startswith("See "), f"{module.path} must say what the folder is for"


def test_ledger_coroutines_document_cancellation() -> None:
    faces = {"ledgers", "writer", "reader", "stream", "follower"}
    waits = [
        (module.path, node)
        for module in modules("ledger")
        if module.path.parent.name == "ledger" and module.path.stem in faces
        for shape in module.tree.body
        if isinstance(shape, ast.ClassDef)
        for node in shape.body
        if isinstance(node, ast.AsyncFunctionDef) and not node.name.startswith("_")
    ]
    assert len(waits) > 20
    silent = [
        f"{path}: {n.name}" for path, n in waits if "ancel" not in (ast.get_docstring(n) or "")
    ]
    assert not silent, "these docstrings must say what happens when the call is cancelled"


def config_classes() -> list[tuple[Module, ast.ClassDef]]:
    return [
        (module, node)
        for module in hand_written()
        for node in module.nodes
        if isinstance(node, ast.ClassDef) and node.name.endswith("Config")
    ]


def test_every_config_field_is_read() -> None:
    """A setting that no code reads has no effect."""
    read = {
        node.attr
        for module in hand_written()
        for node in module.nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    for module, shape in config_classes():
        for field in shape.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                assert field.target.id in read, f"{module.path}: nothing reads {field.target.id}"


def _texts(value: ast.expr) -> Iterator[str]:
    """The texts that an expression may evaluate to, with `{}` for each computed part."""
    match value:
        case ast.Constant(value=str() as text):
            yield text
        case ast.JoinedStr(values=parts):
            yield "".join(str(p.value) if isinstance(p, ast.Constant) else "{}" for p in parts)
        case ast.IfExp(body=one, orelse=other):
            yield from (*_texts(one), *_texts(other))


def _constants(module: Module) -> dict[str, ast.expr]:
    found: dict[str, ast.expr] = {}
    for node in module.tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found[name] = value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                found[name] = value
    return found


def test_next_steps_have_no_capital_and_no_full_stop() -> None:
    """A next step is printed after `try: `, so it has no capital letter and no full stop."""
    found = [
        (module.path, text)
        for module in hand_written()
        for node in module.nodes
        if isinstance(node, ast.keyword) and node.arg == "next_step"
        for text in _texts(_constants(module).get(ast.unparse(node.value), node.value))
        if text
    ]
    assert len(found) > 40
    for path, text in found:
        assert not text[0].isupper(), f"{path}: next_step begins with a capital: {text}"
        assert not text.endswith("."), f"{path}: next_step ends with a full stop: {text}"


@pytest.mark.parametrize("module", hand_written(*PACKAGES, "tests"), ids=lambda m: str(m.path))
def test_every_type_ignore_gives_a_code_and_a_reason(module: Module) -> None:
    for number, line in enumerate(module.text.splitlines(), 1):
        comment = line.partition("#")[2]
        if re.search(r"\btype: ignore", comment) and "re.search" not in line:
            assert re.search(r"type: ignore\[[a-z-]+(, ?[a-z-]+)*\]  # \w", line), (
                f"{module.path}:{number}: write `type: ignore[code]  # Reason.`"
            )


def test_the_client_imports_nothing_heavy() -> None:
    """Users' scripts run `import rollbook`, so it must not load the libraries of servers."""
    code = "import rollbook, sys, json; print(json.dumps(sorted(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(found.stdout)}
    heavy = {"fastapi", "pydantic", "httpx", "structlog", "kazoo", "prometheus_client", "pyspark"}
    assert not loaded & heavy


def test_help_loads_no_command() -> None:
    code = (
        "import sys; sys.argv=['rollbook','--help']\n"
        "from rollbook.api.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "import json; print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    loaded = set(json.loads(found.stderr))
    ours = {name for name in loaded if name.startswith("rollbook.api.cli.")}
    assert ours == {
        f"rollbook.api.cli.{name}" for name in ("error_output", "main", "lazy_group", "output")
    }
    assert not loaded & {"asyncio", "structlog", "kazoo", "google.protobuf", "sqlite3"}


def test_log_commands_load_no_server_modules() -> None:
    """Loading the ledger client and the metadata stores makes these commands 1.5 times as slow."""
    names = ("log.actions", "log.append", "log.read", "log.export_import", "cursor.actions")
    code = (
        f"import {', '.join(f'rollbook.api.cli.{each}' for each in names)}\n"
        "import sys; print(*sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    loaded = found.stdout.split()
    assert "rollbook.api.client.async_client" in loaded
    ours = tuple(f"rollbook.{each}" for each in ("ledger", "bookie", "recovery", "proto.metastore"))
    assert not [each for each in loaded if each.startswith(ours)]
    heavy = {"structlog", "kazoo", "sqlite3", "fastapi", "pydantic", "tempfile", "tomllib"}
    assert not set(loaded) & heavy


def test_help_of_every_command_loads_no_implementation() -> None:
    """`--help` loads only click and the modules that define commands."""
    code = (
        "import json, sys, click\n"
        "from rollbook.api.cli.main import rollbook\n"
        "asked = []\n"
        "def ask(command, *words):\n"
        "    asked.append(' '.join(words))\n"
        "    try: rollbook.main([*words, '--help'], 'rollbook')\n"
        "    except SystemExit as end: assert not end.code, words\n"
        "    if isinstance(command, click.Group):\n"
        "        context = click.Context(command)\n"
        "        for name in command.list_commands(context):\n"
        "            ask(command.get_command(context, name), *words, name)\n"
        "ask(rollbook)\n"
        "print(json.dumps([asked, sorted(sys.modules)]), file=sys.stderr)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    asked, loaded = json.loads(found.stderr)
    assert {"", "server bookie", "bookie init", "bookie mark", "cluster info", "demo"} <= set(asked)
    groups = {
        "access",
        "apply",
        "bench",
        "bookie",
        "cluster",
        "cursor",
        "debug",
        "demo",
        "dev",
        "explain",
        "ledger",
        "log",
        "recovery",
        "server",
        "spark",
    }
    words = {*groups, *(module_of(name).removeprefix("rollbook.api.cli.") for name in groups)}
    words |= {
        "bookie.setup_and_repair",
        "bookie.target",
        "bookie.inspection",
        "bookie.gc_and_scrub",
        "bookie.decommission",
        "bookie.options",
    }
    words |= {
        "click_types",
        "context_commands",
        "context_option",
        "error_output",
        "lazy_group",
        "log.writer_epoch_commands",
    }
    words |= {"main", "metadata_option", "output", "cors_option"}
    values = {
        "bookie.core.suggested_commands",
        "proto.errors",
        "proto.formats.node_byte_checks",
        "proto.formats.layout",
        "proto.printable",
    }
    packages = {
        "api",
        "api.cli",
        "bookie",
        "bookie.core",
        "proto",
        "proto.formats",
        "api.package_init",
    }
    ours = {name.removeprefix("rollbook.") for name in loaded if name.startswith("rollbook.")}
    assert ours <= {f"api.cli.{word}" for word in words} | values | packages
    heavy = {"asyncio", "structlog", "kazoo", "google", "sqlite3", "fastapi", "pydantic", "ssl"}
    assert not {name.partition(".")[0] for name in loaded} & heavy


def test_requirements_match_the_lock() -> None:
    """`requirements*.lock` are exports of uv.lock for users of pip."""
    locked = {
        package["name"]: package["version"]
        for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]
        if "version" in package
    }
    pinned = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)
    for name in (
        "requirements.lock",
        *(f"requirements-{each}.lock" for each in ("check", "test", "docs", "chart")),
    ):
        found = dict(pinned.findall((ROOT / name).read_text()))
        assert found, name
        assert found.items() <= locked.items(), f"{name} is stale: run `make locks`"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {re.split(r"[<>=\[]", need)[0] for need in project["dependencies"]}
    assert wanted <= set(dict(pinned.findall((ROOT / "requirements.lock").read_text())))


def test_project_version_equals_package_version() -> None:
    from rollbook import __version__

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__


def test_optimised_python_is_refused() -> None:
    """Rollbook checks its invariants with assert, which -O removes."""
    command = [sys.executable, "-O", "-c", "from rollbook.api.cli.main import main; main()"]
    found = subprocess.run(command, capture_output=True, check=False)
    assert found.returncode == 1
    assert b"without -O" in found.stderr


def test_shared_dataclasses_of_proto_are_frozen() -> None:
    """Callers share these values, so they must be immutable."""
    from rollbook.proto import ports, quorum

    for module in (ports, quorum):
        for value in vars(module).values():
            if dataclasses.is_dataclass(value) and isinstance(value, type):
                assert vars(value)["__dataclass_params__"].frozen, value


def test_no_file_names_a_path_of_one_machine() -> None:
    """Checks every text file that git tracks."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout: nothing to list")
    private = re.compile(r"/(?:work/(?:main|shared)|tmp/briefs|root|home/\w+)/")
    for name in listed.stdout.split():
        path = ROOT / name
        if (
            path.suffix in {".py", ".md", ".toml", ".proto", ""}
            and path.is_file()
            and not os.path.islink(path)
        ):
            text = Path(path).read_text(errors="replace")
            assert not private.search(text), f"{name} contains a path of one machine"


def test_no_literal_tuple_is_unpacked_into_a_call_or_a_display() -> None:
    """Unpacking hides how many arguments there are: write `f(a, b)`, not `f(*(a, b))`."""
    found = [
        f"{module.path}:{node.lineno}"
        for package in PACKAGES
        for module in modules(package)
        for node in module.nodes
        if isinstance(node, ast.Starred) and isinstance(node.value, ast.Tuple | ast.List)
    ]
    assert not found, "write the elements as plain arguments, or use keywords"
