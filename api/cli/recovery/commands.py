"""The commands of `rollbook recovery`, which restore lost entries and control recovery servers.

Their actions are in `actions.py`, `bookie.py` and `status.py`, which are imported when a command is called.
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
    """Bring back what bookies have lost, and watch over recovery."""


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
    help="Give these entries up if they cannot be had; may be repeated.",
)
@click.option("--all", "includes_all", is_flag=True, help="Also closed ledgers that it forgot.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("--http", metavar="URL", help="Its admin pages.  [default: where it says they are]")
@click.option("--token-file", metavar="FILE", help="Of its admin pages.")
@click.option("--ca-file", metavar="FILE", help="Who signs the certificate of its admin pages.")
@click.option("--insecure", is_flag=True, help="Show the token in the clear off loopback, too.")
@click.option(
    "--rate", "mib_per_s", type=WholeNumber(1), default=64, show_default=True,
    help="MiB a second that are copied at most.",
)  # fmt: skip
@output_option
def heal(access: "LedgerAccess", **how: Any) -> None:
    """Bring back what a bookie may have lost, and end its doubts.

    A bookie that was formatted under a used id, was damaged, or had something written off answers UNKNOWN
    for what it may have held, which holds up recoveries. Each such entry is read from other bookies,
    verified, and written back. Ledgers that are not closed are recovered for it, which ends their writers.

    Entries without any copy stay UNKNOWN unless they are accepted as lost by name. It may be stopped
    and run again at any time. Ends with 0 if the bookie is whole, 5 if a state is unknown now,
    7 if entries are lost.
    """
    from rollbook.api.cli.recovery import actions as recovery_work

    click.get_current_context().exit(recovery_work.heal_bookie(access, **how))


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
    help="Takes the copies, where it can.  [default: any]",
)
@click.option(
    "--ledger", "ledger_id", type=WholeNumber(0), metavar="LEDGER", help="This ledger only."
)
@click.option(
    "--skip-open", is_flag=True, help="Leave ledgers alone whose open end names the bookie."
)
@click.option(
    "--delete-cookie", is_flag=True, help="Take the bookie out of the cluster when all is done."
)
@click.option(
    "--rate",
    "mib_per_s",
    type=WholeNumber(1),
    default=64,
    show_default=True,
    metavar="MIB",
    help="MiB per second that are copied at most.",
)
@click.option("--dry-run", is_flag=True, help="Count the ledgers, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@output_option
def bookie(access: "LedgerAccess", **how: Any) -> None:
    """Make the copies of bookies that are gone on other bookies, now and without an auditor.

    Each ledger that names one of them is repaired under its lock, so this may run beside recovery
    servers, and be stopped and run again. A ledger whose open end names the bookie is closed after 30 s,
    unless its writer leaves the bookie first. Ends with 5 if a ledger could not be repaired.
    """
    from rollbook.api.cli.recovery import bookie as recovery_bookie

    click.get_current_context().exit(recovery_bookie.recover_bookies(access, **how))


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
    """Show who audits, what is to be repaired, what cannot be, and which processes take part."""
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
@click.option("--failed", is_flag=True, help="Only those whose last repair failed.")
@click.option("--limit", type=WholeNumber(1), help="At most this many.")
@list_output_option
def ls(metadata: Metadata, failed: bool, limit: int | None, output: str) -> None:
    """List the ledgers that are to be repaired or drained, by their ids."""
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
    "--anyway", is_flag=True, help="The bookies that are missing now are lost, however many."
)
@output_option
def audit(metadata: Metadata, anyway: bool, output: str) -> None:
    """Ask the auditor to mark the ledgers of all missing bookies now, without the delay, and to make all its checks.

    The checks go over all ledgers at their own pace: of lost bookies, racks, entry lists, and a share of the bytes.
    `recovery status` shows how far they are. BookKeeper's auditor looks for lost bookies only.

    If more than half of the bookies are missing at once, nothing is marked without --anyway: as a
    rule it is the network that is broken then.
    """
    from rollbook.api.cli.recovery.status import audit_now  # `--help` is quick.

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
    """Show who is the auditor, and who looks after drains."""
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
    """Switch recovery off, as for maintenance: nothing is marked, and no repair begins."""
    from rollbook.api.cli.recovery.status import switch  # `--help` is quick.

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
    from rollbook.api.cli.recovery.status import switch  # `--help` is quick.

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
    """Show or set how long a bookie may be missing before its ledgers are marked.

    To write the same delay again, or 0, asks for an audit at once.
    """
    from rollbook.api.cli.recovery.status import delay as show_delay  # `--help` is quick.

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
    """Show or set how many bytes per second each recovery server copies at most.

    Servers that run follow it within a moment, and those that start later begin with it. Where nobody has
    set it, each has the rate of its own settings. 0 is `unlimited`.
    """
    from rollbook.api.cli.recovery.status import rate as show_rate  # `--help` is quick.

    show_rate(metadata, bytes_per_s, output)
