"""The commands of `rollbook recovery`, which restore lost entries and control recovery servers.

Their actions are in `heal_bookie.py`, `recover_bookies.py`, `status.py` and `switches.py`, which are imported when a command
is called.
"""

from typing import TYPE_CHECKING, Any

import click

from rollbook.api.cli.click_types import WholeNumber
from rollbook.api.cli.ledger.commands import with_access
from rollbook.api.cli.log.commands import completed_by
from rollbook.api.cli.metadata_option import Metadata, with_metadata
from rollbook.api.cli.output import (
    bare_output_option,
    examples,
    list_output_option,
    output_option,
)

if TYPE_CHECKING:
    from rollbook.api.cli.ledger.connection import LedgerAccess


@click.group(
    epilog=examples(
        "rollbook recovery status --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook recovery pause --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook recovery heal bk-2 --metadata zk://zk1,zk2,zk3/ledgers --dry-run",
    )
)
def group() -> None:
    """Restore entries that bookies have lost, and control recovery servers."""


@group.command(
    epilog=examples(
        "rollbook recovery heal bk-2 --metadata zk://zk1,zk2,zk3/ledgers --dry-run",
        "rollbook recovery heal bk-2 --metadata zk://zk1/ledgers --http bk2:8001 --token-file token",
        "rollbook recovery heal bk-2 --metadata zk://zk1/ledgers --accept-loss 42 --accept-loss 43:0-99",
    )
)
@click.argument("bookie", shell_complete=completed_by("names_of_bookies"))
@with_access
@click.option(
    "--accept-loss",
    "accepted",
    metavar="LEDGER[:FIRST-LAST]",
    multiple=True,
    help="Give these entries up if they cannot be restored now, even if a bookie that is down may have a copy; "
    "may be repeated.",
)
@click.option(
    "--all",
    "includes_all",
    is_flag=True,
    help="Also restore missing entries of closed ledgers about which the bookie has no doubts.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
@click.option(
    "--http",
    metavar="URL",
    help="The address of the bookie's admin pages.  [default: the registered one]",
)
@click.option(
    "--token-file", metavar="FILE", help="The file with the token for the bookie's admin pages."
)
@click.option(
    "--ca-file",
    metavar="FILE",
    help="The CAs that sign the certificate of the bookie's admin pages.",
)
@click.option(
    "--insecure", is_flag=True, help="Send the token unencrypted, even to other machines."
)
@click.option(
    "--rate", "mib_per_s", type=WholeNumber(1), default=64, show_default=True,
    help="Copy at most this many MiB per second.",
)  # fmt: skip
@output_option
def heal(access: "LedgerAccess", **how: Any) -> None:
    """Restore entries that a bookie may have lost, and end its doubts.

    A bookie answers UNKNOWN for entries that it may have had, if it was formatted under a used id, was damaged, or
    had files written off. This delays recoveries. The command reads these entries from other bookies, verifies
    them, and writes them back. Ledgers that are not closed are recovered first, which ends their writers.

    Entries that cannot be restored stay UNKNOWN unless --accept-loss names them. The command may be stopped and run
    again at any time. It exits with 0 if all ledgers are healed, 5 if a ledger cannot be healed now, 7 if
    entries are lost.
    """
    from rollbook.api.cli.recovery import heal_bookie

    click.get_current_context().exit(heal_bookie.heal_bookie(access, **how))


@group.command(
    epilog=examples(
        "rollbook recovery bookie bk-2 --metadata zk://zk1,zk2,zk3/ledgers --dry-run",
        "rollbook recovery bookie bk-2 --to bk-7 --metadata zk://zk1,zk2,zk3/ledgers --yes",
        "rollbook recovery bookie bk-2 bk-3 --delete-cookie --metadata zk://zk1/ledgers --yes",
    )
)
@click.argument(
    "bookies",
    nargs=-1,
    required=True,
    metavar="BOOKIE…",
    shell_complete=completed_by("names_of_bookies"),
)
@with_access
@click.option(
    "--to",
    "targets",
    multiple=True,
    metavar="BOOKIE",
    help="A bookie that gets the copies, where possible; may be repeated.  [default: any]",
)
@click.option(
    "--ledger", "ledger_id", type=WholeNumber(0), metavar="LEDGER", help="Repair only this ledger."
)
@click.option(
    "--skip-open", is_flag=True, help="Skip ledgers whose open fragment names the bookie."
)
@click.option(
    "--delete-cookie",
    is_flag=True,
    help="Delete the bookie's cookie after all ledgers are repaired.",
)
@click.option(
    "--rate",
    "mib_per_s",
    type=WholeNumber(1),
    default=64,
    show_default=True,
    metavar="MIB",
    help="Copy at most this many MiB per second.",
)
@click.option("--dry-run", is_flag=True, help="Count the ledgers, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@output_option
def bookie(access: "LedgerAccess", **how: Any) -> None:
    """Copy the entries of lost bookies to other bookies immediately.

    No auditor is needed. Each ledger that names one of the bookies is repaired under its lock. So the command may
    run beside recovery servers, and may be stopped and run again. A ledger whose open fragment names the bookie is
    closed after 30 s, unless its writer replaces the bookie first. The command exits with 5 if a ledger could not
    be repaired.
    """
    from rollbook.api.cli.recovery import recover_bookies

    click.get_current_context().exit(recover_bookies.recover_bookies(access, **how))


# --- What recovery does -----------------------------------------------------------------------


@group.command(
    epilog=examples(
        "rollbook recovery status --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook recovery status --context prod",
        "rollbook recovery status --metadata zk://zk1/ledgers -o json | jq .ledgers_marked",
    )
)
@with_metadata
@output_option
def status(metadata: Metadata, output: str) -> None:
    """Show the state of recovery.

    The output has the auditor, the ledgers to repair, the ledgers that cannot be repaired, and the processes.
    """
    from rollbook.api.cli.recovery.status import show_status  # `--help` is quick.

    show_status(metadata, output)


@group.command(
    epilog=examples(
        "rollbook recovery ls --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook recovery ls --failed -o wide --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook recovery ls -o raw --metadata zk://zk1/ledgers | wc -l",
    )
)
@with_metadata
@click.option("--failed", is_flag=True, help="Only ledgers whose last repair failed.")
@click.option("--limit", type=WholeNumber(1), help="At most this many ledgers.")
@list_output_option
def ls(metadata: Metadata, failed: bool, limit: int | None, output: str) -> None:
    """List the ledgers to repair or drain, by id."""
    from rollbook.api.cli.recovery.status import list_tasks  # `--help` is quick.

    list_tasks(metadata, failed, limit, output)


@group.command(
    epilog=examples(
        "rollbook recovery audit --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook recovery audit --anyway --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook recovery status --metadata zk://zk1,zk2,zk3/ledgers",
    )
)
@with_metadata
@click.option(
    "--anyway",
    is_flag=True,
    help="Treat all bookies that are missing now as lost, even if there are many.",
)
@output_option
def audit(metadata: Metadata, anyway: bool, output: str) -> None:
    """Ask the auditor to audit the cluster now.

    It marks the ledgers of all missing bookies for repair without waiting for the lost-bookie delay, and runs all
    its checks. The checks go through all ledgers in the background; `recovery status` shows their progress. They
    examine lost bookies, racks, entry lists, and a share of the bytes. BookKeeper's auditor examines only lost
    bookies.

    If more than half of the bookies are missing, no ledger is marked without --anyway, because the cause is then
    usually a broken network.
    """
    from rollbook.api.cli.recovery.switches import audit_now  # `--help` is quick.

    audit_now(metadata, anyway, output)


@group.command(
    epilog=examples(
        "rollbook recovery auditor --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook recovery auditor --context prod",
        "rollbook recovery auditor -o json --metadata zk://zk1/ledgers",
    )
)
@with_metadata
@output_option
def auditor(metadata: Metadata, output: str) -> None:
    """Show which servers are the auditor and the steward. The steward carries out drains."""
    from rollbook.api.cli.recovery.status import show_auditor  # `--help` is quick.

    show_auditor(metadata, output)


@group.command(
    epilog=examples(
        "rollbook recovery pause --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook recovery pause --context prod",
        "rollbook recovery resume --metadata zk://zk1,zk2,zk3/ledgers",
    )
)
@with_metadata
def pause(metadata: Metadata) -> None:
    """Switch recovery off, for example for maintenance. No ledger is marked, and no repair begins."""
    from rollbook.api.cli.recovery.switches import switch  # `--help` is quick.

    switch(metadata, enables=False)


@group.command(
    epilog=examples(
        "rollbook recovery resume --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook recovery resume --context prod",
        "rollbook recovery status --metadata zk://zk1,zk2,zk3/ledgers",
    )
)
@with_metadata
def resume(metadata: Metadata) -> None:
    """Switch recovery on again."""
    from rollbook.api.cli.recovery.switches import switch  # `--help` is quick.

    switch(metadata, enables=True)


@group.command(
    epilog=examples(
        "rollbook recovery delay --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook recovery delay 600 --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook recovery delay -o raw --metadata zk://zk1/ledgers",
    )
)
@click.argument("seconds", type=WholeNumber(0), required=False)
@with_metadata
@bare_output_option
def delay(metadata: Metadata, seconds: int | None, output: str) -> None:
    """Show or set the lost-bookie delay in seconds.

    A bookie may be missing for this time before its ledgers are marked for repair. Setting the same delay again, or
    0, starts an audit immediately.
    """
    from rollbook.api.cli.recovery.switches import delay as show_delay  # `--help` is quick.

    show_delay(metadata, seconds, output)


@group.command(
    epilog=examples(
        "rollbook recovery rate --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook recovery rate 134217728 --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook recovery rate unlimited --metadata zk://zk1/ledgers",
    )
)
@click.argument("bytes_per_s", metavar="[BYTES_PER_S]", required=False)
@with_metadata
@bare_output_option
def rate(metadata: Metadata, bytes_per_s: str | None, output: str) -> None:
    """Show or set the maximum copy rate of each recovery server.

    Running servers adopt the new rate, and servers that start later use it, too. If the rate was never set, each
    server uses the rate in its settings. The rate is in bytes per second; 0 is the same as `unlimited`.
    """
    from rollbook.api.cli.recovery.switches import rate as show_rate  # `--help` is quick.

    show_rate(metadata, bytes_per_s, output)
