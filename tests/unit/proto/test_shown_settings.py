"""Settings as a process shows them: values and sources, without secrets."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import pytest

from rollbook.api.cli.server.bookie_settings import load_settings
from rollbook.api.cli.server.log import load_log_settings
from rollbook.api.cli.server.recovery import load_recovery_settings
from rollbook.proto.shown_settings import shown_settings

URL: Final = "zk://zk1,zk2/ledgers"
_SECRET: Final = re.compile(r"password|secret|token|credential|passphrase")


@dataclass(frozen=True)
class Example:
    url: str = ""
    on: bool = False
    size: int | None = None
    hosts: tuple[str, ...] = ()


def _values(found: Sequence[Mapping[str, str]]) -> dict[str, tuple[str, str]]:
    return {each["name"]: (each["value"], each["source"]) for each in found}


def test_values_are_shown_in_the_form_of_flags() -> None:
    config = Example("https://boss:5ec3e7@h:1/x", on=True, hosts=("a", "b"))
    found = shown_settings({"example": config}, {"example.on": "--on"})
    assert {each["section"] for each in found} == {"example"}
    assert _values(found) == {
        "url": ("https://h:1/x", "set by the process"),
        "on": ("true", "--on"),
        "size": ("", "default"),
        "hosts": ("a, b", "set by the process"),
    }


def test_source_of_each_value_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For all three kinds of servers."""
    monkeypatch.setenv("ROLLBOOK_LOG_SERVICE_LEASE_S", "4")
    monkeypatch.setenv("ROLLBOOK_LOG_LEVEL", "warning")
    path = tmp_path / "log.toml"
    path.write_text("[log_server]\ndrain_s = 3.0\n[ledger]\nadd_deadline_s = 7.0\n")
    found = _values(load_log_settings(str(path), metadata=URL, rest="127.0.0.1:0").shown())
    assert found["metadata"] == (URL, "--metadata")
    assert found["rest"] == ("127.0.0.1:0", "--rest")
    assert found["drain_s"] == ("3.0", f"[log_server] drain_s in {path}")
    assert found["lease_s"] == ("4.0", "ROLLBOOK_LOG_SERVICE_LEASE_S")
    assert found["log_level"] == ("warning", "ROLLBOOK_LOG_LEVEL")
    assert found["explicit_lac_idle_ms"] == ("30000", "set by the process")
    assert found["startup_s"] == ("60.0", "default")

    path = tmp_path / "recovery.toml"
    path.write_text('[recovery]\ncallback_hosts = ["a", "b"]\n[audit]\noverdue_s = 60\n')
    found = _values(load_recovery_settings(str(path), metadata=URL).shown())
    assert found["callback_hosts"] == ("a, b", f"[recovery] callback_hosts in {path}")
    assert found["overdue_s"] == ("60", f"[audit] overdue_s in {path}")
    assert found["metadata"] == (URL, "--metadata")

    bookie = load_settings(metadata=URL, journal_dir=("/j",), ledger_dir=("/l", "/m"))
    assert bookie.sources["bookie.metadata"] == "--metadata"
    assert bookie.sources["storage.journal_dir"] == "--journal-dir"
    assert bookie.sources["storage.ledger_dirs"] == "--ledger-dir"
    assert bookie.sources["bookie.log_level"] == "ROLLBOOK_LOG_LEVEL"


@pytest.mark.parametrize("kind", ["log", "recovery", "bookie"])
def test_no_setting_holds_a_secret(kind: str) -> None:
    """A secret setting has to be hidden: settings are shown to every principal that may monitor."""
    settings: Any
    if kind == "log":
        settings = load_log_settings(metadata=URL)
    elif kind == "recovery":
        settings = load_recovery_settings(metadata=URL)
    else:
        settings = load_settings(metadata=URL, journal_dir=("/j",), ledger_dir=("/l",))
    names = [
        each.name
        for section in fields(settings)
        if section.name != "sources"
        for each in fields(getattr(settings, section.name))
    ]
    assert len(names) > 20
    assert [each for each in names if _SECRET.search(each) and not each.endswith("_file")] == []
