"""Formatting of facts as text."""

import pytest

from rollbook.api.cli.output import as_lines, as_table, shown
from rollbook.api.cli.payload_output import as_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        ("", "-"),
        ([], "-"),
        (True, "yes"),
        (0, "0"),
        (12_345_678_901, "12345678901"),
        (1.0, "1"),
        (0.1 + 0.2, "0.3"),
        (1_234_567.8, "1234567.8"),
        (1e-9, "0"),
        (0.0125, "0.013"),
        (["a", "b"], "a, b"),
    ],
)
def test_values_are_formatted_as_text(value: object, text: str) -> None:
    assert shown(value) == text


def test_names_are_snake_case_and_times_are_formatted() -> None:
    facts = {
        "readOnly": False,
        "isMajorGcSuspended": True,
        "ended_ms": 1_795_281_941_182,
        "minor_ended_ms": 0,
        "timeout_ms": 1500,
        "garbage": {"deleted": 3, "ended_ms": 1_795_281_941_182},
        "refusals": {},
    }
    assert as_lines(facts).splitlines() == [
        "read_only              no",
        "is_major_gc_suspended  yes",
        "ended                  2026-11-21T17:25:41Z",
        "minor_ended            never",
        "timeout_ms             1500",
        "garbage.deleted        3",
        "garbage.ended          2026-11-21T17:25:41Z",
        "refusals               -",
    ]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("bytes", 1023, "bytes  1023"),
        ("roll_bytes", 256 << 20, "roll_bytes  256 MiB"),
        ("record_bytes_max", 1_500_000, "record_bytes_max  1.4 MiB"),
        ("freeBytes", 5 << 50, "free_bytes  5120 TiB"),
        ("retention_bytes", None, "retention_bytes  -"),
        ("bytes_per_s", 5000, "bytes_per_s  5000"),
        ("retention_age_s", 30 * 86_400, "retention_age  30d"),
        ("dedupe_age_s", 129_600, "dedupe_age  1d 12h"),
        ("ttl_s", 90_061.4, "ttl  1d 1h 1m 1s"),
        ("delay_s", 0, "delay  0s"),
        ("took_s", 0.25, "took  0.25s"),
        ("took_s", 59.9996, "took  60s"),
        ("is_s", True, "is  yes"),
        ("last_s", "never", "last  never"),
    ],
)
def test_sizes_and_durations_have_units(name: str, value: object, text: str) -> None:
    assert as_lines({name: value}) == text
    title, cell = text.split("  ")
    if name.islower():
        assert as_table([name], [{name: value}]).splitlines() == [title.upper(), cell]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"paid 1", "paid 1"),
        (b"", ""),
        (b"  ", "  "),
        (b"a\nb", r"a\nb"),
        (b"\n", "hex:0a"),
        (b"\x00\xff", "hex:00ff"),
        (b"hex:00", "hex:6865783a3030"),
    ],
)
def test_bytes_that_are_not_text_are_shown_as_hex(value: bytes, text: str) -> None:
    assert as_text(value) == text


def test_columns_fit_their_widest_cell() -> None:
    rows: list[dict[str, object]] = [{"id": 7, "path": "/a"}, {"id": 12_345, "path": None}]
    assert as_table(("id", "path"), rows).splitlines() == ["ID     PATH", "7      /a", "12345  -"]


def test_control_characters_are_escaped() -> None:
    facts = {"labels": {"a\x1b[1m": "b\x07"}, "list": ["\x1b]0;x", {"\x1b": "\n"}]}
    said = as_lines(facts) + as_table(["name"], [{"name": "\x1b[2J"}])
    assert all(each.isprintable() or each == "\n" for each in said)
    assert r"\x1b[2J" in said
    assert said.count("\n") == 2  # Between lines of facts, and below the head of the table.
