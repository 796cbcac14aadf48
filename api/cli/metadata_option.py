"""Finds the cluster's metadata by `--metadata` or by a context."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from shlex import quote
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from rollbook.api.cli.context_option import context_option, named_of

F = TypeVar("F", bound=Callable[..., Any])

WHERE: Final = "The metadata store: zk://host,host/ledgers or sqlite:///path."


@dataclass(frozen=True, slots=True)
class Metadata:
    url: str
    context: str = ""  # The name of the context that the URL comes from, if any.

    @property
    def shown(self) -> str:
        """Returns the URL without the parts that may contain passwords."""
        from rollbook.proto.metastore.url import shown_url  # `--help` is quick.

        return shown_url(self.url)

    @property
    def flag(self) -> str:
        """Returns the flag that selects the same target in another command."""
        name, value = ("context", self.context) if self.context else ("metadata", self.shown)
        return f" --{name} {quote(value)}"


def metadata_option(help_text: str, **how: Any) -> Callable[[F], F]:
    return click.option(
        "--metadata",
        "url",
        metavar="URL",
        envvar="ROLLBOOK_METADATA",
        show_envvar=True,
        help=help_text,
        **how,
    )


_OPTIONS: Final = (
    metadata_option(f"{WHERE}  [default: the context's]"),
    context_option("metadata"),
)


def with_metadata(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--metadata` and `--context`, and passes them to the command as one value."""

    @wraps(command)
    def wrapped(url: str | None, context: str | None, **more: Any) -> Any:
        called = click.get_current_context()
        meant = metadata_that_is_meant(called, url, context)
        if meant is None:
            option = next(each for each in called.command.params if each.name == "url")
            raise click.MissingParameter(ctx=called, param=option)
        return command(meant, **more)

    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def metadata_or_server(called: click.Context, url: str | None) -> Metadata | None:
    """Returns the metadata, or None if the command has to ask a log server instead: if the user typed `--server`,
    or if neither an option nor a context names the metadata. Raises `InvalidRequest`.
    """
    typed = [
        name
        for name in ("url", "server")
        if called.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    if len(typed) > 1:
        from rollbook.proto.errors import InvalidRequest

        raise InvalidRequest(
            "give either --metadata or --server, not both", next_step="leave out one of them"
        )
    if typed == ["server"]:
        return None
    return metadata_that_is_meant(called, url, called.params.get("context"), is_needed=False)


def metadata_that_is_meant(
    called: click.Context, url: str | None, context: str | None, *, is_needed: bool = True
) -> Metadata | None:
    """Returns the metadata that the option or the context names, or None if neither is given. If the context names
    no metadata, it returns None, or raises `BadConfig` if `is_needed` is True. Raises `InvalidRequest`.
    """
    is_named, names_context = named_of(called, "url")
    if url and is_named:
        if names_context:
            from rollbook.proto.errors import InvalidRequest

            raise InvalidRequest(
                "give either --context or --metadata, not both (nor both ROLLBOOK_CONTEXT and "
                "ROLLBOOK_METADATA)"
            )
        return Metadata(url)
    from rollbook.api.context_file import find, load
    from rollbook.proto.errors import BadConfig

    # ROLLBOOK_SERVER may belong to another cluster than the current context.
    if not context and not os.environ.get("ROLLBOOK_SERVER"):
        context = load().current
    if not context:
        return None
    found = find(context)
    if not found.metadata and not is_needed:
        return None
    if not found.metadata:
        raise BadConfig(f"the context {context} names no metadata", next_step="use --metadata URL")
    return Metadata(found.metadata, context)
