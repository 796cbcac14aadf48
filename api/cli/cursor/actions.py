"""The actions of `rollbook cursor`."""

import shlex
from typing import Any, Final

from rollbook.api.cli.confirm import ask_whether
from rollbook.api.cli.log.connection import LogAccess
from rollbook.api.cli.output import tell, tell_rows, time_of
from rollbook.api.client.async_client import Client
from rollbook.logservice import messages
from rollbook.logservice.ids import LogName, parse_cursor_name
from rollbook.logservice.position_syntax import parse_position
from rollbook.proto.errors import CursorAhead

_COLUMNS: Final = ("name", "offset", "lag", "is_protected", "version", "updated")


def list_cursors(access: LogAccess, log: str | None, output: str) -> None:
    """Lists the cursors of `log`. If it is None, lists the cursors of all logs, and each row also names the log."""

    async def ask_one(client: Client, name: str | LogName) -> list[dict[str, Any]]:
        opened = await client.open(name)
        found = await opened.cursors()
        if not found:
            return []
        tail = await opened.tail_offset()
        return [_facts(each, tail) for each in found]

    async def ask_all(client: Client) -> list[dict[str, Any]]:
        return [
            {"log": str(name), **facts}
            async for name in client.logs()
            for facts in await ask_one(client, name)
        ]

    if log is not None:
        rows = access.run(lambda client: ask_one(client, log), log)
        tell_rows(_COLUMNS, rows, output, "name", ("blob_bytes",))
    else:
        tell_rows(("log", *_COLUMNS), access.run(ask_all), output, "name", ("blob_bytes",))


def show_cursor(access: LogAccess, log: str, name: str, output: str) -> None:
    request = messages.GetCursor(LogName.parse(log), parse_cursor_name(name))

    async def ask(client: Client) -> dict[str, Any]:
        found: messages.Cursor = await client.ask(request)
        tail: messages.LogTail = await client.ask(messages.GetTail(request.log))
        return _facts(found, tail.tail)

    tell(access.run(ask, log), output, "offset")


def move_cursor(
    access: LogAccess,
    log: str,
    name: str,
    position: str,
    protect: bool | None,
    rewind: bool,
    version: int | None,
    output: str,
) -> None:
    log_name, wanted = LogName.parse(log), parse_position(position)

    async def move(client: Client) -> dict[str, Any]:
        place: messages.FoundOffset = await client.ask(messages.FindOffset(log_name, wanted))
        request = messages.CommitCursor(
            log_name, parse_cursor_name(name), place.offset, None, protect, version, rewind
        )
        moved: messages.Cursor = await client.ask(request)
        return _facts(moved, place.tail)

    try:
        tell(access.run(move, log), output, "offset")
    except CursorAhead as error:
        again = shlex.join(("rollbook", "cursor", "set", log, name, position)) + " --rewind"
        if protect is not None:
            again += " --protect" if protect else " --no-protect"
        if version is not None:
            again += f" --version {version}"
        error.next_step = again + access.flags
        raise


def remove_cursor(access: LogAccess, log: str, name: str, yes: bool, output: str) -> None:
    ask_whether(f"remove the cursor {name} of {log}", yes)
    request = messages.DeleteCursor(LogName.parse(log), parse_cursor_name(name))
    access.run(lambda client: client.ask(request), log)
    tell({"log": str(request.log), "removed": name}, output, "removed")


def _facts(cursor: messages.Cursor, tail: int) -> dict[str, Any]:
    return {
        "name": cursor.name,
        "offset": cursor.offset,
        "lag": max(tail - cursor.offset, 0),
        "is_protected": cursor.is_protected,
        "version": cursor.version,
        "updated": time_of(cursor.updated_us),
        "blob_bytes": len(cursor.blob),
    }
