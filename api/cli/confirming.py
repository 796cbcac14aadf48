"""Nothing is destroyed unasked."""

import sys

import click

from rollbook.proto.errors import NotConfirmed


def ask_whether(what: str, yes: bool) -> None:
    """`yes`: it was said beforehand. Raises `NotConfirmed` where nobody can answer."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise NotConfirmed(f"this would {what}", next_step="say --yes if that is meant")
    click.confirm(f"Really {what}?", abort=True, err=True)
