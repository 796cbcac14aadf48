"""The screen of the cluster's events."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rollbook.api.dashboard.core.live_page import live
from rollbook.api.dashboard.core.markup import Child, element
from rollbook.api.dashboard.parts import (
    Field,
    Screen,
    badge,
    choice,
    labelled,
    link,
    search,
    table,
    text_of,
    when,
    with_query,
)
from rollbook.recovery.core.event_derivation import EventKind

Facts = Mapping[str, Any]

EVENT_KINDS: Final = [kind.value for kind in EventKind if kind is not EventKind.TEST]


def events(rows: Sequence[Facts], next_after: str | None, asked: Mapping[str, str]) -> Screen:
    """`asked`: kind, bookie, log and after, as in the URL."""
    filters = {name: asked.get(name, "") for name in ("kind", "bookie", "log")}
    lines = [
        (
            when(row["at_ms"]),
            badge(row["kind"]),
            row["text"],
            [(link(name, with_query("/bookie", id=name)), " ") for name in row["bookies"]] or "—",
            _about(row),
        )
        for row in rows
    ]
    columns = ("When", "Kind", "What", "Bookies", "About")
    empty = "This server has not seen a matching event since it began to watch the cluster."
    following = with_query("/events", **filters, after=next_after) if next_after else ""
    return Screen(
        "Events",
        [
            search(
                "/events",
                [
                    choice("kind", "Kind", {"": "any kind", **_KINDS}, filters["kind"]),
                    labelled(Field("bookie", "Bookie", value=filters["bookie"])),
                    labelled(Field("log", "Log", value=filters["log"])),
                ],
            ),
            live("events", table(columns, lines, empty)),
            element("p", link("Next page", following)) if following else None,
        ],
        calls=[("GET", with_query("/events", **asked), "")],
        at="/events",
    )


_KINDS: Final = {kind: kind for kind in EVENT_KINDS}


def _about(row: Facts) -> Child:
    parts: list[Child] = []
    if row["ledger_id"] is not None:
        parts.append(link(f"ledger {row['ledger_id']}", f"/ledgers/{row['ledger_id']}"))
    if row["log"]:
        parts += [" ", link(row["log"], with_query("/log", name=row["log"]))]
    if row["operation"]:
        parts += [" ", link(f"operation {row['operation']}", "/operations")]
    return parts or text_of(None)
