"""The parts of screens: frame, tables, forms, and the equivalent shell commands."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode

from rollbook.api.dashboard.core.live_page import Live, NewRows, PageState, live
from rollbook.api.dashboard.core.markup import Child, Html, element, page

PREFIX: Final = "/dashboard"
BY_RIGHT: Final = "Your token does not permit changes here; they need "
REFRESH_S: Final = 5
RECONNECT_MS_MAX: Final = 2000
_US_IN_MS: Final = 1000
_CHARTS: Final = "uPlot.iife.min.js"
SCRIPTS: Final = ("htmx.min.js", "hx-sse.min.js", "uPlot.iife.min.js", "live.js")
_SCREENS: Final = {
    "": "Overview",
    "/logs": "Logs",
    "/servers": "Servers",
    "/bookies": "Bookies",
    "/ledgers": "Ledgers",
    "/recovery": "Recovery",
    "/operations": "Operations",
    "/events": "Events",
    "/callbacks": "Callbacks",
    "/metadata": "Metadata",
}


@dataclass(frozen=True, slots=True)
class PageFrame:
    """The frame of every page around its screen."""

    base: str  # `https://host:port`, as in the browser's request.
    metadata: str
    secret: str  # The session's secret, which every form carries.
    principal: str  # The principal's name; empty: authentication is off.
    notes: Sequence[tuple[str, str]] = ()
    banner: str = ""  # A problem with the shown facts.
    # The path below the dashboard, with its query; empty: no stream updates the page.
    page: str = ""


@dataclass(frozen=True, slots=True)
class Screen:
    title: str
    parts: Sequence[Child]
    commands: Sequence[str] = ()  # Equivalent shell commands, without `rollbook` and `--metadata`.
    calls: Sequence[tuple[str, str, str]] = ()  # Equivalent HTTP requests: method, path, body.
    on_logs: "OnLogs | None" = None
    is_live: bool = False  # True: without scripts, the page reloads itself every few seconds.
    at: str = ""
    rows: NewRows | None = None  # Rows that are added to the page: records, or samples.

    def live_parts(self, frame: PageFrame) -> list[Live]:
        """The parts that the page's stream updates."""
        shown = banner(frame.banner) if frame.banner else None
        return [live("banner", shown), *(each for each in self.parts if isinstance(each, Live))]


@dataclass(frozen=True, slots=True)
class OnLogs:
    """The equivalent shell commands and HTTP requests to a log server."""

    server: str  # `log://host:port`
    http: str  # The URL of its REST API; empty: it has none.
    commands: Sequence[str] = ()
    calls: Sequence[tuple[str, str, str]] = ()


def render(frame: PageFrame, screen: Screen) -> bytes:
    head: list[Child] = [
        element("meta", attributes={"charset": "utf-8"}),
        element(
            "meta",
            attributes={"name": "viewport", "content": "width=device-width, initial-scale=1"},
        ),
        element("title", f"{screen.title} · Rollbook"),
        element("link", attributes={"rel": "stylesheet", "href": f"{PREFIX}/style.css"}),
        element("link", attributes={"rel": "stylesheet", "href": f"{PREFIX}/uPlot.min.css"})
        if screen.at == ""
        else None,
        element("link", attributes={"rel": "icon", "href": f"{PREFIX}/icon.svg"}),
    ]
    if screen.is_live and not frame.notes:
        refresh = {"http-equiv": "refresh", "content": str(REFRESH_S)}
        head.append(element("noscript", element("meta", attributes=refresh)))
    parts = screen.live_parts(frame)
    if follows := frame.page and (len(parts) > 1 or screen.rows is not None):
        head += [_script(name) for name in SCRIPTS if name != _CHARTS or screen.at == ""]
    links = [
        link(name, path, {"aria-current": "page"} if path == screen.at else {})
        for path, name in _SCREENS.items()
    ]
    who: Child = None
    if frame.principal:
        who = form(frame, "/sign-out", [element("span", frame.principal)], "Sign out")
    body = [
        element("header", element("nav", links, attributes={"aria-label": "Screens"}), who),
        element(
            "main",
            parts[0],
            [element("p", text, attributes=_note(level)) for level, text in frame.notes],
            element("h1", screen.title),
            screen.parts,
            _same_as(frame, screen),
            attributes=_stream(frame, PageState.of(parts, screen.rows)) if follows else {},
        ),
    ]
    return page(head, body)


def _script(name: str) -> Html:
    return element("script", attributes={"src": f"{PREFIX}/{name}", "defer": True})


def _stream(frame: PageFrame, seen: PageState) -> dict[str, str | bool | None]:
    """The attributes that make htmx follow the page's stream, beginning with the page's current state."""
    return {
        "hx-sse:connect": f"{PREFIX}{with_query('/live', page=frame.page, have=str(seen))}",
        "hx-sse:close": "signed-out",
        "hx-swap": "none",
        "hx-config": f"sse.reconnectMaxDelay:{RECONNECT_MS_MAX}",
    }


def banner(text: str) -> Html:
    return element("p", text, attributes={"class": "note bad", "role": "alert"})


def _note(level: str) -> dict[str, str | bool | None]:
    return {"class": f"note {level}", "role": "status"}


def _same_as(frame: PageFrame, screen: Screen) -> Child:
    metadata = f"--metadata {shlex.quote(frame.metadata)}"
    lines = [f"rollbook {command} {metadata}" for command in screen.commands]
    lines += [_curl(frame, f"{frame.base}/api/v1", call) for call in screen.calls]
    if (logs := screen.on_logs) is not None:
        server = f"--server {shlex.quote(logs.server)}"
        if frame.principal:
            server += ' --token-file "$TOKEN_FILE"'
        lines += [f"rollbook {command} {server}" for command in logs.commands]
        if logs.http:
            lines += [_curl(frame, f"{logs.http}/v1", call) for call in logs.calls]
    if not lines:
        return None
    codes = [element("code", line) for line in lines]
    return element("footer", element("h2", "Same as"), codes)


def _curl(frame: PageFrame, base: str, call: tuple[str, str, str]) -> str:
    method, path, body = call
    words = ["curl"]
    if frame.principal:
        words += ["-H", '"authorization: Bearer $TOKEN"']
    if method != "GET":
        words += ["-X", method]
    if body:
        words += ["--json", shlex.quote(body)]
    return " ".join([*words, shlex.quote(f"{base}{path}")])


def link(text: Child, path: str, attributes: Mapping[str, str] = {}) -> Html:
    """`path`: a path below the dashboard."""
    return element("a", text, attributes={"href": f"{PREFIX}{path}", **attributes})


def with_query(path: str, /, **fields: object) -> str:
    given = {name: value for name, value in fields.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


def table(columns: Sequence[str], rows: Iterable[Sequence[Child]], empty: str) -> Html:
    lines = [element("tr", [element("td", cell) for cell in row]) for row in rows]
    if not lines:
        return element("p", empty)
    heads = [element("th", name, attributes={"scope": "col"}) for name in columns]
    inner = (element("thead", element("tr", heads)), element("tbody", lines))
    return element("div", element("table", inner), attributes={"class": "scroll", "tabindex": "0"})


def facts(rows: Mapping[str, Child]) -> Html:
    parts = [(element("dt", name), element("dd", value)) for name, value in rows.items()]
    return element("dl", parts)


def badge(state: str) -> Html:
    level = _LEVELS.get(state, "")
    return element("span", state, attributes={"class": f"badge {level}".strip()})


_LEVELS: Final = {
    **dict.fromkeys(
        (
            "writable",
            "serving",
            "active",
            "drained",
            "closed",
            "enabled",
            "healthy",
            "done",
            "delivered",
        ),
        "good",
    ),
    **dict.fromkeys(
        ("read-only", "draining", "in_recovery", "paused", "degraded", "retrying"), "warning"
    ),
    **dict.fromkeys(
        ("down", "unreachable", "draining-failed", "failed", "unavailable", "unknown", "lost"),
        "bad",
    ),
}


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    label: str
    kind: str = "text"
    value: str = ""
    more: Mapping[str, str | bool | None] = field(default_factory=dict)


def form(
    frame: PageFrame,
    path: str,
    inner: Sequence[Child],
    button: str,
    hidden: Mapping[str, str] = {},
    fields: Sequence[Field] = (),
) -> Html:
    """A form for changes: sent by POST, with the session's secret."""
    secret = {"secret": frame.secret, **hidden}
    parts = [
        *(hidden_input(name, value) for name, value in secret.items()),
        *inner,
        *map(labelled, fields),
        element("button", button, attributes={"type": "submit"}),
    ]
    return element("form", parts, attributes={"method": "post", "action": f"{PREFIX}{path}"})


def search(
    path: str, fields: Sequence[Child], button: str = "Show", hidden: Mapping[str, str] = {}
) -> Html:
    """A form for queries: sent by GET, so that its filters are in the URL."""
    submit = element("button", button, attributes={"type": "submit"})
    attributes = {"method": "get", "action": f"{PREFIX}{path}"}
    kept = [hidden_input(name, value) for name, value in hidden.items()]
    return element("form", kept, fields, submit, attributes=attributes)


def hidden_input(name: str, value: str) -> Html:
    return element("input", attributes={"type": "hidden", "name": name, "value": value})


def labelled(each: Field) -> Html:
    attributes = {"name": each.name, "type": each.kind, "value": each.value, **each.more}
    return element("label", each.label, " ", element("input", attributes=attributes))


def choice(name: str, label: str, options: Mapping[str, str], chosen: str) -> Html:
    inner = [
        element("option", text, attributes={"value": value, "selected": value == chosen})
        for value, text in options.items()
    ]
    return element("label", label, " ", element("select", inner, attributes={"name": name}))


def when(ms: Any) -> str:
    """A time in readable form. A time after the year 9999 is shown as a number."""
    if not isinstance(ms, int):
        return "—"
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"


def when_us(us: Any) -> str:
    return when(us // _US_IN_MS) if isinstance(us, int) and us else "—"


def text_of(value: Any) -> str:
    """The value as text; a dash for a missing value."""
    if value is None or value in ("", []):
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)
