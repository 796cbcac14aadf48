"""defaults < file < environment < flags; whatever is unknown or of the wrong type is an error."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rollbook.proto.errors import BadConfig
from rollbook.proto.runtime.config import load_config, read_config_file


@dataclass(frozen=True)
class Example:
    flush_age_ms_max: int = 2
    ratio: float = 0.5
    name: str | None = None
    on: bool = False
    dirs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.flush_age_ms_max < 0:
            raise BadConfig("flush_age_ms_max is negative")


def load(**sources: Any) -> Example:
    return load_config(Example, section="journal", **sources)


def test_each_source_overrules_the_one_before() -> None:
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
def test_one_clear_error(sources: dict[str, Any]) -> None:
    with pytest.raises(BadConfig):
        load(**sources)


def test_a_setting_without_default_is_asked_for() -> None:
    @dataclass(frozen=True)
    class Needy:
        directory: str

    with pytest.raises(BadConfig, match="needs directory") as refused:
        load_config(Needy, section="journal")
    assert "ROLLBOOK_JOURNAL_DIRECTORY" in refused.value.next_step


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[journel]\n", "unknown section"),
        ("journal = 1\n", "outside a section"),
        ("[journal\n", "not TOML"),
        ("\ufffd\x00", "not TOML"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "rollbook.toml"
    path.write_text(content)
    with pytest.raises(BadConfig, match=reason):
        read_config_file(str(path), ["journal"])


def test_a_good_file(tmp_path: Path) -> None:
    path = tmp_path / "rollbook.toml"
    path.write_text("[journal]\nratio = 0.25\n")
    tables = read_config_file(str(path), ["journal"])
    assert load(file=tables["journal"]).ratio == 0.25
    with pytest.raises(BadConfig, match="cannot read"):
        read_config_file(str(tmp_path / "absent"), ["journal"])
