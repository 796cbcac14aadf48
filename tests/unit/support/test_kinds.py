"""Kinds of tests on a machine that lacks a program or a package."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import REPOSITORY

PATIENCE_S = 60


@pytest.mark.parametrize("kind", [("newcomer",), ("rest", "--kills=1")])
@pytest.mark.parametrize(("required", "code"), [("", 2), ("zk,curl", 1)])
def test_tests_that_need_curl_are_skipped_without_it_or_fail_if_required(
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


def test_missing_packages_are_reported_in_one_line_with_a_remedy() -> None:
    without = [sys.executable, "-S", "-m", "tests", "check"]
    done = subprocess.run(
        without, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "is not installed" in line
    assert "make .venv/.test" in line


def test_missing_module_of_the_tests_is_a_traceback() -> None:
    """Installing packages would not help."""
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
