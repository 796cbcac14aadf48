"""`rollbook dev` as a child process of tests."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support import processes

PATIENCE_S: Final = 60.0


@dataclass(frozen=True)
class RunningDev:
    said: str  # The output up to `ready: …`.

    @property
    def address(self) -> str:
        return self.said.rpartition(" on ")[2].strip()


@contextmanager
def running_dev(folder: Path, bookies: int) -> Iterator[RunningDev]:
    """Runs `rollbook dev` on a free port, and yields when it is ready."""
    with processes.family() as children:
        command = ("dev", "--bookies", str(bookies), "--listen", "127.0.0.1:0", "--data")
        environment = {"NO_COLOR": "1", "PATH": os.environ["PATH"]}
        child = children.start_module(
            "rollbook.api.cli.main", *command, folder, environment=environment
        )
        said = ""
        while not said.rpartition("\n")[2].startswith("ready:"):
            said += ("\n" if said else "") + child.line(PATIENCE_S)
        yield RunningDev(f"{said}\n")
