"""Looks up names for shell completion at the selected server, which must respond within `_PATIENCE_S`.

A completion that fails prints nothing, because the user is still typing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import click

from rollbook.api.cli.context_option import at_context, named_of
from rollbook.api.cli.log.commands import DEFAULT_SERVER
from rollbook.api.cli.log.connection import LogAccess
from rollbook.api.cli.metadata_option import metadata_that_is_meant
from rollbook.api.client.async_client import Client
from rollbook.logservice import messages
from rollbook.logservice.ids import LogName

_PATIENCE_S: Final = 0.3
_NAMES_MAX: Final = 1000
_DEFAULT: Final = "default/"
_POSITIONS: Final = ("earliest", "latest", "ts:", "ago:")
_OF_CURSOR: Final = "cursor:"


def names_of_logs(context: click.Context, incomplete: str) -> list[str]:
    namespace, slash, _ = incomplete.partition("/")

    async def names(client: Client) -> Iterable[str]:
        asked = messages.ListLogs(namespace if slash else "", limit=_NAMES_MAX)
        found: messages.LogNames = await client.ask(asked)
        logs = [str(each) for each in found.logs]
        return logs if slash else [each.removeprefix(_DEFAULT) for each in logs]

    return _ask(context, names, incomplete)


def names_of_servers(context: click.Context, incomplete: str) -> list[str]:
    async def names(client: Client) -> Iterable[str]:
        return [each.server_id for each in await client.servers()]

    return _ask(context, names, incomplete)


def names_of_cursors(context: click.Context, incomplete: str) -> list[str]:
    """Returns the cursors of the log that the command line names."""

    async def names(client: Client) -> Iterable[str]:
        # Parsing ends at an option that still lacks its value. The log's name may then be left in `args`.
        log = context.params.get("log") or context.args[0]
        found: messages.Cursors = await client.ask(messages.ListCursors(LogName.parse(log)))
        return [each.name for each in found.cursors]

    return _ask(context, names, incomplete)


def positions(context: click.Context, incomplete: str) -> list[str]:
    cursor = incomplete.removeprefix(_OF_CURSOR)
    cursors = names_of_cursors(context, cursor if incomplete.startswith(_OF_CURSOR) else "")
    possible = (*_POSITIONS, *(_OF_CURSOR + each for each in cursors))
    return [each for each in possible if each.startswith(incomplete)]


def names_of_bookies(context: click.Context, incomplete: str) -> list[str]:
    """Returns the ids of bookies in the selected metadata store."""
    from rollbook.api.cli.cluster.actions import run_on_store
    from rollbook.proto.cluster.cluster_root import Cluster
    from rollbook.proto.cluster.cookies import CookieNodes
    from rollbook.proto.ports import MetadataStore

    async def names(store: MetadataStore, cluster: Cluster) -> list[str]:
        return [str(each) for each in await CookieNodes(store, cluster.root).list()]

    said = context.params
    try:
        meant = metadata_that_is_meant(context, said.get("url"), said.get("context"))
        found = run_on_store(meant.url, names, timeout_s=_PATIENCE_S) if meant else []
    except Exception:  # noqa: BLE001  # Completion must not print any error in the middle of a line.
        return []
    return sorted(each for each in found if each.startswith(incomplete))


def _ask(
    context: click.Context, names: Callable[[Client], Awaitable[Iterable[str]]], incomplete: str
) -> list[str]:
    async def ask() -> Iterable[str]:
        async with asyncio.timeout(_PATIENCE_S):
            return await _access(context).use(names)

    try:
        return [each for each in asyncio.run(ask()) if each.startswith(incomplete)]
    except Exception:  # noqa: BLE001  # Completion must not print any error in the middle of a line.
        return []


def _access(context: click.Context) -> LogAccess:
    said = context.params
    server = said.get("server")
    tls = (said.get("tls_authorities"), said.get("tls_certificate"), said.get("tls_key"))
    access = LogAccess(
        server or DEFAULT_SERVER,
        said.get("token_file"),
        *tls,
        _PATIENCE_S,
        insecure=said.get("insecure", False),
        tls_name=said.get("tls_name"),
    )
    is_named, names_context = named_of(context, "server")
    name = said.get("context") if names_context else None
    if name or not is_named:
        access = at_context(access, name, is_named=is_named)
    return access
