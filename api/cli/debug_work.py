"""What `rollbook debug bundle` gathers: JSON by subject, in one archive that its owner alone may read."""

import io
import json
import os
import platform
import sys
import tarfile
import time
from collections.abc import Awaitable, Sequence
from dataclasses import asdict
from enum import Enum
from importlib.metadata import version
from typing import Any, Final

import click

from rollbook import __version__
from rollbook.api.cli.cluster_health import look_at_health
from rollbook.api.cli.cluster_work import look_at_cluster
from rollbook.api.cli.context_file import find
from rollbook.api.cli.log_access import LogAccess
from rollbook.api.client.client import Client
from rollbook.logservice import words
from rollbook.logservice.ids import LogName
from rollbook.proto.errors import RollbookError

_LIBRARIES: Final = ("grpcio", "protobuf", "kazoo", "structlog", "fastapi", "uvicorn")


def bundle(
    access: LogAccess, path: str | None, logs: Sequence[str], url: str | None, logs_max: int
) -> None:
    path = path or time.strftime("rollbook-%Y%m%d-%H%M%S.tar.gz", time.gmtime())
    names = [LogName.parse(log) for log in logs]
    found = access.run(lambda client: _gather(client, names, logs_max))
    found["about"] = _about()
    if not url and access.context:
        url = find(access.context).metadata
    if url:
        found["cluster"] = _cluster(url)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for subject, facts in sorted(found.items()):
            text = json.dumps(facts, indent=2, default=_plain).encode()
            entry = tarfile.TarInfo(f"rollbook/{subject}.json")
            entry.size, entry.mtime = len(text), int(time.time())
            archive.addfile(entry, io.BytesIO(text))
    click.echo(path)


def _cluster(url: str) -> dict[str, Any]:
    try:
        health, members = look_at_health(url)
        facts, bookies = look_at_cluster(url)
    except RollbookError as error:
        return _why(error)
    return {**facts, "health": health, "bookies": bookies, "members": members}


async def _gather(client: Client, logs: Sequence[LogName], logs_max: int) -> dict[str, Any]:
    servers: words.Servers = await client.ask(words.ListServers())  # Who is not there cannot help.
    found: dict[str, Any] = {
        "servers": asdict(servers),
        "limits": await _or_why(client.ask(words.GetLimits())),
        "stats": {
            each.server_id: await _or_why(client.stats(each.address)) for each in servers.servers
        },
        "logs": await _or_why(_states(client, logs_max)),
    }
    for log in logs:
        found[f"log-{log.namespace}-{log.name}"] = {
            "state": await _or_why(client.ask(words.GetLog(log))),
            "tail": await _or_why(client.ask(words.GetTail(log, words.Consistency.CACHED))),
            "segments": await _or_why(client.ask(words.ListSegments(log))),
            "journal": await _or_why(client.ask(words.GetJournal(log, 1000))),
            "cursors": await _or_why(client.ask(words.ListCursors(log))),
        }
    return found


async def _states(client: Client, logs_max: int) -> list[Any]:
    found: list[Any] = []
    async for name in client.logs():
        if len(found) >= logs_max:
            break
        state = await _or_why(client.ask(words.GetLog(name)))
        cursors = await _or_why(client.ask(words.ListCursors(name)))
        found.append({**state, "cursors": cursors.get("cursors", cursors)})
    return found


async def _or_why(work: Awaitable[Any]) -> Any:
    try:
        answer = await work
    except RollbookError as error:
        return _why(error)
    return answer if isinstance(answer, list) else asdict(answer)


def _why(error: RollbookError) -> dict[str, Any]:
    return {"error": error.code.reason, "detail": str(error)}


def _about() -> dict[str, Any]:
    return {
        "rollbook": __version__,
        "python": sys.version,
        "system": platform.platform(),
        "libraries": {name: version(name) for name in _LIBRARIES},
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _plain(value: Any) -> Any:
    """A cursor's blob is its owner's: how long it is must do."""
    if isinstance(value, Enum):
        return value.value
    return f"{len(value)} bytes" if isinstance(value, bytes) else str(value)
