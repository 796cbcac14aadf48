"""Screens of processes: the list of servers, and the state, settings and metrics of each."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from rollbook.api.access.core.grants import Duty, Grants
from rollbook.api.dashboard.core.live_page import live
from rollbook.api.dashboard.core.markup import Child, Html, element
from rollbook.api.dashboard.parts import (
    OnLogs,
    PageFrame,
    Screen,
    badge,
    facts,
    form,
    link,
    table,
    text_of,
    when_us,
    with_query,
)

Facts = Mapping[str, Any]

SHOWN_MAX: Final = 100
_SAMPLE: Final = re.compile(r"^([a-zA-Z_:][\w:]*(?:\{[^\n]*\})?) (\S+)$", re.MULTILINE)


def servers(rows: Sequence[Facts], reached: Mapping[str, str], others: Sequence[Child]) -> Screen:
    """`reached`: the reported state of each server, by name. `others`: the tables of other processes."""
    lines = [
        (
            link(row["name"], with_query("/server", name=row["name"])),
            badge(reached.get(row["name"], row["state"])),
            row["address"],
            text_of(row["http"]),
            row["logs_owned"],
            row["logs_degraded"],
            row["release"],
            when_us(row["started_us"]),
        )
        for row in rows
    ]
    columns = (
        "Server",
        "State",
        "Address",
        "REST",
        "Owned logs",
        "With few copies",
        "Release",
        "Started",
    )
    http = next((row["http"] for row in rows if row["http"]), "")
    where = OnLogs(
        f"log://{','.join(row['address'] for row in rows)}" if rows else "",
        http,
        ["cluster servers"] if rows else [],
        [("GET", "/servers", "")],
    )
    return Screen(
        "Servers",
        [live("servers", table(columns, lines, "No log server is registered.")), *others],
        calls=[("GET", "/cluster/health", "")],
        on_logs=where if rows else None,
        is_live=True,
        at="/servers",
    )


def without_pages(state: str) -> str:
    """Why the pages of a bookie in this state cannot be shown."""
    return (
        "it does not run"
        if state == "down"
        else "it was started without --http, or is a Java bookie"
    )


def others(bookies: Sequence[Facts], processes: Sequence[Facts], own: str) -> list[Child]:
    """The tables of bookies and recovery servers on the servers screen."""
    rows: list[tuple[Child, ...]] = [
        (
            link(row["id"], _at("bookie", row["id"])),
            badge(row["state"]),
            text_of(row["address"]),
            text_of(row["http"]),
        )
        for row in bookies[:SHOWN_MAX]
    ]
    if len(bookies) > SHOWN_MAX:
        rows.append((link(f"and {len(bookies) - SHOWN_MAX:,} more", "/bookies"), "", "", ""))
    parts: dict[str, list[str]] = {}
    for each in processes:
        parts.setdefault(str(each.get("process")), []).append(str(each.get("part")))
    names = dict.fromkeys((own, *parts))
    servers = [
        (
            link(name, _at("recovery", name)),
            ", ".join(parts.get(name, ())) or "HTTP alone",
        )
        for name in names
    ]
    return [
        element("h2", "Bookies"),
        live(
            "bookies",
            table(
                ("Bookie", "State", "Address", "Own pages"),
                rows,
                "There are no bookies in this cluster.",
            ),
        ),
        element("h2", "Recovery servers"),
        live("recovery", table(("Server", "Runs"), servers, "None.")),
    ]


def _at(kind: str, name: str) -> str:
    return with_query("/process", kind=kind, name=name)


def settings_table(found: Sequence[Facts] | str) -> list[Child]:
    """`found`: the settings, or the reason why they are not known."""
    head = element("h2", "Settings")
    if isinstance(found, str):
        return [head, element("p", f"— {found}")]
    rows = [
        (each["section"], each["name"], text_of(each["value"]), each["source"]) for each in found
    ]
    columns = ("Section", "Setting", "Value", "From")
    return [head, table(columns, rows, "The process has no settings.")]


def metrics_table(found: Mapping[str, Child] | str) -> list[Child]:
    """`found`: the metrics, or the reason why they are not known."""
    head = element("h2", "Metrics")
    if isinstance(found, str):
        return [head, element("p", f"— {found}")]
    return [head, table(("Metric", "Value"), list(found.items()), "The process has no metrics.")]


def server(
    frame: PageFrame,
    row: Facts,
    metrics: Mapping[str, float] | str,
    settings: Sequence[Facts] | str,
    grants: Grants,
) -> Screen:
    """`metrics` and `settings`: the facts, or the reason why they are not known."""
    name = row["name"]
    shown: dict[str, Child] = {
        "State": badge(row["state"]),
        "Address": row["address"],
        "REST": text_of(row["http"]),
        "Owned logs": row["logs_owned"],
        "Logs with too few copies": row["logs_degraded"],
        "Release": row["release"],
        "Started": when_us(row["started_us"]),
        "This life": row["server_id"],
    }
    verb, button, says = (
        ("resume", "Resume", "The server takes logs again.")
        if row["state"] == "draining"
        else (
            "drain",
            "Drain",
            "The server hands over the logs that it owns, and takes no more logs.",
        )
    )
    act = None
    if grants.may_manage(Duty.OPERATE):
        inner = form(frame, "/server", [element("p", says)], button, {"id": name, "act": verb})
        act = element("div", inner, attributes={"class": "acts"})
    counted: Mapping[str, Child] | str = (
        metrics
        if isinstance(metrics, str)
        else {key: f"{value:,.6g}" for key, value in sorted(metrics.items())}
    )
    return Screen(
        f"Server {name}",
        [
            facts(shown),
            act,
            *settings_table(settings),
            *metrics_table(counted),
        ],
        on_logs=OnLogs(
            f"log://{row['address']}",
            row["http"],
            [f"cluster drain {shlex.quote(name)}"],
            [
                ("GET", "/settings", ""),
                ("GET", "/stats", ""),
                ("POST", f"/servers/{quote(name)}:drain", ""),
                ("POST", f"/servers/{quote(name)}:resume", ""),
            ],
        ),
        at="/servers",
    )


def process(
    frame: PageFrame,
    kind: str,
    name: str,
    found: Sequence[Facts] | str,
    counted: Mapping[str, Child] | str,
) -> Screen:
    """`kind`: bookie or recovery."""
    title = f"{'Bookie' if kind == 'bookie' else 'Recovery server'} {name}: settings and metrics"
    more: Html | None = None
    path = f"/bookies/{quote(name, safe=':')}/pages"
    calls = [("GET", f"{path}/settings", ""), ("GET", f"{path}/status", "")]
    if kind == "bookie":
        more = element("p", link("Its state and possible changes", with_query("/bookie", id=name)))
    else:
        calls = [("GET", "/settings", "")]
    return Screen(
        title,
        [more, *settings_table(found), *metrics_table(counted)],
        calls=calls,
        at="/servers",
    )


def of_exposition(text: str) -> dict[str, Child]:
    """The rows of a Prometheus text, without the buckets of histograms."""
    return {name: value for name, value in _SAMPLE.findall(text) if "_bucket{" not in name}


def of_status(found: Any) -> dict[str, Child]:
    """The rows of a bookie's status, with dotted names for nested facts."""
    rows: dict[str, Child] = {}

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, each in value.items():
                add(f"{prefix}.{key}" if prefix else str(key), each)
        else:
            rows[prefix] = text_of(value)

    add("", found)
    return rows


def settings_of(text: str) -> list[dict[str, Any]]:
    """Parses the settings that another process returned. Raises `ValueError`."""
    found = json.loads(text)
    return rows_of_settings(found)


def rows_of_settings(found: Any) -> list[dict[str, str]]:
    """Returns the rows of a page of settings. Raises `ValueError` if the page has a different format."""
    rows = found.get("settings") if isinstance(found, dict) else None
    names = ("section", "name", "value", "source")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("it does not show its settings as Rollbook does")
    return [{name: str(row.get(name, "")) for name in names} for row in rows]
