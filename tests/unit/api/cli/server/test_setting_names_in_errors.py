"""An error names its settings, so that the place of a bad value can be found."""

from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from click.testing import CliRunner

from rollbook.api.cli.server import bookie as bookie_server
from rollbook.api.cli.server import bookie_settings
from rollbook.api.cli.server import log as log_server
from rollbook.api.cli.server.commands import bookie as bookie_command
from rollbook.api.cli.server.commands import log as log_command
from rollbook.bookie.config import BookieConfig, ServerConfig, SpaceConfig, StorageConfig
from rollbook.ledger.config import ClientConfig
from rollbook.logservice.config import LogServerConfig, LogServiceConfig
from rollbook.proto.errors import BadConfig
from rollbook.proto.ports import Address
from tests.messages import raises_message

_NEEDED: dict[type[Any], dict[str, Any]] = {
    BookieConfig: {"metadata": "zk://a/l"},
    StorageConfig: {"journal_dir": "/j", "ledger_dirs": ("/l",)},
    ServerConfig: {},
    SpaceConfig: {},
    LogServerConfig: {"metadata": "zk://a/l"},
    LogServiceConfig: {},
    ClientConfig: {},
}
_DIRECTORIES: dict[str, Any] = {"bookie": {"journal_dir": ("/j",), "ledger_dir": ("/l",)}}
_BAD: dict[Any, tuple[Any, ...]] = {
    int: (-1, 0, 1 << 62),
    float: (-1.0, 0.0, 1e9),
    str: ("", "x"),
    bool: (True, False),
    tuple[str, ...]: ((), ("",), ("x", "x")),
}


@pytest.mark.parametrize("shape", _NEEDED)
def test_each_refusal_carries_the_names_of_its_settings(shape: type[Any]) -> None:
    kinds, names = get_type_hints(shape), {field.name for field in fields(shape)}
    refused: list[tuple[str, tuple[str, ...]]] = []
    for name in names:
        for value in _BAD[kinds[name]]:
            try:
                shape(**{**_NEEDED[shape], name: value})
            except BadConfig as error:
                refused.append((name, error.settings))
    assert len(refused) > 1
    for name, settings in refused:
        assert name in settings
        assert names.issuperset(settings)


_SAID: dict[str, str] = {
    "metadata": "sqlite:///elsewhere.db",
    "listen": "127.0.0.1:4000",
    "advertise": "127.0.0.9",
    "http": "127.0.0.1:4001",
    "rest": "127.0.0.1:4001",
    "rest_origin": "https://shop.example",
    "tls_listen": "127.0.0.1:4002",
    "log_level": "error",
    "startup_s": "5.0",
}
_TABLES = {"journal_dir": "storage", "ledger_dir": "storage"}


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (command, str(option.name))
        for command in (bookie_command, log_command)
        for option in command.params
        if option.name != "config_file"
    ],
)
def test_every_server_flag_can_be_set_in_the_environment_and_in_the_file(
    command: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []
    level = ""

    async def serve(settings: Any, *_: Any) -> None:
        found.append((settings, level))

    def set_level(wanted: str) -> None:
        nonlocal level
        level = wanted

    for module in (bookie_server, log_server):
        monkeypatch.setattr(module, "configure_logs", lambda level, **_: set_level(level))
    monkeypatch.setattr(bookie_server, "set_level", set_level)
    monkeypatch.setattr(bookie_server, "serve_bookie", serve)
    monkeypatch.setattr(log_server, "_serve", serve)
    is_bookie = command is bookie_command
    section = "bookie" if is_bookie else "log_server"
    usual = {"metadata": "sqlite:///m.db", "tls_certificate": "c.pem"}
    if is_bookie:
        usual |= {"journal_dir": "/j", "ledger_dir": "/l"}
    elif name.startswith("bookie_"):
        usual |= {"bookie_authorities": "a.pem", "bookie_certificate": "b.pem"}
    if name in ("bookie_authorities", "bookie_certificate"):  # Authorities need no certificate.
        usual.pop("bookie_certificate")
    if name == "rest_origin":
        usual |= {"rest": "127.0.0.1:4001"}

    def settings(words: list[str], environment: dict[str, str], lines: dict[str, str]) -> Any:
        tables: dict[str, list[str]] = {}
        for key, value in ({k: v for k, v in usual.items() if k != name} | lines).items():
            line = f'ledger_dirs = ["{value}"]' if key == "ledger_dir" else f'{key} = "{value}"'
            line = line.replace('"true"', "true").replace('"5.0"', "5.0")
            line = f'{key} = ["{value}"]' if key == "rest_origin" else line
            tables.setdefault(_TABLES.get(key, section), []).append(line)
        file = tmp_path / "server.toml"
        file.write_text("\n".join(f"[{t}]\n" + "\n".join(ls) for t, ls in tables.items()))
        result = CliRunner(env=environment).invoke(command, ["--config", str(file), *words])
        assert result.exception is None, result.output
        return found.pop()

    option = next(each for each in command.params if each.name == name)
    value = "true" if option.is_flag else _SAID.get(name, "else")
    flag = [option.opts[0]] if option.is_flag else [option.opts[0], value]
    by_flag = settings(flag, {}, {})
    assert by_flag[1] == ("error" if name == "log_level" else "info")
    assert settings([], {f"ROLLBOOK_{name.upper()}": value}, {}) == by_flag
    assert settings([], {}, {name: value}) == by_flag
    if name not in usual:
        assert settings([], {}, {}) != by_flag


def test_invalid_log_level_names_its_place_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    for load, section in (
        (bookie_settings.load_settings, "bookie"),
        (log_server.load_log_settings, "log_server"),
    ):
        file.write_text(f'[{section}]\nlog_level = "loud"\n')
        with raises_message(BadConfig) as refused:
            load(str(file), metadata="sqlite:///m", **_DIRECTORIES.get(section, {}))
        assert f"([{section}] log_level in {file})" in refused.value.message


def test_http_port_without_a_host_binds_all_addresses() -> None:
    config = BookieConfig(metadata="zk://a/l", http=":8001")
    assert bookie_settings.http_address_of(config) == Address("0.0.0.0", 8001)
