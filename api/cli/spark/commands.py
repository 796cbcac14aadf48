"""The commands of `rollbook spark`, which run jobs over whole logs with Spark.

Their actions are in `actions.py`, which imports pyspark and is imported when a command is called.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from rollbook.api.cli.log.commands import with_access
from rollbook.api.cli.output import examples, output_option
from rollbook.proto.errors import BadConfig

if TYPE_CHECKING:
    from rollbook.api.cli.log.connection import LogAccess


@click.group(
    epilog=examples(
        "rollbook spark export orders --archive /archive",
        "rollbook spark audit orders --archive /archive",
        "rollbook spark audit 'shop/*'",
    )
)
def group() -> None:
    """Archive, audit, mirror and restore whole logs with Spark.

    Wants `pip install 'rollbook[spark]'` and Java 17 or newer. Each command writes report.json and report.html. A log is
    `name`, `namespace/name` or `namespace/*`.
    """


def _work() -> Any:
    """Imports the actions. Raises `BadConfig` without pyspark; the error says what to install."""
    try:
        from rollbook.api.cli.spark import actions as spark_work
    except ImportError as error:
        raise BadConfig(str(error)) from error
    return spark_work


def _to_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options for the servers of the other log."""
    there = "Of the other log.  [default: the same servers]"
    options = (
        click.option("--to-server", metavar="URL", help=there),
        click.option("--to-context", metavar="NAME", help="In place of --to-server."),
        click.option("--to-token-file", metavar="FILE", help="For --to-server."),
        click.option("--to-tls-authorities", metavar="FILE", help="For --to-server."),
    )
    for option in reversed(options):
        command = option(command)
    return command


_master_option = click.option(
    "--master", metavar="URL", help="Of Spark.  [default: local[*], or that of spark-submit]"
)
_archive_help = "A folder, which has this path on all machines of Spark."


def _report_option(kind: str) -> Callable[[Any], Any]:
    return click.option(
        "--report",
        "report_folder",
        metavar="DIR",
        default=f"rollbook-{kind}",
        show_default=True,
        help="Where report.json and report.html go.",
    )


@group.command(
    epilog=examples(
        "rollbook spark export orders --archive /archive",
        "rollbook spark export 'shop/*' --archive /archive --every 10m",
        "rollbook spark export orders --archive /archive --cursor archive-2 -o json",
    )
)
@click.argument("logs", nargs=-1, required=True)
@with_access
@click.option(
    "--archive", "path", metavar="DIR", required=True, help=f"{_archive_help} Made if need be."
)
@click.option(
    "--cursor", default="archive", show_default=True, help="The protected cursor that follows it."
)
@click.option(
    "--every", metavar="TIME", help="Again and again, as 10m, until interrupted.  [default: once]"
)
@click.option(
    "--step-bytes",
    metavar="BYTES",
    default="1G",
    show_default=True,
    help="Of records, about, in a step.",
)
@_master_option
@_report_option("export")
@output_option
def export(access: "LogAccess", **how: Any) -> None:
    """Archive logs as Parquet files, by log and day.

    Files count when a manifest names them. After each step a protected cursor moves, so that truncation and retention
    leave what is not archived. An export that was killed is run again, and goes on where the archive ends.
    """
    _work().export_logs(access, **how)


@group.command(
    epilog=examples(
        "rollbook spark audit orders",
        "rollbook spark audit 'shop/*' --archive /archive",
        "rollbook spark audit orders --archive /archive --offline",
        "rollbook spark audit orders --mirror orders-copy --to-context paris",
    )
)
@click.argument("logs", nargs=-1, required=True)
@with_access
@click.option(
    "--archive", "path", metavar="DIR", help=f"{_archive_help} It is read back, and compared."
)
@click.option("--offline", is_flag=True, help="Look at the archive alone, and ask no server.")
@click.option(
    "--mirror", metavar="LOG", help="Compared with the one log that is named, by segment."
)
@_to_options
@_master_option
@_report_option("audit")
@output_option
def audit(access: "LogAccess", **how: Any) -> None:
    """Read whole logs and archives, and say what is wrong with them.

    A log has each record once, in the order of offsets and times. An archive has each file as it was written, without a
    hole between them, and the same records as its log. Ends with 7 if something is found.
    """
    _work().audit_logs(access, **how)


@group.command(
    epilog=examples(
        "rollbook spark mirror orders orders-copy --checkpoint /state/orders",
        "rollbook spark mirror orders orders --to-context paris --checkpoint /state/paris --every 5s",
        "rollbook spark audit orders --mirror orders-copy",
    )
)
@click.argument("log")
@click.argument("target")
@with_access
@_to_options
@click.option(
    "--checkpoint", metavar="DIR", required=True, help="Of Spark: where it is. One for each mirror."
)
@click.option(
    "--every",
    metavar="TIME",
    help="On and on, a batch so often, until interrupted.  [default: once]",
)
@_master_option
@_report_option("mirror")
@output_option
def mirror(access: "LogAccess", **how: Any) -> None:
    """Copy a log into another one, which is there, also of another cluster: each record once, in order.

    Headers say where a record comes from: rollbook-log, rollbook-offset, rollbook-time. Nobody else writes to a mirror. One
    that was killed is run again, and goes on.
    """
    _work().mirror_log(access, **how)


@group.command(
    epilog=examples(
        "rollbook spark restore orders orders-again --archive /archive",
        "rollbook spark restore shop/orders shop/orders-2026 --archive /archive",
        "rollbook spark restore orders orders --archive /archive --context paris",
    )
)
@click.argument("log")
@click.argument("target")
@with_access
@click.option("--archive", "path", metavar="DIR", required=True, help="What export wrote.")
@_report_option("restore")
@output_option
def restore(access: "LogAccess", **how: Any) -> None:
    """Append what an archive has of LOG to another log, which is there: each record once, in order.

    Records keep value, key, headers and event time. A restore that was killed is run again, and goes on. A damaged file
    is refused before anything of it is appended. It runs here, without Spark.
    """
    _work().restore_log(access, **how)
