"""What the README tells people to type works as written."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.source import ROOT

SHELL_BLOCKS = re.findall(
    r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
)
LINKS = re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / "README.md").read_text())


@pytest.mark.parametrize("block", SHELL_BLOCKS)
def test_shell_blocks_run_as_written(block: str, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-euc", block],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "instance_id" in done.stdout


@pytest.mark.parametrize("link", LINKS)
def test_links_lead_somewhere(link: str) -> None:
    assert (ROOT / link).exists()
