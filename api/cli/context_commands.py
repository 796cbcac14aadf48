"""The commands of `rollbook context`, which name clusters. `context_file.py` reads and writes the file."""

import os
from typing import Any

import click

from rollbook.api.cli.context_option import names_of_contexts
from rollbook.api.cli.lazy_group import AliasGroup
from rollbook.api.cli.output import examples, list_output_option

_name = click.argument("name", shell_complete=names_of_contexts)


@click.group(
    cls=AliasGroup,
    epilog=examples(
        "rollbook context add prod --server log+tls://log-1:7400 --token-file prod.token",
        "rollbook context use prod",
        "rollbook log ls --context prod",
    ),
)
def group() -> None:
    """Name clusters, and select the one that commands use if no server is named."""


@group.command(
    epilog=examples(
        "rollbook context add here --server log://127.0.0.1:7400",
        "rollbook context add prod --server log+tls://log-1:7400 --token-file prod.token --use",
        "rollbook context add prod --server log+tls://log-1:7400,log-2:7400 --tls-authorities ca.pem",
    )
)
@_name
@click.option(
    "--server", metavar="URL", required=True, help="The log servers: log://host:port,host:port."
)
@click.option(
    "--token-file",
    metavar="FILE",
    help="The file with the token. Each command reads the file; the context has no copy of the token.",
)
@click.option("--tls-authorities", metavar="FILE")
@click.option("--tls-certificate", metavar="FILE")
@click.option("--tls-key", metavar="FILE")
@click.option(
    "--tls-name",
    metavar="NAME",
    help="The name in the certificates of all log servers of the context.  [default: the name in --server]",
)
@click.option(
    "--insecure", is_flag=True, help="Send the token unencrypted, even to other machines."
)
@click.option(
    "--metadata",
    metavar="URL",
    help="The metadata store, for `cluster`, `ledger`, `recovery` and `debug`.",
)
@click.option("--use", is_flag=True, help="Make it the current context.")
def add(
    name: str,
    server: str,
    insecure: bool,
    tls_name: str | None,
    metadata: str | None,
    use: bool,
    **files: Any,
) -> None:
    """Add a context, or replace the one with this name. The first context becomes the current context."""
    from rollbook.api import context_file
    from rollbook.api.cli.cluster.actions import parse_url
    from rollbook.api.client.url import parse_log_url

    parse_log_url(server)  # Reports an invalid URL now, rather than when the context is used.
    if metadata:
        parse_url(metadata)
    known = context_file.load()
    paths = {key: os.path.abspath(value) for key, value in files.items() if value}
    known.contexts[name] = context_file.Context(
        server, **paths, tls_name=tls_name or "", insecure=insecure, metadata=metadata or ""
    )
    current = name if use or not known.current else known.current
    context_file.save(context_file.Contexts(current, known.contexts))


@group.command(
    epilog=examples("rollbook context use prod", "rollbook context use here", "rollbook context ls")
)
@_name
def use(name: str) -> None:
    """Select the context that commands use if no server is named."""
    from rollbook.api import context_file

    context_file.find(name)
    context_file.save(context_file.Contexts(name, context_file.load().contexts))


@group.command(
    epilog=examples(
        "rollbook context ls",
        "rollbook context ls -o wide",
        "rollbook context ls -o name",
    )
)
@list_output_option
def ls(output: str) -> None:
    """List the contexts."""
    from rollbook.api import context_file
    from rollbook.api.cli.output import tell_rows
    from rollbook.proto.metastore.url import shown_url

    known = context_file.load()
    rows = [
        {"name": name, "current": name == known.current}
        | {key: getattr(context, key) for key in context_file.KEYS}
        | {"metadata": shown_url(context.metadata)}
        for name, context in known.contexts.items()
    ]
    columns = ("name", "current", "server", "token_file")
    wide = [key for key in context_file.KEYS if key not in columns]
    tell_rows(columns, rows, output, "name", wide)


@group.command(
    epilog=examples("rollbook context rm here", "rollbook context rm prod", "rollbook context ls")
)
@_name
def rm(name: str) -> None:
    """Remove a context."""
    from rollbook.api import context_file

    context_file.find(name)
    known = context_file.load()
    del known.contexts[name]
    current = "" if known.current == name else known.current
    context_file.save(context_file.Contexts(current, known.contexts))
