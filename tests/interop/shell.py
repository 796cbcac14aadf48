"""`bookkeeper shell`, one JVM a command, as an operator runs it."""

import subprocess
from pathlib import Path
from typing import Final

from tests.interop import toolchain

_TIMEOUT_S: Final = 90


def run(config: Path, *arguments: str) -> str:
    """What it said, in its output and its log; `arguments[0]` is the command. It must exit 0."""
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
        """What it said."""
        return run(self._config, *map(str, arguments))
