"""The documented client settings match the code."""

import re

from rollbook.ledger.config import ClientConfig
from tests.support import pages

_UNITS = {"MiB": 1 << 20, "KiB": 1 << 10}


def _value(text: str) -> object:
    if text == "none":
        return ()
    number, _, unit = text.partition(" ")
    return float(number.replace(",", "")) * _UNITS.get(unit, 1)


def test_documented_client_defaults_match_the_code() -> None:
    page = pages.EXISTING_CLUSTERS.read_text()
    rows = re.findall(r"^\| (`[^|]+) \| ([^|]+) \|", page.partition("## Settings")[2], re.MULTILINE)
    told = {
        name: _value(value)
        for names, values in rows
        for name, value in zip(
            re.findall("`([a-z_]+)`", names), re.split(r", (?=\d)", values), strict=True
        )
    }
    assert len(told) > 8
    usual = ClientConfig()
    assert told == {name: getattr(usual, name) or () for name in told}
