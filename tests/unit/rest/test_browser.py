"""The search for a Chromium that works."""

from pathlib import Path

import pytest

from tests.rest import browser

RUNS = "#!/bin/sh\nexit 0\n"
REFUSES = "#!/bin/sh\necho 'it comes as a snap' >&2\nexit 1\n"
HANGS = "#!/bin/sh\nexec /bin/sleep 20\n"
NO_PROGRAM = "<!DOCTYPE html>\n"


def put(folder: Path, name: str, text: str) -> str:
    program = folder / name
    program.write_text(text)
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize("text", [REFUSES, NO_PROGRAM])
def test_only_a_browser_that_runs_is_found(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    put(tmp_path, "chromium", text)
    assert browser.path() is None
    other = put(tmp_path, "google-chrome", RUNS)
    assert browser.path() == other


def test_hanging_browser_is_ignored_after_a_time_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(browser, "_PATIENCE_S", 0.2)
    put(tmp_path, "chromium", HANGS)
    assert browser.path() is None
