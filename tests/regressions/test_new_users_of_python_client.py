"""Defects that new users of the Python client found."""

import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rollbook
from rollbook.proto.errors import BadConfig
from tests.regressions.defects import defect
from tests.regressions.one_dev import Dev, running
from tests.support import processes

_REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    with running(tmp_path_factory.mktemp("dev")) as found:
        yield found


@defect(
    "record-cannot-be-pickled",
    "A record without headers could not be pickled, so no pool of processes could take it.",
)
def test_a_record_can_be_pickled(dev: Dev) -> None:
    with rollbook.connect(dev.url) as client:
        log = client.open("pickled", create=True)
        log.append(b"plain")
        log.append(b"with", headers={"a": b"b"})
        records = list(log.read())
    assert pickle.loads(pickle.dumps(records)) == records
    assert records[0].headers == {}
    with pytest.raises(TypeError):
        records[0].headers["a"] = b"b"  # type: ignore[index]  # All empty headers are shared.


@defect(
    "listed-name-cannot-be-opened",
    "`client.open(name)` failed for the names that `client.logs()` yields.",
)
def test_listed_names_are_accepted_by_the_client(dev: Dev) -> None:
    with rollbook.connect(dev.url) as client:
        client.open("listed", create=True).append(b"x")
        (name,) = client.logs(prefix="listed")
        assert client.open(name).tail_offset() == 1  # type: ignore[arg-type,unused-ignore]  # As users do.
        client.lookup([name])  # type: ignore[list-item,unused-ignore]  # As users do.
        client.delete(name)  # type: ignore[arg-type,unused-ignore]  # As users do.


@defect(
    "token-newline-fails-in-grpc",
    "A token that ended with a newline failed with an internal error of gRPC.",
)
def test_token_may_end_with_a_newline(dev: Dev) -> None:
    with rollbook.connect(dev.url, token="secret\n") as client:
        client.open("with-token", create=True)
    with pytest.raises(BadConfig, match="the token"):
        rollbook.connect(dev.url, token="se\ncret")


@defect("tls-settings-are-ignored", "TLS settings beside a URL without TLS were ignored.")
def test_tls_settings_with_a_plain_url_are_refused(dev: Dev, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="authorities"):
        rollbook.connect(dev.url, authorities=str(tmp_path / "ca.pem"))
    done = dev.shell("log", "ls", "--tls-authorities", str(tmp_path / "ca.pem"))
    assert done.returncode == 2
    assert b"log+tls://" in done.stderr


_BUILD = """
import runpy, sys, types
class Interface:
    target_name, root = "wheel", sys.argv[1]
for name in ("hatchling", "hatchling.builders", "hatchling.builders.hooks",
             "hatchling.builders.hooks.plugin", "hatchling.builders.hooks.plugin.interface"):
    sys.modules[name] = types.ModuleType(name)
Interface.__class_getitem__ = classmethod(lambda cls, _: cls)
sys.modules[name].BuildHookInterface = Interface
hook = runpy.run_path(sys.argv[1] + "/hatch_build.py")["CustomBuildHook"]()
data = {"force_include": {}}
hook.initialize("standard", data)
print(*data["force_include"].values())
"""


@defect(
    "wheel-has-no-py-typed",
    "Type checkers ignored the types of `import rollbook`: the wheel lacked `rollbook/py.typed`.",
)
def test_wheel_includes_py_typed() -> None:
    """Checks what the build hook adds to the wheel, without hatchling."""
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, str(_REPOSITORY)], capture_output=True, text=True, check=True
    )
    assert "rollbook/py.typed" in done.stdout.split()


@defect(
    "required-click-is-too-old",
    "The oldest click version that the package allows lacks a name that the shell imports.",
)
def test_required_click_is_8_2_or_newer() -> None:

    text = (_REPOSITORY / "pyproject.toml").read_text()
    found = re.search(r'"click>=(\d+)\.(\d+)', text)
    assert found
    assert tuple(map(int, found.groups())) >= (8, 2)  # 8.2 added `NoArgsIsHelpError`.


_BOOKIE_WITHOUT = """
import os, sys
for name in ("fdatasync", "posix_fallocate"):
    delattr(os, name)
sys.argv = ["rollbook", *sys.argv[1:]]
from rollbook.api.cli.main import main
main()
"""


@defect(
    "fdatasync-is-missing",
    "On macOS, which has no `os.fdatasync`, everything ended in a traceback.",
)
def test_a_system_without_fdatasync_can_append(tmp_path: Path) -> None:

    with processes.family() as children:
        words = ("dev", "--bookies", "1", "--listen", "127.0.0.1:0", "--data", tmp_path / "data")
        child = children.start(sys.executable, "-c", _BOOKIE_WITHOUT, *words)
        line = child.line(60)
        while not line.startswith("ready:"):
            line = child.line(60)
        with rollbook.connect(f"log://{line.rpartition(' on ')[2].strip()}") as client:
            assert client.open("x", create=True).append(b"x").first_offset == 0
