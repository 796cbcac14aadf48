"""How facts look to people."""

import pytest

from rollbook.api.cli.output import as_lines, as_table, shown


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
def test_values(value: object, text: str) -> None:
    assert shown(value) == text


def test_names_are_in_one_dress_and_times_are_times() -> None:
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


def test_columns_are_as_wide_as_they_must_be() -> None:
    rows: list[dict[str, object]] = [{"id": 7, "path": "/a"}, {"id": 12_345, "path": None}]
    assert as_table(("id", "path"), rows).splitlines() == ["ID     PATH", "7      /a", "12345  -"]


def test_names_and_values_command_no_terminal() -> None:
    facts = {"labels": {"a\x1b[1m": "b\x07"}, "list": ["\x1b]0;x", {"\x1b": "\n"}]}
    said = as_lines(facts) + as_table(["name"], [{"name": "\x1b[2J"}])
    assert all(each.isprintable() or each == "\n" for each in said)
    assert r"\x1b[2J" in said
    assert said.count("\n") == 2  # Between lines of facts, and below the head of the table.
