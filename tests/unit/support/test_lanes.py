"""Kinds of tests in parallel lanes, and which failed tests of such a run are retried."""

import os
import tempfile
from pathlib import Path

import pytest

from tests import lanes

ONE = """
FAILED tests/crash/test_a.py::test_one[a b-1] - assert 1 == 2
 +  where 1 = len([0])
1 failed, 194 passed in 266.82s (0:04:26)
tests+crashes: 194 passed, 1 failed
"""
TWO = """
FAILED tests/unit/test_b.py::test_two
ERROR tests/unit/test_b.py::test_three - rollbook.proto.errors.OwnerChanging: its process - stood still
tests: 9 passed, 2 failed, 1 skipped
"""


def test_few_failed_tests_are_retried() -> None:
    assert lanes.to_try_again({"crash": ONE, "unit": TWO}) == {
        "crash": ["tests/crash/test_a.py::test_one[a b-1]"],
        "unit": ["tests/unit/test_b.py::test_two", "tests/unit/test_b.py::test_three"],
    }


def test_many_failed_tests_are_not_retried() -> None:
    assert lanes.to_try_again({"crash": ONE, "doors": ONE, "unit": TWO}) == {}


@pytest.mark.parametrize(
    "said",
    [
        "seed 17 of logs: LS3 broken\nseeds: 170 passed, 1 failed\n",
        ONE.replace("194 passed, 1 failed\n", "194 passed, 2 failed\n"),  # A crash failed, too.
        "Traceback (most recent call last):\nKeyError: 'x'\n",
        "",
    ],
)
def test_failure_that_is_not_a_test_prevents_all_retries(said: str) -> None:
    assert lanes.to_try_again({"unit": TWO, "other": said}) == {}


def test_retry_decides_the_result_and_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test that passes alone counts as passed; one that fails again fails its kind."""
    monkeypatch.setattr(lanes, "_python", lambda command: ["sh", "-c", *command])
    test, said = "tests/unit/test_c.py::test_it", "tests: 3 passed, 1 failed"
    fails = f"echo 'FAILED {test}'; echo '{said}'; exit 1"
    monkeypatch.setattr(lanes, "to_try_again", lambda said: {kind: [test] for kind in said})
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(lanes, "_AGAIN", ("true",))
    tally = lanes.run({"unit": [fails], "other": ["true"]})
    assert (tally.passed, tally.failed) == (2, 0)
    assert f"passed when it ran alone: {test}" in capsys.readouterr().out
    monkeypatch.setattr(lanes, "_AGAIN", ("false",))
    tally = lanes.run({"unit": [fails]})
    assert (tally.passed, tally.failed) == (0, 1)


def test_own_and_shared_commands_of_lanes_run_once(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A failure is printed in full and fails the run.

    All commands share a cache of bytecode, which is removed.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    code = "import sys; assert sys.pycache_prefix and not sys.dont_write_bytecode"
    compiles = ["timeit", "-n", "1", "-r", "1", code]
    own = {"own": compiles, "broken": ["json.tool", "/nowhere"]}, {"other": compiles}
    shared = {f"shared-{number}": compiles for number in range(4)}
    tally = lanes.run({}, *own, shared=shared)
    assert (tally.passed, tally.failed) == (6, 1)
    said = capfd.readouterr().out
    for name in ("own", "other", *shared):
        assert sum(line.split()[:2] == [name, "ok"] for line in said.splitlines()) == 1
    assert "broken      FAILED" in said
    assert "/nowhere" in said
    assert os.listdir(tmp_path) == [f"rb-{os.getpid()}"]
    assert os.listdir(tmp_path / f"rb-{os.getpid()}") == []
