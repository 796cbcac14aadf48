"""Writes a report as `report.json`, and as one HTML page that needs no other files."""

import html
import json
import os
from datetime import UTC, datetime
from typing import Any, Final

from rollbook.api.spark.archive_folder import unwritable
from rollbook.api.spark.pipelines.job_report import Report

_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;margin:1rem 0}th,td{padding:.3rem .8rem;text-align:left;border-bottom:1px solid #ddd}"
    "td.n{text-align:right;font-variant-numeric:tabular-nums}.ok{color:#17653a}.bad{color:#a11}"
    "@media(prefers-color-scheme:dark){body{background:#161616;color:#ddd}th,td{border-color:#444}"
    ".ok{color:#6c9}.bad{color:#f88}}"
)
FINDINGS: Final = ("log", "start", "end", "kind", "what")


def write(report: Report, folder: str) -> str:
    """Writes both forms of the report, and returns the path of the page. Raises `ArchiveUnwritable`."""
    said = report.packed()
    with unwritable("the report"):
        os.makedirs(folder, exist_ok=True)
        _write(os.path.join(folder, "report.json"), json.dumps(said, indent=1))
        page = os.path.join(folder, "report.html")
        _write(page, page_of(said))
    return page


def _write(path: str, text: str) -> None:
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{path}.new", path)


def page_of(said: dict[str, Any]) -> str:
    state = "ok" if said["ok"] else "bad"
    verdict = said["error"] or (
        "Nothing is wrong." if said["ok"] else f"{len(said['findings'])} findings."
    )
    logs = said["logs"]
    columns = list(dict.fromkeys(name for row in logs for name in row))
    facts = {
        name: value
        for name, value in said.items()
        if not isinstance(value, list | dict) and name not in ("v", "kind", "ok", "error")
    }
    parts = [
        "<!doctype html><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>rollbook spark {_text(said['kind'])}</title><style>{_STYLE}</style>",
        f"<h1>{_text(said['kind'])}</h1><p class={state}><strong>{_text(verdict)}</strong>",
        _table(("", ""), [(name, _fact(name, value)) for name, value in facts.items()]),
        f"<h2>Logs</h2>{_table(columns, [[row.get(name) for name in columns] for row in logs])}",
    ]
    if said["findings"]:
        rows = [[each[name] for name in FINDINGS] for each in said["findings"]]
        parts.append(f"<h2>Findings</h2>{_table(FINDINGS, rows)}")
    return "\n".join(parts)


def _fact(name: str, value: Any) -> Any:
    if name.endswith("_ms"):
        return f"{datetime.fromtimestamp(value / 1000, UTC):%Y-%m-%d %H:%M:%SZ}"
    return value


def _table(columns: Any, rows: Any) -> str:
    head = "".join(f"<th>{_text(name)}" for name in columns)
    return f"<table><tr>{head}{''.join(_row(row) for row in rows)}</table>"


def _row(row: Any) -> str:
    cells = (
        f"<td class=n>{each:,}" if isinstance(each, int) else f"<td>{_text(each)}" for each in row
    )
    return f"<tr>{''.join(cells)}"


def _text(value: Any) -> str:
    return "" if value is None else html.escape(str(value))
