"""A server may start before its cluster exists, and notifies a service manager (SU1, SU2)."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollbook.api.cli import server_startup
from rollbook.api.cli.server_startup import retry_while_missing
from rollbook.proto.errors import (
    BadConfig,
    ConnectionLost,
    MetadataUnavailable,
    NoSuchCluster,
    RollbookError,
    SessionExpired,
)
from tests.support import processes

PATIENCE_S = 60.0
ROLLBOOK = "rollbook.api.cli.main"


class Manager:
    """Receives notifications as systemd does from a server with `Type=notify`."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.settimeout(PATIENCE_S)
        self.socket.bind(self.path)

    def hear(self) -> str:
        return self.socket.recv(100).decode()


Managers = Callable[[str], Manager]


@pytest.fixture
def managers(tmp_path: Path) -> Iterator[Managers]:
    made: list[Manager] = []

    def make(name: str) -> Manager:
        made.append(Manager(tmp_path / name))
        return made[-1]

    yield make
    for each in made:
        each.socket.close()


class Attempts:
    def __init__(self, *errors: RollbookError) -> None:
        self.errors = list(errors)
        self.made = 0

    async def __call__(self) -> str:
        self.made += 1
        if self.errors:
            raise self.errors.pop(0)
        return "opened"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_startup, "_PAUSES_S", (0.001, 0.001))


async def test_retry_waits_while_store_or_cluster_is_missing() -> None:
    """SU1."""
    attempts = Attempts(
        MetadataUnavailable(),
        NoSuchCluster(),
        SessionExpired(),
        ConnectionLost(),
    )
    assert await retry_while_missing(attempts, 60) == "opened"
    assert attempts.made == 5


async def test_retry_raises_the_last_error_after_its_time_limit() -> None:
    """SU1."""
    attempts = Attempts(NoSuchCluster(), *[MetadataUnavailable() for _ in range(100_000)])
    with pytest.raises(MetadataUnavailable):
        await retry_while_missing(attempts, 1.0)
    assert attempts.made > 1
    once = Attempts(NoSuchCluster())
    with pytest.raises(NoSuchCluster):
        await retry_while_missing(once, 0)
    assert once.made == 1


async def test_any_other_error_is_raised_at_once() -> None:
    """SU1."""
    attempts = Attempts(BadConfig("no"))
    with pytest.raises(BadConfig):
        await retry_while_missing(attempts, 60)
    assert attempts.made == 1


def test_servers_start_before_their_cluster(tmp_path: Path, managers: Managers) -> None:
    """SU1, SU2: a service manager is notified when they are ready and when they stop."""
    url = f"sqlite://{tmp_path}/metadata.db"
    names = ("bookie", "log", "recovery")
    heard = {name: managers(name) for name in names}
    flags = {
        "bookie": (
            "--bookie-id",
            "bk-1",
            "--listen",
            "127.0.0.1:0",
            "--journal-dir",
            str(tmp_path / "j"),
            "--ledger-dir",
            str(tmp_path / "l"),
        ),
        "log": ("--listen", "127.0.0.1:0", "--server-name", "log-1"),
        "recovery": ("--name", "recovery-1"),
    }
    with processes.family() as children:
        servers = {
            name: children.start_module(
                ROLLBOOK,
                "server",
                name,
                "--metadata",
                url,
                "--log-level",
                "error",
                *flags[name],
                environment={"NOTIFY_SOCKET": heard[name].path},
            )
            for name in names
        }
        command = [sys.executable, "-m", ROLLBOOK, "cluster", "init", "--metadata", url]
        made = subprocess.run(command, check=True, capture_output=True)
        again = subprocess.run([*command, "--if-missing"], check=True, capture_output=True)
        assert again.stdout == made.stdout
        for name, server in servers.items():
            assert server.line(PATIENCE_S).startswith("ready: ")
            assert heard[name].hear() == "READY=1"
        for name in reversed(names):
            os.kill(servers[name].pid, signal.SIGTERM)
            assert heard[name].hear() == "STOPPING=1"
            assert servers[name].wait(PATIENCE_S) == 0


def test_server_waiting_for_its_cluster_stops_on_sigterm(
    tmp_path: Path, managers: Managers
) -> None:
    """SU1."""
    with processes.family() as children:
        manager = managers("manager")
        server = children.start_module(
            ROLLBOOK,
            "server",
            "log",
            "--metadata",
            f"sqlite://{tmp_path}/none.db",
            environment={"NOTIFY_SOCKET": manager.path, "ROLLBOOK_STARTUP_S": "600"},
        )
        while not _handles_sigterm(server.pid):
            assert server.is_running
            time.sleep(0.02)
        os.kill(server.pid, signal.SIGTERM)
        assert manager.hear() == "STOPPING=1"
        assert server.wait(PATIENCE_S) == 0


def test_server_without_a_cluster_exits_with_the_reason(tmp_path: Path) -> None:
    """SU1."""
    command = (sys.executable, "-m", ROLLBOOK, "server", "log", "--startup-s", "0")
    done = subprocess.run(
        [*command, "--metadata", f"sqlite://{tmp_path}/none.db"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3
    assert "CLUSTER_NOT_FOUND" in done.stderr
    assert "rollbook cluster init" in done.stderr


def _handles_sigterm(pid: int) -> bool:
    (mask,) = re.findall(
        r"^SigCgt:\s+([0-9a-f]+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE
    )
    return bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)
