"""The settings of bookies and recovery servers in `docs/operations.md` match the code."""

import dataclasses
import re
from typing import Any, Final

import pytest

from rollbook.bookie.config import ServerConfig, SpaceConfig, StorageConfig
from rollbook.recovery.config import AuditConfig, HealConfig, StewardConfig, WorkerConfig
from tests.support.processes import REPOSITORY

PAGE: Final = REPOSITORY / "docs" / "operations.md"
SECTIONS: Final[dict[str, type[Any]]] = {
    "storage": StorageConfig,
    "space": SpaceConfig,
    "server": ServerConfig,
    "audit": AuditConfig,
    "worker": WorkerConfig,
    "steward": StewardConfig,
    "heal": HealConfig,
}
_SECTION: Final = re.compile(
    r"^\*\*`\[([a-z]+)\]`\*\*(.*?)(?=^\*\*`\[|^## )", re.MULTILINE | re.DOTALL
)
_ROW: Final = re.compile(r"^\| `([a-z_]+)` \| ([^|]+) \| [^|]+ \|$", re.MULTILINE)
_UNITS: Final = {"KiB": 1 << 10, "MiB": 1 << 20}
TABLES: Final = dict(_SECTION.findall(PAGE.read_text()))


def _value(text: str) -> object:
    if text == "none":  # A required setting.
        return dataclasses.MISSING
    number, _, unit = text.partition(" ")
    return float(number.replace(",", "")) * _UNITS.get(unit, 1)


def test_each_section_has_its_table() -> None:
    assert list(TABLES) == list(SECTIONS)


@pytest.mark.parametrize(("section", "shape"), SECTIONS.items())
def test_each_setting_has_its_row_and_its_default(section: str, shape: type[Any]) -> None:
    rows = [(name, _value(default)) for name, default in _ROW.findall(TABLES[section])]
    assert rows == [(field.name, field.default) for field in dataclasses.fields(shape)]
