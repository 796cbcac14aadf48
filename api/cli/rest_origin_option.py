"""The option `--rest-origin` of commands that run a log server."""

from typing import Final

import click

rest_origin_option: Final = click.option(
    "--rest-origin",
    metavar="ORIGIN",
    multiple=True,
    help="Pages of this origin may use --rest from a browser, as http://localhost:3000; * lets pages of every "
    "origin read. Repeatable.  [default: none]",
)
