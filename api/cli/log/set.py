"""The action of `rollbook log set`, which takes the settings of `rollbook apply` from the command line."""

from collections.abc import Sequence
from typing import Any

from rollbook.api.cli.apply.apply_log_settings import (
    COPIES,
    COUNTS,
    change_log,
    fields_of,
    plan_log,
)
from rollbook.api.cli.confirm import ask_whether
from rollbook.api.cli.log.actions import require_bookies
from rollbook.api.cli.log.connection import LogAccess
from rollbook.api.cli.output import tell
from rollbook.api.client.async_client import Client
from rollbook.api.did_you_mean import SHOWN
from rollbook.logservice import messages
from rollbook.logservice.ids import LogName
from rollbook.proto.errors import InvalidRequest


def set_log(
    access: LogAccess,
    log: str,
    settings: Sequence[str],
    dry_run: bool,
    anyway: bool,
    yes: bool,
    output: str,
) -> None:
    name, wanted = LogName.parse(log), fields_of(dict(map(_typed, settings)))
    shortened: list[str] = []

    async def plan(client: Client) -> dict[str, Any]:
        # Raises an error if the log is missing, because `log set` does not create logs.
        await client.ask(messages.GetLog(name))
        await require_bookies(client, wanted.get("quorum"), anyway or dry_run)
        return await plan_log(client, name, wanted, shortened)

    row = access.run(plan, log)
    if not dry_run and row["changes"]:
        if shortened:
            ask_whether(f"delete records sooner than before in {', '.join(shortened)}", yes)
        access.run(lambda client: change_log(client, name, row["act"], wanted), log)
    tell({"log": row["log"], "done": not dry_run, "changes": row["changes"]}, output, "log")


def _typed(text: str) -> tuple[str, Any]:
    """Parses KEY=VALUE. Returns the setting and its value as the file of `apply` would have them. Raises
    `InvalidRequest`, `BadConfig`.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise InvalidRequest(
            f"{text[:SHOWN]!r} is not KEY=VALUE", next_step="write retention_age=7d"
        )
    if key in (*COUNTS, *COPIES) and value.isdecimal():
        return key, int(value)
    if key in ("exclusive", "degraded_segments") and value in ("true", "false"):
        return key, value == "true"
    if key == "labels":
        pairs = [each.partition("=") for each in value.split(",") if each]
        if wrong := [each[0] for each in pairs if not each[1]]:
            raise InvalidRequest(
                f"the label {wrong[0][:SHOWN]!r} is not NAME=VALUE",
                next_step="write labels=team=checkout,env=prod",
            )
        labels = {label: text for label, _, text in pairs}
        if len(labels) != len(pairs):
            raise InvalidRequest(
                f"{text[:SHOWN]!r} has a label twice", next_step="leave out one of them"
            )
        return key, labels
    return key, value
