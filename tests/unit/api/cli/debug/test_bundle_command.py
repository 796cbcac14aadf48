"""The `rollbook debug bundle` command against a cluster of one bookie."""

import json
import os
import re
import stat
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from rollbook.api.cli import main as cli
from rollbook.api.cli.cluster import actions as cluster_work
from rollbook.api.client.async_client import Client
from rollbook.api.client.sync import connect
from rollbook.proto.errors import ConnectionLost, NoSuchNode, RollbookError, Unauthorized
from tests.support import commands
from tests.support.dev import RunningDev, running_dev
from tests.unit.api.cli.shell import Shell, append_numbers


def test_bundle_has_facts_of_servers_and_logs(
    shell: Shell, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_numbers(server, "told-of", 2)
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
