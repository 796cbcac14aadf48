"""The option `--rest-origin` of commands that run a log server."""

from typing import Final

import click

rest_origin_option: Final = click.option(
    "--rest-origin",
    metavar="ORIGIN",
    multiple=True,
    help="Web pages of this origin, such as http://localhost:3000, may call the HTTP API at --rest; * lets pages of "
    "all origins read. May be repeated.  [default: none]",
)
