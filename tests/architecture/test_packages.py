"""Contents of the wheel built from the repository and of the wheel built from the sdist."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.architecture.source import ROOT

_HATCHLING = [sys.executable, "-m", "hatchling", "build"]
_SAME_TIME = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}


def pack(kind: str, source: Path, target: Path) -> Path:
    command = [*_HATCHLING, "--target", kind, "--directory", str(target)]
    done = subprocess.run(
        command,
        cwd=source,
        env=_SAME_TIME,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    (packed,) = target.iterdir()
    return packed


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as files:
        return {name: files.read(name) for name in files.namelist()}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel from the repository, and the wheel from its sdist."""
    folder = tmp_path_factory.mktemp("packages")
    with tarfile.open(pack("sdist", ROOT, folder / "sdist")) as sdist:
        sdist.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return pack("wheel", ROOT, folder / "wheel"), pack("wheel", unpacked, folder / "second")


def test_wheel_from_sdist_equals_wheel_from_repository(wheels: tuple[Path, Path]) -> None:
    ours, of_sdist = wheels
    expected, found = contents(ours), contents(of_sdist)
    assert found.keys() == expected.keys()
    assert [name for name, body in expected.items() if found[name] != body] == []
    assert of_sdist.read_bytes() == ours.read_bytes()


def test_wheel_can_be_imported_outside_the_repository(
    wheels: tuple[Path, Path], tmp_path: Path
) -> None:
    """The wheel includes protobuf messages and dashboard files; nothing else of Rollbook is on the
    path.
    """
    with zipfile.ZipFile(wheels[1]) as files:
        files.extractall(tmp_path / "site")
    program = (
        "import rollbook, rollbook.aio\n"
        "from rollbook.api.cli import entry\n"
        "from rollbook.proto.v1 import log_pb2\n"
        "from importlib.resources import files\n"
        "assert (files('rollbook.api.dashboard') / 'style.css').is_file()\n"
        "print(rollbook.__file__)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert found.stderr == ""
    assert found.stdout.strip() == str(tmp_path / "site" / "rollbook" / "__init__.py")
