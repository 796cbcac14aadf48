"""During an outage every interface reports within two seconds what is away (SV8)."""

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from rollbook.api.client import sync
from rollbook.api.client.config import LogClientConfig
from rollbook.proto.errors import RollbookError
from tests.regressions.defects import defect
from tests.support import bookies, commands, log_processes
from tests.support.log_processes import LogProcesses, RunningLogServer
from tests.support.zookeeper import free_port

_PORT, _GRPC_PORT = free_port(), free_port()
_WAIT = ("--timeout", "4")


@pytest.fixture(scope="module")
def bookies_away(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogProcesses]:
    """Three logs were written, then two of three bookies were stopped."""
    with log_processes.running(tmp_path_factory.mktemp("outage")) as cluster:
        cluster.start_server("log-1")
        with sync.connect(cluster.url, LogClientConfig(timeout_s=20.0)) as client:
            for name in ("owned", "other", "read"):
                client.open(name, create=True).append(b"before")
        for bookie in cluster.bookies[1:]:
            bookie.terminate()
        for bookie in cluster.bookies[1:]:
            bookie.wait()
        yield cluster


def _said(stderr: bytes) -> tuple[list[str], str]:
    """The `waiting:` lines of a command, and its error."""
    lines = stderr.decode().splitlines()
    waiting = [line for line in lines if line.startswith("waiting: ")]
    return waiting, "\n".join(line for line in lines if line not in waiting)


def _at(cluster: LogProcesses) -> dict[str, str]:
    return {"ROLLBOOK_SERVER": cluster.url}


@defect(
    "deadline-without-cause",
    "With two bookies away, commands timed out without naming the cause.",
)
def test_append_command_that_times_out_names_absent_bookies(
    bookies_away: LogProcesses,
) -> None:
    command = ("log", "append", "owned", *_WAIT)
    done = commands.run(*command, stdin=b"x\n", environment=_at(bookies_away))
    assert done.returncode != 0
    waiting, error = _said(done.stderr)
    assert any(line.startswith("waiting: ") and "bk-2, bk-3" in line for line in waiting)
    assert "bk-2" in error
    assert "bk-3" in error


@defect(
    "deadline-without-cause",
    "With two bookies away, commands timed out without naming the cause.",
)
def test_append_error_of_the_client_names_absent_bookies(bookies_away: LogProcesses) -> None:
    with sync.connect(bookies_away.url, LogClientConfig(timeout_s=4.0)) as client:
        log = client.open("other")
        with pytest.raises(RollbookError) as caught:
            log.append(b"x")
    assert "bk-2" in str(caught.value)
    assert "bk-3" in str(caught.value)


@defect(
    "explain-times-out-during-an-outage",
    "During an outage `explain` timed out and said nothing about the log.",
)
def test_explain_names_absent_bookies_and_the_remedy(bookies_away: LogProcesses) -> None:
    began_s = time.monotonic()
    command = ("explain", "read", "-o", "json", "--timeout", "50")
    done = commands.run(*command, environment=_at(bookies_away))
    took_s = time.monotonic() - began_s
    assert (done.returncode, done.stderr) == (0, b"")
    told = json.loads(done.stdout)
    assert "bk-2, bk-3" in told["away"]
    assert "bk-2, bk-3" in told["would_help"]
    assert (told["head"], told["tail"]) == (0, 1)
    assert took_s < 40, "it takes a second, and the start of a process on a busy machine"


@pytest.fixture(scope="module")
def store_away(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogProcesses]:
    """All bookies are stopped with SIGSTOP; one of them serves the metadata store."""
    with log_processes.running(tmp_path_factory.mktemp("store")) as cluster:
        child = cluster.children.start(
            sys.executable,
            "-m",
            "rollbook.api.cli.main",
            "server",
            "log",
            "--metadata",
            cluster.metadata,
            "--listen",
            f"127.0.0.1:{_GRPC_PORT}",
            "--rest",
            f"127.0.0.1:{_PORT}",
            "--server-name",
            "log-1",
            "--log-level",
            "error",
        )
        child.line(bookies.PATIENCE_S)
        cluster.servers["log-1"] = RunningLogServer(child, f"127.0.0.1:{_GRPC_PORT}")
        with sync.connect(cluster.url, LogClientConfig(timeout_s=20.0)) as client:
            client.open("owned", create=True).append(b"before")
        for bookie in cluster.bookies:
            bookie.stop()
        yield cluster


@defect(
    "absent-metadata-store-is-not-named",
    "With the metadata store away, `ls` and `create` timed out without naming it.",
)
@pytest.mark.parametrize("command", [("log", "ls"), ("log", "create", "new")])
def test_commands_name_the_absent_metadata_store(
    store_away: LogProcesses, command: tuple[str, ...]
) -> None:
    done = commands.run(*command, *_WAIT, environment=_at(store_away))
    assert done.returncode != 0
    waiting, error = _said(done.stderr)
    assert any(line.startswith("waiting: the metadata store") for line in waiting), done.stderr
    assert "the metadata store does not answer (since" in error


@defect(
    "absent-metadata-store-is-not-named",
    "With the metadata store away, `ls` and `create` timed out without naming it.",
)
def test_http_error_names_the_absent_metadata_store(store_away: LogProcesses) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{_PORT}/v1/logs", headers={"Log-Timeout-Ms": "3000"}
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=20)
    assert b"the metadata store does not answer (since" in caught.value.read()


@defect(
    "explain-times-out-during-an-outage",
    "During an outage `explain` timed out and said nothing about the log.",
)
def test_explain_works_for_an_owned_log_without_metadata_store(
    store_away: LogProcesses,
) -> None:
    began_s = time.monotonic()
    done = commands.run("explain", "owned", "-o", "json", environment=_at(store_away))
    took_s = time.monotonic() - began_s
    assert done.returncode == 0, done.stderr
    assert took_s < 10, "it takes a second, and the start of a process on a busy machine"
    told = json.loads(done.stdout)
    assert "metadata store" in told["away"]
    assert (told["head"], told["tail"]) == (0, 1)
    assert told["segments"]
