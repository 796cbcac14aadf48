"""The interface of a log service for `bench logs`, and downloads of other services.

They are downloaded once, with the usual clients of their registries, to the user's cache folder.
"""

import itertools
import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from tests.bench.ledger import BenchFailed, Found
from tests.support.processes import REPOSITORY, ChildFailed

_FETCH_TIMEOUT_S: Final = 900
_READY_S: Final = 90.0
_PAUSE_S: Final = 0.5
_WARM_UP: Final = 300  # Appends: caches are cold after a sleep.
_NUMBERS: Final = itertools.count(1)


class CannotBeHad(Exception):
    """A service cannot be fetched, built or started; the message says why."""


class LogSide(ABC):
    """A service and its client."""

    name: str
    about: str
    """Versions and settings, shown with the figures."""
    is_synced = True
    """An ack means that the record is on disk, as ours does. Else it is only shown."""

    @staticmethod
    def new_log(prefix: str) -> str:
        return f"{prefix}-{next(_NUMBERS)}"

    @abstractmethod
    def run(self, job: str, **arguments: Any) -> Found: ...

    @abstractmethod
    def cpu_s(self) -> Mapping[str, float]:
        """CPU seconds so far, by process."""

    @abstractmethod
    def pids(self) -> Collection[int]:
        """The pids of its running processes."""

    def ailing_replica(self) -> str | None:
        """Whichever does not keep up, as far as anybody else tells."""
        return None

    def ailment(self) -> str | None:
        """A log that is new, on all servers, takes appends."""
        try:
            if (ailing := self.ailing_replica()) is not None:
                return ailing
            self.run("alone", log=self.new_log("awake"), size=100, count=_WARM_UP)
        except (BenchFailed, ChildFailed, BrokenPipeError) as error:
            return f"{error}; {self.complaints()}"
        return None

    @abstractmethod
    def spare(self) -> AbstractContextManager[Mapping[str, int]]:
        """Yields the servers' pids by the names that `owner` returns; one server may be killed.

        Restarts it at the end.
        """

    def complaints(self) -> str:
        """The servers' last log lines, which may show why they are not ready."""
        return "what its servers say is not kept"

    def wait_ready(self) -> None:
        """Servers that were started have to find each other, and a leader, before a log can be made.

        Raises `CannotBeHad`.
        """
        deadline_s = time.monotonic() + _READY_S
        while True:
            try:
                self.run("make", logs=[self.new_log("ready")])
            except (BenchFailed, ChildFailed, BrokenPipeError) as error:
                if time.monotonic() > deadline_s or not isinstance(error, BenchFailed):
                    raise CannotBeHad(f"{error}; {self.complaints()}") from None
                time.sleep(_PAUSE_S)
            else:
                return


def cache(name: str) -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home, "rollbook-bench", name)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def fetch(command: Sequence[str | Path], environment: Mapping[str, str] = {}) -> None:
    """Raises `CannotBeHad`."""
    try:
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=_FETCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CannotBeHad(f"`{command[0]}` took more than {_FETCH_TIMEOUT_S} s") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()
        reason = next((line for line in said if "ERROR" in line), said[-1])  # Of Maven, pip.
        raise CannotBeHad(f"`{' '.join(map(str, command))}` failed: {reason}")


def python_with(name: str, *packages: str) -> Path:
    """The interpreter of a virtual environment with only these packages.

    It is made from the current interpreter, because another build may be a fifth slower.
    """
    folder = cache(name)
    python, stamp = folder / "bin" / "python", folder / "has"
    wanted = "\n".join([os.path.realpath(sys.executable), *packages])
    if not stamp.exists() or stamp.read_text() != wanted:
        fetch([sys.executable, "-m", "venv", "--clear", folder])
        fetch([python, "-m", "pip", "install", "--quiet", *packages])
        stamp.write_text(wanted)
    return python
