"""The shell reports what took effect (SH1), and fences a writer only with a flag."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time
from array import array
from collections.abc import Iterator

import pytest

import rollbook
from tests.regressions.defects import defect
from tests.regressions.one_dev import Dev, running
from tests.support import commands

_SILENT = "The shell did not say whether a change that failed took effect."


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    with running(tmp_path_factory.mktemp("dev")) as found:
        yield found


@defect("shell-hides-outcome", _SILENT)
def test_shell_errors_state_the_outcome(dev: Dev) -> None:
    done = dev.shell("log", "append", "nowhere", "x")
    assert b"\n  outcome: not applied" in done.stderr
    done = dev.shell("log", "append", "nowhere", "x", "-o", "json")
    assert json.loads(done.stderr)["error"]["outcome"] == "not_applied"
    done = dev.shell("log", "create", "UPPER", "-o", "json")
    assert json.loads(done.stderr)["error"]["outcome"] == "not_applied"


def _until_read(pipe: int) -> None:
    left = array("i", [1])
    deadline = time.monotonic() + 30
    while left[0] and time.monotonic() < deadline:
        fcntl.ioctl(pipe, termios.FIONREAD, left)
        time.sleep(0.01)
    assert not left[0], "the command did not read its input"


@defect(
    "interrupted-append-says-nothing",
    "An interrupted append did not report how many records were acknowledged.",
)
@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_interrupted_append_reports_number_of_acked_records(dev: Dev, signal_number: int) -> None:
    log = f"cut-{int(signal_number)}"
    dev.shell("log", "create", log)
    # On a busy machine the server may be stopped for more than the default time-out of ten seconds,
    # and the append would fail before the signal.
    append = ("log", "append", log, "-o", "json", "--timeout", "60")
    program = subprocess.Popen(
        [sys.executable, "-m", "rollbook.api.cli.main", *append],
        env={**os.environ, "ROLLBOOK_SERVER": dev.url},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    assert program.stdin
    try:
        with rollbook.connect(dev.url) as client:
            records = client.open(log).tail("earliest")
            for count in (100, 1):  # One more record follows when the first 100 are acknowledged.
                program.stdin.write(b"x\n" * count)
                for _ in range(count):
                    next(records)
        dev.child.stop()
        program.stdin.write(b"y\n" * 50)
        _until_read(program.stdin.fileno())
        time.sleep(0.3)  # Time for the records to get from the pipe to the connection.
        program.send_signal(signal_number)
        _, errors = program.communicate(timeout=30)
    finally:
        dev.child.resume()
        program.kill()
        program.wait()
    assert program.returncode == 130, errors
    error = json.loads(errors)["error"]
    assert (error["reason"], error["outcome"]) == ("INTERRUPTED", "unknown")
    counts = [error["ids"][name] for name in ("acknowledged", "in_doubt", "not_appended")]
    assert counts[0] in (100, 101)
    assert sum(counts) == 151


@defect(
    "append-fences-unasked",
    "`log append --holder` fenced the current writer of a log without being asked to.",
)
def test_append_without_steal_does_not_fence_another_holder(dev: Dev) -> None:
    dev.shell("log", "create", "wal", "--exclusive")
    assert dev.shell("log", "append", "wal", "a", "--holder", "me").returncode == 0
    assert dev.shell("log", "append", "wal", "b", "--holder", "me").returncode == 0
    refused = dev.shell("log", "append", "wal", "c", "--holder", "you")
    assert refused.returncode == 4
    assert b"--steal" in refused.stderr
    assert dev.tail_of("wal") == 2
    assert dev.shell("log", "append", "wal", "c", "--holder", "you", "--steal").returncode == 0


@defect(
    "writer-of-a-log-that-is-not-exclusive",
    "`log writer acquire` granted an epoch of a log that is not exclusive, and everybody went on appending.",
)
def test_acquire_of_a_log_that_is_not_exclusive_is_refused(dev: Dev) -> None:
    assert dev.shell("log", "create", "shared").returncode == 0
    done = dev.shell("log", "writer", "acquire", "shared", "--holder", "me")
    assert done.returncode == 2, done
    assert b"is not exclusive" in done.stderr
    assert b"rollbook log create NAME --exclusive" in done.stderr


@defect(
    "holder-is-ignored",
    "`log append --holder` on a log that is not exclusive was accepted and had no effect.",
)
def test_append_with_holder_to_non_exclusive_log_is_refused(dev: Dev) -> None:
    dev.shell("log", "create", "open-to-all")
    refused = dev.shell("log", "append", "open-to-all", "a", "--holder", "me")
    assert refused.returncode == 2
    assert b"is not exclusive" in refused.stderr
    assert dev.tail_of("open-to-all") == 0


@defect(
    "a-number-as-a-key-is-a-traceback",
    "`log append --format ndjson` failed with a Python error at a record whose key is a number.",
)
def test_record_whose_key_is_a_number_is_refused(dev: Dev) -> None:
    words = ("log", "append", "keyed", "--create", "--format", "ndjson", "-o", "json")
    environment = {"ROLLBOOK_SERVER": dev.url}
    for key in (b'"key": 1', b'"key_base64": 1', b'"key_base64": "?"'):
        line = b'{"value": "v", ' + key + b"}\n"
        done = commands.run(*words, stdin=line, environment=environment)
        error = json.loads(done.stderr)["error"]
        assert (done.returncode, error["reason"]) == (2, "INVALID")
        assert error["detail"].isascii()
        assert "attribute" not in error["detail"]
        assert "key" in error["detail"].partition(" as JSON: ")[2]
