"""Bookies start from the configuration files of operators' Java bookies."""

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
        ("one", "one/below"),  # Different directories, one inside the other.
        ("one/below", "one"),
    ],
)
def test_journal_and_ledgers_may_share_a_directory(
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
        for _ in range(2):  # The first start creates the directories, the second finds them.
            bookie = _start(children, config)
            assert bookie.line(_PATIENCE_S).startswith(f"ready: bookie 127.0.0.1:{port} ")
            bookie.terminate()
            assert bookie.wait() == 0


@defect(
    "host-name-id-of-an-interface-is-an-address",
    "With useHostNameAsBookieID and listeningInterface, a Java bookie's directories started under another id.",
)
@pytest.mark.parametrize("short", ["", "useShortHostName=true"])
def test_bookie_id_is_the_host_name_of_the_interface(tmp_path: Path, short: str) -> None:
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
