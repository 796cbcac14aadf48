"""The commands of `rollbook cursor`, which manage named positions in logs. Their actions are in `actions.py`."""

from typing import TYPE_CHECKING, Any, Final

import click

from rollbook.api.cli.click_types import WholeNumber
from rollbook.api.cli.lazy_group import AliasGroup
from rollbook.api.cli.log.commands import (
    completed_by,
    log_argument,
    with_access,
    yes_option,
)
from rollbook.api.cli.output import bare_output_option, examples, list_output_option

if TYPE_CHECKING:
    from rollbook.api.cli.log.connection import LogAccess

_name_argument: Final = click.argument("name", shell_complete=completed_by("names_of_cursors"))


@click.group(
    cls=AliasGroup,
    epilog=examples(
        "rollbook cursor set orders billing 1700",
        "rollbook cursor ls orders",
        "rollbook log read orders --from cursor:billing",
    ),
)
def group() -> None:
    """Show, move and remove cursors: named positions that a log keeps.

    A protected cursor is a mark: records at and above it are not truncated.
    """


@group.command(
    epilog=examples(
        "rollbook cursor ls",
        "rollbook cursor ls shop/orders -o json | jq '.[] | select(.lag > 1000)'",
        "rollbook cursor ls orders -o raw",
    )
)
@click.argument("log", required=False, shell_complete=completed_by("names_of_logs"))
@with_access
@list_output_option
def ls(access: "LogAccess", **how: Any) -> None:
    """List the cursors of a log, or of all logs. The lag is in records. `-o raw` prints the names of the cursors."""
    from rollbook.api.cli.cursor import actions

    actions.list_cursors(access, **how)


@group.command(
    epilog=examples(
        "rollbook cursor show orders billing",
        "rollbook cursor show orders billing -o raw",
        "rollbook cursor show shop/orders billing -o json",
    )
)
@log_argument
@_name_argument
@with_access
@bare_output_option
def show(access: "LogAccess", **how: Any) -> None:
    """Show one cursor. `-o raw` prints its offset."""
    from rollbook.api.cli.cursor import actions

    actions.show_cursor(access, **how)


@group.command(
    "set",
    # Allows positions such as -10, which look like options.
    context_settings={"ignore_unknown_options": True},
    epilog=examples(
        "rollbook cursor set orders billing 1700",
        "rollbook cursor set orders billing -10 --protect",
        "rollbook cursor set orders billing ago:1d --rewind --version 12",
    ),
)
@log_argument
@_name_argument
@click.argument("position", shell_complete=completed_by("positions"))
@with_access
@click.option(
    "--protect/--no-protect",
    default=None,
    help="Protect the records at and above the cursor from truncation, or stop protecting them.",
)
@click.option("--rewind", is_flag=True, help="Allow the cursor to move back.")
@click.option(
    "--version",
    type=WholeNumber(-1),
    metavar="N",
    help="Change the cursor only if it has this version; -1: only create it.",
)
@bare_output_option
def move(access: "LogAccess", **how: Any) -> None:
    """Create or move a cursor. `-o raw` prints its offset."""
    from rollbook.api.cli.cursor import actions

    actions.move_cursor(access, **how)


@group.command(
    epilog=examples(
        "rollbook cursor rm orders billing",
        "rollbook cursor rm orders billing --yes",
        "rollbook cursor rm shop/orders billing --yes -o json",
    )
)
@log_argument
@_name_argument
@with_access
@yes_option
@bare_output_option
def rm(access: "LogAccess", **how: Any) -> None:
    """Remove a cursor. The cursor then no longer protects records from truncation."""
    from rollbook.api.cli.cursor import actions

    actions.remove_cursor(access, **how)
