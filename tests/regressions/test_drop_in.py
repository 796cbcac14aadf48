"""Configuration files of Java's bookies that operators have, and start ours from."""

from pathlib import Path

import pytest

from tests.regressions.defects import defect
from tests.support import commands
from tests.support.processes import Child, Family, family
from tests.support.zookeeper import free_port

_PATIENCE_S = 30.0


def _start(children: Family, config: Path) -> Child:
    words = ("server", "bookie", "--config", str(config), "--log-level", "error")
    return children.start_module("rollbook.api.cli.main", *words)


def _config(folder: Path, *lines: str) -> Path:
    metadata = f"sqlite://{folder}/metadata.db"
    assert commands.run("cluster", "init", "--metadata", metadata).returncode == 0
    config = folder / "bk_server.conf"
    common = (f"metadataServiceUri={metadata}", "diskUsageThreshold=0.99", "allowLoopback=true")
    config.write_text("\n".join((*common, *lines)))
    return config


@defect(
    "one-directory-for-journal-and-ledgers-refused",
    "A bk_server.conf that names one directory for journal and ledgers did not start a bookie.",
)
@pytest.mark.parametrize(
    ("journal", "ledgers"),
    [
        ("one", "one"),
        ("one", "two,one"),
        ("one", "one/below"),  # Each in a place of its own, but one leads to the other.
        ("one/below", "one"),
    ],
)
def test_one_directory_may_be_that_of_the_journal_and_of_ledgers(
    tmp_path: Path, journal: str, ledgers: str
) -> None:
    ledger_dirs = ",".join(f"{tmp_path}/{each}" for each in ledgers.split(","))
    port = free_port()
    config = _config(
        tmp_path,
        f"bookiePort={port}",
        "advertisedAddress=127.0.0.1",
        f"journalDirectories={tmp_path}/{journal}",
        f"ledgerDirectories={ledger_dirs}",
    )
    with family() as children:
        for _ in range(2):  # Made, and found again.
            bookie = _start(children, config)
            assert bookie.line(_PATIENCE_S).startswith(f"ready: bookie 127.0.0.1:{port} ")
            bookie.terminate()
            assert bookie.wait() == 0


@defect(
    "host-name-id-of-an-interface-is-an-address",
    "With useHostNameAsBookieID and listeningInterface a bookie of Java's came up as another one.",
)
@pytest.mark.parametrize("short", ["", "useShortHostName=true"])
def test_the_id_is_the_name_of_the_interface(tmp_path: Path, short: str) -> None:
    port = free_port()
    config = _config(
        tmp_path,
        f"bookiePort={port}",
        "listeningInterface=lo",
        "useHostNameAsBookieID=true",
        short,
        f"journalDirectories={tmp_path}/journal",
        f"ledgerDirectories={tmp_path}/ledgers",
    )
    with family() as children:
        assert (
            _start(children, config)
            .line(_PATIENCE_S)
            .startswith(f"ready: bookie localhost:{port} ")
        )
