"""Names for a shell that completes: from the server that is meant, if it answers at once."""

import asyncio
from typing import Any, Final

import click

_PATIENCE_S: Final = 0.3
_NAMES_MAX: Final = 1000
_DEFAULT: Final = "default/"


def names_of_logs(context: click.Context, incomplete: str) -> list[str]:
    """Empty where nobody can tell: somebody is typing."""
    try:
        return asyncio.run(_ask(context.params, incomplete))
    except Exception:  # noqa: BLE001  # Whatever it is, it is not said in the middle of a line.
        return []


async def _ask(said: dict[str, Any], incomplete: str) -> list[str]:
    from rollbook.api.cli.context_file import at_context
    from rollbook.api.cli.log import DEFAULT_SERVER
    from rollbook.api.cli.log_access import LogAccess
    from rollbook.api.client.client import Client
    from rollbook.logservice import words

    server = said.get("server")
    tls = (said.get("tls_authorities"), said.get("tls_certificate"), said.get("tls_key"))
    access = LogAccess(server or DEFAULT_SERVER, said.get("token_file"), *tls, _PATIENCE_S)
    is_named = server not in (None, DEFAULT_SERVER)
    if said.get("context") or not is_named:
        access = at_context(access, said.get("context"), is_named=is_named)
    namespace, slash, _ = incomplete.partition("/")

    async def names(client: Client) -> list[str]:
        asked = words.ListLogs(namespace if slash else "", limit=_NAMES_MAX)
        found: words.LogNames = await client.ask(asked)
        told = [str(each) for each in found.logs]
        if not slash:
            told = [each.removeprefix(_DEFAULT) for each in told]
        return [each for each in told if each.startswith(incomplete)]

    async with asyncio.timeout(_PATIENCE_S):
        return await access.use(names)
