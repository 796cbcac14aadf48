"""HTML as values: every text is escaped when it is inserted, so that no page can forget to escape it (DB1).

Names of bookies, labels and reasons may contain any characters. Invisible characters (control characters,
marks that change the direction of text) are shown as numbers, and long texts are cut.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

TEXT_MAX: Final = 300
_UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
_VOID: Final = frozenset(("input", "link", "meta", "br"))
_ESCAPES: Final = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"}
)


class Html:
    """Text that is already markup. Screens make it only with `element`, `block` and `live`."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


Child: TypeAlias = str | int | float | Html | Iterable["Child"] | None


def shown(value: str, length_max: int = TEXT_MAX) -> str:
    """The value in readable form: truncated, and with numbers in place of invisible characters."""
    cut = (
        value if len(value) <= length_max else f"{value[:length_max]}… ({len(value):,} characters)"
    )
    return _UNSEEN.sub(lambda found: f"\\u{{{ord(found[0]):x}}}", cut)


def element(tag: str, *children: Child, attributes: Mapping[str, str | bool | None] = {}) -> Html:
    """Makes an element. An attribute that is True has no value; one that is False or None is left out."""
    parts = [f"<{tag}"]
    for name, value in attributes.items():
        if value is True:
            parts.append(f" {name}")
        elif value is not None and value is not False:
            parts.append(f' {name}="{_escaped(value)}"')
    parts.append(">")
    if tag not in _VOID:
        parts.append(joined(children).text)
        parts.append(f"</{tag}>")
    return Html("".join(parts))


def block(text: str, length_max: int) -> Html:
    """Makes a block of text that keeps its line breaks."""
    return Html(f"<pre>{_escaped(shown(text, length_max))}</pre>")


def joined(children: Child) -> Html:
    match children:
        case None:
            return Html("")
        case Html():
            return children
        case str():
            return Html(_escaped(shown(children)))
        case int() | float():
            return Html(_escaped(f"{children:,}"))
    return Html("".join(joined(each).text for each in children))


def page(head: Child, body: Child) -> bytes:
    inner = element("head", head).text + element("body", body).text
    text = f'<!doctype html>\n<html lang="en">{inner}</html>\n'
    return text.encode("utf-8", "backslashreplace")


def _escaped(text: str) -> str:
    return text.translate(_ESCAPES)
