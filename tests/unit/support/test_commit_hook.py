"""What `.githooks/commit-msg` lets through."""

import subprocess
from pathlib import Path

import pytest

from tests.support.processes import REPOSITORY

HOOK = REPOSITORY / ".githooks" / "commit-msg"


def hook(folder: Path, message: str) -> subprocess.CompletedProcess[str]:
    path = folder / "COMMIT_EDITMSG"
    path.write_text(message)
    return subprocess.run([HOOK, path], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    "message",
    [
        "ledger: hold the LAC during an ensemble change\n\nWhy.\n",
        "api/spark: read headers\n# Please enter the commit message\n",
        "# A template's first line\ntests: " + "x" * 58 + "\n",
        "Merge branch 'main' into another\n",
        'Revert "ledger: hold the LAC during an ensemble change, whatever that takes"\n',
    ],
)
def test_good_messages_pass(tmp_path: Path, message: str) -> None:
    done = hook(tmp_path, message)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ("tests: " + "é" * 59, "66 characters"),
        ("Fix things\n", "an area, a colon"),
        ("ledger: hold the LAC.\n", "without a full stop"),
        ("ledger: hold the LAC\nWhy.\n", "the line after the subject"),
        ("", "an area, a colon"),
    ],
)
def test_bad_messages_are_refused_with_an_example(tmp_path: Path, message: str, why: str) -> None:
    done = hook(tmp_path, message)
    assert done.returncode == 1
    assert why in done.stderr
    assert "try: ledger:" in done.stderr
