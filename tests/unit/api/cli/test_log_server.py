"""What a log server is set to, and who may say otherwise."""

from pathlib import Path

import pytest

from rollbook.api.cli.log_server import LogSettings, load_log_settings
from rollbook.logservice.config import LogServerConfig

URL = "sqlite:///metadata.db"


def test_the_end_of_a_quiet_log_is_told_to_bookies_at_leisure_unless_somebody_sets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = LogSettings(LogServerConfig(URL)).ledger
    assert usual.explicit_lac_idle_ms == 30_000
    assert load_log_settings(metadata=URL).ledger == usual
    file = tmp_path / "rollbook.toml"
    file.write_text("[ledger]\nexplicit_lac_idle_ms = 30\n")
    assert load_log_settings(str(file), metadata=URL).ledger.explicit_lac_idle_ms == 30
    monkeypatch.setenv("ROLLBOOK_LEDGER_EXPLICIT_LAC_IDLE_MS", "40")
    assert load_log_settings(str(file), metadata=URL).ledger.explicit_lac_idle_ms == 40
