"""What `--only` takes."""

import pytest

from tests.bench import parts_of

PARTS = {"kinds": 1, "HTTP, noise": 2}


def test_parts_that_are_named_are_taken_else_all() -> None:
    assert parts_of(PARTS, ["HTTP, noise"]) == ["HTTP, noise"]
    assert list(parts_of(PARTS, None)) == list(PARTS)


def test_whoever_names_none_is_told_all_names_as_they_are_typed() -> None:
    """They stood behind each other with commas between, and have commas."""
    with pytest.raises(SystemExit) as stop:
        parts_of(PARTS, ["noise", "HTTP, noise"])
    first, *names = str(stop.value.code).splitlines()
    assert "'noise'" in first
    assert [name.strip() for name in names] == list(PARTS)
