"""The messages that `.githooks/commit-msg` accepts."""

import subprocess
from pathlib import Path

import pytest

from tests.support.processes import REPOSITORY

HOOK = REPOSITORY / ".githooks" / "commit-msg"


def hook(folder: Path, message: str) -> subprocess.CompletedProcess[str]:
    path = folder / "COMMIT_EDITMSG"
    path.write_text(message)
    return subprocess.run([HOOK, path], capture_output=True, text=True, check=False, timeout=60)


SUBJECT = "ledger: hold the LAC during an ensemble change"
FOUND = "A fresh seed of world cluster found it: the LAC passed a hole."


@pytest.mark.parametrize(
    "message",
    [
        f"{SUBJECT}\n\nWhy.\n",
        "api/spark: read headers\n\nWhy.\n# Please enter the commit message\n",
        "# A template's first line\nledger: " + "x" * 57 + "\n\nWhy.\n",
        "Merge branch 'main' into another\n",
        f'Revert "{SUBJECT}, whatever that takes"\n',
        f"fixup! {SUBJECT}\n",
        f"amend! {SUBJECT}\n",
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
def test_bad_subjects_are_refused_with_an_example(tmp_path: Path, message: str, why: str) -> None:
    done = hook(tmp_path, message)
    assert done.returncode == 1
    assert why in done.stderr
    assert "try: ledger:" in done.stderr


@pytest.mark.parametrize(
    "body",
    [
        "",
        "\n\n",
        "\n# Please enter the commit message\n",
        "\nSigned-off-by: A <a@example.org>\n",
        "\nSeed: 48113 cluster\n",
        "\n# ------------------------ >8 ------------------------\ndiff --git a/x b/x\n",
    ],
)
def test_product_change_without_body_is_refused(tmp_path: Path, body: str) -> None:
    done = hook(tmp_path, f"{SUBJECT}\n{body}")
    assert done.returncode == 1
    assert "the body that says why is missing" in done.stderr


@pytest.mark.parametrize("area", ["docs", "docs/notes", "changelog", "tests", "tests/spark"])
def test_docs_and_tests_need_no_body(tmp_path: Path, area: str) -> None:
    assert hook(tmp_path, f"{area}: say what a fence promises\n").returncode == 0
    assert hook(tmp_path, "documents: say what a fence promises\n").returncode == 1


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("é " * 50, 0),
        ("é " * 50 + "é", 1),
        ("https://example.org/" + "x" * 100, 0),
    ],
)
def test_body_lines_over_100_characters_are_refused_except_links(
    tmp_path: Path, line: str, code: int
) -> None:
    done = hook(tmp_path, f"{SUBJECT}\n\n{line}\n")
    assert done.returncode == code
    assert ("more than 100 characters" in done.stderr) == (code == 1)


def test_diff_below_a_verbose_message_is_ignored(tmp_path: Path) -> None:
    diff = "# ------------------------ >8 ------------------------\n+" + "long " * 40
    assert hook(tmp_path, f"{SUBJECT}\n\nWhy.\n{diff}\n").returncode == 0


@pytest.mark.parametrize(
    "body",
    [
        FOUND,
        "Found by a fresh\nseed of world cluster.",
        "Found by the simulator.",
        "The simulator found that the LAC passed a hole.",
        "Seed 48113 loses an entry.",
        "Found by seed 48113.\n\nSeed: not kept",
    ],
)
def test_bug_found_by_the_simulator_needs_its_seed(tmp_path: Path, body: str) -> None:
    done = hook(tmp_path, f"{SUBJECT}\n\n{body}\n")
    assert done.returncode == 1
    assert "try: Seed: 48113 cluster" in done.stderr
    assert hook(tmp_path, f"{SUBJECT}\n\n{body}\n\nSeed: 48113 cluster\n").returncode == 0


def test_other_mentions_of_seeds_need_no_seed_line(tmp_path: Path) -> None:
    body = "Two servers seed the list. 40 fresh seeds found nothing. Found by a reader of the page."
    assert hook(tmp_path, f"{SUBJECT}\n\n{body}\n").returncode == 0
