"""Asks for confirmation before a command destroys something."""

import sys

import click

from rollbook.proto.errors import NotConfirmed
from rollbook.proto.printable import harmless


def ask_whether(what: str, yes: bool) -> None:
    """Asks the user for confirmation, unless `yes` is True. Raises `NotConfirmed` if there is no terminal, or if
    the user declines.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise NotConfirmed(f"this would {what}", next_step="pass --yes to confirm it")
    try:
        is_meant = click.confirm(f"Really {harmless(what)}?", err=True)
    except click.Abort as error:
        if not isinstance(error.__context__, EOFError):  # Ctrl-C is not an answer.
            raise
        click.echo(err=True)  # Ends the line of the question.
        is_meant = False
    if not is_meant:
        raise NotConfirmed("nothing was done, since that was not meant")
