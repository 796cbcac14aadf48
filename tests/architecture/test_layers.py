"""Imports follow the table of packages and the three layers inside each package."""

import pytest

from tests.architecture.source import PACKAGES, Module, hand_written

# A package may import itself and these.
MAY_IMPORT = {
    "proto": set(),
    "bookie": {"proto"},
    "ledger": {"proto"},
    "recovery": {"proto", "ledger"},
    "logservice": {"proto", "ledger"},
    "api": {"proto", "ledger", "logservice", "recovery"},
}
# Modules that build processes from any package. The bookie's admin pages receive their bookie.
COMPOSITION_ROOTS = {
    "api/cli/server/bookie.py",
    "api/cli/dev/local_cluster.py",
    "api/cli/server/recovery.py",  # A bookie's process may run it, too.
    # Commands about the directories of a bookie.
    "api/cli/server/bookie_settings.py",
    "api/cli/server/flags_in_suggested_commands.py",
    "api/cli/bookie/setup_and_repair.py",
    "api/cli/bookie/target.py",
    "api/cli/bookie/inspection.py",
}
# Modules that a core may import besides `rollbook.proto`. None of them touches the machine.
PURE = {
    "abc",
    "array",
    "ast",
    "bisect",
    "collections",
    "contextlib",
    "copy",
    "dataclasses",
    "datetime",
    "enum",
    "difflib",
    "functools",
    "hashlib",
    "heapq",
    "hmac",
    "itertools",
    "json",
    "math",
    "operator",
    "re",
    "string",
    "struct",
    "sys",
    "types",
    "typing",
    "zlib",
    "__future__",
    "google_crc32c",
    "zstandard",
}
# Shells may await and log. They use files, sockets, clocks and threads through ports.
NOT_IN_SHELLS = {
    "fcntl",
    "grpc",
    "kazoo",
    "mmap",
    "multiprocessing",
    "os",
    "pathlib",
    "queue",
    "secrets",
    "select",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "sqlite3",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "urllib",
    "uuid",
    "concurrent",
}


@pytest.mark.parametrize("module", hand_written(), ids=lambda m: str(m.path))
def test_imports_follow_the_table(module: Module) -> None:
    allowed = MAY_IMPORT[module.package] | {module.package}
    if str(module.path) in COMPOSITION_ROOTS:
        allowed = set(PACKAGES)
    for name in module.imports():
        top, _, rest = name.partition(".")
        assert top not in PACKAGES, f"bare import of {name}: write rollbook.{name}"
        assert top != "tests", "nothing imports tests"
        if top == "rollbook" and rest.partition(".")[0] in PACKAGES:
            assert rest.partition(".")[0] in allowed, f"{module.package} may not import {name}"


def test_a_log_server_imports_no_bookie() -> None:
    """A log server starts faster without the bookie's modules."""
    of = {f"rollbook.{'.'.join(m.path.with_suffix('').parts)}": m for m in hand_written()}
    loaded: set[str] = set()
    wanted = ["rollbook.api.cli.server.log"]
    while wanted:
        name = wanted.pop()
        if name in of and name not in loaded:
            loaded.add(name)
            for each in of[name].imports():
                wanted += (each, each.rpartition(".")[0])
    assert "rollbook.logservice.log_ownership" in loaded
    assert not [name for name in loaded if name.startswith("rollbook.bookie.")]


@pytest.mark.parametrize(
    "module", [m for m in hand_written() if m.is_core], ids=lambda m: str(m.path)
)
def test_cores_import_only_pure_modules(module: Module) -> None:
    for name in module.imports():
        top = name.partition(".")[0]
        if top == "rollbook":
            assert ".runtime" not in name, f"a core may not import {name}"
        elif top == "random":
            assert name == "random.Random", "chance is handed in as a random.Random"
        else:
            assert top in PURE, f"a core may not import {name}"


@pytest.mark.parametrize(
    "module",
    [m for m in hand_written() if not m.is_core and not m.is_runtime],
    ids=lambda m: str(m.path),
)
def test_shells_import_no_machine_modules(module: Module) -> None:
    for name in module.imports():
        is_machine = name.partition(".")[0] in NOT_IN_SHELLS
        assert not is_machine or name.startswith("urllib.parse."), f"a shell may not import {name}"
        assert not name.startswith("rollbook.proto.runtime"), f"a shell may not import {name}"


def test_layer_checks_detect_violations() -> None:
    from pathlib import Path

    text = "import os\nfrom rollbook.bookie import journal\nimport ledger\n"
    bad = Module(Path("ledger/core/bad.py"), text)
    assert list(bad.imports()) == ["os", "rollbook.bookie.journal", "ledger"]
    with pytest.raises(AssertionError):
        test_imports_follow_the_table(bad)
    with pytest.raises(AssertionError):
        test_cores_import_only_pure_modules(bad)
