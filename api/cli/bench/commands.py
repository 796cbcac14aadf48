"""The commands of `rollbook bench`, which measure a cluster of log servers from this machine.

Their actions are in `actions.py` and `load.py`, which are imported when a command is called.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from rollbook.api.cli.click_types import Number, WholeNumber
from rollbook.api.cli.log.commands import with_access_to
from rollbook.api.cli.output import bare_output_option, examples

if TYPE_CHECKING:
    from rollbook.api.cli.log.connection import LogAccess

_with_access: Final = with_access_to(None, "a temporary cluster on this machine")


@click.group(
    epilog=examples(
        "rollbook bench append",
        "rollbook bench read --size 1024",
        "rollbook bench tail --rate 100 --server log://127.0.0.1:7400",
    )
)
def group() -> None:
    """Measure how fast records are appended, read and followed, in a running cluster or a temporary one.

    The command creates logs, appends random bytes to them, and deletes them. Latencies are accurate to 1 %.
    """


def _sizes(records: int | None, size_min: int = 0) -> Callable[[Any], Any]:
    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        options = (
            click.option("--size", type=WholeNumber(size_min, 4 << 20), default=100,
                         show_default=True, metavar="BYTES", help="Bytes of each record."),
            click.option("--records", type=WholeNumber(1), default=records,
                         show_default=records is not None,
                         help="Number of records in all logs." if records
                         else "Maximum number of records in all logs."),
            click.option("--logs", type=WholeNumber(1, 10_000), default=1, show_default=True,
                         help="Number of logs that are used at the same time."),
        )  # fmt: skip
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _pace(rate: float | None) -> Callable[[Any], Any]:
    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        options = (
            click.option("--writers", type=WholeNumber(1, 1_000), default=1, show_default=True,
                         help="Number of writers of each log."),
            click.option("--rate", type=Number(0, min_open=True), default=rate,
                         show_default=rate is not None,
                         help="Records per second of all writers together."
                         + ("" if rate else "  [default: as fast as possible]")),
            click.option("--seconds", type=Number(0, min_open=True), default=10.0,
                         show_default=True, help="Seconds to measure, after one second of warm-up."),
        )  # fmt: skip
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_keep_option: Final = click.option("--keep", is_flag=True, help="Do not delete the logs.")


@group.command(
    epilog=examples(
        "rollbook bench append",
        "rollbook bench append --in-flight 1 --server log://127.0.0.1:7400",
        "rollbook bench append --rate 20000 --logs 10 --writers 2 --size 1024 -o json",
    )
)
@_with_access
@_sizes(None)
@_pace(None)
@click.option(
    "--in-flight",
    type=WholeNumber(1),
    help="The most unacknowledged records of each writer; with 1 it waits for each ack.  [default: as many as its "
    "buffer holds]",
)
@_keep_option
@bare_output_option
def append(access: "LogAccess", **how: Any) -> None:
    """Append records, each exactly once and durably. `-o raw` prints records per second.

    Latency is measured from the time when the record was submitted until its ack. With --rate it is measured from
    the time when the record was due, so that a slow server cannot hide its delay. Without --rate and --in-flight,
    one record in a thousand is timed, or more if there are few. A percentile needs enough timed records: p99 a
    hundred, p999 a thousand.
    """
    from rollbook.api.cli.bench import actions

    actions.measure_appends(access, **how)


@group.command(
    epilog=examples(
        "rollbook bench read",
        "rollbook bench read --size 1024 --readers 4 --server log://127.0.0.1:7400",
        "rollbook bench read --as records -o json | jq .records_per_s",
    )
)
@_with_access
@_sizes(1_000_000)
@click.option(
    "--readers",
    type=WholeNumber(1, 1_000),
    default=1,
    show_default=True,
    help="Number of readers of each log.",
)
@click.option(
    "--as",
    "how",
    type=click.Choice(("values", "records")),
    default="values",
    show_default=True,
    help="Read batches of values, or an object for each record.",
)
@_keep_option
@bare_output_option
def read(access: "LogAccess", **how: Any) -> None:
    """Append records, then read them from the start. `-o raw` prints records per second.

    Latency is the time that a reader waits for its next batch.
    """
    from rollbook.api.cli.bench import actions

    actions.measure_reads(access, **how)


@group.command(
    epilog=examples(
        "rollbook bench tail",
        "rollbook bench tail --rate 5000 --logs 10 --server log://127.0.0.1:7400",
        "rollbook bench tail --seconds 60 -o json | jq .p99_ms",
    )
)
@_with_access
@_sizes(None, size_min=8)
@_pace(100.0)
@_keep_option
@bare_output_option
def tail(access: "LogAccess", **how: Any) -> None:
    """Measure how long records take from a writer to a following reader. `-o raw` prints the p99 in ms.

    The command appends at a steady rate. Latency is measured from the time when the record was due to be appended
    until the log's reader has received it.
    """
    from rollbook.api.cli.bench import actions

    actions.measure_tails(access, **how)
