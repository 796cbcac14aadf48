"""The commands of `rollbook log`, which create, append to, read, follow and truncate named logs.

Their actions are in `actions.py`, `append.py`, `read.py` and other modules of this package, which are imported when a
command is called.
"""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import click

from rollbook.api.cli.click_types import AnyBytes, Number, WholeNumber
from rollbook.api.cli.context_option import context_option, named_of
from rollbook.api.cli.lazy_group import LazyCommand, LazyGroup
from rollbook.api.cli.output import bare_output_option, examples, list_output_option

if TYPE_CHECKING:
    from rollbook.api.cli.log.connection import LogAccess

DEFAULT_SERVER: Final = "log://127.0.0.1:7400"
_FRAMES: Final = ("lf", "nul", "len32", "whole")
_POSITIONS: Final = "123, -10, earliest, latest, ts:TIME, ago:15m or cursor:NAME"


@click.group(
    cls=LazyGroup,
    places={
        "writer": LazyCommand(
            "rollbook.api.cli.log.writer_epoch_commands",
            "group",
            "Manage the writers of exclusive logs",
        ),
    },
    epilog=examples(
        "rollbook log create orders",
        "rollbook log append orders < lines.txt",
        "rollbook log tail orders",
        "rollbook log truncate orders --before ago:7d",
    ),
)
def group() -> None:
    """Create, append to, read, follow and truncate logs.

    A log is named `name` or `namespace/name`; without a namespace it is in `default`. `list`, `info`,
    `describe` and `delete` are accepted for `ls`, `show`, `show` and `rm`.
    """


# --- Common options -----------------------------------------------------------------------------

_OPTIONS: Final = (
    context_option("server"),
    click.option("--token-file", metavar="FILE", envvar="ROLLBOOK_TOKEN_FILE", show_envvar=True,
                 help="The file with the token for the server."),
    click.option("--tls-authorities", metavar="FILE", help="The CAs that must have signed the server's certificate."),
    click.option("--tls-certificate", metavar="FILE", help="The client's certificate, if the server requests one."),
    click.option("--tls-key", metavar="FILE", help="The key of --tls-certificate."),
    click.option("--tls-name", metavar="NAME",
                 help="The name in the servers' certificates.  [default: the name in --server]"),
    click.option("--insecure", is_flag=True, help="Send the token unencrypted, even to other machines."),
    click.option("--timeout", "timeout_s", type=Number(0.1), default=10.0,
                 show_default=True, help="Seconds to wait for the servers, including all retries."),
)  # fmt: skip
anyway_option: Final = click.option(
    "--anyway",
    is_flag=True,
    help="Continue even if fewer bookies accept records now than the log needs.",
)
yes_option: Final = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
_frame_option: Final = click.option(
    "--frame",
    type=click.Choice(_FRAMES),
    default="lf",
    show_default=True,
    help="The separator of raw records: a newline after each (lf), a zero byte after each (nul), a 4-byte length "
    "before each (len32), or nothing (whole).",
)
_format_option: Final = click.option(
    "-f",
    "--format",
    "template",
    type=AnyBytes(),
    metavar="FORMAT",
    help="The format of each record, instead of -o: %o offset, %t time, %k key, %v value, %v{hex} value in "
    "hexadecimal, %h headers, \\n newline. On a terminal, control characters are printed in a form such as \\x1b.",
)
_limit_option: Final = click.option(
    "--limit", type=WholeNumber(1), help="Stop after this many results."
)


def with_access_to(server: str | None, otherwise: str) -> Callable[[Any], Any]:
    """Passes the common options to the command as one value. `otherwise` describes, in the help, what is used if
    the user names no server.
    """
    server_option = click.option(
        "--server",
        metavar="URL",
        envvar="ROLLBOOK_SERVER",
        show_envvar=True,
        default=server,
        help=f"The log servers: log://host:port,host:port, or log+tls:// for TLS.  [default: {otherwise}]",
    )

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def wrapped(
            server: str | None,
            context: str | None,
            token_file: str | None,
            tls_authorities: str | None,
            tls_certificate: str | None,
            tls_key: str | None,
            tls_name: str | None,
            timeout_s: float,
            insecure: bool,
            **more: Any,
        ) -> Any:
            from rollbook.api.cli.log.connection import LogAccess

            tls = (tls_authorities, tls_certificate, tls_key)
            access = LogAccess(server or "", token_file, *tls, timeout_s, insecure, tls_name)
            is_named, names_context = named_of(click.get_current_context(), "server")
            name = context if names_context else None
            # In all other cases the command uses no context.
            if name or (server is not None and not is_named):
                from rollbook.api.cli.context_option import at_context

                access = at_context(access, name, is_named=is_named)
            return command(access, **more)

        for option in reversed((server_option, *_OPTIONS)):
            wrapped = option(wrapped)
        return wrapped

    return decorate


def _is_named(option: str) -> bool:
    source = click.get_current_context().get_parameter_source(option)
    return source is not click.core.ParameterSource.DEFAULT


def completed_by(name: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Returns a completion function that imports the named function when it is called."""

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        from rollbook.api.cli import name_completion

        found: list[str] = getattr(name_completion, name)(context, incomplete)
        return found

    return complete


log_argument: Final = click.argument("log", shell_complete=completed_by("names_of_logs"))
with_access: Final = with_access_to(DEFAULT_SERVER, DEFAULT_SERVER)


def _settings(command: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        click.option("--retention-age", metavar="TIME", help="Delete records older than this, such as 7d or 12h; `none` keeps all records."),
        click.option("--retention-bytes", metavar="BYTES", help="Delete the oldest records beyond this size, such as 10G or 500M; `none` keeps all records."),
        click.option("--roll-bytes", metavar="BYTES", help="Begin a new segment at this size."),
        click.option("--roll-age", metavar="TIME", help="Begin a new segment at this age."),
        click.option("--exclusive", is_flag=True, help="Only the holder of the writer epoch may append."),
        click.option("--copies", type=WholeNumber(1), help="Copies of each record, each on a different bookie."),
        click.option("--ensemble", type=WholeNumber(1), help="Number of bookies over which records are striped.  [default: --copies]"),
        click.option("--acks", type=WholeNumber(1), help="Number of copies on disk before a record is acknowledged."),
        click.option("--label", "labels", metavar="NAME=VALUE", multiple=True, help="A label; may be repeated."),
        click.option("--description", help="A description for people."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


# --- Creating and inspecting --------------------------------------------------------------------


@group.command(
    epilog=examples(
        "rollbook log create orders",
        "rollbook log create shop/orders --retention-age 7d --label team=checkout",
        "rollbook log create wal --exclusive --copies 5 --acks 3",
        "rollbook log create clicks --ensemble 6 --copies 3",
    )
)
@log_argument
@with_access
@_settings
@anyway_option
@bare_output_option
def create(access: "LogAccess", **how: Any) -> None:
    """Create a log. If the log already exists, it must have the given settings."""
    from rollbook.api.cli.log import actions

    actions.create_log(access, **how)


@group.command(
    epilog=examples(
        "rollbook log ls",
        "rollbook log ls ord --namespace shop --long",
        "rollbook log ls -o name | xargs -n 1 echo",
        "rollbook log ls --deleted",
    )
)
@click.argument("prefix", default="")
@with_access
@click.option("--namespace", default="", help="Only logs of this namespace.")
@click.option(
    "--long", "-l", is_flag=True, help="Also show each log's offsets, size, segments and owner."
)
@click.option("--deleted", is_flag=True, help="List deleted logs whose records are still kept.")
@_limit_option
@list_output_option
def ls(access: "LogAccess", **how: Any) -> None:
    """List logs by name.

    PREFIX selects the logs whose names begin with it, in all namespaces. shop/ord selects the logs of the
    namespace shop whose names begin with ord, and shop/ selects all logs of that namespace.
    """
    from rollbook.api.cli.log import actions

    if how.pop("deleted"):
        if how.pop("long"):
            raise click.UsageError("--long and --deleted cannot be combined: leave out one of them")
        actions.list_deleted(access, **how)
        return
    actions.list_logs(access, **how)


@group.command(
    epilog=examples(
        "rollbook log tails",
        "rollbook log tails shop/ord -o ndjson | jq .tail",
        "rollbook log tails shop/ --follow",
    )
)
@click.argument("prefix", default="")
@with_access
@click.option(
    "--follow", "-F", is_flag=True, help="Then show each change, until you interrupt the command."
)
@list_output_option
def tails(access: "LogAccess", **how: Any) -> None:
    """Show the tails of many logs, without opening the logs.

    PREFIX has the form namespace/prefix: shop/ selects all logs of shop. Without PREFIX, all logs are shown. A
    tail that is not exact may be too low: the log's owner died, and no other server has found the last records
    yet.
    """
    from rollbook.api.cli.log import actions

    actions.show_tails(access, **how)


@group.command(
    epilog=examples(
        "rollbook log show orders",
        "rollbook log show orders -o json | jq .config.retention_age_s",
        "rollbook log show orders -o raw",
    )
)
@log_argument
@with_access
@bare_output_option
def show(access: "LogAccess", **how: Any) -> None:
    """Show the head, the tail, the owner and the settings of a log. `-o raw` prints the tail."""
    from rollbook.api.cli.log import actions

    actions.show_log(access, **how)


@group.command(
    "set",
    epilog=examples(
        "rollbook log set orders retention_age=7d",
        "rollbook log set orders retention_bytes=none labels=team=checkout,env=prod",
        "rollbook log set wal exclusive=true description='the journal of the shop' -o json",
    ),
)
@log_argument
@click.argument("settings", metavar="KEY=VALUE…", nargs=-1, required=True)
@with_access
@click.option("--dry-run", is_flag=True, help="Only show what would be changed.")
@anyway_option
@yes_option
@bare_output_option
def change(access: "LogAccess", **how: Any) -> None:
    """Change the named settings of a log in one step. All other settings stay unchanged.

    The settings are the same as in `rollbook apply`: retention_age, retention_bytes, roll_bytes, roll_age,
    roll_entries, exclusive, labels, description, copies, acks, ensemble, dedupe_age, delete_grace, … `-o raw`
    prints the log's name.
    """
    from rollbook.api.cli.log.set import set_log

    set_log(access, **how)


@group.command(
    epilog=examples(
        "rollbook log segments orders",
        "rollbook log segments orders -o json | jq '.[].ledger_id'",
        "rollbook log segments orders -o raw",
    )
)
@log_argument
@with_access
@list_output_option
def segments(access: "LogAccess", **how: Any) -> None:
    """List the segments of a log. `-o raw` prints the ids of their ledgers."""
    from rollbook.api.cli.log import actions

    actions.list_segments(access, **how)


@group.command(
    epilog=examples(
        "rollbook log journal orders",
        "rollbook log journal orders --limit 5",
        "rollbook log journal orders -o ndjson | jq -r .kind",
    )
)
@log_argument
@with_access
@click.option("--limit", type=WholeNumber(1, 1000), default=100, show_default=True)
@bare_output_option
def journal(access: "LogAccess", **how: Any) -> None:
    """Show the history of a log, newest first.

    The history has events such as changes of the owner, rolls and truncations, with their reasons.
    """
    from rollbook.api.cli.log import actions

    actions.show_history(access, **how)


# --- Appending ----------------------------------------------------------------------------------


@group.command(
    epilog=examples(
        "rollbook log append orders < lines.txt",
        "rollbook log append orders 'one record' 'another one'",
        "rollbook log append orders paid --key 4711 --header source=shop --event-time 2026-01-31T10:00:00Z",
        "rollbook log append copy --create --format ndjson < orders.ndjson",
        "rollbook log append orders --producer import-2026-01 --expect 0 < lines.txt",
        "rollbook log append orders --format whole --create < image.png",
        "rollbook log append wal --holder me < lines.txt",
        "rollbook log append wal --holder me --steal < lines.txt",
    )
)
@log_argument
@click.argument("values", nargs=-1, type=AnyBytes())
@with_access
@click.option("--create", is_flag=True, help="Create the log if it does not exist.")
@click.option("--key", type=AnyBytes(), metavar="TEXT", help="The key of each record.")
@click.option(
    "--header",
    "headers",
    type=AnyBytes(),
    metavar="NAME=VALUE",
    multiple=True,
    help="A header of each record; may be repeated with other names.",
)
@click.option(
    "--event-time",
    metavar="TIME",
    help="The event time of each record, such as 2026-01-31T10:00:00Z.",
)
@click.option(
    "--format",
    "--frame",
    "frame",
    type=click.Choice(("lines", "ndjson", "json", "nul", "len32", "whole", "lf")),
    default="lines",
    show_default=True,
    help="The format of the input. ndjson and json are records as `log read -o ndjson` and `-o json` write them, with "
    "key, headers and event time. nul, len32 and whole have the same meaning as in --frame of `log read`. lf is the "
    "same as lines.",
)
@click.option(
    "--producer",
    metavar="NAME",
    help="The name of this input. The same input under the same name is appended only once, even after a crash.",
)
@click.option(
    "--expect",
    type=WholeNumber(0),
    metavar="OFFSET",
    help="The offset that the first record must get. If it would get another offset, nothing is appended.",
)
@click.option(
    "--holder",
    metavar="NAME",
    help="The name of the writer, for an exclusive log; earlier writers are fenced.",
)
@click.option(
    "--steal", is_flag=True, help="Fence the current writer even if it has another holder."
)
@bare_output_option
def append(access: "LogAccess", **how: Any) -> None:
    """Append records, in order and each exactly once.

    The records are VALUES, or the lines of standard input. They are durable when the command exits with 0. If
    it fails or is interrupted, it reports how many records are acknowledged, and how many later records may have
    been appended.
    """
    from rollbook.api.cli.log.append import append_input

    append_input(access, **how)


# --- Reading ------------------------------------------------------------------------------------


def _require_one_dress(template: str | None) -> None:
    for other in ("output", "frame"):
        if template is not None and _is_named(other):
            raise click.UsageError(f"-f defines the whole output: leave out --{other}")


@group.command(
    epilog=examples(
        "rollbook log read orders",
        "rollbook log read orders --from ago:15m --limit 10",
        "rollbook log read orders --from ts:2026-01-31T10:00:00Z -o ndjson",
        "rollbook log read orders --from -10 -o raw",
        r"rollbook log read orders -f '%o %t %k=%v\n'",
    )
)
@log_argument
@with_access
@click.option(
    "--from",
    "start",
    metavar="POSITION",
    shell_complete=completed_by("positions"),
    default="earliest",
    show_default=True,
    help=f"Where to begin: {_POSITIONS}.",
)
@click.option(
    "--to",
    "end",
    type=WholeNumber(0),
    help="Stop before this offset.  [default: the tail]",
)
@_limit_option
@_frame_option
@_format_option
@bare_output_option
def read(access: "LogAccess", **how: Any) -> None:
    """Print the records up to the current tail. `-o raw` prints their values, separated as --frame says.

    The table shows values that are not text in hexadecimal, after `hex:`.
    """
    _require_one_dress(how["template"])
    from rollbook.api.cli.log.read import print_records

    print_records(access, follows=False, **how)


@group.command(
    epilog=examples(
        "rollbook log tail orders",
        "rollbook log tail orders -n 20",
        "rollbook log tail orders --from earliest -o raw",
        "rollbook log tail orders --from cursor:billing --limit 100 -o ndjson",
        r"rollbook log tail orders -f '%o\t%v{base64}\n'",
    )
)
@log_argument
@with_access
@click.option(
    "--from",
    "start",
    metavar="POSITION",
    default="-10",
    show_default=True,
    shell_complete=completed_by("positions"),
    help=f"Where to begin: {_POSITIONS}.",
)
@click.option(
    "-n",
    "--lines",
    type=WholeNumber(0),
    metavar="N",
    help="Begin with the last N records; the same as --from -N.",
)
@click.option(
    "--skip-truncated",
    is_flag=True,
    help="Continue at the head if the next records were truncated.",
)
@_limit_option
@_frame_option
@_format_option
@bare_output_option
def tail(access: "LogAccess", **how: Any) -> None:
    """Print the last records of a log and all new ones, until the log is sealed.

    The table shows values that are not text in hexadecimal, after `hex:`.
    """
    _require_one_dress(how["template"])
    if (lines := how.pop("lines")) is not None:
        if _is_named("start"):
            raise click.UsageError("-n and --from both set the position: leave out one of them")
        how["start"] = f"-{lines}" if lines else "latest"
    from rollbook.api.cli.log.read import print_records

    print_records(access, follows=True, end=None, **how)


@group.command(
    epilog=examples(
        "rollbook log export orders orders.rbx",
        "rollbook log export shop/orders orders.rbx --context prod -o json",
        "rollbook log export orders orders.rbx -o raw",
    )
)
@log_argument
@click.argument("file", type=click.Path(dir_okay=False))
@with_access
@bare_output_option
def export(access: "LogAccess", **how: Any) -> None:
    """Write the records of a log to a file, up to the current tail.

    The file has values, keys, headers and event times. It is compressed and has checksums. If you run the
    command again, even after an interruption, it adds the records that the file lacks. `-o raw` prints the offset
    after the last record.
    """
    from rollbook.api.cli.log import export_import

    export_import.export_log(access, **how)


@group.command(
    "import",
    epilog=examples(
        "rollbook log import orders orders.rbx --create",
        "rollbook log import shop/orders-copy orders.rbx --create --context test",
        "rollbook log import orders orders.rbx -o raw",
    ),
)
@log_argument
@click.argument("file", type=click.Path(dir_okay=False))
@with_access
@click.option("--create", is_flag=True, help="Create the log if it does not exist.")
@click.option("--incomplete", is_flag=True, help="Accept a file whose export was interrupted.")
@bare_output_option
def import_(access: "LogAccess", **how: Any) -> None:
    """Append the records of a file that `export` wrote, each once.

    The log may have no other records. If you run the command again, even after an interruption, it compares the
    records in the log with the file, and appends the missing ones. The first record of the file gets offset 0.
    Each record gets the time of its import. `-o raw` prints the log's tail.
    """
    from rollbook.api.cli.log import export_import

    export_import.import_log(access, **how)


# --- Permanent changes --------------------------------------------------------------------------


@group.command(
    epilog=examples(
        "rollbook log truncate orders --before 1000 --dry-run",
        "rollbook log truncate orders --before ago:7d --yes",
        "rollbook log truncate orders --before -100 --force-roll --yes",
    )
)
@log_argument
@with_access
@click.option(
    "--before",
    metavar="POSITION",
    shell_complete=completed_by("positions"),
    required=True,
    help=f"The position of the first record to keep: {_POSITIONS}.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option(
    "--force-roll",
    is_flag=True,
    help="Also free records of the open segment, by beginning a new one.",
)
@yes_option
@bare_output_option
def truncate(access: "LogAccess", **how: Any) -> None:
    """Make the records before a position unreadable.

    Segments that have no other records are freed. The command is refused, and truncates nothing, if it would
    remove records at or above a protected cursor.
    `-o raw` prints the new head.
    """
    from rollbook.api.cli.log import actions

    actions.truncate_log(access, **how)


@group.command(
    epilog=examples(
        "rollbook log seal orders",
        "rollbook log seal orders --yes",
        "rollbook log seal orders --yes -o raw",
    )
)
@log_argument
@with_access
@yes_option
@bare_output_option
def seal(access: "LogAccess", **how: Any) -> None:
    """Seal a log permanently. `-o raw` prints its tail.

    Nothing can be appended any more, and readers stop at the tail.
    """
    from rollbook.api.cli.log import actions

    actions.seal_log(access, **how)


@group.command(
    epilog=examples(
        "rollbook log roll orders",
        "rollbook log roll orders -o raw",
        "rollbook log roll shop/orders -o json",
    )
)
@log_argument
@with_access
@bare_output_option
def roll(access: "LogAccess", **how: Any) -> None:
    """Begin a new segment, unless the open segment is empty. `-o raw` prints the number of the open segment."""
    from rollbook.api.cli.log import actions

    actions.roll_log(access, **how)


@group.command(
    epilog=examples(
        "rollbook log verify orders",
        "rollbook log verify shop/orders --timeout 600",
        "rollbook log verify orders -o raw",
    )
)
@log_argument
@with_access
@bare_output_option
def verify(access: "LogAccess", **how: Any) -> None:
    """Read a whole log, check each block, and check that no offset is missing.

    `-o raw` prints the number of records. `rollbook ledger verify` checks every copy of a ledger's entries.
    """
    from rollbook.api.cli.log.verify import verify_log

    verify_log(access, **how)


@group.command(
    epilog=examples(
        "rollbook log transfer orders log-2",
        "rollbook log transfer shop/orders 10.0.0.5:7400",
        "rollbook log transfer orders log-2 -o raw",
    )
)
@log_argument
@click.argument("to", metavar="SERVER", shell_complete=completed_by("names_of_servers"))
@with_access
@bare_output_option
def transfer(access: "LogAccess", **how: Any) -> None:
    """Hand a log over to another log server; appends do not fail. `-o raw` prints the new owner's address."""
    from rollbook.api.cli.log.ownership_transfer import transfer_log

    transfer_log(access, **how)


@group.command(
    epilog=examples(
        "rollbook log rm orders",
        "rollbook log rm shop/orders shop/carts --yes",
        "rollbook log rm orders --now --yes",
    )
)
@click.argument("logs", nargs=-1, required=True, shell_complete=completed_by("names_of_logs"))
@with_access
@click.option(
    "--grace", metavar="TIME", help="Keep the records for this time.  [default: as configured]"
)
@click.option(
    "--now", is_flag=True, help="The same as --grace 0s: free the records and the name immediately."
)
@yes_option
@bare_output_option
def rm(access: "LogAccess", **how: Any) -> None:
    """Delete logs. They disappear immediately; their records are kept for a grace period."""
    if how.pop("now"):
        if _is_named("grace"):
            raise click.UsageError("--now is the same as --grace 0s: leave out one of them")
        how["grace"] = "0s"
    from rollbook.api.cli.log import actions

    actions.remove_logs(access, **how)


@group.command(
    epilog=examples(
        "rollbook log undelete orders",
        "rollbook log undelete 5f0c1d2e3a4b5c6d7e8f90a1b2c3d4e5",
        "rollbook log undelete orders --as orders-of-before",
    )
)
@click.argument("log", metavar="LOG|UID")
@with_access
@click.option(
    "--as",
    "name",
    metavar="NAME",
    help="A new name, allowed only if another log has taken the old name since. Without it, the log gets its old "
    "name back.",
)
@bare_output_option
def undelete(access: "LogAccess", **how: Any) -> None:
    """Restore a deleted log with its records. `-o raw` prints its name."""
    from rollbook.api.cli.log import actions

    actions.undelete_log(access, **how)
