"""Consistency of a bookie's settings, and errors in them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollbook.api.cli.server.bookie_settings import load_settings
from rollbook.bookie.config import MIB, StorageConfig
from rollbook.proto.errors import BadConfig
from tests.messages import raises_message

CONFIG = StorageConfig("/j", ("/l",))
SOUND = """metadataServiceUri=zk://a/l
httpServerEnabled=true
httpServerPort=8001
journalDirectories=/j
ledgerDirectories=/l
"""


def test_queue_limit_fits_in_one_journal_file() -> None:
    """Urgent adds may double the queue, and on a full disk only the current file is left."""
    assert CONFIG.with_fitting_queue() == CONFIG
    small = replace(CONFIG, journal_file_bytes=16 * MIB)
    assert small.with_fitting_queue().queued_bytes_max == 8 * MIB
    chosen = replace(small, queued_bytes_max=8 * MIB)
    assert chosen.with_fitting_queue() == chosen
    with raises_message(BadConfig) as refused:
        replace(small, queued_bytes_max=8 * MIB + 1).with_fitting_queue()
    assert f"set queued_bytes_max to {8 * MIB} or less" in refused.value.next_step


def test_queue_limit_is_checked_for_loaded_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    flags: dict[str, Any] = {
        "metadata": "sqlite:///m",
        "journal_dir": ("/j",),
        "ledger_dir": ("/l",),
    }
    monkeypatch.setenv("ROLLBOOK_STORAGE_JOURNAL_FILE_BYTES", str(MIB))
    assert load_settings(**flags).storage.queued_bytes_max == MIB // 2
    monkeypatch.setenv("ROLLBOOK_STORAGE_QUEUED_BYTES_MAX", str(MIB))
    with raises_message(BadConfig):
        load_settings(**flags)


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("zkTimeout=100", "zkTimeout"),
        ("zkTimeout=soon", "zkTimeout"),
        ("bookiePort=99999", "bookiePort"),
        ("bookiePort=0", "bookiePort"),
        ("bookieId=bad id", "bookieId"),
        ("advertisedAddress=no_host,really", "advertisedAddress"),
        ("advertisedAddress=0.0.0.0", "advertisedAddress"),
        ("listeningInterface=there_is_none", "listeningInterface"),
        ("metadataServiceUri=zk://:x/ledgers", "metadataServiceUri"),
        ("metadataServiceUri=http://listen/metadata", "metadataServiceUri"),
        ("httpServerPort=99999", "httpServerPort"),
        ("journalDirectories=/a,/b", "journalDirectories"),
        ("ledgerDirectories=/l,/l", "ledgerDirectories"),
        ("ledgerDirectories=/j,/j/ledgers", "ledgerDirectories"),
        ("nettyMaxFrameSizeBytes=-1", "nettyMaxFrameSizeBytes"),
        ("nettyMaxFrameSizeBytes=99999999", "nettyMaxFrameSizeBytes"),
        ("gcWaitTime=0", "gcWaitTime"),
        ("majorCompactionThreshold=80", "majorCompactionThreshold"),
        ("diskUsageThreshold=95", "diskUsageThreshold"),
    ],
)
def test_invalid_value_is_reported_with_its_key_and_line(
    tmp_path: Path, line: str, key: str
) -> None:
    path = tmp_path / "bk_server.conf"
    path.write_text(f"{SOUND}# Ours:\n{line}\na(b=1\n*x=2\n")
    with pytest.raises(BadConfig) as refused:
        load_settings(str(path))
    assert f"{key} in {path} line 7" in refused.value.message


def test_only_the_invalid_key_is_reported(tmp_path: Path) -> None:
    """An invalid value may contain the names of other settings."""
    path = tmp_path / "bk_server.conf"
    path.write_text(f"{SOUND}metadataServiceUri=http://listen/advertise:\nzkServers=\n")
    with pytest.raises(BadConfig) as refused:
        load_settings(str(path))
    assert refused.value.message.endswith(f" (metadataServiceUri in {path} line 6)")
    assert refused.value.message.count(str(path)) == 1


@pytest.mark.parametrize("flag", ["http://listen/advertise", "nonsense"])
def test_invalid_flag_is_not_blamed_on_the_file(tmp_path: Path, flag: str) -> None:
    """This holds even if flag and file have the same value."""
    path = tmp_path / "bk_server.conf"
    path.write_text(f"{SOUND}metadataServiceUri=nonsense\n")
    with pytest.raises(BadConfig) as refused:
        load_settings(str(path), metadata=flag)
    assert str(path) not in refused.value.message


def test_invalid_variable_is_reported_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bk_server.conf"
    path.write_text(f"{SOUND}metadataServiceUri=nonsense\n")
    monkeypatch.setenv("ROLLBOOK_METADATA", "nonsense")
    with raises_message(BadConfig):
        load_settings(str(path))


def test_empty_directory_name_is_refused() -> None:
    """An unset shell variable is empty; files would be written to the current directory."""
    sound: dict[str, Any] = {"metadata": "sqlite:///m", "journal_dir": ("/j",)}
    for flags in ({"journal_dir": ("",), "ledger_dir": ("/l",)}, {"ledger_dir": ("/l", "")}):
        with raises_message(BadConfig):
            load_settings(**{**sound, **flags})


def test_missing_settings_are_reported_with_flags_and_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in ("ROLLBOOK_METADATA", "ROLLBOOK_JOURNAL_DIR", "ROLLBOOK_LEDGER_DIR"):
        monkeypatch.delenv(variable, raising=False)
    with raises_message(BadConfig) as refused:
        load_settings()
    assert "--journal-dir, --ledger-dir or ROLLBOOK_JOURNAL_DIR, ROLLBOOK_LEDGER_DIR" in (
        refused.value.next_step
    )
    monkeypatch.setenv("ROLLBOOK_JOURNAL_DIR", "/j")
    monkeypatch.setenv("ROLLBOOK_LEDGER_DIR", "/l,/m")
    with raises_message(BadConfig) as refused:
        load_settings()
    assert "--metadata or ROLLBOOK_METADATA" in refused.value.next_step
    monkeypatch.setenv("ROLLBOOK_METADATA", "sqlite:///m")
    assert load_settings().storage.ledger_dirs == ("/l", "/m")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b'# Ours\n  [bookie]\nmetadata = "zk://a/l"\n', "looks like TOML"),
        (b"\x7fELF\0\0bookiePort=7", "is not text"),
    ],
)
def test_toml_or_binary_file_is_refused_as_bookkeeper_config(
    tmp_path: Path, content: bytes, told: str
) -> None:
    """Otherwise its keys would just be listed as ignored."""
    path = tmp_path / "bookie.conf"
    path.write_bytes(content)
    with pytest.raises(BadConfig, match=told):
        load_settings(str(path))


def test_shared_journal_and_ledger_directory_gets_subfolders() -> None:
    config = StorageConfig("/a", ("/b", "/a", "/c"))
    assert (config.journal_dir, config.ledger_dirs) == ("/a/journal", ("/b", "/a/ledgers", "/c"))
    assert replace(config, cache_bytes=1) == replace(config, cache_bytes=1)
    assert replace(config, waiting_files_max=9).journal_dir == "/a/journal"
    apart = StorageConfig("/a", ("/a/ledgers",))
    assert (apart.journal_dir, apart.ledger_dirs) == ("/a", ("/a/ledgers",))
