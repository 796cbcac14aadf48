"""The commands of `rollbook access`, which manage principals and their rights. Their actions are in
`principal_actions.py`.
"""

from typing import Any, Final

import click

from rollbook.api.cli.click_types import WholeNumber
from rollbook.api.cli.lazy_group import AliasGroup
from rollbook.api.cli.output import examples, list_output_option

_FILE: Final = click.option(
    "--file", "path", metavar="FILE", required=True, help="The server's --access-file."
)
_YES: Final = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


@click.group(
    cls=AliasGroup,
    epilog=examples(
        "umask 077  # Nobody else can read new files.",
        "rollbook access add ingest --file access.toml --append 'team/*' > ingest.token",
        "rollbook access ls --file access.toml",
        "rollbook server log --metadata sqlite:///metadata.db --access-file access.toml",
    ),
)
def group() -> None:
    """Manage principals and their rights on logs.

    A log server with an --access-file admits only the principals in that file, and the operator whose token is
    in --token-file if that is given. It reads the access file again when it changes. To change the rights of a principal, edit the file.
    """


@group.command(
    epilog=examples(
        "umask 077  # Nobody else can read new files.",
        "rollbook access add ingest --file access.toml --append 'team/*' > ingest.token",
        "rollbook access add reports --file access.toml --read 'team/*' --deny team/salaries --days 30",
        "rollbook access add log-2 --file access.toml --certificate log-2.example.com "
        "--admin '*' --read '*' --append '*'",
    )
)
@click.argument("name")
@_FILE
@click.option(
    "--read",
    multiple=True,
    metavar="LOGS",
    help="Logs to read: ns/log, ns/prefix* or *; may be repeated.",
)
@click.option(
    "--append",
    multiple=True,
    metavar="LOGS",
    help="Logs to append to, in the same form as for --read.",
)
@click.option("--admin", multiple=True, metavar="LOGS", help="Logs to create, truncate, delete …")
@click.option(
    "--deny",
    multiple=True,
    metavar="LOGS",
    help="Logs on which the principal has no rights, even if other options allow them.",
)
@click.option("--monitor", is_flag=True, help="May read the metrics of servers (/metrics).")
@click.option(
    "--operate", is_flag=True, help="May drain bookies, control repairs and see their state."
)
@click.option(
    "--certificate",
    multiple=True,
    metavar="NAME",
    help="A name in the principal's client certificate, which is used instead of a token.",
)
@click.option(
    "--days", type=WholeNumber(min=1), help="Days until the token expires.  [default: never]"
)
@click.option("--append-records-per-s", type=WholeNumber(min=1), metavar="N")
@click.option("--append-bytes-per-s", type=WholeNumber(min=1), metavar="N")
@click.option("--read-records-per-s", type=WholeNumber(min=1), metavar="N")
@click.option("--read-bytes-per-s", type=WholeNumber(min=1), metavar="N")
@click.option(
    "--streams", type=WholeNumber(min=1), metavar="N", help="Streams that may be open at a time."
)
def add(**what: Any) -> None:
    """Add a principal, and print its token.

    The file keeps only the token's SHA-256, so the token cannot be printed again. A principal with
    certificates gets no token. Use `umask 077` first, so that other users cannot read the file to which you
    write the token.
    """
    from rollbook.api.cli.access import principal_actions

    principal_actions.add(**what)


@group.command(
    "ls",
    epilog=examples(
        "rollbook access ls --file access.toml",
        "rollbook access ls --file access.toml -o wide",
        "rollbook access ls --file /etc/rollbook/access.toml -o ndjson",
    ),
)
@_FILE
@list_output_option
def show(path: str, output: str) -> None:
    """List the principals. An error in the file is reported as a server would report it."""
    from rollbook.api.cli.access import principal_actions

    principal_actions.show(path, output)


@group.command(
    epilog=examples(
        "rollbook access rm ingest --file access.toml",
        "rollbook access rm ingest reports --file access.toml --yes",
        "rollbook access rm log-2 --file /etc/rollbook/access.toml --yes",
    )
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_FILE
@_YES
def rm(names: tuple[str, ...], path: str, yes: bool) -> None:
    """Remove principals. Servers refuse removed principals after they have read the file again."""
    from rollbook.api.cli.access import principal_actions

    principal_actions.remove(path, names, yes)


@group.command(
    epilog=examples(
        "umask 077; rollbook access rotate ingest --file access.toml > ingest.token",
        "umask 077; rollbook access rotate ingest --file access.toml --days 30 > ingest.token",
        "rollbook access rotate ingest --file access.toml --drop-old",
    )
)
@click.argument("name")
@_FILE
@click.option(
    "--days", type=WholeNumber(min=1), help="Days until the token expires.  [default: never]"
)
@click.option(
    "--drop-old",
    is_flag=True,
    help="Keep only the first token in the file, which is the newest if `rotate` added it; add none.",
)
def rotate(name: str, path: str, days: int | None, drop_old: bool) -> None:
    """Add a token for a principal, and print it. Earlier tokens stay valid until you use --drop-old."""
    from rollbook.api.cli.access import principal_actions

    if drop_old:
        if days:
            raise click.UsageError("--days is for a new token: leave out --days or --drop-old")
        principal_actions.drop_old_tokens(path, name)
        return
    principal_actions.rotate(path, name, days)


@group.command(
    epilog=examples(
        "rollbook access token",
        "umask 077; rollbook access token > new.token",
        "umask 077; rollbook access token | tee new.token",
    )
)
def token() -> None:
    """Print a new token, and its access-file entry on standard error.

    Add the entry at the beginning of the principal's `tokens`. When all clients have the new token, remove the old entry.
    """
    from rollbook.api.cli.access import principal_actions

    principal_actions.token()
