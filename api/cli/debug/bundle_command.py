"""`rollbook debug`: collects diagnostics for support. The action is in `bundle.py`."""

from typing import TYPE_CHECKING, Any

import click

from rollbook.api.cli.click_types import WholeNumber
from rollbook.api.cli.log.commands import completed_by, with_access
from rollbook.api.cli.metadata_option import metadata_option
from rollbook.api.cli.output import examples

if TYPE_CHECKING:
    from rollbook.api.cli.log.connection import LogAccess


@click.group(
    epilog=examples(
        "rollbook debug bundle",
        "rollbook debug bundle --file bundle.tar.gz",
        "rollbook debug bundle --log shop/orders --context prod",
    )
)
def group() -> None:
    """Collect diagnostics for support."""


@group.command(
    epilog=examples(
        "rollbook debug bundle",
        "rollbook debug bundle --file bundle.tar.gz",
        "rollbook debug bundle --log shop/orders --metadata zk://zk1,zk2,zk3/ledgers",
    )
)
@with_access
@click.option("--file", "path", metavar="FILE", help="[default: rollbook-TIME.tar.gz here]")
@click.option(
    "--log",
    "logs",
    metavar="LOG",
    multiple=True,
    shell_complete=completed_by("names_of_logs"),
    help="Add all facts about this log; may be repeated.",
)
@metadata_option(
    "The metadata store. With it, the bundle also has the cluster's bookies, which members can be reached, and their "
    "metrics.  "
    "[default: the context's]"
)
@click.option("--logs-max", type=WholeNumber(0), default=1000, show_default=True)
def bundle(access: "LogAccess", **how: Any) -> None:
    """Write diagnostics of servers and logs into one file.

    The file has the facts that servers and logs report about themselves, but no records or tokens. If the
    metadata is available, it also has the metrics of bookies and log servers. The file lists unavailable facts
    with their reasons; the command does not fail because of them.
    """
    from rollbook.api.cli.debug import bundle

    bundle.bundle(access, **how)
