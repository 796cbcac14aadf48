"""`rollbook dev`: runs a whole cluster in one process, for development on a laptop.

The cluster is in `dev/local_cluster.py`, which is imported when the command is called.
"""

import click

from rollbook.api.cli.bookie.options import LOG_LEVELS
from rollbook.api.cli.click_types import WholeNumber
from rollbook.api.cli.cors_option import rest_origin_option
from rollbook.api.cli.output import examples


@click.command(
    epilog=examples(
        "rollbook dev",
        "rollbook dev --bookies 1 --data /tmp/rollbook",
        "rollbook dev --listen 127.0.0.1:0",
    )
)
@click.option(
    "--bookies",
    type=WholeNumber(1, 16),
    default=3,
    show_default=True,
    help="Number of bookies; with 3 or more, the cluster works without one of them.",
)
@click.option(
    "--data",
    metavar="DIR",
    default="rollbook-data",
    show_default=True,
    help="The directory of all data. It is created if it does not exist. The next run uses the same data again.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Address of gRPC.  [default: 127.0.0.1:7400, or a free port if that is taken]",
)
@click.option(
    "--rest",
    metavar="HOST:PORT",
    help="Address of HTTP.  [default: 127.0.0.1:7480, or a free port if that is taken]",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Address of management and dashboard.  [default: 127.0.0.1:7500, or a free port if that is taken]",
)
@rest_origin_option
@click.option("--log-level", type=click.Choice(LOG_LEVELS), default="warning", show_default=True)
def group(
    bookies: int,
    data: str,
    listen: str | None,
    rest: str | None,
    http: str | None,
    rest_origin: tuple[str, ...],
    log_level: str,
) -> None:
    """Run a whole cluster on this machine: bookies, a log server, recovery and the embedded metadata store.

    The command prints the addresses of the servers, and runs until it is stopped (Ctrl-C).
    """
    from rollbook.api.cli.dev.run import run_dev  # `--help` is quick.

    run_dev(bookies, data, listen, rest, http, log_level, rest_origin)
