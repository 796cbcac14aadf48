"""`--context`, and the names that complete it."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def names_of_contexts(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    from rollbook.api.cli.context_file import load
    from rollbook.proto.errors import BadConfig

    try:
        return [name for name in load().contexts if name.startswith(incomplete)]
    except BadConfig:  # Nothing is said of it in the middle of a line.
        return []


def context_option(unless: str) -> Callable[[F], F]:
    """`unless`: what comes before it."""
    return click.option(
        "--context",
        metavar="NAME",
        envvar="ROLLBOOK_CONTEXT",
        show_envvar=True,
        shell_complete=names_of_contexts,
        help=f"One of `rollbook context ls`, where no {unless} is named.",
    )
