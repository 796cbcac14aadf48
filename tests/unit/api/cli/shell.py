"""Runs `rollbook` commands for tests."""

import json
import sys
from typing import Any

import pytest

from rollbook.api.cli import main as cli
from tests.support import commands


class Shell:
    """Runs commands in this process, which is faster than an interpreter for each."""

    def __init__(
        self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, server: str
    ) -> None:
        self._capfd = capfd
        self._patch = monkeypatch
        monkeypatch.setenv("ROLLBOOK_SERVER", server)
        self.errors = ""

    def run(self, *words: str | int, code: int = 0) -> str:
        self._patch.setattr(sys, "argv", ["rollbook", *map(str, words)])
        ended = 0
        try:
            cli.main()
        except SystemExit as end:
            ended = int(end.code or 0)
        told, self.errors = self._capfd.readouterr()
        assert ended == code, self.errors
        return told

    def json(self, *words: str | int) -> Any:
        return json.loads(self.run(*words, "-o", "json"))


def append_numbers(server: str, log: str, count: int) -> None:
    """Appends the texts "0", "1" and so on to a log, which is created if needed."""
    lines = "".join(f"{number}\n" for number in range(count)).encode()
    at = {"ROLLBOOK_SERVER": server}
    commands.run("log", "append", log, "--create", stdin=lines, environment=at).check_returncode()
