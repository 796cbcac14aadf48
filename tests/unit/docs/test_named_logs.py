"""The README's first examples work as written and print what it shows."""

import os
import re
from pathlib import Path
from typing import Final

from tests.support import pages
from tests.support.dev import RunningDev, running_dev
from tests.support.processes import REPOSITORY

README: Final = REPOSITORY / "README.md"
_PLACE: Final = "log://127.0.0.1:7400"
(COMMANDS,) = pages.blocks(README, "bash")
SHOWN_BY_DEV, SHOWN = pages.blocks(README, "text")
PROGRAMS = pages.blocks(README, "python")


def without_what_differs(text: str) -> str:
    """Replaces times, ports, directories and server incarnations."""
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "TIME", text)
    text = re.sub(r"in \d+ s\b", "in N s", text)
    text = re.sub(r"sqlite://\S+", "sqlite://FILE", text)
    text = re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", text)
    return re.sub(r"~[0-9a-f]{8}", "~LIFE", text)


def test_commands_and_programs_work_as_written(tmp_path: Path) -> None:
    with running_dev(tmp_path / "data", bookies=3) as dev:
        assert without_what_differs(dev.said) == without_what_differs(SHOWN_BY_DEV)
        environment = {**os.environ, "ROLLBOOK_SERVER": f"log://{dev.address}"}
        told = pages.run(["sh", "-euc", COMMANDS], tmp_path, environment)
        run_programs(dev, tmp_path)
    assert without_what_differs(told) == without_what_differs(SHOWN)


def run_programs(dev: RunningDev, folder: Path) -> None:
    shown = ""
    for program in PROGRAMS:
        assert _PLACE in program
        shown += pages.run_program(program.replace(_PLACE, f"log://{dev.address}"), folder)
    lines = shown.splitlines()
    assert re.fullmatch(r"\d+ b'3' b'paid 3'", lines[0])
    assert re.fullmatch(r"\d+ None b'shipped 3'", lines[1])
