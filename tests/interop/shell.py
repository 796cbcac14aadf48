"""Runs `bookkeeper shell`, one JVM for each command."""

import subprocess
from pathlib import Path
from typing import Final

from tests.interop import toolchain

_TIMEOUT_S: Final = 90


def run(config: Path, *arguments: str) -> str:
    """Run the command `arguments[0]`, which must exit 0; returns its output and log."""
    main_class = "org.apache.bookkeeper.bookie.BookieShell"
    done = subprocess.run(
        toolchain.command(main_class, "-conf", config, *arguments, log_level="info"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


class Tell:
    """The shell, as configured for a bookie of the cluster."""

    def __init__(self, config: Path) -> None:
        self._config = config

    def __call__(self, *arguments: str | int) -> str:
        """Returns the output and the log."""
        return run(self._config, *map(str, arguments))
