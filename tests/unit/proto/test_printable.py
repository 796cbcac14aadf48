"""Unprintable characters are shown as escapes."""

import pytest

from rollbook.proto.printable import harmless


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, größer, 日本", "plain, größer, 日本"),
        ("\x1b[2J", r"\x1b[2J"),
        ("\x9b2J", r"\x9b2J"),  # An escape sequence in one character of the second control set.
        ("a\nerror: b\t", r"a\nerror: b\t"),
        # The rest of the line would be shown from right to left.
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\ud800", r"\ud800"),
    ],
)
def test_unprintable_characters_are_escaped(text: str, shown: str) -> None:
    assert harmless(text) == shown


def test_kept_characters_are_not_escaped() -> None:
    assert harmless("a\n\tb\x1b", keeps="\n\t") == "a\n\tb\\x1b"
