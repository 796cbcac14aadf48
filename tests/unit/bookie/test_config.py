"""What a bookie's settings must have to do with each other."""

from dataclasses import replace
from typing import Any

import pytest

from rollbook.api.cli.bookie_settings import load_settings
from rollbook.bookie.config import MIB, StorageConfig
from rollbook.proto.errors import BadConfig

CONFIG = StorageConfig("/j", ("/l",))


def test_what_was_accepted_fits_in_one_journal_file() -> None:
    """Twice the bound, for what is urgent: a full disk leaves the file at hand."""
    assert CONFIG.with_fitting_queue() == CONFIG
    small = replace(CONFIG, journal_file_bytes=16 * MIB)
    assert small.with_fitting_queue().queued_bytes_max == 8 * MIB
    chosen = replace(small, queued_bytes_max=8 * MIB)
    assert chosen.with_fitting_queue() == chosen
    with pytest.raises(BadConfig, match="a full disk could keep") as refused:
        replace(small, queued_bytes_max=8 * MIB + 1).with_fitting_queue()
    assert f"set queued_bytes_max to {8 * MIB} or less" in refused.value.next_step


def test_an_operator_s_settings_are_held_to_that(monkeypatch: pytest.MonkeyPatch) -> None:
    flags: dict[str, Any] = {
        "metadata": "sqlite:///m",
        "journal_dir": ("/j",),
        "ledger_dir": ("/l",),
    }
    monkeypatch.setenv("ROLLBOOK_STORAGE_JOURNAL_FILE_BYTES", str(MIB))
    assert load_settings(**flags).storage.queued_bytes_max == MIB // 2
    monkeypatch.setenv("ROLLBOOK_STORAGE_QUEUED_BYTES_MAX", str(MIB))
    with pytest.raises(BadConfig, match="queued_bytes_max"):
        load_settings(**flags)
