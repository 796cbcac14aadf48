"""`rollbook bookie info|ledgers|ledger|journal|entrylog|mark|verify` inspect a bookie.

A running bookie is asked over HTTP (`--http`). The files of a stopped bookie are read directly (`--journal-dir`,
`--ledger-dir`), and never changed. Files can also be read while the bookie runs; the output then shows their state at
one moment. Only `verify` needs a stopped bookie, because files that appear or disappear during the check would
look like damage.
"""

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from rollbook.api.cli.bookie.target import (
    API_PATH,
    Where,
    any_bookie,
    bookie_command,
    stopped_bookie,
    wait_for,
)
from rollbook.api.cli.click_types import WholeNumber
from rollbook.api.cli.output import (
    list_output_option,
    output_option,
    show_facts,
    show_rows,
    tell_rows,
)
from rollbook.proto.errors import DataLost, NoSuchLedger

if TYPE_CHECKING:  # Imported when a command needs them, to keep `--help` quick.
    from rollbook.api.cli.bookie_admin_client import AdminClient
    from rollbook.bookie.inspection import StoreFiles

T = TypeVar("T")

_PAGE: Final = 500
_LEDGER_COLUMNS: Final = (
    "ledger_id",
    "entries",
    "first_entry",
    "last_entry",
    "entry_bytes",
    "last_add_confirmed",
    "is_fenced",
    "is_deleted",
    "is_doubtful",
)


@bookie_command(
    "info",
    "info --http http://10.0.0.7:8001 --token-file token -o json",
    "info --config /etc/bookkeeper/bk_server.conf",
)
@output_option
@any_bookie
def info(where: Where, output: str) -> None:
    """Show a summary of one bookie."""
    if not where.is_files:
        facts = where.client().get(f"{API_PATH}/status")
        if output != "table":
            show_facts(facts, output)
            return
        directories, latencies = facts.pop("directories"), facts.pop("latencies_ms")
        show_facts(facts, output)
        click.echo("")
        show_rows(("path", "kind", "free_bytes", "total_bytes"), directories, output)
        if latencies:
            click.echo("")
            rows = [{"latency_ms": name, **of} for name, of in latencies.items()]
            show_rows(("latency_ms", "p50", "p99", "p999"), rows, output)
        return

    async def look(store: "StoreFiles") -> dict[str, Any]:
        journals, logs = await store.journal_files(), store.logs()
        doubts = store.catalog.doubts
        return {
            **store.mark(),
            "journal_files": len(journals),
            "journal_bytes": sum(each["bytes"] or 0 for each in journals),
            "entry_logs": len(logs),
            "entry_log_bytes": sum(each["bytes"] for each in logs),
            "ledgers_in_logs": len(store.catalog.facts),
            "doubtful_ledgers": doubts.ledgers,
            "doubts_everything": doubts.everything,
        }

    show_facts(where.read(look), output)


@bookie_command(
    "ledgers",
    "ledgers --after 1000 --limit 50",
    "ledgers --journal-dir /data/journal --ledger-dir /data/ledgers -o ndjson | jq .ledger_id",
)
@click.option(
    "--after", type=WholeNumber(-1), default=-1, help="Only ledgers with ids above this one."
)
@click.option("--limit", type=WholeNumber(1), help="At most this many ledgers.")
@list_output_option
@any_bookie
def ledgers(where: Where, after: int, limit: int | None, output: str) -> None:
    """List the ledgers with data on this bookie."""
    if where.is_files:
        rows = iter(where.read(lambda store: _ledgers_in(store, after, limit)))
    else:
        rows = _ledgers_of(where.client(), after, limit)
    tell_rows(_LEDGER_COLUMNS, rows, output, "ledger_id")


def _ledgers_of(client: "AdminClient", after: int, limit: int | None) -> Iterator[dict[str, Any]]:
    next_after: int | None = after
    left = limit if limit is not None else sys.maxsize
    while next_after is not None and left > 0:
        page = client.get(f"{API_PATH}/ledgers", after=next_after, limit=min(_PAGE, left))
        yield from page["ledgers"]
        left -= len(page["ledgers"])
        next_after = page["next_after"]


async def _ledgers_in(store: "StoreFiles", after: int, limit: int | None) -> list[dict[str, Any]]:
    views = await store.ledgers()
    ids = sorted({each for each in views.known_ids() if each > after})
    return [views.summary(each) for each in ids[:limit]]


@bookie_command(
    "ledger 7",
    "ledger 7 --verify -o json",
    "ledger 7 --journal-dir /data/journal --ledger-dir /data/ledgers",
)
@click.argument("ledger_id", type=WholeNumber(0))
@click.option(
    "--verify",
    is_flag=True,
    help="Read all entries of the ledger from a running bookie's disk, and check them.",
)
@output_option
@any_bookie
def ledger(where: Where, ledger_id: int, verify: bool, output: str) -> None:
    """Show what this bookie stores of one ledger, and in which files."""
    if verify:
        if where.is_files:
            raise click.UsageError(
                "--verify needs a running bookie; to check files, use rollbook bookie verify"
            )
        client = where.client()
        with where.advising("ledgers"):
            started = client.put(f"{API_PATH}/ledgers/{ledger_id}/verify")
            found = wait_for(client, started)["result"]
        show_facts(found, output)
        if found["damaged"]:
            raise DataLost("entries of this ledger are damaged on this bookie", ledger_id=ledger_id)
        return
    with where.advising("ledgers"):
        if where.is_files:
            facts = where.read(lambda store: _ledger_in(store, ledger_id))
        else:
            facts = where.client().get(f"{API_PATH}/ledgers/{ledger_id}")
    if output != "table":
        show_facts(facts, output)
        return
    places = facts.pop("places")
    facts["doubts"] = [f"{each['first_entry']}-{each['last_entry']}" for each in facts["doubts"]]
    show_facts(facts, output)
    click.echo("")
    show_rows(("file", "first_entry", "last_entry", "entries", "entry_bytes"), places, output)


async def _ledger_in(store: "StoreFiles", ledger_id: int) -> dict[str, Any]:
    views = await store.ledgers()
    if ledger_id not in views:
        raise NoSuchLedger(ledger_id=ledger_id)
    return views.details(ledger_id)


@bookie_command(
    "journal --journal-dir /data/journal --ledger-dir /data/ledgers",
    "journal 12 --journal-dir /data/journal --ledger-dir /data/ledgers",
    "journal 12 --journal-dir /data/journal --ledger-dir /data/ledgers -o ndjson | tail -1",
)
@click.argument("number", type=WholeNumber(1), required=False)
@list_output_option
@stopped_bookie
def journal(where: Where, number: int | None, output: str) -> None:
    """List the journal's files, or the records of one of them."""
    if number is None:
        files = where.read(lambda store: store.journal_files())
        tell_rows(("journal", "bytes", "use"), files, output, "journal", ("path",))
        return
    with where.advising("journal"):
        found = where.read(lambda store: _all(store.journal_records(number)))
    _show_records(found, output)


@bookie_command(
    "entrylog --journal-dir /data/journal --ledger-dir /data/ledgers",
    "entrylog 5 --journal-dir /data/journal --ledger-dir /data/ledgers",
    "entrylog 5 --records --journal-dir /data/journal --ledger-dir /data/ledgers -o ndjson",
)
@click.argument("number", type=WholeNumber(1), required=False)
@click.option(
    "--records", is_flag=True, help="List the records of the entry log instead of its ledgers."
)
@list_output_option
@stopped_bookie
def entrylog(where: Where, number: int | None, records: bool, output: str) -> None:
    """List the entry logs, or the ledgers in one of them; `live` is the share of live entries."""
    if number is None:

        async def logs(store: "StoreFiles") -> list[dict[str, Any]]:
            return store.logs()

        columns = ("log", "bytes", "ledgers", "entries", "entry_bytes", "live")
        tell_rows(columns, where.read(logs), output, "log", ("path",))
        return
    if records:
        with where.advising("entrylog"):
            found = where.read(lambda store: _all(store.log_records(number)))
        _show_records(found, output)
        return

    async def extents(store: "StoreFiles") -> list[dict[str, Any]]:
        return store.extents(number)

    with where.advising("entrylog"):
        held = where.read(extents)
    tell_rows(_LEDGER_COLUMNS[:6], held, output, "ledger_id")


def _show_records(records: list[dict[str, Any]], output: str) -> None:
    if output in ("table", "wide"):
        for each in records:
            ledgers = each["ledgers"] or []
            shown = ledgers if output == "wide" else ledgers[:4]
            each["ledgers"] = [f"{ledger}:{first}-{last}" for ledger, first, last in shown]
            each["ledgers"] += ["…"] * (len(ledgers) > len(shown))
    columns = ("position", "sequence", "kind", "last_synced", "body_bytes", "is_sound", "ledgers")
    tell_rows(columns, records, output, "position")


async def _all(found: AsyncIterator[T]) -> list[T]:
    return [each async for each in found]


@bookie_command(
    "mark",
    "mark -o json",
    "mark --journal-dir /data/journal --ledger-dir /data/ledgers",
)
@output_option
@any_bookie
def mark(where: Where, output: str) -> None:
    """Show where a restart would begin to replay the journal: all earlier entries are in entry logs."""

    async def mark(store: "StoreFiles") -> dict[str, Any]:
        return store.mark()

    facts = where.read(mark) if where.is_files else where.client().get(f"{API_PATH}/last_log_mark")
    show_facts(facts, output)


@bookie_command(
    "verify --journal-dir /data/journal --ledger-dir /data/ledgers",
    "verify --config /etc/rollbook/bookie.toml -o json",
    "verify --journal-dir /data/journal --ledger-dir /data/a --ledger-dir /data/b || echo damaged",
)
@output_option
@stopped_bookie
def verify(where: Where, output: str) -> None:
    """Read and check every byte of a stopped bookie's files.

    It changes nothing, and exits with 7 if it finds damage. A running bookie answers UNKNOWN for
    damaged entries, and never returns wrong data.
    """

    async def verify(store: "StoreFiles") -> dict[str, Any]:
        locks = await store.lock()
        try:
            with ExitStack() as stack:
                bar = stack.enter_context(_bar("verifying", await store.size()))
                async for state in store.verify():
                    bar.update(state.bytes - bar.pos)
        finally:
            for lock in locks:
                await lock.release()
        return asdict(state)

    found = where.read(verify)
    findings = found["findings"]
    if output == "table":
        found["findings"] = len(findings)
        show_facts(found, output)
        if findings:
            click.echo("")
            show_rows(("file", "position", "what", "ledgers"), findings, output)
    else:
        show_facts(found, output)
    if findings:
        raise DataLost(
            f"{len(findings)} places are damaged",
            next_step="start the bookie: it answers UNKNOWN for damaged entries, and serves all others",
        )


def _bar(label: str, length: int) -> Any:
    """Shows a progress bar on a terminal; it is never part of the output."""
    return click.progressbar(
        length=max(1, length), label=label, file=sys.stderr, hidden=not sys.stderr.isatty()
    )
