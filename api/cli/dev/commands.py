"""`rollbook dev`: a whole cluster in one process, for a laptop.

The cluster is in `dev/local_cluster.py`, which is imported when the command is called.
"""

import click

from rollbook.api.cli.bookie.options import LOG_LEVELS
from rollbook.api.cli.click_types import WholeNumber
from rollbook.api.cli.output import examples
from rollbook.api.cli.rest_origin_option import rest_origin_option


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
    help="With 3 or more, one may fail without harm.",
)
@click.option(
    "--data",
    metavar="DIR",
    default="rollbook-data",
    show_default=True,
    help="Made if need be; what is in it is there again next time.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Of gRPC.  [default: 127.0.0.1:7400, or a free port if that is taken]",
)
@click.option(
    "--rest",
    metavar="HOST:PORT",
    help="Of HTTP.  [default: 127.0.0.1:7480, or a free port if that is taken]",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Of management and dashboard.  [default: 127.0.0.1:7500, or a free port if that is taken]",
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
    """Run a whole cluster here: bookies, a log server, the embedded metadata store.

    It prints where it is, and runs until it is stopped (Ctrl-C).
    """
    from rollbook.api.cli.dev.run import run_dev  # `--help` is quick.

    run_dev(bookies, data, listen, rest, http, log_level, rest_origin)
