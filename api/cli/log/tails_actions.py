"""What `rollbook log tails` does."""

from collections.abc import Iterable
from typing import Any, Final

import click

from rollbook.api.cli.log.connection import LogAccess
from rollbook.api.cli.output import show_rows, shown, tell_rows, time_of
from rollbook.api.client.client import Client
from rollbook.logservice import messages
from rollbook.proto.printable import harmless

_COLUMNS: Final = ("log", "head", "tail", "last", "sealed", "exact", "owner")
_WIDE: Final = ("owner_epoch", "uid")
_FOR_PROGRAMS: Final = ("json", "ndjson")


def show_tails(access: LogAccess, prefix: str, follow: bool, output: str) -> None:
    def row_of(tail: messages.TailOfLog) -> dict[str, Any]:
        last: Any = tail.timestamp_us if output in _FOR_PROGRAMS else time_of(tail.timestamp_us)
        return {
            "log": str(tail.log),
            "head": tail.head,
            "tail": tail.tail,
            "last": last,
            "sealed": tail.is_sealed,
            "exact": tail.is_exact,
            "owner": tail.owner,
            "owner_epoch": tail.owner_epoch,
            "uid": tail.uid,
        }

    def show(tails: Iterable[messages.TailOfLog]) -> None:
        rows = [row_of(tail) for tail in sorted(tails, key=lambda each: each.log)]
        tell_rows(_COLUMNS, rows, output, "log", _WIDE)

    async def look(client: Client) -> None:
        async with client.tails(prefix=prefix) as watch:
            known = await watch.ready()
            if not follow:
                show(known.values())
                return
            async for news in watch:
                _show_news([row_of(tail) for tail in news.tails], map(str, news.gone), output)

    access.run(look)


def _show_news(tails: list[dict[str, Any]], gone: Iterable[str], output: str) -> None:
    """A line for each."""
    if output in _FOR_PROGRAMS:
        show_rows((), (*tails, *({"log": log, "gone": True} for log in gone)), "ndjson")
        return
    columns = (*_COLUMNS, *_WIDE) if output == "wide" else _COLUMNS
    for row in tails:
        shown_columns = ("log",) if output in ("raw", "name") else columns
        click.echo("  ".join(shown(row[column]) for column in shown_columns))
    for log in gone:
        click.echo(f"{harmless(log)}  gone")
