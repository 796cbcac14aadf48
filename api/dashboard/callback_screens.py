"""Screens of the callbacks that receive the cluster's events."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rollbook.api.access.core.grants import Duty, Grants
from rollbook.api.dashboard.core.live_page import live
from rollbook.api.dashboard.core.markup import Child, element
from rollbook.api.dashboard.event_screens import EVENT_KINDS
from rollbook.api.dashboard.parts import (
    BY_RIGHT,
    Field,
    PageFrame,
    Screen,
    badge,
    facts,
    form,
    labelled,
    link,
    table,
    text_of,
    when,
    with_query,
)

Facts = Mapping[str, Any]

KIND_FIELD: Final = "kind-"  # The name of a check box is this prefix and the kind.


def callbacks(frame: PageFrame, rows: Sequence[Facts], grants: Grants) -> Screen:
    may_act = grants.may_manage(Duty.REMOVE)
    lines = [
        (
            link(short_id(row["id"]), with_query("/callback", id=row["id"])),
            row["url"],
            ", ".join(row["kinds"]) or "all kinds",
            text_of(row["bookie"]),
            str(row["waiting"]),
            _last(row["last"]),
        )
        for row in rows
    ]
    columns = ("Callback", "URL", "Kinds", "Bookie", "Waiting", "Last attempt")
    parts: list[Child] = [live("callbacks", table(columns, lines, "No callback was made."))]
    if may_act:
        url = Field("url", "URL", more={"required": True, "autocomplete": "off"})
        says = element(
            "p", "Future events are sent to this URL, signed with a secret that is shown once."
        )
        boxes = [Field(f"{KIND_FIELD}{kind}", kind, "checkbox", "on") for kind in EVENT_KINDS]
        legend = element("legend", "Kinds (none chosen: all kinds)")
        kinds = element("fieldset", legend, [labelled(each) for each in boxes])
        bookie = Field("bookie", "Only events of this bookie")
        inner = [says, labelled(url), kinds, labelled(bookie)]
        made = form(frame, "/callbacks", inner, "Make", {"act": "create"})
        parts += [element("h2", "Another callback"), made]
    else:
        parts.append(element("p", f"{BY_RIGHT}{Duty.REMOVE.value}."))
    example = {"url": "https://hooks.example.com/rollbook", "kinds": ["lifecycle"]}
    return Screen(
        "Callbacks",
        parts,
        calls=[("GET", "/callbacks", ""), ("POST", "/callbacks", json.dumps(example))],
        at="/callbacks",
    )


_ID_SHOWN: Final = 12


def short_id(callback_id: str) -> str:
    """The short form of the id, which users type to confirm a deletion."""
    return callback_id[:_ID_SHOWN]


def callback(frame: PageFrame, row: Facts, found: Facts, grants: Grants) -> Screen:
    """`found`: the callback's deliveries."""
    lines = [
        (
            when(each["at_ms"]),
            each["event"],
            each["kind"],
            str(each["attempt"]),
            badge(each["outcome"]),
            text_of(each["status"]),
            f"{each['took_ms']} ms",
            text_of(each["problem"]),
        )
        for each in found["deliveries"]
    ]
    columns = ("When", "Event", "Kind", "Attempt", "Outcome", "Status", "Took", "Problem")
    shown: dict[str, Child] = {
        "URL": row["url"],
        "Kinds": ", ".join(row["kinds"]) or "all kinds",
        "Bookie": text_of(row["bookie"]),
        "Made by": row["principal"],
        "Made": when(row["created_ms"]),
    }
    path = f"/callbacks/{row['id']}"
    parts: list[Child] = [facts(shown)]
    if grants.may_manage(Duty.REMOVE):
        hidden = {"id": row["id"]}
        typed = Field("typed", f"Type {short_id(row['id'])}", more={"autocomplete": "off"})
        sends = element("p", "Sends one test event to the URL, and waits for the outcome.")
        deletes = element(
            "p", "No more events are sent to the URL, not even events that are already waiting."
        )
        acts = [
            form(frame, "/callback", [sends], "Test", hidden | {"act": "test"}),
            form(frame, "/callback", [deletes], "Delete", hidden | {"act": "delete"}, [typed]),
        ]
        parts.append(element("div", acts, attributes={"class": "acts"}))
    else:
        parts.append(element("p", f"{BY_RIGHT}{Duty.REMOVE.value}."))
    parts += [
        element("h2", "The last hundred attempts"),
        live(
            "deliveries",
            element("p", f"{found['waiting']} events are waiting."),
            table(columns, lines, "Nothing has been sent yet."),
        ),
    ]
    return Screen(
        f"Callback {short_id(row['id'])}",
        parts,
        calls=[
            ("GET", path, ""),
            ("GET", f"{path}/deliveries", ""),
            ("POST", f"{path}:test", ""),
            ("DELETE", path, ""),
        ],
        at="/callbacks",
    )


def _last(row: Facts | None) -> Child:
    if row is None:
        return "—"
    return (badge(row["outcome"]), " ", when(row["at_ms"]), " ", row["problem"] or "")
