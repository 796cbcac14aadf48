"""Runs pages of documentation unchanged: all shell blocks in one shell, each Python block as a
program.

Only the addresses are replaced by those of the test's cluster.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from tests.support.processes import REPOSITORY

EXISTING_CLUSTERS: Final = REPOSITORY / "docs" / "existing-bookkeeper-clusters.md"
_BLOCK: Final = r"^```{}\n(.*?)^```"
_ANY_BLOCK: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_PLACE: Final = "zk://zk1:2181,zk2:2181,zk3:2181/ledgers"
PATIENCE_S: Final = 120.0


def blocks(page: Path, language: str) -> list[str]:
    pattern = re.compile(_BLOCK.format(language), re.MULTILINE | re.DOTALL)
    return pattern.findall(page.read_text())


def prose(page: Path) -> str:
    """The page without code blocks, whose brackets are not links and whose comments not headings."""
    return _ANY_BLOCK.sub("", page.read_text())


def run_shell(page: Path, url: str, folder: Path) -> str:
    """Returns the output of all blocks. Fails the test if a block fails."""
    script = "\n".join(blocks(page, "sh"))
    assert _PLACE in script
    return run(["sh", "-euc", script.replace(_PLACE, url)], folder)


def run_python(program: str, url: str, folder: Path) -> str:
    assert _PLACE in program
    return run_program(program.replace(_PLACE, url), folder)


def run_program(program: str, folder: Path) -> str:
    return run([sys.executable, "-W", "error", "-c", program], folder)


def run(command: list[str], folder: Path, environment: Mapping[str, str] = os.environ) -> str:
    """Returns the output. Fails the test if the command fails."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # Not pipes: background processes would keep them open.
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        with subprocess.Popen(
            command,
            cwd=folder,
            env={**environment, "PATH": path, "NO_COLOR": "1"},
            stdout=out,
            stderr=err,
            start_new_session=True,
        ) as running:
            try:
                running.wait(PATIENCE_S)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)  # Also kills its children.
        out.seek(0)
        err.seek(0)
        told, complaints = out.read(), err.read()
    assert running.returncode == 0, complaints
    assert "Traceback" not in complaints, complaints
    return told
