"""`examples/append_exactly_once.sh` and the file in which it stores its position."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.rest.script import SCRIPT

_CURL = """#!/bin/sh
cat >>"$0.lines"
echo >>"$0.lines"
printf 201
"""


def run(folder: Path, next_file: Path) -> tuple[int, list[str], str]:
    """Returns its exit code, the lines that it appended, and its stderr."""
    curl = folder / "curl"
    curl.write_text(_CURL)
    curl.chmod(0o755)
    (folder / "curl.lines").touch()
    done = subprocess.run(
        ["/bin/sh", SCRIPT, "http://nowhere", "ns/log", "me", next_file],
        input="a\nb\nc\n",
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.returncode, (folder / "curl.lines").read_text().split(), done.stderr


@pytest.mark.parametrize(
    ("kept", "appended"),
    [(None, ["a", "b", "c"]), ("", ["a", "b", "c"]), ("\n", ["a", "b", "c"]), ("2\n", ["c"])],
)
def test_script_resumes_at_the_stored_position(
    tmp_path: Path, kept: str | None, appended: list[str]
) -> None:
    """Without a position it starts at the first line: the log detects duplicates."""
    next_file = tmp_path / "next"
    if kept is not None:
        next_file.write_text(kept)
    assert run(tmp_path, next_file) == (0, appended, "")
    assert next_file.read_text() == "3\n"


@pytest.mark.parametrize("kept", ["x", "-1", "1 2", "1\n2", "9" * 30])
def test_script_stops_on_an_invalid_position_file(tmp_path: Path, kept: str) -> None:
    next_file = tmp_path / "next"
    next_file.write_text(kept)
    code, appended, complaint = run(tmp_path, next_file)
    assert (code, appended, next_file.read_text()) == (1, [], kept)
    assert str(next_file) in complaint
