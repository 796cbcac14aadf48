"""The address where a server listens, and the address that it registers."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.regressions.defects import defect
from tests.support import commands, processes

_UNREACHABLE = (
    "A server that was given `--listen :PORT` bound loopback and was registered under another name."
)


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite://{tmp_path_factory.mktemp('cluster')}/metadata.db"
    assert commands.run("cluster", "init", "--metadata", url).returncode == 0
    return url


@pytest.fixture
def words(request: pytest.FixtureRequest, metadata: str, tmp_path: Path) -> Iterator[list[str]]:
    """The command of a bookie or of a log server, without its address."""
    common = ["server", request.param, "--metadata", metadata, "--log-level", "error"]
    if request.param == "log":
        yield [*common, "--server-name", "one"]
    else:
        folders = ["--journal-dir", f"{tmp_path}/journal", "--ledger-dir", f"{tmp_path}/ledgers"]
        yield [*common, "--bookie-id", "one", *folders]


@defect("unreachable-registered-address", _UNREACHABLE)
@pytest.mark.parametrize("words", ["log", "bookie"], indirect=True)
def test_listening_on_a_port_alone_binds_every_address(words: list[str]) -> None:
    with processes.family() as children:
        command = [*words, "--listen", ":0", "--advertise", "127.0.0.1", "--insecure"]
        child = children.start(sys.executable, "-m", "rollbook.api.cli.main", *command)
        port = int(child.line(60).rpartition(":")[2])
        with closing(socket.create_connection(("127.0.0.2", port), timeout=60)):
            pass  # A server that listens on 127.0.0.1 only would refuse.


@defect("unreachable-registered-address", _UNREACHABLE)
@pytest.mark.parametrize("words", ["log", "bookie"], indirect=True)
def test_loopback_listener_with_remote_advertised_name_is_refused(words: list[str]) -> None:
    command = [*words, "--listen", "127.0.0.1:0", "--advertise", "elsewhere.example:7400"]
    done = _run(command)
    assert done.returncode == 2
    assert b"elsewhere.example:7400" in done.stderr
    assert b"--listen :PORT" in done.stderr


def _run(words: list[str]) -> subprocess.CompletedProcess[bytes]:
    try:
        return commands.run(*words)
    except subprocess.TimeoutExpired:
        pytest.fail("it was not refused: it serves")


@defect(
    "taken-port-of-the-dashboard-is-found-late",
    "`server all --http` with a taken port made its folders, started bookies and servers, and failed after that.",
)
def test_a_taken_port_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        ports = ["--listen", "127.0.0.1:0", "--rest", "127.0.0.1:0", "--http", where]
        done = _run(["server", "all", "--data", str(tmp_path / "data"), *ports])
    assert done.returncode == 2
    assert done.stderr.decode().startswith(f"error: cannot listen on {where}")
    assert not (tmp_path / "data").exists()
