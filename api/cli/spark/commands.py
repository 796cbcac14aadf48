"""The commands of `rollbook spark`, which run jobs over whole logs with Spark.

Their actions are in `jobs.py`, which imports pyspark and is imported when a command is called.
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

    The commands need `pip install 'rollbook[spark]'` and Java 17 or newer. Each command writes report.json and
    report.html. A log is `name`, `namespace/name` or `namespace/*`.
    """


def _work() -> Any:
    """Imports the actions. Raises `BadConfig` if pyspark is missing; the error says what to install."""
    try:
        from rollbook.api.cli.spark import jobs
    except ImportError as error:
        raise BadConfig(str(error)) from error
    return jobs


def _to_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options for the servers of the mirror."""
    there = "The servers of the mirror.  [default: the same servers]"
    options = (
        click.option("--to-server", metavar="URL", help=there),
        click.option(
            "--to-context",
            metavar="NAME",
            help="The context of the mirror, instead of --to-server.",
        ),
        click.option(
            "--to-token-file", metavar="FILE", help="The file with the token for --to-server."
        ),
        click.option(
            "--to-tls-authorities",
            metavar="FILE",
            help="The CAs that sign the certificates of --to-server.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


_master_option = click.option(
    "--master",
    metavar="URL",
    help="The Spark master.  [default: the master of spark-submit, or local[*]]",
)
_archive_help = "The directory of the archive. It must have this path on all of Spark's machines."


def _report_option(kind: str) -> Callable[[Any], Any]:
    return click.option(
        "--report",
        "report_folder",
        metavar="DIR",
        default=f"rollbook-{kind}",
        show_default=True,
        help="The directory for report.json and report.html.",
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
    "--archive",
    "path",
    metavar="DIR",
    required=True,
    help=f"{_archive_help} It is created if it does not exist.",
)
@click.option(
    "--cursor",
    default="archive",
    show_default=True,
    help="The protected cursor that follows the export.",
)
@click.option(
    "--every",
    metavar="TIME",
    help="Export again at this interval, such as 10m, until interrupted.  [default: once]",
)
@click.option(
    "--step-bytes",
    metavar="BYTES",
    default="1G",
    show_default=True,
    help="Export about this many bytes of records in each step.",
)
@_master_option
@_report_option("export")
@output_option
def export(access: "LogAccess", **how: Any) -> None:
    """Archive logs as Parquet files, by log and day.

    A file is part of the archive only if a manifest names it. After each step the protected cursor moves forward:
    truncation and retention keep records that are not archived. If an export was killed, run it again: it
    continues where the archive ends.
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
    "--archive",
    "path",
    metavar="DIR",
    help=f"{_archive_help} It is read and compared with the logs.",
)
@click.option("--offline", is_flag=True, help="Check only the archive, without calling a server.")
@click.option(
    "--mirror",
    metavar="LOG",
    help="Compare the only log in LOGS with this log, segment by segment.",
)
@_to_options
@_master_option
@_report_option("audit")
@output_option
def audit(access: "LogAccess", **how: Any) -> None:
    """Read whole logs and archives, and report what is wrong with them.

    A log must have each record once, in the order of offsets and times. The files of an archive must be unchanged
    and without gaps, and must have the same records as the log. The command exits with 7 if something is wrong.
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
    "--checkpoint",
    metavar="DIR",
    required=True,
    help="The directory of Spark's checkpoint. Each mirror needs a separate directory.",
)
@click.option(
    "--every",
    metavar="TIME",
    help="Copy a batch at this interval until interrupted.  [default: once]",
)
@_master_option
@_report_option("mirror")
@output_option
def mirror(access: "LogAccess", **how: Any) -> None:
    """Copy a log into another log, each record once and in order.

    The other log, the mirror, must exist, and may be in another cluster. Nothing else may append to it. Headers name
    the origin of a record: rollbook-log, rollbook-offset, rollbook-time. If the command was killed, run it again:
    it continues.
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
@click.option(
    "--archive", "path", metavar="DIR", required=True, help="The archive that `export` wrote."
)
@_report_option("restore")
@output_option
def restore(access: "LogAccess", **how: Any) -> None:
    """Append the archived records of a log to another log.

    TARGET must be an existing log. It gets each record of LOG once and in order. Records keep their values, keys,
    headers and event times. If a restore was killed, run it again: it continues. A
    damaged file is refused before any of its records is appended. The command runs on this machine, without
    Spark.
    """
    _work().restore_log(access, **how)
