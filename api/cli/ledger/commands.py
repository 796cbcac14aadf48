"""The commands of `rollbook ledger`, which inspect, write, read, recover and verify ledgers of any BookKeeper
cluster.

Their actions are in `actions.py` and other modules of this package, which are imported when a command is called.
"""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import click

from rollbook.api.cli.click_types import Number, WholeNumber
from rollbook.api.cli.lazy_group import AliasGroup
from rollbook.api.cli.metadata_option import Metadata, with_metadata
from rollbook.api.cli.output import bare_output_option, examples, list_output_option

if TYPE_CHECKING:
    from rollbook.api.cli.ledger.connection import LedgerAccess

FRAMES: Final = ("lf", "nul", "len32", "whole")
_DIGESTS: Final = ("crc32c", "crc32", "hmac", "dummy")
_ID: Final = WholeNumber(min=0, max=2**63 - 1)


@click.group(
    cls=AliasGroup,
    epilog=examples(
        "rollbook ledger append --metadata zk://zk1,zk2,zk3/ledgers < lines.txt",
        "rollbook ledger read 42 --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook ledger verify --all --metadata sqlite:///var/lib/rollbook/metadata.db",
    ),
)
def group() -> None:
    """Show, write, read, recover and verify ledgers."""


# --- Common options -----------------------------------------------------------------------------

_OPTIONS: Final = (
    with_metadata,
    click.option(
        "--config",
        metavar="FILE",
        help="A TOML file with the client's settings in its section [ledger].",
    ),
    click.option(
        "--protocol",
        type=click.Choice(("2", "3")),
        help="Version of BookKeeper's protocol between client and bookies.  [default: 3]",
    ),
    click.option(
        "--tls-authorities",
        "--bookie-authorities",
        "tls_authorities",
        metavar="FILE",
        help="Connect to bookies over TLS; these CAs sign their certificates.",
    ),
    click.option(
        "--tls-certificate",
        "--bookie-certificate",
        "tls_certificate",
        metavar="FILE",
        help="The certificate for bookies that request one.",
    ),
    click.option(
        "--tls-key",
        "--bookie-key",
        "tls_key",
        metavar="FILE",
        help="The key of --tls-certificate.  [default: in the certificate's file]",
    ),
)
_password_option: Final = click.option(
    "--password",
    envvar="ROLLBOOK_PASSWORD",
    show_envvar=True,
    help="The ledger's password.  [default: the one in its metadata]",
)
_yes_option: Final = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
_part_option: Final = click.option(
    "--part-of-log", metavar="NAME", help="Continue although the ledger is a segment of this log."
)
_quorum_options: Final = (
    click.option("--ensemble", type=WholeNumber(1), default=3, show_default=True,
                 help="Number of bookies that share the ledger."),
    click.option("--write", type=WholeNumber(1), default=3, show_default=True,
                 help="Number of copies of each entry."),
    click.option("--ack", type=WholeNumber(1), default=2, show_default=True,
                 help="Number of copies on disk that confirm an entry."),
    click.option("--digest", type=click.Choice(_DIGESTS), default="crc32c", show_default=True,
                 help="The digest that protects each entry."),
    click.option("--custom", metavar="NAME=VALUE", multiple=True,
                 help="Custom metadata of the ledger; may be repeated."),
)  # fmt: skip
_frame_option: Final = click.option(
    "--frame",
    type=click.Choice(FRAMES),
    default="lf",
    show_default=True,
    help="The separator of entries: a newline after each (lf), a zero byte after each (nul), a 4-byte length before "
    "each (len32), or nothing (whole).",
)


def with_access(command: Callable[..., Any]) -> Callable[..., Any]:
    """Passes the common options to the command as one value."""

    @wraps(command)
    def wrapped(
        metadata: Metadata,
        config: str | None,
        protocol: str | None,
        tls_authorities: str | None,
        tls_certificate: str | None,
        tls_key: str | None,
        **more: Any,
    ) -> Any:
        from rollbook.api.cli.ledger.connection import LedgerAccess

        access = LedgerAccess(metadata, config, protocol, tls_authorities, tls_certificate, tls_key)
        return command(access, **more)

    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def _with_quorum(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_quorum_options):
        command = option(command)
    return command


# --- Inspecting ---------------------------------------------------------------------------------


@group.command(
    epilog=examples(
        "rollbook ledger ls --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook ledger ls --long --start 1000 --limit 20 --metadata zk://zk1/ledgers",
        "rollbook ledger ls -o raw --metadata zk://zk1/ledgers | wc -l",
    )
)
@with_access
@click.option("--long", "-l", is_flag=True, help="Also show each ledger's metadata.")
@click.option("--start", type=_ID, default=0, help="Begin with this id.")
@click.option("--limit", type=WholeNumber(1), help="At most this many ledgers.")
@list_output_option
def ls(access: "LedgerAccess", **how: Any) -> None:
    """List the cluster's ledgers by id."""
    from rollbook.api.cli.ledger import actions

    actions.list_ledgers(access, **how)


@group.command(
    epilog=examples(
        "rollbook ledger show 42 --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook ledger show 42 -o json --metadata zk://zk1/ledgers | jq '.fragments[].ensemble'",
        "rollbook ledger show 42 -o raw --metadata zk://zk1/ledgers > 42.metadata",
    )
)
@click.argument("ledger_id", type=_ID)
@with_access
@bare_output_option
def show(access: "LedgerAccess", **how: Any) -> None:
    """Show the metadata of a ledger, without asking a bookie. `-o raw` prints the metadata as it is stored."""
    from rollbook.api.cli.ledger import actions

    actions.show_ledger(access, **how)


@group.command(
    epilog=examples(
        "rollbook ledger verify 42 43 --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook ledger verify --all --metadata zk://zk1/ledgers",
        "rollbook ledger verify 42 -o json --metadata zk://zk1/ledgers | jq .flaws",
    )
)
@click.argument("ledger_ids", type=_ID, nargs=-1)
@with_access
@click.option("--all", "every", is_flag=True, help="Verify every ledger of the cluster.")
@_password_option
@bare_output_option
def verify(access: "LedgerAccess", **how: Any) -> None:
    """Read every copy of every entry, and report unsound copies.

    A copy is missing, bad (its digest is wrong), different (from most others), unknown (its bookie
    may have lost it) or unreachable. Nothing is repaired. The command exits with 0 if all copies are good; with 8
    if some are not, but every entry has a good copy; with 5 if an entry has no copy that can be reached now, or
    too few bookies report where an open ledger ends; with 7 if entries are lost.
    """
    from rollbook.api.cli.ledger import verify as ledger_verify

    click.get_current_context().exit(ledger_verify.verify_ledgers(access, **how))


# --- Writing ------------------------------------------------------------------------------------


@group.command(
    epilog=examples(
        "rollbook ledger create --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook ledger create --ensemble 5 --write 3 --ack 2 --custom owner=me --metadata zk://zk1/ledgers",
        "id=$(rollbook ledger create -o raw --metadata zk://zk1/ledgers)",
    )
)
@with_access
@_with_quorum
@click.option(
    "--password",
    envvar="ROLLBOOK_PASSWORD",
    show_envvar=True,
    default="",
    help="The ledger's password.",
)
@click.option("--ledger-id", type=_ID, help="The id to use instead of the next free one.")
@bare_output_option
def create(access: "LedgerAccess", **how: Any) -> None:
    """Create a ledger for a later writer: `rollbook ledger append ID`.

    A ledger has only one writer, so only the first append to it succeeds.
    """
    from rollbook.api.cli.ledger import actions

    actions.create_ledger(access, **how)


@group.command(
    epilog=examples(
        "rollbook ledger append --metadata zk://zk1,zk2,zk3/ledgers < lines.txt",
        "rollbook ledger append 42 --frame nul --metadata zk://zk1/ledgers < records",
        "rollbook ledger append --frame whole --metadata zk://zk1/ledgers < image.png",
    )
)
@click.argument("ledger_id", type=_ID, required=False)
@with_access
@_with_quorum
@_password_option
@_frame_option
@bare_output_option
def append(access: "LedgerAccess", **how: Any) -> None:
    """Write standard input to a ledger, and close the ledger.

    Without LEDGER_ID, the command creates a ledger with the given quorum options. With LEDGER_ID, it uses a ledger
    that `rollbook ledger create` created. Entries that were confirmed before an interruption are kept.
    """
    from rollbook.api.cli.ledger.append import append_input

    append_input(access, **how)


@group.command(
    epilog=examples(
        "rollbook ledger rm 42 43 --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook ledger rm 42 --yes --metadata zk://zk1/ledgers",
        "rollbook ledger rm 42 --force --yes --metadata zk://zk1/ledgers",
    )
)
@click.argument("ledger_ids", type=_ID, nargs=-1, required=True)
@with_access
@_password_option
@_yes_option
@_part_option
@click.option(
    "--force", is_flag=True, help="Delete the ledgers even if their writers cannot be stopped."
)
@bare_output_option
def rm(access: "LedgerAccess", **how: Any) -> None:
    """Delete ledgers with all their entries. The writer of a ledger is stopped first.

    A segment of a log is refused unless --part-of-log names the log, because the log would lose records.
    """
    from rollbook.api.cli.ledger import actions

    actions.remove_ledgers(access, **how)


@group.command(
    epilog=examples(
        "rollbook ledger recover 42 --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook ledger recover 42 -o raw --metadata zk://zk1/ledgers",
        "rollbook ledger recover 42 43 -o ndjson --metadata zk://zk1/ledgers",
    )
)
@click.argument("ledger_ids", type=_ID, nargs=-1, required=True)
@with_access
@_password_option
@_part_option
@bare_output_option
def recover(access: "LedgerAccess", **how: Any) -> None:
    """Stop a ledger's writer permanently, and close the ledger.

    Afterwards the ledger has every entry that was confirmed. `-o raw` prints the id of the last entry. A segment
    of a log is refused unless --part-of-log names the log, because the log's owner would be stopped.
    """
    from rollbook.api.cli.ledger import actions

    actions.recover_ledgers(access, **how)


# --- Reading ------------------------------------------------------------------------------------


@group.command(
    epilog=examples(
        "rollbook ledger read 42 --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook ledger read 42 --first 100 --limit 10 -o ndjson --metadata zk://zk1/ledgers",
        "rollbook ledger read 42 --follow -o raw --metadata zk://zk1/ledgers",
    )
)
@click.argument("ledger_id", type=_ID)
@with_access
@click.option("--first", type=_ID, default=0, help="Begin with this entry.")
@click.option("--last", type=_ID, help="End with this entry.  [default: the last confirmed one]")
@click.option("--limit", type=WholeNumber(1), help="At most this many entries.")
@click.option("--follow", "-f", is_flag=True, help="Follow the writer until the ledger is closed.")
@click.option(
    "--unconfirmed", is_flag=True, help="Also read unconfirmed entries, which may disappear later."
)
@_password_option
@_frame_option
@bare_output_option
def read(access: "LedgerAccess", **how: Any) -> None:
    """Print the entries of a ledger.

    `-o raw` prints their bytes, separated as --frame says. JSON has `payload` as text, or else `payload_base64`.
    """
    from rollbook.api.cli.ledger.read import read_entries

    read_entries(access, **how)


@group.command(
    epilog=examples(
        "rollbook ledger bench --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook ledger bench --size 1024 --window 4000 --seconds 20 --metadata zk://zk1/ledgers",
        "rollbook ledger bench --protocol 2 -o json --metadata zk://zk1/ledgers",
    )
)
@with_access
@_with_quorum
@click.option(
    "--size", type=WholeNumber(0), default=100, show_default=True, help="Bytes of each entry."
)
@click.option(
    "--window",
    type=WholeNumber(1),
    default=1000,
    show_default=True,
    help="Number of unconfirmed entries in flight.",
)
@click.option(
    "--seconds", type=Number(0.1), default=10.0, show_default=True, help="Seconds to append."
)
@click.option("--keep", is_flag=True, help="Do not delete the ledger afterwards.")
@bare_output_option
def bench(access: "LedgerAccess", **how: Any) -> None:
    """Measure appends to a ledger, and reads from it. `-o raw` prints appends per second.

    The command creates a ledger, and deletes it afterwards unless --keep is given.
    """
    from rollbook.api.cli.ledger import bench as ledger_bench

    ledger_bench.measure(access, **how)
