"""A cluster with a dashboard, in processes that can be killed and restarted at the same addresses."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support import processes

_SCREENS: Final = (
    "",
    "/logs",
    "/servers",
    "/bookies",
    "/ledgers",
    "/ledgers/bad",
    "/recovery",
    "/operations",
    "/metadata",
    "/events",
    "/callbacks",
    "/server?name=log-1",
    "/process?kind=bookie&name=bk-1",
    "/process?kind=bookie&name=bk-9",
    "/process?kind=recovery&name=recovery-1",
)
_PATIENCE_S: Final = 60.0


class Site:
    """`rollbook dev` with three bookies, and a fourth bookie in its own process."""

    def __init__(self, folder: Path, children: processes.Family) -> None:
        self._folder = folder
        self._children = children
        self.logs, self.rest, self.http = (f"127.0.0.1:{_free_port()}" for _ in range(3))
        self.metadata = f"sqlite://{folder}/dev/metadata.db"
        self.url = f"http://{self.http}/dashboard"
        self.dev = self._start_dev()
        self.bookie = self.start_bookie("bk-9")

    def _start(self, *words: str | Path) -> processes.Child:
        environment = {"NO_COLOR": "1", "PATH": os.environ["PATH"]}
        command = (*words, "--log-level", "error")
        child = self._children.start_module(
            "rollbook.api.cli.main", *command, environment=environment
        )
        while not child.line(_PATIENCE_S).startswith("ready"):
            pass
        return child

    def _start_dev(self) -> processes.Child:
        where = ("--listen", self.logs, "--rest", self.rest, "--http", self.http)
        return self._start("dev", "--bookies", "3", *where, "--data", self._folder / "dev")

    def start_bookie(self, name: str) -> processes.Child:
        file, home = self._folder / f"{name}.toml", self._folder / name
        file.write_text("[bookie]\nsession_timeout_s = 2\n")
        return self._start(
            "server",
            "bookie",
            "--config",
            file,
            "--metadata",
            self.metadata,
            "--bookie-id",
            name,
            "--listen",
            "127.0.0.1:0",
            "--journal-dir",
            home / "journal",
            "--ledger-dir",
            home / "ledgers",
        )

    def kill_dev_and_start_it_again(self) -> None:
        self.dev.kill()
        self.dev = self._start_dev()

    @property
    def screens(self) -> list[str]:
        return [f"{self.url}{path}" for path in _SCREENS]


@contextmanager
def running_site(folder: Path) -> Iterator[Site]:
    with processes.family() as children:
        yield Site(folder, children)


def _free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port: int = trial.getsockname()[1]
        return port
