"""The state of an open page, and the events of its stream with their ids (DB5).

An id is `digest.digest…;next`: one digest for each live part of the page, and the offset after the page's
newest record. A page that reconnects with an id gets the parts that have changed, and the records from that
offset on.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from rollbook.api.dashboard.core.markup import Html, element

_ID: Final = re.compile(r"([0-9a-f.]{0,400})(?:;(\d{1,19}))?")
_DIGEST_CHARACTERS: Final = 12


class Live(Html):
    """A part of a page that the page's stream updates. Use `live` to make it."""

    __slots__ = ("id",)

    def __init__(self, part_id: str, text: str) -> None:
        super().__init__(text)
        self.id = part_id

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode("utf-8", "backslashreplace")).hexdigest()[
            :_DIGEST_CHARACTERS
        ]


def live(part_id: str, *children: object) -> Live:
    return Live(part_id, element("div", children, attributes={"id": part_id}).text)  # type: ignore[arg-type]  # Children are as in `element`.


@dataclass(frozen=True, slots=True)
class NewRows:
    """New rows of a page: records, or samples. For samples, `next_offset` is the time of the newest sample."""

    next_offset: int
    rows: Sequence[Html] = ()
    target: str = "records"
    swap: str = "afterbegin"


@dataclass(frozen=True, slots=True)
class PageState:
    """The state of an open page. Its text form is the id of an event."""

    digests: tuple[str, ...] = ()
    next_offset: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses a state. Returns an empty state if the text is invalid."""
        found = _ID.fullmatch(text)
        if found is None:
            return cls()
        return cls(tuple(found[1].split(".")), None if found[2] is None else int(found[2]))

    @classmethod
    def of(cls, parts: Sequence[Live], rows: NewRows | None) -> Self:
        return cls(tuple(each.digest for each in parts), rows.next_offset if rows else None)

    def __str__(self) -> str:
        digests = ".".join(self.digests)
        return digests if self.next_offset is None else f"{digests};{self.next_offset}"


def event_for(
    seen: PageState, parts: Sequence[Live], rows: NewRows | None
) -> tuple[PageState, bytes]:
    """Returns the page's state after the event, and the event; an empty event: the page is up to date."""
    now = PageState.of(parts, rows)
    known = seen.digests if len(seen.digests) == len(parts) else ("",) * len(parts)
    changes = [
        _partial(part.id, "outerMorph", part.text)
        for part, digest in zip(parts, known, strict=True)
        if part.digest != digest
    ]
    if rows is not None and rows.rows:
        changes.append(_partial(rows.target, rows.swap, "".join(each.text for each in rows.rows)))
    if not changes:
        return now, b""
    data = "".join(f"data: {line}\n" for line in "".join(changes).split("\n"))
    return now, f"id: {now}\n{data}\n".encode("utf-8", "backslashreplace")


def _partial(target: str, swap: str, text: str) -> str:
    return f'<hx-partial hx-target="#{target}" hx-swap="{swap}">{text}</hx-partial>'
