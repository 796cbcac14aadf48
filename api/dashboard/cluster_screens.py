"""The screens of the cluster: functions that only format facts. HTTP management returns
the same facts, except for nodes of the metadata store.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from rollbook.api.access.core.grants import Duty, Grants
from rollbook.api.dashboard.core.live_page import NewRows, live
from rollbook.api.dashboard.core.markup import Child, Html, block, element
from rollbook.api.dashboard.core.node_text import node_text
from rollbook.api.dashboard.core.samples import SERIES, Sample, Samples
from rollbook.api.dashboard.core.worst_problem import sentence_of
from rollbook.api.dashboard.parts import (
    BY_RIGHT,
    Field,
    PageFrame,
    Screen,
    badge,
    choice,
    facts,
    form,
    labelled,
    link,
    search,
    table,
    text_of,
    when,
    with_query,
)
from rollbook.api.dashboard.server_and_process_screens import without_pages

Facts = Mapping[str, Any]

STATES: Final = {"": "any state", "open": "open", "in_recovery": "in recovery", "closed": "closed"}
_SHORT: Final = {"": "all", "true": "lack copies", "false": "have all copies"}
_NODES_SHOWN: Final = 100
_NODE_CHARACTERS: Final = 20_000
_TYPED: Final = "Type its name"


def overview(health: Facts, recovery: Facts, samples: Samples, after: int | None) -> Screen:
    """`after`: the page already has the samples up to this time."""
    found = sentence_of(health, recovery)
    attributes = {"class": f"sentence {found.level}", "id": "health"}
    newest = samples.newest
    figures = [
        element(
            "figure",
            element("figcaption", name),
            element(
                "div",
                attributes={"class": "chart", "role": "img", "aria-label": f"{name}, 15 minutes"},
            ),
        )
        for name in SERIES
    ]
    return Screen(
        "Overview",
        [
            live(
                "overview",
                element("p", link(found.text, found.link), attributes=attributes),
                facts(
                    {
                        "Health": badge(health["health"]),
                        "Bookies": health["bookies"],
                        "Log servers": health["log_servers"],
                        "New logs": health["new_logs"],
                        "Ledgers that lack copies": text_of(recovery["ledgers_marked"]),
                        "Ledgers with lost entries": text_of(recovery["ledgers_unrecoverable"]),
                        "Bookies that leave": text_of(recovery["bookies_leaving"]),
                        "Repair": badge(recovery["autorecovery"]),
                    }
                ),
            ),
            live("rates", _rates(samples)),
            element("h2", "The last 15 minutes"),
            element("noscript", element("p", "Charts need scripts; the figures above do not.")),
            element("div", figures, attributes={"class": "charts"}),
            element(
                "div",
                _samples(samples.after(0)) if after is None else None,
                attributes={"id": "samples", "hidden": True},
            ),
        ],
        commands=["cluster health", "recovery status"],
        calls=[("GET", "/cluster/health", ""), ("GET", "/recovery", "")],
        is_live=True,
        rows=NewRows(
            newest.time_s if newest else after or 0,
            _samples(samples.after(after)) if after is not None else (),
            "samples",
            "beforeend",
        ),
    )


def _rates(samples: Samples) -> Html:
    newest = samples.newest
    values = newest.values if newest else (None,) * len(SERIES)
    shown: dict[str, Child] = {
        name: "—" if value is None else f"{value:,.6g}"
        for name, value in zip(SERIES, values, strict=True)
    }
    problem = (
        element("p", f"Some rates are not known: {samples.problem}") if samples.problem else None
    )
    return element("div", facts(shown), problem)


def _samples(found: Sequence[Sample]) -> list[Html]:
    """Samples in the form that `live.js` expects."""
    return [
        element("data", attributes={"value": json.dumps([each.time_s, *each.values])})
        for each in found
    ]


# --- Bookies ----------------------------------------------------------------------------------


def bookies(rows: Sequence[Facts], next_after: str | None) -> Screen:
    lines = [
        (
            link(row["id"], with_query("/bookie", id=row["id"])),
            badge(row["state"]),
            badge(row["lifecycle"]),
            _left(row),
            text_of(row["address"]),
            text_of(row["reason"]),
        )
        for row in rows
    ]
    columns = ("Bookie", "State", "Lifecycle", "Ledgers left", "Address", "Reason")
    return Screen(
        "Bookies",
        [
            live("bookies", table(columns, lines, "There are no bookies in this cluster.")),
            _next("/bookies", after=next_after) if next_after else None,
        ],
        commands=["cluster info"],
        calls=[("GET", "/bookies", "")],
        is_live=True,
        at="/bookies",
    )


def _left(row: Facts) -> Child:
    """The progress of a draining bookie."""
    total, left = row["ledgers_at_start"], row["ledgers_left"]
    if row["lifecycle"] != "draining" or total is None:
        return "—"
    if left is None:
        return f"of {total:,}"
    done = max(0, total - left)
    attributes = {"max": str(max(total, 1)), "value": str(done), "aria-label": "drained"}
    return (element("progress", attributes=attributes), f" {left:,} of {total:,}")


def bookie(frame: PageFrame, row: Facts, grants: Grants) -> Screen:
    name = row["id"]
    shown: dict[str, Child] = {
        "State": badge(row["state"]),
        "Lifecycle": badge(row["lifecycle"]),
        "Since": when(row["lifecycle_since_ms"]),
        "Ledgers left": _left(row),
        "Reason": text_of(row["reason"]),
        "Address": text_of(row["address"]),
        "Own pages": text_of(row["http"]) if row["http"] else f"— ({without_pages(row['state'])})",
        "Incarnation": text_of(row["incarnation"]),
        "Ledgers": link("ledgers that name it", with_query("/ledgers", bookie=name)),
    }
    path = f"/bookies/{quote(name, safe=':')}"
    return Screen(
        f"Bookie {name}",
        [live("bookie", facts(shown)), _bookie_acts(frame, row, grants)],
        commands=[
            f"bookie {verb} {shlex.quote(name)}"
            for verb in ("drain", "undrain", "safe-to-remove", "remove")
        ],
        calls=[
            ("GET", f"{path}/lifecycle", ""),
            ("PUT", f"{path}/lifecycle", '{"state": "draining"}'),
            ("PUT", f"{path}/lifecycle", '{"state": "active"}'),
            ("POST", "/bookies:safe-to-remove", json.dumps({"bookies": [name]})),
            ("DELETE", path, ""),
        ],
        is_live=row["lifecycle"] == "draining",
        at="/bookies",
    )


def _bookie_acts(frame: PageFrame, row: Facts, grants: Grants) -> Child:
    """The forms that the bookie's state and the viewer's rights allow."""
    name, allowed = row["id"], row["allowed"]

    def act(verb: str, button: str, says: str, *fields: Field) -> Html:
        hidden = {"id": name, "act": verb}
        text = element("p", says)
        return element("section", form(frame, "/bookie", [text], button, hidden, fields))

    parts: list[Child] = [
        act("judge", "Safe to remove?", "Reads the metadata of all ledgers and changes nothing.")
    ]
    typed = Field("typed", _TYPED, more={"autocomplete": "off"})
    if grants.may_manage(Duty.OPERATE):
        if "draining" in allowed:
            says = "It takes no entries from now on, and its entries are copied to other bookies."
            parts.append(act("drain", "Drain", says))
        if "active" in allowed:
            parts.append(
                act(
                    "undrain",
                    "Undrain",
                    "The bookie takes entries again. Copies that were already made are kept.",
                )
            )
    else:
        parts.append(element("p", f"{BY_RIGHT}{Duty.OPERATE.value} = true."))
    if grants.may_manage(Duty.REMOVE):
        if "drained" in allowed:
            says = (
                "Marks the bookie as drained, even if ledgers are left. Entries without another copy are lost "
                "when the bookie is removed."
            )
            parts.append(act("drained", "Mark drained", says, typed))
        says = "Removes the bookie from the cluster: its cookie and lifecycle are deleted. Refused while it runs."
        give_up = Field("give_up", "Number of ledgers to give up (see the refusal)", "text")
        parts.append(act("remove", "Remove", says, typed, give_up))
    return element("div", parts, attributes={"class": "acts"})


# --- Ledgers ----------------------------------------------------------------------------------


def ledgers(rows: Sequence[Facts], next_after: int | None, asked: Mapping[str, str]) -> Screen:
    """`asked`: state, bookie, short and after, as in the URL."""
    filters = {name: asked.get(name, "") for name in ("state", "bookie", "short")}
    start = f" --start {int(asked['after']) + 1}" if asked.get("after") else ""
    lines: list[tuple[Child, ...]] = [
        (
            link(str(row["ledger_id"]), f"/ledgers/{row['ledger_id']}"),
            badge(row["state"]),
            row["quorum"],
            text_of(row["last_entry"]),
            text_of(row["length"]),
            text_of(row["created"]),
        )
        for row in rows
    ]
    columns = ("Ledger", "State", "E/W/A", "Last entry", "Bytes", "Made")
    empty = "None of the ledgers read for this page match the filters."
    if next_after is None and not any(asked.values()):
        empty = "There are no ledgers in this cluster."
    return Screen(
        "Ledgers",
        [
            search(
                "/ledgers",
                [
                    choice("state", "State", STATES, filters["state"]),
                    choice("short", "Copies", _SHORT, filters["short"]),
                    labelled(Field("bookie", "Bookie", value=filters["bookie"])),
                ],
            ),
            element("p", link("Bad entries", "/ledgers/bad")),
            table(columns, lines, empty),
            _next("/ledgers", **filters, after=next_after) if next_after is not None else None,
        ],
        commands=[] if any(filters.values()) else [f"ledger ls --long{start}"],
        calls=[("GET", with_query("/ledgers", **asked), "")],
        at="/ledgers",
    )


def bad_ledgers(rows: Sequence[Facts], next_after: int | None) -> Screen:
    lines: list[tuple[Child, ...]] = [
        (
            link(str(row["ledger_id"]), f"/ledgers/{row['ledger_id']}"),
            f"{row['first_entry']}-{row['last_entry']}",
            row["kind"],
            row["bookies"],
            row["said_by"],
            when(row["since_ms"]),
        )
        for row in rows
    ]
    columns = ("Ledger", "Entries", "What", "Bookies", "Found by", "Since")
    return Screen(
        "Bad entries",
        [
            table(columns, lines, "No check and no repair has found bad entries."),
            _next("/ledgers/bad", after=next_after) if next_after is not None else None,
        ],
        commands=["recovery ls --failed"],
        calls=[("GET", "/ledgers/bad", "")],
        at="/ledgers",
    )


def ledger(frame: PageFrame, found: Facts, grants: Grants) -> Screen:
    ledger_id = found["ledger_id"]
    lines = [
        (
            f"{each['first_entry']}-{text_of(each['last_entry'])}",
            [
                (link(name, with_query("/bookie", id=name)), " ", badge(state), " ")
                for name, state in zip(each["ensemble"], each["places"], strict=True)
            ],
        )
        for each in found["fragments"]
    ]
    shown = {
        "State": badge(found["state"]),
        "E/W/A": found["quorum"],
        "Digest": text_of(found["digest"]),
        "Last entry": text_of(found["last_entry"]),
        "Bytes": text_of(found["length"]),
        "Made": text_of(found["created"]),
        "Version": text_of(found["version"]),
        "Lacks copies": f"yes, since {when(found['short_since_ms'])}" if found["short"] else "no",
        "Missing bookies": text_of(found["missing"]),
        "Last repair": text_of(found["repair_problem"]),
        "Lost entries": text_of(found["lost"]),
        "Labels": text_of([f"{name}={value}" for name, value in found["custom"].items()]),
    }
    path = f"/ledgers/{ledger_id}"
    parts: list[Child] = [
        facts(shown),
        table(("Entries", "Bookies"), lines, "The ledger has no fragments."),
    ]
    if grants.may_manage(Duty.OPERATE):
        verify = element(
            "p", "Reads every copy from every bookie that should have one; repairs nothing."
        )
        recover = element(
            "p", "Stops the ledger's writer, finds the last entry and closes the ledger there."
        )
        typed = Field("typed", "Type its number", more={"autocomplete": "off"})
        acts = [form(frame, path, [verify], "Verify now", {"act": "verify"})]
        if found["state"] != "closed":
            acts.append(form(frame, path, [recover], "Recover", {"act": "recover"}, [typed]))
        parts.append(element("div", acts, attributes={"class": "acts"}))
    else:
        parts.append(element("p", f"{BY_RIGHT}{Duty.OPERATE.value} = true."))
    return Screen(
        f"Ledger {ledger_id}",
        parts,
        commands=[f"ledger show {ledger_id}", f"ledger verify {ledger_id}"],
        calls=[("GET", path, ""), ("POST", f"{path}:verify", "")],
        at="/ledgers",
    )


# --- Recovery ---------------------------------------------------------------------------------


def recovery(frame: PageFrame, found: Facts, grants: Grants) -> Screen:
    return Screen(
        "Recovery",
        [
            live("facts", _recovery_facts(found)),
            _recovery_acts(frame, found, grants),
            element("h2", "Tasks, the first hundred"),
            live("tasks", _tasks(found["tasks"])),
            element("h2", "Processes"),
            live("processes", _processes(found["processes"])),
        ],
        commands=["recovery status", "recovery ls", "recovery audit"],
        calls=[
            ("GET", "/recovery", ""),
            ("POST", "/recovery:audit", ""),
            ("PUT", "/recovery/switch", '{"enabled": false}'),
            ("PUT", "/recovery/delay", '{"delay_s": 300}'),
            ("PUT", "/recovery/rate", '{"bytes_per_s": 67108864}'),
        ],
        # A reload would lose a number that a user is typing.
        is_live=not grants.may_manage(Duty.OPERATE),
        at="/recovery",
    )


def _recovery_facts(found: Facts) -> Html:
    return facts(
        {
            "Repair": badge(found["autorecovery"]),
            "Auditor": text_of(found["auditor"]),
            "Steward": text_of(found["steward"]),
            "Delay before a lost bookie is replaced": f"{found['delay_s']} s",
            "Rate of each worker": f"{found['bytes_per_s']} bytes/s",
            "Ledgers that lack copies": text_of(found["ledgers_marked"]),
            "Ledgers to drain": text_of(found["ledgers_to_drain"]),
            "Ledgers being copied": text_of(found["ledgers_locked"]),
            "Repairs that failed": text_of(found["repairs_failed"]),
            "Ledgers with lost entries": link(
                text_of(found["ledgers_unrecoverable"]), "/ledgers/bad"
            ),
            "Missing bookies": text_of(found["bookies_missing"]),
        }
    )


_TASK_TITLES: Final = (
    "Ledger",
    "Task",
    "Bookies",
    "Since",
    "Copied by",
    "Attempts",
    "Next try",
    "Problem",
)
_TASK_COLUMNS: Final = ("task", "bookies", "since", "locked_by", "attempts", "next_try", "message")


def _tasks(rows: Sequence[Facts]) -> Html:
    lines: list[tuple[Child, ...]] = [
        (
            link(str(row["ledger_id"]), f"/ledgers/{row['ledger_id']}"),
            *(text_of(row.get(name)) for name in _TASK_COLUMNS),
        )
        for row in rows
    ]
    return table(_TASK_TITLES, lines, "Nothing is to be copied.")


_PART_TITLES: Final = ("Process", "Part", "State", "Restarts", "Last error")
_PART_COLUMNS: Final = ("process", "part", "state", "restarts", "last_error")


def _processes(rows: Sequence[Facts]) -> Html:
    lines = [tuple(text_of(row.get(name)) for name in _PART_COLUMNS) for row in rows]
    return table(_PART_TITLES, lines, "No recovery process has reported.")


def _recovery_acts(frame: PageFrame, found: Facts, grants: Grants) -> Child:
    if not grants.may_manage(Duty.OPERATE):
        return element("p", f"{BY_RIGHT}{Duty.OPERATE.value} = true.")
    is_enabled = found["autorecovery"] == "enabled"
    delay = Field(
        "delay_s", "Seconds", "number", str(found["delay_s"]).partition(" ")[0], {"min": "0"}
    )
    rate = found["bytes_per_s"] if isinstance(found["bytes_per_s"], int) else 0
    rates = Field("bytes_per_s", "Bytes a second (0: unlimited)", "number", str(rate), {"min": "0"})
    acts = [
        form(frame, "/recovery", [], "Audit now", {"act": "audit"}),
        form(frame, "/recovery", [], "Pause repair", {"act": "pause"})
        if is_enabled
        else form(frame, "/recovery", [], "Resume repair", {"act": "resume"}),
        form(frame, "/recovery", [], "Set the delay", {"act": "delay"}, [delay]),
        form(frame, "/recovery", [], "Set the rate", {"act": "rate"}, [rates]),
    ]
    return element("div", acts, attributes={"class": "acts"})


# --- Others -----------------------------------------------------------------------------------


def operations(rows: Sequence[Facts]) -> Screen:
    lines = [
        (
            row["id"],
            " ".join([row["kind"], *(f"{name} {value}" for name, value in row["about"].items())]),
            badge(row["state"]),
            when(row["started_ms"]),
            when(row["ended_ms"]),
            _outcome(row),
        )
        for row in rows
    ]
    columns = ("Operation", "What", "State", "Begun", "Ended", "Result")
    return Screen(
        "Operations",
        [
            live(
                "operations",
                table(columns, lines, "No operation began in the last seven days."),
            )
        ],
        calls=[("GET", "/operations", "")],
        is_live=any(row["state"] in ("queued", "running") for row in rows),
        at="/operations",
    )


def _outcome(row: Facts) -> str:
    if row["problem"]:
        return " ".join(filter(None, (row["problem"]["detail"], row["problem"].get("next_step"))))
    found = row["result"] or {}
    plain = {name: value for name, value in found.items() if not isinstance(value, list | dict)}
    return ", ".join(f"{name} {value}" for name, value in plain.items()) or "—"


def metadata(path: str, found: Facts, after: str) -> Screen:
    """The metadata tree, read-only."""
    steps: list[Child] = [link("/", "/metadata")]
    names = [each for each in path.split("/") if each]
    for count, name in enumerate(names, 1):
        below = "/" + "/".join(names[:count])
        steps += [" ", link(name, with_query("/metadata", path=below)), "/"]
    children = [each for each in found["children"] if each > after]
    base = path.rstrip("/")
    lines = [
        element("li", link(each, with_query("/metadata", path=f"{base}/{each}")))
        for each in children[:_NODES_SHOWN]
    ]
    more = None
    if len(children) > _NODES_SHOWN:
        target = with_query("/metadata", path=path, after=children[_NODES_SHOWN - 1])
        more = element("p", link("Next page", target))
    return Screen(
        f"Metadata {path}",
        [
            element("p", steps),
            facts({"Version": found["version"], "Bytes": len(found["value"])}),
            block(node_text(found["value"]), _NODE_CHARACTERS),
            element("h2", f"Nodes below it: {len(found['children']):,}"),
            element("ul", lines) if lines else element("p", "None."),
            more,
        ],
        at="/metadata",
    )


def _next(path: str, **fields: object) -> Html:
    return element("p", link("Next page", with_query(path, **fields)))
