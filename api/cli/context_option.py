"""The option `--context` and its completion."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from rollbook.api.cli.log.connection import LogAccess

_FOR_ACCESS: Final = (
    "token_file",
    "tls_authorities",
    "tls_certificate",
    "tls_key",
    "tls_name",
    "insecure",
)
F = TypeVar("F", bound=Callable[..., Any])


def names_of_contexts(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    from rollbook.api.context_file import load
    from rollbook.proto.errors import BadConfig

    try:
        return [name for name in load().contexts if name.startswith(incomplete)]
    except BadConfig:  # Completion must not print errors in the middle of a line.
        return []


def named_of(called: click.Context, place: str) -> tuple[bool, bool]:
    """Returns whether the option `place` (`server` or `url`) is set, and whether `--context` is set. If only one
    of them is typed, the environment variable of the other is ignored.
    """
    place_source, context_source = map(called.get_parameter_source, (place, "context"))
    typed = ParameterSource.COMMANDLINE
    if (place_source is typed) != (context_source is typed):
        return place_source is typed, context_source is typed
    unsaid = (None, ParameterSource.DEFAULT)
    return place_source not in unsaid, context_source not in unsaid


def context_option(unless: str) -> Callable[[F], F]:
    """Returns the option `--context`; the option `unless` takes precedence over it."""
    return click.option(
        "--context",
        metavar="NAME",
        envvar="ROLLBOOK_CONTEXT",
        show_envvar=True,
        shell_complete=names_of_contexts,
        help=f"The context to use if --{unless} is not given; `rollbook context ls` lists the contexts.",
    )


def at_context(access: "LogAccess", name: str | None, *, is_named: bool) -> "LogAccess":
    """Adds the values of a context to `access`. `name` is the name of the context; None means the current context,
    if there is one. `is_named` means that the user named a server. Raises `BadConfig`, `InvalidRequest`.
    """
    from rollbook.api.context_file import find, load
    from rollbook.proto.errors import InvalidRequest

    if name and is_named:
        raise InvalidRequest(
            "give either --context or --server, not both (nor both ROLLBOOK_CONTEXT and ROLLBOOK_SERVER)"
        )
    name = name or load().current
    if not name:
        return access
    context = find(name)
    taken: dict[str, Any] = {"server": context.server}
    for each in _FOR_ACCESS:
        if not getattr(access, each) and (value := getattr(context, each)):
            taken[each] = value
    return replace(access, context=name, of_context=frozenset(taken), **taken)
