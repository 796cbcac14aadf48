"""The `rollbook ledger` commands against three bookie processes."""

import base64
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbook.api.cli.log.record_input import Cutter
from rollbook.api.cli.metadata_option import Metadata
from rollbook.proto.errors import EntryTooLarge, InvalidRequest
from tests.support import commands, processes
from tests.support.ledger_cluster import ProcessCluster

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with processes.family() as children:
        yield ProcessCluster(children, tmp_path_factory.mktemp("cluster"))


class Shell:
    def __init__(self, url: str) -> None:
        self._environment = {"NO_COLOR": "1", "ROLLBOOK_METADATA": url}

    def run(self, *arguments: str | int, stdin: bytes = b"", code: int | None = 0) -> bytes:
        """`code` is the expected exit code; None accepts any."""
        words = map(str, arguments)
        done = commands.run("ledger", *words, stdin=stdin, environment=self._environment)
        self.errors = done.stderr.decode()
        assert "Traceback" not in self.errors, self.errors
        assert code in (None, done.returncode), self.errors or done.stdout
        return done.stdout

    def json(self, *arguments: str | int, stdin: bytes = b"", code: int = 0) -> object:
        return json.loads(self.run(*arguments, "-o", "json", stdin=stdin, code=code))


@pytest.fixture
def shell(cluster: ProcessCluster) -> Shell:
    return Shell(cluster.url)


def test_appended_lines_are_read_back(shell: Shell) -> None:
    lines = b"".join(b"line %d\n" % number for number in range(2000))
    made = shell.json("append", stdin=lines)
    assert isinstance(made, dict)
    ledger_id = made["ledger_id"]
    assert made == {
        "ledger_id": ledger_id,
        "last_entry": 1999,
        "length": len(lines) - 2000,
        "state": "closed",
    }
    assert shell.run("read", ledger_id, "-o", "raw") == lines
    table = shell.run("read", ledger_id, "--first", 5, "--last", 6).decode().splitlines()
    assert [line.split() for line in table] == [
        ["ENTRY_ID", "BYTES", "PAYLOAD"],
        ["5", "6", "line", "5"],
        ["6", "6", "line", "6"],
    ]
    limited = shell.run("read", ledger_id, "--limit", 1, "-o", "ndjson")
    assert json.loads(limited) == {"entry_id": 0, "bytes": 6, "payload": "line 0"}
    assert shell.run("read", ledger_id, "--follow", "-o", "raw", "--first", 1999) == b"line 1999\n"


def test_second_append_to_a_created_ledger_is_refused(shell: Shell) -> None:
    made = shell.run(
        "create",
        "--ensemble",
        3,
        "--write",
        2,
        "--ack",
        2,
        "--digest",
        "hmac",
        "--password",
        "hush",
        "--custom",
        "owner=me",
        "-o",
        "raw",
    )
    ledger_id = int(made)
    shown = shell.json("show", ledger_id)
    assert isinstance(shown, dict)
    assert (shown["state"], shown["quorum"], shown["digest"]) == ("open", "3/2/2", "hmac")
    assert shown["custom"]["owner"] == "me"
    image = bytes(range(256))
    password = ("--password", "hush")
    assert int(
        shell.run("append", ledger_id, *password, "--frame", "whole", "-o", "raw", stdin=image)
    ) == ledger_id  # fmt: skip
    (entry,) = json.loads(shell.run("read", ledger_id, *password, "-o", "json"))
    assert base64.b64decode(entry["payload_base64"]) == image
    shell.run("append", ledger_id, *password, stdin=b"more", code=4)
    assert "LEDGER_CLOSED" in shell.errors
    shell.run("read", ledger_id, "--password", "wrong", code=6)
    assert "UNAUTHORIZED" in shell.errors


def test_failed_append_reports_its_last_entry(shell: Shell) -> None:
    """A caller needs it to continue after a failure."""
    shell.run("append", "--frame", "len32", stdin=b"\0\0\0\3one\0\0\0\3t", code=2)
    found = re.search(r"5 bytes into an entry \(ledger_id=(\d+) last_confirmed=0\)", shell.errors)
    assert found
    assert shell.run("read", found[1], "-o", "raw") == b"one\n"


def test_ledgers_are_listed_and_removed(shell: Shell) -> None:
    first, second = (int(shell.run("append", "-o", "raw", stdin=b"x\n")) for _ in range(2))
    listed = [int(line) for line in shell.run("ls", "-o", "raw").split()]
    assert {first, second} <= set(listed)
    assert listed == sorted(listed)
    rows = shell.json("ls", "--long", "--start", first, "--limit", 1)
    assert isinstance(rows, list)
    assert [(row["ledger_id"], row["last_entry"]) for row in rows] == [(first, 0)]
    assert b"STATE" in shell.run("ls", "-l")
    head, *_ = shell.run("ls", "-o", "wide").decode().splitlines()
    assert {"STATE", "CREATED", "HAS_PASSWORD", "CUSTOM"} <= set(head.split())
    assert shell.run("ls", "-o", "name") == shell.run("ls", "-o", "raw")

    shell.run("rm", first, code=2)
    assert "--yes" in shell.errors
    shell.run("rm", first, second, "--yes")
    shell.run("show", first, code=3)
    assert "LEDGER_NOT_FOUND" in shell.errors
    assert "rollbook ledger ls" in shell.errors
    assert not {first, second} & {int(line) for line in shell.run("ls", "-o", "raw").split()}


def test_interrupted_append_keeps_written_entries(shell: Shell, cluster: ProcessCluster) -> None:
    before = {*shell.run("ls", "-o", "raw").split()}
    # A shell without job control starts background jobs and their children with SIGINT ignored.
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        [sys.executable, "-m", "rollbook.api.cli.main", "ledger", "append"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "ROLLBOOK_METADATA": cluster.url},
    ) as child:
        signal.signal(signal.SIGINT, ours)
        assert child.stdin
        assert child.stderr
        child.stdin.write(b"one\ntwo\nhalf of")
        child.stdin.flush()
        deadline = time.monotonic() + PATIENCE_S
        while not (new := {*shell.run("ls", "-o", "raw").split()} - before):
            assert time.monotonic() < deadline
        (ledger_id,) = map(int, new)
        while b"two" not in shell.run("read", ledger_id, "-o", "raw"):
            assert time.monotonic() < deadline
        child.send_signal(signal.SIGINT)
        assert child.wait(PATIENCE_S) == 130
        assert f"ledger {ledger_id} ends at 1" in child.stderr.read().decode()
    assert shell.run("read", ledger_id, "-o", "raw") == b"one\ntwo\n"
    shown = shell.json("show", ledger_id)
    assert isinstance(shown, dict)
    assert shown["state"] == "closed"


def test_recover_closes_an_open_ledger(shell: Shell) -> None:
    ledger_id = int(shell.run("create", "-o", "raw"))
    (row,) = json.loads(shell.run("recover", ledger_id, "-o", "json"))
    assert row == {"ledger_id": ledger_id, "state": "closed", "last_entry": -1, "length": 0}
    assert shell.run("recover", ledger_id, "-o", "raw") == b"-1\n"
    shell.run("recover", 2**62, code=3)


def test_ledger_bench_removes_its_ledgers(shell: Shell) -> None:
    before = shell.run("ls", "-o", "raw")
    facts = shell.json("bench", "--seconds", "0.5", "--size", 10, "--window", 100, "--protocol", 2)
    assert isinstance(facts, dict)
    assert facts["adds_per_s"] > 0
    assert 0 < facts["timed"] <= facts["adds"] + 100
    assert (facts["p99_ms"] is None) == (facts["timed"] < 100)
    assert facts["reads"] >= facts["adds"] > 0
    assert shell.run("ls", "-o", "raw") == before


def test_invalid_ledger_options_are_refused(shell: Shell) -> None:
    shell.run("verify", code=2)
    assert "--all" in shell.errors
    shell.run("read", 0, "--unconfirmed", code=2)
    shell.run("create", "--write", 4, code=2)
    shell.run("create", "--ensemble", 4, code=5)
    assert "rollbook cluster info" in shell.errors
    for more in ((), ("--tls-authorities", "ca.pem")):
        shell.run("ls", "--tls-key", "key.pem", *more, code=2)
        assert "--tls-certificate" in shell.errors
    shell.run("append", "--frame", "len32", stdin=b"\0\0\0\5abc", code=2)


def wait_until_sound(shell: Shell, ledger_id: int) -> None:
    """Two acknowledgements suffice to close a ledger: its third copies may arrive later."""
    deadline_s = time.monotonic() + PATIENCE_S
    while shell.run("verify", ledger_id, "-o", "raw", code=None) != b"%d sound\n" % ledger_id:
        assert time.monotonic() < deadline_s, shell.errors


def test_verify_names_missing_copies(shell: Shell, cluster: ProcessCluster) -> None:
    """The exit code tells scripts the verdict."""
    ledger_id = int(shell.run("append", "-o", "raw", stdin=b"one\ntwo\n"))
    wait_until_sound(shell, ledger_id)
    (sound,) = json.loads(shell.run("verify", ledger_id, "-o", "json"))
    assert (sound["verdict"], sound["copies"], sound["flaws"]) == ("sound", {"good": 6}, [])
    # Ledgers of other tests may lack a third copy if a bookie was slow for a second.
    told = shell.run("verify", "--all", "-o", "raw", code=None)
    assert b"%d sound" % ledger_id in told.splitlines()

    cluster.bookies["bk-3"].kill()
    (degraded,) = json.loads(shell.run("verify", ledger_id, "-o", "json", code=8))
    assert degraded["verdict"] == "degraded"
    assert degraded["flaws"] == [
        {
            "ledger_id": ledger_id,
            "fragment": 0,
            "bookie": "bk-3",
            "state": "unreachable",
            "first_entry": 0,
            "last_entry": 1,
            "copies": 2,
        }
    ]
    assert b"bk-3" in shell.run("verify", ledger_id, code=8)
    unfinished = int(shell.run("create", "-o", "raw"))
    cluster.bookies["bk-2"].kill()
    found = json.loads(shell.run("verify", unfinished, ledger_id, "-o", "json", code=5))
    assert [each["verdict"] for each in found] == ["in doubt", "degraded"]
    assert "bk-2" in found[0]["reason"]
    cluster.start("bk-2")
    cluster.start("bk-3")
    wait_until_sound(shell, ledger_id)


def test_ledger_metadata_is_shown_without_bookies(tmp_path: Path) -> None:
    with processes.family() as children:
        cluster = ProcessCluster(children, tmp_path)
        shell = Shell(cluster.url)
        ledger_id = int(shell.run("append", "-o", "raw", stdin=b"x\n"))
        for bookie in cluster.bookies.values():
            bookie.terminate()
            bookie.wait()
        shown = shell.json("show", ledger_id)
        assert isinstance(shown, dict)
        assert shown["last_entry"] == 0
        shell.run("read", ledger_id, code=5)
        assert "start a server" in shell.errors


# --- Input --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "data", "entries"),
    [
        ("lf", b"a\n\nbc\nrest", [b"a", b"", b"bc", b"rest"]),
        ("lf", b"", []),
        ("nul", b"a\nb\0\0", [b"a\nb", b""]),
        ("len32", struct.pack(">I", 3) + b"abc" + bytes(4), [b"abc", b""]),
        ("whole", b"a\nb", [b"a\nb"]),
        ("whole", b"", [b""]),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_input_framing_does_not_depend_on_chunk_size(
    frame: str, data: bytes, entries: list[bytes], size: int
) -> None:
    cutter = Cutter(frame)
    found = [e for at in range(0, len(data), size) for e in cutter.feed(data[at : at + size])]
    assert found + cutter.end() == entries


def test_oversized_or_incomplete_entry_is_refused() -> None:
    cutter = Cutter("lf")
    cutter.feed(bytes(5 * 1024 * 1024))
    with pytest.raises(EntryTooLarge):
        cutter.feed(b"more")
    cutter = Cutter("len32")
    cutter.feed(b"\0\0\0\5abc")
    with pytest.raises(InvalidRequest):
        cutter.end()


def test_metadata_password_is_not_shown() -> None:
    """Both the advice and the confirmation of a deletion name the metadata URL."""
    url = "zk://127.0.0.1:1/my ledgers?auth=digest:me:secret"
    shown = Metadata(url)
    assert shown.flag == " --metadata 'zk://127.0.0.1:1/my ledgers?…'"
    shell = Shell(url.replace(" ", "-"))
    shell.run("rm", 7, code=2)
    assert "delete ledger 7 of zk://127.0.0.1:1/my-ledgers?…, with" in shell.errors
