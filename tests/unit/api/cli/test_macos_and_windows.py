"""Servers without calls that macOS lacks; clients and commands without calls Windows lacks."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import bookies
from tests.support.processes import REPOSITORY, family

PROGRAM = (sys.executable, "-m", "tests.support.other_systems")


def on_windows(*words: str, text: str = "") -> "subprocess.CompletedProcess[str]":
    command = [*PROGRAM, "windows", *words]
    return subprocess.run(
        command,
        cwd=REPOSITORY,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a cluster in one process without calls that macOS lacks."""
    folder: Path = tmp_path_factory.mktemp("macos")
    with family() as children:
        child = children.start(
            *PROGRAM,
            "macos",
            "server",
            "all",
            "--data",
            str(folder / "data"),
            "--bookies",
            "1",
            "--listen",
            "127.0.0.1:0",
            "--log-level",
            "error",
        )
        while not (line := child.line(bookies.PATIENCE_S)).startswith("ready:"):
            pass
        yield f"log://{bookies.address_in(line)}"


def test_a_client_on_windows_uses_a_server_on_macos(url: str) -> None:
    done = on_windows("client", url)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[b'a record']\n"


def test_log_commands_append_and_read_on_windows(url: str) -> None:
    done = on_windows("log", "append", "lines", "--create", "--server", url, text="one\ntwo\n")
    assert done.returncode == 0, done.stderr
    done = on_windows("log", "read", "lines", "--server", url, "-o", "raw")
    assert done.stdout == "one\ntwo\n", done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("server", "log", "--metadata", "sqlite:///none.db"),
        ("ledger", "ls", "--metadata", "sqlite:///none.db"),
    ],
)
def test_unsupported_commands_report_it_on_windows(words: tuple[str, ...]) -> None:
    done = on_windows(*words)
    assert done.returncode == 1
    assert "takes Linux or macOS" in done.stderr
    assert "Traceback" not in done.stderr
