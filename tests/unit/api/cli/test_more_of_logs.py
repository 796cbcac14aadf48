"""Commands for cursors, writers, servers, apply files, debug bundles and completion."""

import json
import os
import re
import stat
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from rollbook.api.cli import main as cli
from rollbook.api.cli.cluster import actions as cluster_work
from rollbook.api.client.async_client import Client
from rollbook.api.client.sync import connect
from rollbook.proto.errors import ConnectionLost, NoSuchNode, RollbookError, Unauthorized
from tests.support import commands
from tests.support.dev import PATIENCE_S, RunningDev, running_dev
from tests.unit.api.cli.shell import Shell


def append(server: str, log: str, count: int) -> None:
    lines = "".join(f"{number}\n" for number in range(count)).encode()
    at = {"ROLLBOOK_SERVER": server}
    commands.run("log", "append", log, "--create", stdin=lines, environment=at).check_returncode()


def test_cursors_are_moved_and_protect_from_truncation(shell: Shell, server: str) -> None:
    append(server, "read-by-name", 100)
    assert shell.run("cursor", "set", "read-by-name", "billing", 40, "-o", "raw") == "40\n"
    shell.run("cursor", "set", "read-by-name", "audit", "-10", "--protect")
    rows = shell.json("cursor", "ls", "read-by-name")
    assert [(each["name"], each["lag"], each["is_protected"]) for each in rows] == [
        ("audit", 10, True),
        ("billing", 60, False),
    ]
    version = rows[1]["version"]
    shell.run("cursor", "set", "read-by-name", "billing", 50, "--version", version + 7, code=4)
    back = ("cursor", "set", "read-by-name", "billing", 30, "--no-protect", "--version", version)
    shell.run(*back, code=4)
    assert "[CURSOR_AHEAD]" in shell.errors
    (typed,) = re.findall(r"try: rollbook (.*)", shell.errors)
    again = f"cursor set read-by-name billing 30 --rewind --no-protect --version {version} "
    assert typed.startswith(again), "the suggested command keeps the conditions"
    shell.run(*typed.split())
    version = shell.json("cursor", "show", "read-by-name", "billing")["version"]
    shell.run("cursor", "set", "read-by-name", "billing", 30, "--version", version)
    found = shell.json("log", "read", "read-by-name", "--from", "cursor:billing", "--limit", 1)
    assert found[0]["offset"] == 30
    truncate = ("log", "truncate", "read-by-name", "--before", "latest", "--yes")
    shell.run(*truncate, code=4)
    shell.run("cursor", "rm", "read-by-name", "audit", code=2)  # There is no terminal to ask on.
    assert (
        "[NOT_CONFIRMED]\n  outcome: not applied: nothing was changed\n  try: pass --yes"
        in shell.errors
    )
    shell.run("cursor", "rm", "read-by-name", "audit", "--yes")
    shell.run(*truncate)
    shell.run("cursor", "show", "read-by-name", "audit", code=3)
    assert "try: rollbook cursor ls read-by-name --server" in shell.errors
    assert shell.run("cursor", "show", "read-by-name", "billing", "-o", "raw") == "30\n"


def test_log_lists_have_name_raw_and_wide_outputs(shell: Shell, server: str) -> None:
    append(server, "listed", 3)
    shell.run("cursor", "set", "listed", "billing", 1)
    assert shell.run("cursor", "ls", "listed", "-o", "name") == "billing\n"
    assert "BLOB_BYTES" in shell.run("cursor", "ls", "listed", "-o", "wide").splitlines()[0]
    assert shell.run("log", "ls", "listed", "-o", "name") == "default/listed\n"
    assert shell.run("log", "ls", "listed").splitlines() == ["LOG", "default/listed"]
    head, row = shell.run("log", "ls", "listed", "-o", "wide").splitlines()
    assert {"TAIL", "OWNER", "RECORDS", "WRITER_HOLDER"} <= set(head.split())
    assert row.split()[2] == "3"
    ledgers = shell.run("log", "segments", "listed", "-o", "name")
    assert ledgers == shell.run("log", "segments", "listed", "-o", "raw")
    head, row = shell.run("log", "segments", "listed", "-o", "wide").splitlines()
    assert head.endswith("LAST_RECORD")
    assert re.search(r"  \d{4}-\d\d-\d\dT[\d:.]+Z$", row)
    names = shell.run("cluster", "servers", "-o", "name")
    assert names == shell.run("cluster", "servers", "-o", "raw")


def test_exclusive_writer_is_acquired_stolen_and_released(shell: Shell) -> None:
    shell.run("log", "create", "one-writer", "--exclusive")
    assert shell.json("log", "writer", "show", "one-writer")["holder"] == ""
    epoch = shell.run("log", "writer", "acquire", "one-writer", "--holder", "me", "-o", "raw")
    assert shell.run("log", "writer", "show", "one-writer", "-o", "raw") == epoch
    shell.run("log", "writer", "acquire", "one-writer", "--holder", "you", code=4)
    again = "rollbook log writer acquire one-writer --holder you --wait"
    assert re.search(rf"try: {again} --server \S+, or use --steal", shell.errors)
    steal = ("log", "writer", "acquire", "one-writer", "--holder", "you", "--steal")
    shell.run(*steal, code=2)
    taken = shell.json(*steal, "--yes", "--ttl", "1h", "--attempt", "5c1c9a1e")
    heard = (*steal[:-1], "--attempt", "5c1c9a1e")  # A retry of the same attempt fences nobody.
    assert shell.json(*heard)["writer_epoch"] == taken["writer_epoch"]
    assert taken["writer_epoch"] == int(epoch) + 1
    assert taken["ttl_s"] == 3600
    shell.run("log", "writer", "release", "one-writer", epoch.strip(), code=4)
    shell.run("log", "writer", "release", "one-writer", taken["writer_epoch"])
    assert shell.json("log", "writer", "show", "one-writer")["holder"] == ""


def test_log_verify_counts_all_records(shell: Shell, server: str) -> None:
    append(server, "sound", 5000)
    shell.run("log", "truncate", "sound", "--before", 100, "--yes")
    found = shell.json("log", "verify", "sound")
    assert (found["head"], found["tail"], found["records"]) == (100, 5000, 4900)
    assert found["bytes"] == sum(len(str(number)) for number in range(100, 5000))
    shell.run("log", "verify", "nowhere", code=3)


def test_servers_are_listed_drained_and_get_logs_back(shell: Shell, server: str) -> None:
    append(server, "moved", 10)
    (row,) = shell.json("cluster", "servers")
    assert row["address"] == server
    assert shell.run("log", "transfer", "moved", row["server"], "-o", "raw").strip() == server
    shell.run("log", "transfer", "moved", "nobody", code=3)
    assert "try: rollbook cluster servers --server" in shell.errors
    try:
        left = shell.json("cluster", "drain", row["server"], "--wait", "--timeout", 60)
        assert left == {"server": row["server"], "draining": True, "logs": 0}
        assert shell.json("cluster", "servers")[0]["state"] == "draining"
    finally:
        shell.run("cluster", "drain", row["server"], "--resume")
    deadline = time.monotonic() + PATIENCE_S
    while shell.json("cluster", "servers")[0]["state"] != "serving":
        assert time.monotonic() < deadline
    assert shell.json("log", "verify", "moved", "--timeout", 60)["records"] == 10


SPEC = """
[logs."shop/applied"]
retention_age = "7d"
roll_bytes = "64M"
labels = { team = "checkout", area = "shop" }
exclusive = true

[logs.as-it-is]
"""


def test_apply_creates_and_updates_logs(shell: Shell, tmp_path: Path) -> None:
    spec = tmp_path / "logs.toml"
    spec.write_text(SPEC)
    shell.run("log", "create", "as-it-is", "--roll-bytes", "32M")
    plan = shell.json("apply", str(spec), "--dry-run")
    assert [(each["act"], each["log"]) for each in plan] == [
        ("+", "shop/applied"),
        ("=", "default/as-it-is"),
    ]
    shell.run("log", "show", "shop/applied", code=3)
    assert shell.json("apply", str(spec)) == plan
    config = shell.json("log", "show", "shop/applied")["config"]
    assert config["retention_age_s"] == 7 * 86_400
    assert config["writer_mode"] == "exclusive"
    assert shell.run("apply", str(spec), "-o", "raw") == ""
    spec.write_text(SPEC.replace('"7d"', '"1d"'))
    shell.run("apply", str(spec), code=2)
    assert "sooner than before in shop/applied (retention_age_s)" in shell.errors
    assert shell.json("log", "show", "shop/applied")["config"] == config, (
        "there is no terminal to ask on"
    )
    (changed, _) = shell.json("apply", str(spec), "--yes")
    assert changed["act"] == "~"
    assert changed["changes"] == {"retention_age_s": "604800 -> 86400"}
    assert shell.json("apply", str(spec))[0]["act"] == "="
    spec.write_text(
        '[logs."shop/applied"]\nretention_age = "none"\nexclusive = false\ndedupe_batches = 128'
    )
    shell.run("apply", str(spec))
    config |= {"retention_age_s": None, "writer_mode": "open", "dedupe_batches": 128}
    assert shell.json("log", "show", "shop/applied")["config"] == config
    for limit in ("record_bytes_max = '64K'", "batch_bytes_max = '500K'"):
        spec.write_text(f'[logs."shop/applied"]\n{limit}\n[logs.limited]\nrecord_bytes_max = 1')
        shell.run("apply", str(spec))
    spec.write_text('[logs.never]\n[logs."shop/applied"]\nrecord_bytes_max = "1M"')
    shell.run("apply", str(spec), code=2)
    assert "shop/applied: record_bytes_max is above batch_bytes_max" in shell.errors
    shell.run("log", "show", "never", code=3)
    again = ("log", "create", "shop/applied", "--label", "team=checkout", "--label", "area=shop")
    assert shell.json(*again)["created"] is False, "the order of labels does not matter"


@pytest.mark.parametrize(
    "text",
    ["[nonsense]", "logs = 3", "[logs.a]\nretention = 3", "[logs.a]\ncopies = 'x'", "[logs.'A B']"],
)
def test_invalid_apply_file_changes_nothing(shell: Shell, tmp_path: Path, text: str) -> None:
    spec = tmp_path / "logs.toml"
    spec.write_text(f"[logs.never-made]\n{text}" if text.startswith("[logs") else text)
    shell.run("apply", str(spec), code=2)
    shell.run("log", "show", "never-made", code=3)


def test_bundle_has_facts_of_servers_and_logs(
    shell: Shell, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(server, "told-of", 2)
    at = {"ROLLBOOK_SERVER": server}
    canary = commands.run("log", "append", "told-of", stdin=b"canary-of-a-record\n", environment=at)
    canary.check_returncode()
    path = str(tmp_path / "bundle.tar.gz")
    metadata = f"sqlite:///{tmp_path}/metadata.db"
    made = shell.json("cluster", "init", "--metadata", metadata)
    shell.run("cursor", "set", "told-of", "billing", 2)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("ROLLBOOK_SERVER")
    shell.run("context", "add", "here", "--server", f"log://{server}", "--metadata", metadata)
    bundle = ("debug", "bundle", "--file", path, "--log", "told-of")
    assert shell.run(*bundle) == f"{path}\n"
    assert not shell.errors, "no part is missing"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    texts = unpacked(path)
    assert not any(b"canary" in text for text in texts.values())
    found = {name: json.loads(text) for name, text in texts.items()}
    assert found["rollbook/missing.json"] == []
    assert found["rollbook/about.json"]["python"] == sys.version
    (stats,) = found["rollbook/stats.json"].values()
    assert stats["stats"]["rollbook_log_logs_owned"] >= 1
    cluster = found["rollbook/cluster.json"]
    assert (cluster["instance_id"], cluster["bookies"]) == (made["instance_id"], [])
    assert cluster["health"]["health"] == "unavailable", "the cluster has no bookies"
    assert cluster["health"]["bookies"] == "0 of 0 writable"
    (state,) = [each for each in found["rollbook/logs.json"] if each["log"]["name"] == "told-of"]
    assert [(each["name"], each["offset"]) for each in state["cursors"]] == [("billing", 2)]
    log = found["rollbook/log-default-told-of.json"]
    assert log["tail"]["tail"] == 3
    assert log["journal"]["events"]
    shell.run("debug", "bundle", "--file", path, code=1)  # The file exists.


def unpacked(path: str) -> dict[str, bytes]:
    found = {}
    with tarfile.open(path) as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file
            found[member.name] = file.read()
    return found


def test_bundle_has_metrics_and_lists_missing_parts(
    shell: Shell, dev: RunningDev, tmp_path: Path
) -> None:
    (metadata,) = re.findall(r"^metadata +(\S+)$", dev.said, re.MULTILINE)
    path = str(tmp_path / "bundle.tar.gz")
    shell.run("debug", "bundle", "--file", path, "--logs-max", 0, "--metadata", metadata)
    found = unpacked(path)
    (metrics,) = (text for name, text in found.items() if "/metrics/log-server-" in name)
    assert b"rollbook_log_append_stage_seconds_bucket" in metrics
    missing = json.loads(found["rollbook/missing.json"])
    assert [each["what"] for each in missing] == ["logs"]
    assert shell.errors.startswith("1 thing could not be had")
    cluster = json.loads(found["rollbook/cluster.json"])
    assert cluster["without_pages"] == {"bookie-bk-1": "--http"}


def test_bundle_uses_the_typed_context_or_server(
    shell: Shell, server: str, dev: RunningDev, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bundle of another cluster would show the token of the typed context to its servers."""
    (metadata,) = re.findall(r"^metadata +(\S+)$", dev.said, re.MULTILINE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("ROLLBOOK_SERVER")
    path = tmp_path / "bundle.tar.gz"

    def told(*flags: str) -> tuple[dict[str, Any], list[str]]:
        path.unlink(missing_ok=True)
        shell.run("debug", "bundle", "--file", str(path), *flags)
        found = {name: text for name, text in unpacked(str(path)).items() if "metrics" not in name}
        missing = [each["what"] for each in json.loads(found["rollbook/missing.json"])]
        return json.loads(found.get("rollbook/cluster.json", b"{}")), missing

    ids = {}
    with running_dev(tmp_path / "other", bookies=1) as other:
        (others,) = re.findall(r"^metadata +(\S+)$", other.said, re.MULTILINE)
        shell.run("context", "add", "here", "--server", server, "--metadata", metadata)
        shell.run("context", "add", "there", "--server", other.address, "--metadata", others)
        shell.run("context", "add", "bare", "--server", server)
        for name in ("here", "there"):
            ids[name] = shell.json("cluster", "info", "--context", name)["instance_id"]
        monkeypatch.setenv("ROLLBOOK_METADATA", others)
        assert told("--context", "here")[0]["instance_id"] == ids["here"]
        nobody_says: tuple[dict[str, Any], list[str]] = (
            {"metadata": "none: --metadata URL, or that of a context"},
            [],
        )
        assert told("--context", "bare") == nobody_says
        cluster, missing = told("--server", server)
        assert cluster["instance_id"] == ids["there"]
        assert "the cluster of the servers that were asked" in missing
        monkeypatch.delenv("ROLLBOOK_METADATA")
        monkeypatch.setenv("ROLLBOOK_CONTEXT", "here")
        assert told("--server", other.address) == nobody_says
        both = ("--context", "here", "--metadata", metadata)
        shell.run("debug", "bundle", "--file", str(path), *both, code=2)


def test_bundle_is_made_from_metadata_without_log_servers(
    shell: Shell, dev: RunningDev, tmp_path: Path
) -> None:
    (metadata,) = re.findall(r"^metadata +(\S+)$", dev.said, re.MULTILINE)
    path = str(tmp_path / "bundle.tar.gz")
    bundle = ("debug", "bundle", "--file", path, "--server", "127.0.0.1:1", "--timeout", "0.5")
    shell.run(*bundle, code=5)  # No metadata is named either.
    assert not Path(path).exists(), "a partial bundle would block the next one"
    shell.run(*bundle, "--metadata", metadata)
    found = unpacked(path)
    assert json.loads(found["rollbook/cluster.json"])["bookies"][0]["id"] == "bk-1"
    assert json.loads(found["rollbook/missing.json"])[0]["error"] == "SERVER_UNREACHABLE"


@pytest.mark.parametrize(
    "error", [Unauthorized("no token"), ConnectionLost("to it"), NoSuchNode("x")]
)
def test_bundle_is_made_from_metadata_if_log_servers_fail(
    shell: Shell,
    dev: RunningDev,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: RollbookError,
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Client, "ask", refuse)
    (metadata,) = re.findall(r"^metadata +(\S+)$", dev.said, re.MULTILINE)
    path = str(tmp_path / "bundle.tar.gz")
    bundle = ("debug", "bundle", "--file", path)
    shell.run(*bundle, code=cli.exit_code(error))  # No metadata is named.
    shell.run(*bundle, "--metadata", metadata)
    found = unpacked(path)
    assert json.loads(found["rollbook/cluster.json"])["bookies"][0]["id"] == "bk-1"
    assert json.loads(found["rollbook/missing.json"])[0]["error"] == error.code.reason


def test_bundle_contains_no_secret(
    shell: Shell, server: str, dev: RunningDev, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (metadata,) = re.findall(r"^metadata +(\S+)$", dev.said, re.MULTILINE)
    token = tmp_path / "token"
    token.write_text("SECRET-token")
    monkeypatch.setenv("SOME_PASSWORD", "SECRET-of-the-environment")
    monkeypatch.setattr(cluster_work, "COMMAND_TIMEOUT_S", 0.1)  # There is no ZooKeeper.
    with connect(server) as client:
        log = client.open("secrets", create=True)
        log.append(b"SECRET-record", key=b"SECRET-key", headers={"h": b"SECRET-header"})
        log.cursor("billing").commit(0, blob=b"SECRET-blob")
    for url in (metadata, "zk://127.0.0.1:1/ledgers?auth=digest:u:SECRET-option"):
        path = tmp_path / "bundle.tar.gz"
        more = ("--log", "secrets", "--token-file", str(token), "--metadata", url)
        shell.run("debug", "bundle", "--file", str(path), *more)
        found = unpacked(str(path))
        log_told = json.loads(found["rollbook/log-default-secrets.json"])
        assert (log_told["tail"]["tail"], len(log_told["cursors"]["cursors"])) == (1, 1)
        assert "rollbook/cluster.json" in found
        told = b"\n".join([*map(str.encode, found), *found.values(), shell.errors.encode()])
        assert re.findall(rb"SECRET-\w*", told) == []
        path.unlink()


def test_invalid_bundle_options_write_no_file(shell: Shell, server: str, tmp_path: Path) -> None:
    bundle = ("debug", "bundle", "--file", str(tmp_path / "bundle.tar.gz"))
    for url in ("nonsense://x", "memory:", "zk://h?colour=red"):
        shell.run(*bundle, "--metadata", url, code=2)
    no_file = ("--token-file", str(tmp_path / "none"))
    shell.run(*bundle, *no_file, "--metadata", f"sqlite:///{tmp_path}/metadata.db", code=2)
    assert not list(tmp_path.iterdir())


def test_names_are_completed(
    shell: Shell, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    shell.run("log", "create", "completed-1")
    shell.run("log", "create", "shop/completed-2")
    environment = {**os.environ, "ROLLBOOK_SERVER": server, "XDG_CONFIG_HOME": str(tmp_path)}

    def complete(line: str, **more: str) -> list[str]:
        program = (
            "from rollbook.api.cli import name_completion\n"
            "name_completion._PATIENCE_S = 30\n"  # For a busy machine.
            "from rollbook.api.cli.main import main\n"
            "main()"
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**environment, "_ROLLBOOK_COMPLETE": "bash_complete", "COMP_WORDS": line, **more},
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_S,
        )
        return [line.partition(",")[2] for line in done.stdout.splitlines()]

    assert "log" in complete("")  # Shells themselves never send an empty line.
    assert complete("rollbook log show compl") == ["completed-1"]
    assert "shop/completed-2" in complete("rollbook explain shop/c")
    assert complete("rollbook log tru") == ["truncate"]
    assert complete("rollbook debug bundle --log compl") == ["completed-1"]
    shell.run("cursor", "set", "completed-1", "billing", 0)
    assert complete("rollbook cursor show completed-1 b") == ["billing"]
    assert complete("rollbook log read completed-1 --from c") == ["cursor:billing"]
    assert complete("rollbook log truncate completed-1 --before ea") == ["earliest"]
    name = shell.run("cluster", "servers", "-o", "raw").strip()
    assert complete(f"rollbook cluster drain {name[:3]}") == [name]
    assert complete(f"rollbook log transfer completed-1 {name[:3]}") == [name]
    metadata = f"sqlite:///{tmp_path}/metadata.db"
    shell.run("cluster", "init", "--metadata", metadata)
    folders = ("--journal-dir", tmp_path / "journal", "--ledger-dir", tmp_path / "ledgers")
    shell.run(
        "bookie",
        "init",
        "--metadata",
        metadata,
        "--bookie-id",
        "bk-completed",
        *map(str, folders),
    )
    assert complete(f"rollbook recovery heal --metadata {metadata} bk") == ["bk-completed"]
    shell.run("context", "add", "there", "--server", f"log://{server}", "--metadata", metadata)
    assert complete("rollbook recovery heal --context there bk") == ["bk-completed"]
    assert complete("rollbook recovery heal --context th") == ["there"]
    assert complete("rollbook log ls --context th") == ["there"]
    assert "_ROLLBOOK_COMPLETE" in shell.run("completion", "bash")
