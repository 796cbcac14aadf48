"""Pages of documentation, run as they stand: shell blocks one after the other in one shell, each
Python block as a program of its own. Only where the cluster is, is put in their place.
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
    """Without blocks, whose brackets are no links and whose comments no headings."""
    return _ANY_BLOCK.sub("", page.read_text())


def run_shell(page: Path, url: str, folder: Path) -> str:
    """Its output, of all blocks. Any failure is one of the test."""
    script = "\n".join(blocks(page, "sh"))
    assert _PLACE in script
    return run(["sh", "-euc", script.replace(_PLACE, url)], folder)


def run_python(program: str, url: str, folder: Path) -> str:
    assert _PLACE in program
    return run_program(program.replace(_PLACE, url), folder)


def run_program(program: str, folder: Path) -> str:
    return run([sys.executable, "-W", "error", "-c", program], folder)


def run(command: list[str], folder: Path, environment: Mapping[str, str] = os.environ) -> str:
    """Its output. Any failure is one of the test."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # No pipes: what goes on in the background keeps them.
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
                    os.killpg(running.pid, signal.SIGKILL)  # With whatever it has started.
        out.seek(0)
        err.seek(0)
        told, complaints = out.read(), err.read()
    assert running.returncode == 0, complaints
    assert "Traceback" not in complaints, complaints
    return told
