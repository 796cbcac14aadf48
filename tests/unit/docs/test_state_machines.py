"""What the page on state machines shows works as written, and another one takes no more than it says."""

from pathlib import Path
from typing import Final

from tests.support import pages
from tests.support.dev import running_dev
from tests.support.processes import REPOSITORY

PAGE: Final = REPOSITORY / "docs" / "state-machines.md"
_PLACE: Final = "log://127.0.0.1:7400"
_LINES_MAX: Final = 40
_SHOWN: Final = ("Ada\nAda\n{'12A': 'Ada'}\n", "0 0\n", "1000\n")


def test_the_programs_run_as_written(tmp_path: Path) -> None:
    programs = pages.blocks(PAGE, "python")
    with running_dev(tmp_path / "data", bookies=3) as dev:
        for program, shown in zip(programs, _SHOWN, strict=True):
            assert _PLACE in program
            assert len(program.splitlines()) <= _LINES_MAX
            there = program.replace(_PLACE, f"log://{dev.address}")
            assert pages.run_program(there, tmp_path) == shown
        again = programs[1].replace(_PLACE, f"log://{dev.address}")
        assert pages.run_program(again, tmp_path) == "100 1\n"
