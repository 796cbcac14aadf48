"""The screens of logs: functions that only format facts."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from rollbook.api.access.core.grants import Duty, Grants, Right
from rollbook.api.dashboard.core.live_page import NewRows, live
from rollbook.api.dashboard.core.markup import Child, Html, block, element
from rollbook.api.dashboard.core.payload_text import VALUE_BYTES_SHOWN, Form, value_in
from rollbook.api.dashboard.parts import (
    Field,
    OnLogs,
    PageFrame,
    Screen,
    badge,
    choice,
    facts,
    form,
    hidden_input,
    labelled,
    link,
    search,
    table,
    text_of,
    when_us,
    with_query,
)

Facts = Mapping[str, Any]

_FORMS: Final = {each.value: each.value for each in Form}
_UNTYPED: Final[Mapping[str, str | bool | None]] = {"autocomplete": "off"}


# --- Logs -------------------------------------------------------------------------------------


def logs(
    frame: PageFrame,
    rows: Sequence[Facts],
    next_after: str,
    asked: Mapping[str, str],
    where: OnLogs,
    grants: Grants,
) -> Screen:
    """`asked`: the values of `prefix` and `after` in the URL."""
    lines = [
        (link(row["log"], with_query("/log", name=row["log"])), row["problem"], *["—"] * 6)
        if row["problem"]
        else (
            link(row["log"], with_query("/log", name=row["log"])),
            badge("sealed") if row["is_sealed"] else badge("open"),
            row["head"],
            row["tail"],
            row["records"],
            row["bytes"],
            row["segment_count"],
            text_of(row["owner_id"]),
        )
        for row in rows
    ]
    columns = ("Log", "State", "Head", "Tail", "Records", "Bytes", "Segments", "Owner")
    prefix = asked.get("prefix", "")
    more = {**asked, "after": next_after}
    name = Field("name", "Name: namespace/log, or log", more={"required": True, **_UNTYPED})
    return Screen(
        "Logs",
        [
            search(
                "/logs",
                [labelled(Field("prefix", "Namespace, or namespace/begin*", value=prefix))],
            ),
            table(columns, lines, "No log matches this filter." if asked else "No log yet."),
            element("p", link("Next page", with_query("/logs", **more))) if next_after else None,
            element(
                "div",
                form(frame, "/logs", [], "Create", {"act": "create"}, [name]),
                attributes={"class": "acts"},
            )
            if grants.admin or grants.may_manage(Duty.OPERATE)
            else None,
        ],
        on_logs=where,
        at="/logs",
    )


def of_logs(server: str, http: str, namespace: str, start: str, after: str) -> OnLogs:
    """The shell command and the request that list a namespace's logs with the prefix `start`. An empty namespace
    lists all logs.
    """
    which, path = "", "/logs"
    if namespace:
        which = f" {shlex.quote(f'{namespace}/{start}')}"
        path = f"/namespaces/{quote(namespace)}/logs"
    query = with_query(path, prefix=start, page_token=after)
    return OnLogs(server, http, [f"log ls --long{which}"], [("GET", query, "")])


@dataclass(frozen=True, slots=True)
class LogView:
    """The facts that the page of a log shows."""

    asked: Mapping[str, str]  # Name, from, format and truncate, as in the URL.
    found: Facts
    # None: the caller may not read records, segments and cursors.
    records: Facts | None
    is_news: bool  # True: these are new records, and the page already shows the earlier ones.
    plan: Facts | str | None  # The plan of a truncation, or the reason why there is no plan.
    ensembles: Mapping[int, Sequence[str]]  # The bookies of each segment, by ledger.
    servers: Sequence[str]  # Other servers, which may become the log's owner.
    where: tuple[str, str]  # The URLs of a server and of its REST API.
    once: str  # The random number of this page (DB9).


def log(frame: PageFrame, view: LogView, grants: Grants) -> Screen:
    found, records, asked = view.found, view.records, view.asked
    name, form_shown = found["log"], Form(asked.get("format", Form.TEXT))
    start, before = asked.get("from", ""), asked.get("truncate", "")
    return Screen(
        f"Log {name}",
        [
            live("facts", _log_facts(found)),
            *(
                [
                    element(
                        "p",
                        f"Records, segments and cursors are shown only to users who may read {name}.",
                    )
                ]
                if records is None
                else _content(found, records, asked, form_shown, view.ensembles)
            ),
            element("h2", "Settings"),
            facts({key: text_of(value) for key, value in found["config"].items()}),
            *_acts(frame, view, before, grants),
        ],
        on_logs=of_log(*view.where, name, start, before),
        at="/logs",
        rows=None
        if start or records is None
        else NewRows(records["next"], record_rows(records, form_shown) if view.is_news else ()),
        is_live=not (start or before),
    )


def _log_facts(found: Facts) -> Html:
    shown: dict[str, Child] = {
        "State": badge("sealed") if found["is_sealed"] else badge("open"),
        "Head": found["head"],
        "Tail": found["tail"],
        "Bytes": found["bytes"],
        "Last record": when_us(found["last_us"]),
        "Owner": link(
            f"{found['owner_id']} (epoch {found['owner_epoch']})",
            with_query("/server", name=found["owner_id"].partition("~")[0]),
        )
        if found["owner_id"]
        else "— (no server owns this log now)",
        "Writer": f"{found['writer_holder'] or '—'} (epoch {found['writer_epoch']})",
    }
    return facts(shown)


def _content(
    found: Facts,
    records: Facts,
    asked: Mapping[str, str],
    view: Form,
    ensembles: Mapping[int, Sequence[str]],
) -> list[Child]:
    name = found["log"]
    return [
        element("h2", "Records, newest first"),
        _record_filter(name, asked, view),
        _records(records, view),
        _pages(name, records, view, asked),
        element("h2", "Segments"),
        live("segments", time_line(found["segments"]), _segments(found, ensembles)),
        element("h2", "Cursors"),
        live("cursors", _cursors(found["cursors"])),
    ]


def of_log(server: str, http: str, name: str, start: str, before: str) -> OnLogs:
    namespace, _, short = name.partition("/")
    path = f"/namespaces/{quote(namespace)}/logs/{quote(short)}"
    word, start = shlex.quote(name), start or "-50"
    before = before or "0"
    return OnLogs(
        server,
        http,
        [
            f"log show {word}",
            f"log read {word} --from {shlex.quote(start)} --limit 50",
            f"log segments {word}",
            f"cursor ls {word}",
            f"log truncate {word} --before {shlex.quote(before)} --dry-run",
        ],
        [
            ("GET", path, ""),
            ("GET", with_query(f"{path}/records", **{"from": start, "limit": 50}), ""),
            ("GET", f"{path}/segments", ""),
            ("GET", f"{path}/cursors", ""),
            ("POST", f"{path}:truncate", json.dumps({"before": before, "dry_run": True})),
        ],
    )


def _record_filter(name: str, asked: Mapping[str, str], view: Form) -> Html:
    says = "From: 123, -10, earliest, ts:TIME, ago:15m or cursor:NAME"
    return search(
        "/log",
        [
            labelled(Field("from", says, value=asked.get("from", ""))),
            choice("format", "As", _FORMS, view),
        ],
        hidden={"name": name},
    )


def _records(records: Facts, view: Form) -> Html:
    heads = [
        element("th", each, attributes={"scope": "col"})
        for each in ("Offset", "Time", "Key", "Value", "Headers")
    ]
    inner = (
        element("thead", element("tr", heads)),
        element("tbody", record_rows(records, view), attributes={"id": "records"}),
    )
    attributes = {"class": "scroll", "tabindex": "0", "role": "region", "aria-label": "Records"}
    return element("div", element("table", inner), attributes=attributes)


def record_rows(records: Facts, view: Form) -> list[Html]:
    """Rows of records, newest first."""
    return [
        element(
            "tr",
            element("td", str(row["offset"])),
            element("td", when_us(row["timestamp_us"])),
            element(
                "td", "—" if row["key"] is None else value_in(view, row["key"], len(row["key"]))
            ),
            element(
                "td",
                block(value_in(view, row["value"], row["bytes"]), 4 * VALUE_BYTES_SHOWN),
            ),
            element(
                "td",
                ", ".join(
                    f"{key}={value_in(Form.TEXT, value, len(value))}"
                    for key, value in row["headers"].items()
                ),
            ),
        )
        for row in reversed(records["rows"])
    ]


def _pages(name: str, records: Facts, view: Form, asked: Mapping[str, str]) -> Child:
    """Links to older and newer records."""
    kept = {"name": name, "format": "" if view is Form.TEXT else view}
    first, following, parts = records["first"], records["next"], []
    if first > records["head"]:
        older = max(first - 50, records["head"])
        parts.append(link("Older", with_query("/log", **kept, **{"from": older})))
    if following < records["tail"]:
        parts.append(link("Newer", with_query("/log", **kept, **{"from": following})))
    if asked.get("from"):
        parts.append(link("Newest", with_query("/log", **kept)))
    if not records["rows"]:
        parts.append(element("span", "No record here."))
    return element("p", [(each, " ") for each in parts])


def time_line(segments: Sequence[Facts]) -> Child:
    """Draws each segment as a bar that ends where the next segment begins. The bar's colour shows the state."""
    begun = [each["began_us"] for each in segments]
    if not begun or not all(begun):
        return None
    end = max(*begun, *(each["last_us"] for each in segments))
    span = max(end - begun[0], 1)
    bars = []
    for index, each in enumerate(segments):
        until = begun[index + 1] if index + 1 < len(begun) else end
        left = 1000 * (each["began_us"] - begun[0]) // span
        width = max(1000 * (until - each["began_us"]) // span, 4)
        title = f"segment {each['segment_id']}, {each['state']}, {each['records']:,} records"
        attributes: dict[str, str | bool | None] = {
            "x": str(min(max(left, 0), 996)),
            "width": str(min(max(width - 2, 2), 1000)),
            "height": "24",
            "class": f"segment {each['state']}",
        }
        bars.append(element("rect", element("title", title), attributes=attributes))
    attributes = {
        "viewBox": "0 0 1000 24",
        "class": "time",
        "role": "img",
        "aria-label": f"{len(segments)} segments from {when_us(begun[0])} to {when_us(end)}",
    }
    return element("svg", bars, attributes=attributes)


def _segments(found: Facts, ensembles: Mapping[int, Sequence[str]]) -> Child:
    lines = [
        (
            str(each["segment_id"]),
            link(str(each["ledger_id"]), f"/ledgers/{each['ledger_id']}"),
            badge(each["state"]),
            text_of(each["base_offset"]),
            text_of(each["next_offset"]),
            when_us(each["began_us"]),
            each["bytes"],
            [
                (link(bookie, with_query("/bookie", id=bookie)), " ")
                for bookie in ensembles.get(each["ledger_id"], ())
            ],
            each["reason"],
        )
        for each in reversed(found["segments"])
    ]
    columns = ("Segment", "Ledger", "State", "From", "To", "Begun", "Bytes", "Bookies", "Why")
    older = found["segment_count"] - len(lines)
    return (
        table(columns, lines, "The log has no segments."),
        element("p", f"{older:,} older segments are not shown.") if older > 0 else None,
    )


def _cursors(rows: Sequence[Facts]) -> Html:
    lines = [
        (
            row["name"],
            row["offset"],
            row["lag"],
            "yes: blocks truncation" if row["is_protected"] else "no",
            when_us(row["updated_us"]),
        )
        for row in rows
    ]
    return table(
        ("Cursor", "Offset", "Lag", "Protected", "Moved"), lines, "The log has no cursors."
    )


def _acts(frame: PageFrame, view: LogView, before: str, grants: Grants) -> list[Child]:
    """The forms that the viewer may send (DB8)."""
    name = view.found["log"]
    is_admin = grants.may_steer(Right.ADMIN, name)
    may_append = grants.may_steer(Right.APPEND, name)
    if not (is_admin or may_append):
        return []
    truncation = _truncation(frame, name, before, view.plan) if is_admin else None
    acts = _log_acts(frame, view, is_admin=is_admin, may_append=may_append)
    return [element("h2", "Acts"), truncation, acts]


def _truncation(frame: PageFrame, name: str, before: str, plan: Facts | str | None) -> Child:
    """The form that requests a truncation plan. If there is a plan, also the plan and the form that truncates."""
    ask = search(
        "/log",
        [
            labelled(
                Field("truncate", "First record to keep: 123, -10, ago:7d", value=before,
                      more=_UNTYPED)
            )
        ],
        "Show what truncating would do",
        {"name": name},
    )  # fmt: skip
    parts: list[Child] = [ask]
    if isinstance(plan, str):
        parts.append(element("p", plan, attributes={"class": "note bad"}))
    elif plan is not None:
        says = (
            f"Records {plan['old_head']} to {plan['new_head']} ({plan['records']:,}) would no longer be readable; "
            f"{len(plan['segments'])} segments with {plan['freed_bytes']:,} bytes would be deleted, and "
            f"{plan['kept_bytes']:,} bytes stay until their segment is deleted."
        )
        guards = f"Protected cursors prevent this truncation: {', '.join(plan['guards'])}."
        parts.append(element("p", says))
        parts.append(element("p", guards) if plan["guards"] else None)
        hidden = {"id": name, "act": "truncate", "before": str(plan["new_head"])}
        typed = Field("typed", f"Type {name}", more=_UNTYPED)
        parts.append(form(frame, "/log", [], "Truncate", hidden, [typed]))
    return element("div", parts, attributes={"class": "acts"})


def _log_acts(frame: PageFrame, view: LogView, *, is_admin: bool, may_append: bool) -> Html:
    name, is_sealed = view.found["log"], view.found["is_sealed"]

    def act(verb: str, button: str, says: str, *inner: Child, fields: Sequence[Field] = ()) -> Html:
        parts = [element("p", says), *inner]
        return form(frame, "/log", parts, button, {"id": name, "act": verb}, fields)

    acts: list[Child] = []
    if may_append and not is_sealed:
        value, key = Field("value", "Value"), Field("key", "Key, if any", more=_UNTYPED)
        number = hidden_input("once", view.once)
        acts.append(
            act(
                "append",
                "Append",
                "Appends one record, encoded as UTF-8.",
                number,
                fields=[value, key],
            )
        )
    if is_admin and not is_sealed:
        acts.append(act("roll", "Roll", "Begins a new segment, unless the last segment is empty."))
        typed = Field("typed", f"Type {name}", more=_UNTYPED)
        acts.append(act("seal", "Seal", "No record can be appended after this.", fields=[typed]))
    if is_admin and view.servers:
        chosen = choice("to", "Server", {each: each for each in view.servers}, "")
        says = "Makes another server the owner. No append fails because of the transfer."
        acts.append(act("transfer", "Transfer", says, chosen))
    return element("div", acts, attributes={"class": "acts"})
