"""Settings of a log server, and the token that it shows to other servers."""

from pathlib import Path

import pytest

from rollbook.api.cli.server.log import LogSettings, load_log_settings
from rollbook.api.cli.server.peer_credentials import ShownToPeers
from rollbook.logservice.config import LogServerConfig
from rollbook.proto.errors import BadConfig

URL = "sqlite:///metadata.db"


def test_idle_explicit_lac_interval_defaults_to_30_s(
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


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("listen", "nonsense:port"),
        ("listen", "127.0.0.1:0"),
        ("advertise", "0.0.0.0:7400"),
        ("rest", "nonsense:port"),
        ("server_name", "a~b"),
        ("metadata", "nonsense"),
    ],
)
def test_invalid_log_server_setting_names_its_place_in_the_file(
    setting: str, value: str, tmp_path: Path
) -> None:
    file = tmp_path / "rollbook.toml"
    file.write_text(f'[log_server]\n{setting} = "{value}"\n')
    flags = {} if setting == "metadata" else {"metadata": URL}
    with pytest.raises(BadConfig) as refused:
        load_log_settings(str(file), **flags)
    assert f"([log_server] {setting} in {file})" in refused.value.message


def test_temporarily_empty_token_file_keeps_the_token(tmp_path: Path) -> None:
    """AF1: other servers are still sent the previous token."""
    file = tmp_path / "token"
    file.write_text("the-first-token-0123456789\n")
    file.chmod(0o600)
    shown = ShownToPeers(LogServerConfig(URL, token_file=str(file)))
    before = shown.look()
    file.write_text("")
    assert shown.look() == before
    assert shown.security().token == "the-first-token-0123456789"
    file.write_text("the-second-token-0123456789\n")
    assert shown.look() != before
    assert shown.security().token == "the-second-token-0123456789"
