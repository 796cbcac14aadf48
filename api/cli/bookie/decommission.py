"""The commands `rollbook bookie drain|undrain|mark-drained|safe-to-remove|remove`, which take bookies out of the
cluster.
"""

from typing import Any

import click

from rollbook.api.cli.click_types import WholeNumber
from rollbook.api.cli.log.commands import completed_by
from rollbook.api.cli.metadata_option import Metadata, with_metadata
from rollbook.api.cli.output import examples, output_option


def _bookies(command: Any) -> Any:
    return click.argument(
        "bookies",
        nargs=-1,
        required=True,
        metavar="BOOKIE…",
        shell_complete=completed_by("names_of_bookies"),
    )(command)


@click.command(
    epilog=examples(
        "rollbook bookie drain bk-2 --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook bookie drain bk-2 bk-3 --wait --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook recovery status --metadata zk://zk1,zk2,zk3/ledgers",
    )
)
@_bookies
@with_metadata
@click.option(
    "--wait", is_flag=True, help="Wait until the bookies are drained or a drain has failed."
)
@click.option(
    "--force", is_flag=True, help="Drain even if too few bookies remain for some ledgers."
)
@output_option
def drain(
    metadata: Metadata, bookies: tuple[str, ...], wait: bool, force: bool, output: str
) -> None:
    """Move all copies off bookies that will leave.

    A recovery server must be running. The bookies still serve reads, but accept no entries until `undrain`, even
    after a restart. With --wait, the command exits with 5 if a drain has failed.
    """
    from rollbook.api.cli.bookie.decommission_actions import drain_bookies  # `--help` is quick.

    click.get_current_context().exit(drain_bookies(metadata, bookies, wait, force, output))


@click.command(
    epilog=examples(
        "rollbook bookie undrain bk-2 --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook bookie undrain bk-2 bk-3 --context prod",
        "rollbook bookie undrain bk-2 -o json --metadata zk://zk1/ledgers",
    )
)
@_bookies
@with_metadata
@output_option
def undrain(metadata: Metadata, bookies: tuple[str, ...], output: str) -> None:
    """Cancel the drain of bookies, so that they stay and accept entries again."""
    from rollbook.api.cli.bookie.decommission_actions import undrain_bookies  # `--help` is quick.

    undrain_bookies(metadata, bookies, output)


@click.command(
    epilog=examples(
        "rollbook bookie mark-drained bk-2 --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook bookie mark-drained bk-2 --yes --context prod",
        "rollbook recovery ls --failed --metadata zk://zk1,zk2,zk3/ledgers",
    )
)
@_bookies
@with_metadata
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@output_option
def mark_drained(metadata: Metadata, bookies: tuple[str, ...], yes: bool, output: str) -> None:
    """Declare bookies drained although their drain failed.

    Use it after the remaining ledgers were repaired or given up.
    """
    from rollbook.api.cli.bookie.decommission_actions import (
        mark_bookies_drained,  # `--help` is quick.
    )

    mark_bookies_drained(metadata, bookies, yes, output)


@click.command(
    epilog=examples(
        "rollbook bookie safe-to-remove bk-2 --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook bookie safe-to-remove bk-2 bk-3 --context prod",
        "rollbook bookie safe-to-remove bk-2 -o json --metadata zk://zk1/ledgers",
    )
)
@_bookies
@with_metadata
@output_option
def safe_to_remove(metadata: Metadata, bookies: tuple[str, ...], output: str) -> None:
    """Check whether these bookies can be removed, all together.

    They can be removed if no ledger names them and they accept no entries. The command reads the metadata
    of all ledgers. It exits with 0 if they can be removed, with 5 if not.
    """
    from rollbook.api.cli.bookie.decommission_actions import is_removal_safe  # `--help` is quick.

    click.get_current_context().exit(0 if is_removal_safe(metadata, bookies, output) else 5)


@click.command(
    epilog=examples(
        "rollbook bookie remove bk-2 --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook bookie remove bk-2 --yes --context prod",
        "rollbook bookie remove bk-2 --give-up 12 --yes --metadata zk://zk1/ledgers",
    )
)
@_bookies
@with_metadata
@click.option(
    "--give-up",
    "given_up",
    type=WholeNumber(0),
    metavar="LEDGERS",
    help="Remove the bookies although ledgers name them. LEDGERS is the number of ledgers that then fall below "
    "their ack quorum, as `safe-to-remove` shows it.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@output_option
def remove(
    metadata: Metadata, bookies: tuple[str, ...], given_up: int | None, yes: bool, output: str
) -> None:
    """Remove bookies from the cluster: delete their cookies and their states.

    The command is refused while one of the bookies runs, or while a ledger names one of them.
    `rollbook bookie format` and `rejoin` can use a removed id again.
    """
    from rollbook.api.cli.bookie.decommission_actions import remove_bookies  # `--help` is quick.

    remove_bookies(metadata, bookies, given_up, yes, output)
