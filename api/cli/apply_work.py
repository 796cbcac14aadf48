"""What `rollbook apply` does."""

from typing import Any, Final

import click

from rollbook.api.cli.confirming import ask_whether
from rollbook.api.cli.log_access import LogAccess
from rollbook.api.cli.log_work import settings_of, shown_setting
from rollbook.api.cli.output import tell_rows
from rollbook.api.client.client import Client
from rollbook.logservice import words
from rollbook.logservice.ids import LogName
from rollbook.logservice.log_config import LogConfig
from rollbook.proto.errors import BadConfig, NoSuchLog, RollbookError
from rollbook.proto.runtime.config import read_config_file

_SECTION: Final = "logs"
_TEXTS: Final = ("retention_age", "retention_bytes", "roll_bytes", "roll_age", "description")
_NUMBERS: Final = ("copies", "acks")
_KEEPING: Final = ("retention_age_s", "retention_bytes")  # Fields; less of them deletes records.


def apply(access: LogAccess, path: str, dry_run: bool, yes: bool, output: str) -> None:
    """All of the file makes sense before anything is done; then log by log."""
    wanted = read_spec(path)
    shortened: list[str] = []

    async def plan(client: Client) -> list[dict[str, Any]]:
        return [await _plan(client, log, what, shortened) for log, what in wanted.items()]

    async def do(client: Client) -> None:
        for row, settings in zip(rows, wanted.values(), strict=True):
            await _do(client, LogName.parse(row["log"]), row["act"], settings)

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


def read_spec(path: str) -> dict[LogName, dict[str, Any]]:
    """Fields of the configuration, by log. Raises `BadConfig`."""
    found: dict[LogName, dict[str, Any]] = {}
    for name, table in read_config_file(path, (_SECTION,)).get(_SECTION, {}).items():
        try:
            found[LogName.parse(name)] = _settings(table)
        except RollbookError as error:
            raise BadConfig(f"{path}: {name}: {error.message}") from None
    return found


def _settings(table: Any) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise BadConfig("no table")
    labels, exclusive = table.pop("labels", {}), table.pop("exclusive", False)
    if type(exclusive) is not bool or not isinstance(labels, dict):
        raise BadConfig("exclusive is true or false, labels a table")
    named: dict[str, Any] = dict.fromkeys((*_TEXTS, *_NUMBERS))
    for key, value in table.items():
        kind = int if key in _NUMBERS else str
        if key not in named:
            raise BadConfig(f"there is no setting {key[:100]!r}")
        if type(value) is not kind:
            raise BadConfig(f"{key} is a {'number' if kind is int else 'text'}")
        named[key] = value
    pairs = [f"{name}={value}" for name, value in labels.items()]
    return settings_of(**named, exclusive=exclusive, labels=pairs)


async def _plan(
    client: Client, log: LogName, settings: dict[str, Any], shortened: list[str]
) -> dict[str, Any]:
    row: dict[str, Any] = {"act": "=", "log": str(log), "changes": {}}
    try:
        state: words.LogState = await client.ask(words.GetLog(log))
    except NoSuchLog:
        told = {name: shown_setting(value) for name, value in settings.items()}
        return row | {"act": "+", "changes": told}
    for name, value in settings.items():
        if (has := getattr(state.config, name)) != value:
            if name in _KEEPING and value is not None and (has is None or value < has):
                shortened.append(f"{log} ({name})")
            row["changes"][name] = f"{shown_setting(has)} -> {shown_setting(value)}"
    return row | {"act": "~" if row["changes"] else "="}


async def _do(client: Client, log: LogName, act: str, settings: dict[str, Any]) -> None:
    if act == "=":
        return
    if act == "+":
        await client.ask(words.EnsureLog(log))
    if settings:
        change = words.UpdateLog(log, LogConfig(**settings), tuple(settings))
        await client.ask(change)
