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

_with_access: Final = with_access_to(
    None, "a cluster of its own on this machine, for as long as it runs"
)


@click.group(
    epilog=examples(
        "rollbook bench append",
        "rollbook bench read --size 1024",
        "rollbook bench tail --rate 100 --server log://127.0.0.1:7400",
    )
)
def group() -> None:
    """Measure appending, reading and following, against a running cluster or one of its own.

    Records are random bytes, in logs that it makes and deletes. Latencies are to the next 1 %.
    """


def _sizes(records: int | None, size_min: int = 0) -> Callable[[Any], Any]:
    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        options = (
            click.option("--size", type=WholeNumber(size_min, 4 << 20), default=100,
                         show_default=True, metavar="BYTES", help="Of a record."),
            click.option("--records", type=WholeNumber(1), default=records,
                         show_default=records is not None,
                         help="In all." if records else "At most this many in all."),
            click.option("--logs", type=WholeNumber(1, 10_000), default=1, show_default=True,
                         help="The number of logs, all at the same time."),
        )  # fmt: skip
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _pace(rate: float | None) -> Callable[[Any], Any]:
    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        options = (
            click.option("--writers", type=WholeNumber(1, 1_000), default=1, show_default=True,
                         help="To each log."),
            click.option("--rate", type=Number(0, min_open=True), default=rate,
                         show_default=rate is not None,
                         help="Records a second in all."
                         + ("" if rate else "  [default: as fast as goes]")),
            click.option("--seconds", type=Number(0, min_open=True), default=10.0,
                         show_default=True, help="After one to warm up."),
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
    help="Records of each writer; 1 is one after the other.  [default: as many as it has room for]",
)
@_keep_option
@bare_output_option
def append(access: "LogAccess", **how: Any) -> None:
    """Append, each record exactly once and durably. `raw` is records a second.

    A latency ends with the ack. It begins when the record was submitted, or with --rate when it should have been:
    that of a server which is late all the time is not hidden. Of a flood every thousandth is timed, of few
    records more; a percentile wants enough of them: p99 a hundred, p999 a thousand.
    """
    from rollbook.api.cli.bench import actions as bench_work

    bench_work.measure_appends(access, **how)


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
    "--readers", type=WholeNumber(1, 1_000), default=1, show_default=True, help="Of each log."
)
@click.option(
    "--as",
    "how",
    type=click.Choice(("values", "records")),
    default="values",
    show_default=True,
    help="Batches of values, or an object for each record.",
)
@_keep_option
@bare_output_option
def read(access: "LogAccess", **how: Any) -> None:
    """Append records, then read them from the start. `raw` is records a second.

    A latency is how long a reader waits for its next batch.
    """
    from rollbook.api.cli.bench import actions as bench_work

    bench_work.measure_reads(access, **how)


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
    """Append at a pace and follow: how long until a record is where it is waited for. `raw` is p99 in ms.

    A latency begins when the record should have been appended, and ends when its log's reader has it.
    """
    from rollbook.api.cli.bench import actions as bench_work

    bench_work.measure_tails(access, **how)
