"""`rollbook dev` as a child process that a test may stop, with programs and commands that use it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import rollbook
from tests.support import commands, processes
from tests.support.processes import Child


@dataclass(frozen=True)
class Dev:
    child: Child
    url: str

    def shell(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        return commands.run(*words, environment={"ROLLBOOK_SERVER": self.url})

    def program(self, code: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs the code in a new interpreter, whose first argument is the URL.

        The exit of the interpreter is part of the test.
        """
        return subprocess.run(
            [sys.executable, "-W", "always::ResourceWarning", "-c", code, self.url, *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def tail_of(self, log: str) -> int:
        with rollbook.connect(self.url) as client:
            return client.open(log, create=True).tail_offset()


@contextmanager
def running(folder: Path, bookies: int = 1) -> Iterator[Dev]:
    """Yields when the server is ready."""
    with processes.family() as children:
        words = ("dev", "--bookies", str(bookies), "--listen", "127.0.0.1:0", "--data", folder)
        child = children.start_module("rollbook.api.cli.main", *words)
        line = child.line(60)
        while not line.startswith("ready:"):
            line = child.line(60)
        yield Dev(child, f"log://{line.rpartition(' on ')[2].strip()}")
