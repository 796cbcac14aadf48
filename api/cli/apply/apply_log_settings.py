"""The action of `rollbook apply`."""

from dataclasses import replace
from typing import Any, Final

import click

from rollbook.api.cli.confirm import ask_whether
from rollbook.api.cli.log.actions import (
    UNBOUNDED,
    bytes_in,
    in_order,
    quorum_of,
    require_bookies,
    seconds_in,
    shown_setting,
)
from rollbook.api.cli.log.connection import LogAccess
from rollbook.api.cli.output import tell_rows
from rollbook.api.client.async_client import Client
from rollbook.api.did_you_mean import SHOWN, did_you_mean
from rollbook.logservice import messages
from rollbook.logservice.ids import LogName
from rollbook.logservice.log_config import ConfigValues, LogConfig, WriterMode
from rollbook.proto.errors import BadConfig, NoSuchLog, RollbookError
from rollbook.proto.quorum import Quorum
from rollbook.proto.runtime.config import read_config_file

_SECTION: Final = "logs"
_AGES: Final = {
    "retention_age": "retention_age_s",
    "roll_age": "roll_age_s",
    "dedupe_age": "dedupe_age_s",
    "delete_grace": "delete_grace_s",
}
_SIZES: Final = (
    "retention_bytes",
    "roll_bytes",
    "record_bytes_max",
    "batch_bytes_max",
    "tail_cache_bytes",
)
COUNTS: Final = ("roll_entries", "dedupe_batches", "batch_records_max")
COPIES: Final = ("copies", "acks", "ensemble")
SETTINGS: Final = frozenset(
    (*_AGES, *_SIZES, *COUNTS, *COPIES, "exclusive", "degraded_segments", "labels", "description")
)
# If one of these fields gets a smaller value, records are deleted sooner.
_KEEPING: Final = ("retention_age_s", "retention_bytes")
# One of these settings bounds the other, so they are checked together.
_TOGETHER: Final = frozenset(("record_bytes_max", "batch_bytes_max"))


def apply(
    access: LogAccess, path: str, dry_run: bool, yes: bool, anyway: bool, output: str
) -> None:
    """Checks the whole file, and then changes one log after the other."""
    wanted = read_spec(path)
    shortened: list[str] = []

    async def plan(client: Client) -> list[dict[str, Any]]:
        rows = [await plan_log(client, log, what, shortened) for log, what in wanted.items()]
        quorums = [
            what["quorum"]
            for row, what in zip(rows, wanted.values(), strict=True)
            if "quorum" in row["changes"]
        ]
        await require_bookies(
            client, max(quorums, default=None, key=_bookies_of), anyway or dry_run
        )
        return rows

    async def do(client: Client) -> None:
        for row, settings in zip(rows, wanted.values(), strict=True):
            await change_log(client, LogName.parse(row["log"]), row["act"], settings)

    rows = access.run(plan)
    if not dry_run:
        if shortened:
            ask_whether(f"delete records sooner than before in {', '.join(shortened)}", yes)
        access.run(do)
    if output == "raw":
        for row in rows:
            if row["act"] != "=":
                click.echo(row["log"])
    else:
        tell_rows(("act", "log", "changes"), rows, output, "log")


def _bookies_of(quorum: Quorum) -> int:
    return quorum.ensemble


def read_spec(path: str) -> dict[LogName, dict[str, Any]]:
    """Returns each log's configuration fields. Raises `BadConfig` with the next step."""
    found: dict[LogName, dict[str, Any]] = {}
    where = ""  # Errors about the whole file already have its path.
    try:
        for name, table in read_config_file(path, (_SECTION,)).get(_SECTION, {}).items():
            where = f"{path}: {name}: "
            if (log := LogName.parse(name)) in found:
                raise BadConfig(f"this is another name of {log}, which the file already has")
            found[log] = fields_of(table)
    except RollbookError as error:
        advice = error.next_step or "rollbook apply --help"
        raise BadConfig(f"{where}{error.message}", next_step=advice) from None
    return found


def fields_of(table: Any) -> dict[str, Any]:
    """Converts one log's settings to configuration fields. Raises `InvalidRequest`, `BadConfig`."""
    if not isinstance(table, dict):
        raise BadConfig("no table of settings")
    found = dict(_field_of(key, value) for key, value in table.items() if key not in COPIES)
    counts = [_number(key, table[key]) if key in table else None for key in COPIES]
    if any(counts):
        found["quorum"] = quorum_of(*counts)
    # Raises the errors of impossible settings before any log is read.
    (LogConfig if found.keys() >= _TOGETHER else ConfigValues)(**found)
    return found


def _field_of(key: str, value: Any) -> tuple[str, Any]:
    if key not in SETTINGS:
        advice = did_you_mean(key, SETTINGS, f"known: {', '.join(sorted(SETTINGS))}")
        if isinstance(value, dict):  # A dot in a TOML key begins a nested table.
            advice = 'name the log in quotes, such as [logs."orders.v2"]'
        raise BadConfig(f"there is no setting {key[:SHOWN]!r}", next_step=advice)
    if value == UNBOUNDED and (field := _AGES.get(key, key)) in _KEEPING:
        return field, None
    if key in _AGES:
        return _AGES[key], seconds_in(_text(key, value, "7d"))
    if key in _SIZES:
        return key, value if type(value) is int else bytes_in(_text(key, value, "500M"))
    if key in COUNTS:
        return key, _number(key, value)
    if key == "labels":
        if not isinstance(value, dict):
            raise BadConfig("labels are a table", next_step='write { team = "checkout" }')
        return key, in_order((name, _text(name, each, "checkout")) for name, each in value.items())
    if key in ("exclusive", "degraded_segments"):
        if type(value) is not bool:
            raise BadConfig(f"{key} must be true or false", next_step="write it without quotes")
        if key == "degraded_segments":
            return key, value
        return "writer_mode", WriterMode.EXCLUSIVE if value else WriterMode.OPEN
    return key, _text(key, value, "orders of the shop")


def _number(key: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise BadConfig(f"{key} is a number from 1 on", next_step=f"write {key} = 3")
    return value


def _text(key: str, value: Any, such: str) -> str:
    if type(value) is not str:
        raise BadConfig(f"{key} is a text", next_step=f'write it in quotes, such as "{such}"')
    return value


async def plan_log(
    client: Client, log: LogName, settings: dict[str, Any], shortened: list[str]
) -> dict[str, Any]:
    row: dict[str, Any] = {"act": "=", "log": str(log), "changes": {}}
    try:
        state: messages.LogState = await client.ask(messages.GetLog(log))
    except NoSuchLog:
        _require_possible(log, LogConfig(), settings)
        shown = {name: shown_setting(value) for name, value in settings.items()}
        return row | {"act": "+", "changes": shown}
    _require_possible(log, state.config, settings)
    for name, value in settings.items():
        if (has := getattr(state.config, name)) != value:
            if name in _KEEPING and value is not None and (has is None or value < has):
                shortened.append(f"{log} ({name})")
            row["changes"][name] = f"{shown_setting(has)} -> {shown_setting(value)}"
    return row | {"act": "~" if row["changes"] else "="}


def _require_possible(log: LogName, has: LogConfig, settings: dict[str, Any]) -> None:
    """Checks a log's settings before any log is changed."""
    try:
        replace(has, **settings)
    except BadConfig as error:
        advice = "set both in the file, to values that fit together"
        raise BadConfig(f"{log}: {error.message}", next_step=advice) from None


async def change_log(client: Client, log: LogName, act: str, settings: dict[str, Any]) -> None:
    if act == "=":
        return
    config, fields = ConfigValues(**settings), tuple(settings)
    if act == "+":
        await client.ask(messages.EnsureLog(log, config if settings else None, fields))
    else:
        await client.ask(messages.UpdateLog(log, config, fields))
