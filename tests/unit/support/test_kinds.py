"""Kinds of test beside each other, and on a machine that lacks something."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests import kinds
from tests.support.processes import REPOSITORY

PATIENCE_S = 60


@pytest.mark.parametrize("kind", [("newcomer",), ("rest", "--kills=1")])
@pytest.mark.parametrize(("required", "code"), [("", 2), ("zk,curl", 1)])
def test_what_needs_curl_is_skipped_without_it_or_fails_where_it_is_required(
    kind: tuple[str, ...], required: str, code: int, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests", *kind],
        cwd=REPOSITORY,
        env={"PATH": str(tmp_path), "ROLLBOOK_TEST_REQUIRE": required},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    reason = "curl: there is no curl; to enable: apt-get install curl"
    assert done.returncode == code, done.stderr
    if required:
        assert done.stderr.endswith(f"ROLLBOOK_TEST_REQUIRE demands {reason}\n")
    else:
        assert f"skipped: {reason}\n" in done.stdout


def test_without_its_packages_it_says_in_a_line_what_to_type() -> None:
    """It was a traceback."""
    without = [sys.executable, "-S", "-m", "tests", "check"]
    done = subprocess.run(
        without, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "is not installed" in line
    assert "make .venv/.test" in line


def test_what_is_missing_of_the_tests_themselves_is_a_traceback() -> None:
    """Nothing that can be installed brings it."""
    without = "import runpy, sys; sys.modules['tests.tally'] = None; runpy.run_module('tests')"
    done = subprocess.run(
        [sys.executable, "-c", without],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")


def test_each_command_of_lanes_and_what_they_share_runs_once(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A failure is told in full, and fails the whole. What is compiled is kept for all of them, and only so long."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    code = "import sys; assert sys.pycache_prefix and not sys.dont_write_bytecode"
    compiles = ["timeit", "-n", "1", "-r", "1", code]
    lanes = {"own": compiles, "broken": ["json.tool", "/nowhere"]}, {"other": compiles}
    shared = {f"shared-{number}": compiles for number in range(4)}
    tally = kinds._steps({}, *lanes, shared=shared)
    assert (tally.passed, tally.failed) == (6, 1)
    said = capfd.readouterr().out
    for name in ("own", "other", *shared):
        assert sum(line.split()[:2] == [name, "ok"] for line in said.splitlines()) == 1
    assert "broken      FAILED" in said
    assert "/nowhere" in said
    assert os.listdir(tmp_path) == [f"rb-{os.getpid()}"]
    assert os.listdir(tmp_path / f"rb-{os.getpid()}") == []
