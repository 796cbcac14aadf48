"""What operators are told of a bookie's settings is what it has."""

import dataclasses
import re
from typing import Any, Final

import pytest

from rollbook.bookie.config import ServerConfig, SpaceConfig, StorageConfig
from tests.support.processes import REPOSITORY

PAGE: Final = REPOSITORY / "docs" / "operations.md"
_ROW: Final = re.compile(r"^\| `([a-z_]+)` \| ([^|]+) \| [^|]+ \|$", re.MULTILINE)
_UNITS: Final = {"KiB": 1 << 10, "MiB": 1 << 20}


def _value(text: str) -> object:
    if text == "none":  # It has to be given.
        return dataclasses.MISSING
    number, _, unit = text.partition(" ")
    return float(number.replace(",", "")) * _UNITS.get(unit, 1)


@pytest.mark.parametrize(
    ("section", "shape"),
    [("storage", StorageConfig), ("space", SpaceConfig), ("server", ServerConfig)],
)
def test_each_setting_has_its_row_and_its_default(section: str, shape: type[Any]) -> None:
    settings = PAGE.read_text().partition("## Settings of a bookie\n")[2].partition("\n## ")[0]
    table = settings.partition(f"\n**`[{section}]`**")[2].partition("\n**`[")[0]
    told = [(name, _value(default)) for name, default in _ROW.findall(table)]
    assert told == [(field.name, field.default) for field in dataclasses.fields(shape)]
