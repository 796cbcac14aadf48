"""The values of `--only`."""

import pytest

from tests.bench import parts_of

PARTS = {"kinds": 1, "HTTP, noise": 2}


def test_named_parts_are_selected_or_all_by_default() -> None:
    assert parts_of(PARTS, ["HTTP, noise"]) == ["HTTP, noise"]
    assert list(parts_of(PARTS, None)) == list(PARTS)


def test_unknown_part_error_lists_all_names_one_per_line() -> None:
    """Names contain commas, so they are not listed in one line separated by commas."""
    with pytest.raises(SystemExit) as stop:
        parts_of(PARTS, ["noise", "HTTP, noise"])
    first, *names = str(stop.value.code).splitlines()
    assert "'noise'" in first
    assert [name.strip() for name in names] == list(PARTS)
