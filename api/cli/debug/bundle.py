"""The content of a `rollbook debug bundle`: JSON files by subject, and metrics, in one archive that only its
owner may read.
"""

import asyncio
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
from typing import Any, Final, Self

import click

from rollbook import __version__
from rollbook.api.cli.cluster.actions import look_at_cluster, parse_url
from rollbook.api.cli.cluster.health import look_at_health
from rollbook.api.cli.context_option import named_of
from rollbook.api.cli.debug import metrics_scrape
from rollbook.api.cli.log.connection import LogAccess
from rollbook.api.cli.metadata_option import Metadata, metadata_that_is_meant
from rollbook.api.client.async_client import Client
from rollbook.api.context_file import find
from rollbook.logservice import messages
from rollbook.logservice.ids import LogName
from rollbook.proto.errors import BadConfig, Overloaded, RollbookError

_LIBRARIES: Final = ("grpcio", "protobuf", "kazoo", "structlog", "fastapi", "uvicorn")


class _Archive:
    """A new archive that only its owner may read. It is removed if it is not completed."""

    def __init__(self, path: str) -> None:
        self._path = path
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file = open(descriptor, "wb")  # noqa: SIM115  `__exit__` closes it.
        self._tar = tarfile.open(fileobj=self._file, mode="w:gz")  # noqa: SIM115

    def add(self, name: str, text: bytes) -> None:
        entry = tarfile.TarInfo(f"rollbook/{name}")
        entry.size, entry.mtime = len(text), int(time.time())
        self._tar.addfile(entry, io.BytesIO(text))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        try:
            with self._file:
                if failed is None:
                    self._tar.close()
        except BaseException:  # For example, the disk is full, or the user pressed Ctrl-C.
            os.unlink(self._path)
            raise
        if failed is not None:
            os.unlink(self._path)


class _Gathering:
    """The gathered facts by subject; `missing` lists what was unavailable and why. Pages are archived as they
    arrive.
    """

    def __init__(self, archive: _Archive) -> None:
        self.found: dict[str, Any] = {}
        self._archive = archive
        self.missing: list[dict[str, Any]] = []
        self._ids: frozenset[str] = (
            frozenset()
        )  # The ids of the log servers that the selected server lists.

    def miss(self, what: str, error: RollbookError) -> dict[str, Any]:
        why = {"error": error.code.reason, "detail": str(error)}
        self.missing.append({"what": what, **why})
        return why

    async def or_why(self, what: str, work: Awaitable[Any]) -> Any:
        try:
            answer = await work
        except RollbookError as error:
            return self.miss(what, error)
        return answer if isinstance(answer, list) else asdict(answer)

    # --- What log servers report ----------------------------------------------------------------

    async def servers(self, client: Client, logs: Sequence[LogName], logs_max: int) -> None:
        servers: messages.Servers = await client.ask(messages.ListServers())
        self._ids = frozenset(each.server_id for each in servers.servers)
        self.found |= {
            "servers": asdict(servers),
            "limits": await self.or_why("limits", client.ask(messages.GetLimits())),
            "stats": {
                each.server_id: await self.or_why(
                    f"stats of {each.server_id}", client.stats(each.address)
                )
                for each in servers.servers
            },
            "logs": await self.or_why("logs", self._states(client, logs_max)),
        }
        for log in logs:
            asked = {
                "state": messages.GetLog(log),
                "tail": messages.GetTail(log, messages.Consistency.CACHED),
                "segments": messages.ListSegments(log),
                "journal": messages.GetJournal(log, 1000),
                "cursors": messages.ListCursors(log),
            }
            self.found[f"log-{log.namespace}-{log.name}"] = {
                what: await self.or_why(f"{what} of {log}", client.ask(request))
                for what, request in asked.items()
            }

    async def _states(self, client: Client, logs_max: int) -> list[Any]:
        found: list[Any] = []
        async for name in client.logs():
            if len(found) >= logs_max:
                self.miss("logs", Overloaded(f"there are more than --logs-max {logs_max}"))
                break
            state = await self.or_why(f"state of {name}", client.ask(messages.GetLog(name)))
            cursors = await self.or_why(
                f"cursors of {name}", client.ask(messages.ListCursors(name))
            )
            found.append({**state, "cursors": cursors.get("cursors", cursors)})
        return found

    # --- What the metadata has --------------------------------------------------------------

    def cluster(self, url: str, access: LogAccess) -> None:
        try:
            health, members = look_at_health(url)
            facts, bookies = look_at_cluster(url)
            places = metrics_scrape.places_of(url)
        except RollbookError as error:
            self.found["cluster"] = self.miss("cluster", error)
            self.miss("metrics", error)
            return
        self.found["cluster"] = {
            **facts,
            "health": health,
            "bookies": bookies,
            "members": members,
            "without_pages": {each.name: each.wants for each in places if not each.url},
        }

        def keep(name: str, text: bytes) -> None:
            self._archive.add(f"metrics/{name}.txt", text)

        missing = asyncio.run(metrics_scrape.gather(places, access, self._ids, keep))
        registered = {each.server_id for each in places if each.server_id}
        if self._ids and registered and not registered & self._ids:
            self.miss(
                "the cluster of the servers that were asked",
                BadConfig(
                    "the metadata does not list any of these servers: it belongs to another cluster"
                ),
            )
        for name, why in sorted(missing.items()):
            self.miss(f"metrics of {name}", why)

    # ------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Archives the gathered facts, and which facts are missing."""
        found = {**self.found, "about": _about(), "missing": self.missing}
        for subject, facts in sorted(found.items()):
            text = json.dumps(facts, indent=2, default=_plain)
            self._archive.add(f"{subject}.json", text.encode())


def bundle(
    access: LogAccess, path: str | None, logs: Sequence[str], url: str | None, logs_max: int
) -> None:
    path = path or time.strftime("rollbook-%Y%m%d-%H%M%S.tar.gz", time.gmtime())
    names = [LogName.parse(log) for log in logs]
    metadata = _metadata_of(access, url)
    with _Archive(path) as archive:
        gathering = _Gathering(archive)
        try:
            access.run(lambda client: gathering.servers(client, names, logs_max))
        except RollbookError as error:
            # The metadata is read even if the servers refuse the request, because the user is then likely to need
            # help. Without metadata, and for invalid input, the error ends the command.
            if not metadata or isinstance(error, BadConfig):
                raise
            gathering.miss("servers", error)
        if metadata:
            gathering.cluster(metadata.url, access)
        else:  # The user requested no metadata, so it does not count as missing.
            gathering.found["cluster"] = {"metadata": "none: --metadata URL, or that of a context"}
        gathering.write()
    click.echo(path)
    if missing := len(gathering.missing):
        what = "1 thing" if missing == 1 else f"{missing} things"
        click.echo(
            f"{what} could not be had: rollbook/missing.json in the bundle lists the reasons",
            err=True,
        )


def _metadata_of(access: LogAccess, url: str | None) -> Metadata | None:
    """Selects the metadata like other commands, with two differences: it is optional, and if a server is named,
    the current context is not used, because it may name another cluster. Raises `BadConfig`, `InvalidRequest`.
    """
    called = click.get_current_context()
    is_named = bool(url) and named_of(called, "url")[0]
    if not is_named and not (access.context and find(access.context).metadata):
        return None
    if metadata := metadata_that_is_meant(called, url, access.context):
        parse_url(metadata.url)
    return metadata


def _about() -> dict[str, Any]:
    return {
        "rollbook": __version__,
        "python": sys.version,
        "system": platform.platform(),
        "libraries": {name: version(name) for name in _LIBRARIES},
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _plain(value: Any) -> Any:
    """Converts a value for JSON. Bytes, such as a cursor's private blob, are replaced with their size."""
    if isinstance(value, Enum):
        return value.value
    return f"{len(value)} bytes" if isinstance(value, bytes) else str(value)
