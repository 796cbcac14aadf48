"""Pages show any name as text."""

import html.parser

import pytest

from rollbook.api.dashboard.core.markup import TEXT_MAX, element, joined, page, shown

HOSTILE = {
    "script": "<script>alert(1)</script>",
    "attribute": "\" onclick='alert(1)' x=\"",
    "entity": "&lt;b&gt;",
    "right to left": "abc\u202edef\u2066",
    "zero": "a\x00b\x1b[31m",
    "surrogate": "\ud800",
    "long": "x" * 65_536,
}


class Reader(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, attrs))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_escaped(name: str) -> None:
    """DB1."""
    text = HOSTILE[name]
    reader = Reader()
    reader.feed(page(None, element("p", text, attributes={"title": text[:100]})).decode())
    assert [tag for tag, _ in reader.tags] == ["html", "head", "body", "p"]
    assert [each for each, _ in reader.tags[-1][1]] == ["title"]
    assert "".join(reader.texts).strip() == shown(text)
    assert len(shown(text)) <= TEXT_MAX + 30


def test_invisible_characters_are_shown_by_code_point() -> None:
    assert shown("a\u202eb\x00c") == "a\\u{202e}b\\u{0}c"
    assert shown("ümläut 日本") == "ümläut 日本"
    assert shown("x" * 301).endswith("… (301 characters)")


def test_element_renders_children_and_attributes() -> None:
    found = element(
        "a", ["x", 1234, None, element("br")], attributes={"b": True, "c": None, "d": ""}
    )
    assert found.text == '<a b d="">x1,234<br></a>'
    assert joined(()).text == ""
