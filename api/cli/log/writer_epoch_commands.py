"""The commands of `rollbook log writer`, which manage the writer of an exclusive log. Their actions are in
`writer_epoch_actions.py`.
"""

from typing import TYPE_CHECKING, Any

import click

from rollbook.api.cli.click_types import WholeNumber
from rollbook.api.cli.log.commands import log_argument, with_access, yes_option
from rollbook.api.cli.output import bare_output_option, examples

if TYPE_CHECKING:
    from rollbook.api.cli.log.connection import LogAccess


@click.group(
    epilog=examples(
        "rollbook log writer show wal",
        "rollbook log writer acquire wal --holder me -o raw",
        "rollbook log writer release wal 7",
    )
)
def group() -> None:
    """Show, acquire and release the writer epoch of a log.

    Acquiring the epoch fences earlier writers: all records that were acknowledged to them are below the fence, and
    none of their later records is acknowledged.
    """


@group.command(
    epilog=examples(
        "rollbook log writer show wal",
        "rollbook log writer show wal -o raw",
        "rollbook log writer show shop/wal -o json",
    )
)
@log_argument
@with_access
@bare_output_option
def show(access: "LogAccess", **how: Any) -> None:
    """Show the current writer of a log. `-o raw` prints the epoch."""
    from rollbook.api.cli.log import writer_epoch_actions

    writer_epoch_actions.show_writer(access, **how)


@group.command(
    epilog=examples(
        "rollbook log writer acquire wal --holder me",
        "rollbook log writer acquire wal --holder me --wait --ttl 30s",
        "rollbook log writer acquire wal --holder me --steal --yes",
    )
)
@log_argument
@with_access
@click.option(
    "--holder", metavar="NAME", required=True, help="The writer's name, which other clients see."
)
@click.option(
    "--wait",
    is_flag=True,
    help="Wait until the holder releases the epoch, or --timeout has passed.",
)
@click.option("--steal", is_flag=True, help="Fence the current holder.")
@click.option(
    "--ttl",
    metavar="TIME",
    help="If the epoch is not renewed for this time, another writer may acquire the log without --steal; "
    "until then the epoch stays in force.  [default: never]",
)
@click.option(
    "--attempt",
    metavar="NAME",
    help="Request the same epoch again after a lost response. The error of that request shows the value to use.",
)
@yes_option
@bare_output_option
def acquire(access: "LogAccess", **how: Any) -> None:
    """Become the writer of a log, if it has none. `-o raw` prints the epoch."""
    from rollbook.api.cli.log import writer_epoch_actions

    writer_epoch_actions.acquire_writer(access, **how)


@group.command(
    epilog=examples(
        "rollbook log writer release wal 7",
        "rollbook log writer release wal 7 --timeout 30",
        "rollbook log writer release shop/wal 7 -o json",
    )
)
@log_argument
@click.argument("epoch", type=WholeNumber(0))
@with_access
@bare_output_option
def release(access: "LogAccess", **how: Any) -> None:
    """Release a writer epoch, so that another writer can acquire one."""
    from rollbook.api.cli.log import writer_epoch_actions

    writer_epoch_actions.release_writer(access, **how)
