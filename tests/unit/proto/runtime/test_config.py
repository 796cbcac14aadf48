"""Defaults < file < environment < flags; an unknown setting or a wrong type is an error."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rollbook.proto.errors import BadConfig
from rollbook.proto.runtime.config import load_config, read_config_file, variables_of_flags


@dataclass(frozen=True)
class Example:
    flush_age_ms_max: int = 2
    ratio: float = 0.5
    name: str | None = None
    on: bool = False
    dirs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.flush_age_ms_max < 0:
            raise BadConfig("flush_age_ms_max is negative", settings=("flush_age_ms_max",))


def load(**sources: Any) -> Example:
    return load_config(Example, section="journal", **sources)


def test_later_source_overrides_earlier() -> None:
    file = {"flush_age_ms_max": 3, "ratio": 1, "dirs": ["/a", "/b"]}
    environ = {"ROLLBOOK_JOURNAL_FLUSH_AGE_MS_MAX": "4", "ROLLBOOK_JOURNAL_ON": "yes", "HOME": "/"}
    assert load() == Example()
    assert load(file=file) == Example(3, 1.0, None, False, ("/a", "/b"))
    assert load(file=file, environ=environ) == Example(4, 1.0, None, True, ("/a", "/b"))
    flags = {"flush_age_ms_max": 5, "name": None}
    assert load(file=file, environ=environ, flags=flags).flush_age_ms_max == 5
    assert load(environ={"ROLLBOOK_JOURNAL_DIRS": "/x, /y"}).dirs == ("/x", "/y")


@pytest.mark.parametrize(
    "sources",
    [
        {"file": {"flush_age": 1}},
        {"file": {"flush_age_ms_max": "1"}},
        {"file": {"flush_age_ms_max": True}},
        {"file": {"dirs": [1]}},
        {"environ": {"ROLLBOOK_JOURNAL_FLUSH_AGE": "1"}},
        {"environ": {"ROLLBOOK_JOURNAL_FLUSH_AGE_MS_MAX": "soon"}},
        {"environ": {"ROLLBOOK_JOURNAL_ON": "perhaps"}},
        {"file": {"flush_age_ms_max": -1}},
    ],
)
def test_invalid_setting_raises_bad_config(sources: dict[str, Any]) -> None:
    with pytest.raises(BadConfig):
        load(**sources)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ROLLBOOK_JOURNAL_SERVICE_HOST", "10.96.0.7"),
        ("ROLLBOOK_JOURNAL_SERVICE_HOST", "fd00::7"),
        ("ROLLBOOK_JOURNAL_SERVICE_PORT", "7400"),
        ("ROLLBOOK_JOURNAL_SERVICE_PORT_GRPC", "7400"),
        ("ROLLBOOK_JOURNAL_PORT", "tcp://10.96.0.7:7400"),
        ("ROLLBOOK_JOURNAL_PORT_7400_TCP", "tcp://[fd00::7]:7400"),
        ("ROLLBOOK_JOURNAL_PORT_7400_TCP_PROTO", "tcp"),
        ("ROLLBOOK_JOURNAL_PORT_7400_TCP_PORT", "7400"),
        ("ROLLBOOK_JOURNAL_PORT_7400_TCP_ADDR", "10.96.0.7"),
    ],
)
def test_variables_of_kubernetes_are_ignored_by_name_and_value(variable: str, value: str) -> None:
    """A Service called `rollbook-journal` sets all of them in each container."""
    assert load(environ={variable: value}) == Example()
    with pytest.raises(BadConfig, match=variable):
        load(environ={variable: f"not {value}"})


def test_missing_required_setting_names_its_variable() -> None:
    @dataclass(frozen=True)
    class Needy:
        directory: str

    with pytest.raises(BadConfig, match="needs directory") as refused:
        load_config(Needy, section="journal")
    assert "ROLLBOOK_JOURNAL_DIRECTORY" in refused.value.next_step


def test_missing_required_setting_with_flag_names_the_flag() -> None:
    @dataclass(frozen=True)
    class Needy:
        journal_dir: str
        journal_id: str = ""

    variables = variables_of_flags(Needy)
    with pytest.raises(BadConfig, match="needs journal_dir") as refused:
        load_config(Needy, section="journal", variables=variables)
    assert "set --journal-dir or ROLLBOOK_JOURNAL_DIR, or" in refused.value.next_step
    environ = {"ROLLBOOK_JOURNAL_JOURNAL_DIR": "/long", "ROLLBOOK_JOURNAL_ID": "7"}
    found = load_config(Needy, section="journal", environ=environ, variables=variables)
    assert found == Needy("/long", "7")
    environ["ROLLBOOK_JOURNAL_DIR"] = "/short"
    found = load_config(Needy, section="journal", environ=environ, variables=variables)
    assert found.journal_dir == "/short"


def test_bad_value_error_names_its_source() -> None:
    theirs = {"flush_age_ms_max": "flushAge in their.conf line 7", "ratio": "ratio in line 8"}
    sources: dict[str, Any] = {"file": {"flush_age_ms_max": -1, "ratio": 2.0}, "said_by": theirs}

    def told(**more: Any) -> str:
        with pytest.raises(BadConfig) as refused:
            load(**sources, **more)
        return refused.value.message

    assert told() == "flush_age_ms_max is negative (flushAge in their.conf line 7)"
    variable = "ROLLBOOK_JOURNAL_FLUSH_AGE_MS_MAX"
    assert told(environ={variable: "-2"}) == f"flush_age_ms_max is negative ({variable})"
    assert told(flags={"flush_age_ms_max": -3}) == "flush_age_ms_max is negative"


def test_error_in_a_file_names_the_file() -> None:
    def told(file: dict[str, Any], **more: Any) -> str:
        with pytest.raises(BadConfig) as refused:
            load(file=file, file_path="r.toml", **more)
        return refused.value.message

    negative = {"flush_age_ms_max": -1}
    assert told(negative) == "flush_age_ms_max is negative ([journal] flush_age_ms_max in r.toml)"
    assert told({"ratio": "x"}) == "[journal] ratio in r.toml is 'x', but should be float"
    assert told({"ratoi": 1}) == "[journal] in r.toml has no setting `ratoi`"
    flags = {"flush_age_ms_max": -3}
    assert told(negative, flags=flags) == "flush_age_ms_max is negative", "the value is from a flag"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[journel]\n", "unknown section"),
        ("journal = 1\n", "outside a section"),
        ("[journal\n", "not TOML"),
        ("\ufffd\x00", "not TOML"),
    ],
)
def test_invalid_file_is_refused_with_reason(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "rollbook.toml"
    path.write_text(content)
    with pytest.raises(BadConfig, match=reason):
        read_config_file(str(path), ["journal"])


def test_valid_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rollbook.toml"
    path.write_text("[journal]\nratio = 0.25\n")
    tables = read_config_file(str(path), ["journal"])
    assert load(file=tables["journal"]).ratio == 0.25
    with pytest.raises(BadConfig, match="cannot read"):
        read_config_file(str(tmp_path / "absent"), ["journal"])
