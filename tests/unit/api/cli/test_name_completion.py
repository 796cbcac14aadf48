"""Names of logs, cursors, servers, bookies and contexts are completed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.dev import PATIENCE_S
from tests.unit.api.cli.shell import Shell


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
