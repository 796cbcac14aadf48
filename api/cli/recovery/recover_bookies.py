"""The action of `rollbook recovery bookie`."""

import random
import socket
from collections.abc import Sequence
from typing import Any, Final

import click

from rollbook.api.cli.confirm import ask_whether
from rollbook.api.cli.ledger.connection import LedgerAccess
from rollbook.api.cli.output import show_facts, show_rows
from rollbook.api.cli.progress_bars import bar_of_shares
from rollbook.ledger.ledgers import Ledgers
from rollbook.proto.cluster.cookies import CookieNodes
from rollbook.proto.errors import InvalidRequest, NoSuchNode
from rollbook.proto.ids import BookieId, parse_bookie_id, parse_ledger_id
from rollbook.proto.runtime.clock import SystemClock
from rollbook.proto.runtime.metastore import open_metadata_store
from rollbook.recovery.bookie_decommission import Departures
from rollbook.recovery.config import WorkerConfig
from rollbook.recovery.manual_rereplication import Evacuated, Evacuation, EvacuationOrder

_MIB: Final = 1024 * 1024
_FAILED: Final = 5
_COLUMNS: Final = ("ledger_id", "reason")


def recover_bookies(
    access: LedgerAccess,
    bookies: Sequence[str],
    targets: Sequence[str],
    ledger_id: int | None,
    skip_open: bool,
    delete_cookie: bool,
    mib_per_s: int,
    dry_run: bool,
    yes: bool,
    output: str,
) -> int:
    """Recovers bookies and returns the exit code."""
    order = EvacuationOrder(
        bookies=[parse_bookie_id(each) for each in bookies],
        targets=[parse_bookie_id(each) for each in targets],
        ledger_id=None if ledger_id is None else parse_ledger_id(ledger_id),
        skips_open=skip_open,
        is_rehearsal=dry_run,
    )
    if clash := set(order.bookies).intersection(order.targets):
        raise InvalidRequest(
            f"--to names {', '.join(sorted(clash))}, but copies are to be moved away from there"
        )
    if not dry_run:
        ask_whether(f"move all copies of {', '.join(order.bookies)} to other bookies", yes)

    async def recover(ledgers: Ledgers) -> Evacuated:
        require_absent(ledgers, order.bookies)
        store = await open_metadata_store(access.metadata.url)
        try:
            departures = Departures(store, ledgers.cluster, SystemClock(), random.SystemRandom())
            await departures.require_named(order.bookies)
            evacuation = Evacuation(
                ledgers,
                store,
                order,
                WorkerConfig(bytes_per_s_max=mib_per_s * _MIB),
                name=socket.gethostname(),
            )
            with bar_of_shares(f"recovering {', '.join(order.bookies)}") as on_progress:
                found = await evacuation.run(on_progress)
            if delete_cookie and found.is_complete and not dry_run and ledger_id is None:
                cookies = CookieNodes(store, ledgers.cluster.root)
                for bookie in order.bookies:
                    try:
                        await cookies.delete(bookie)
                    except NoSuchNode:
                        pass  # The bookie had no cookie.
            return found
        finally:
            await store.close()

    found = access.run(recover)
    _show(found, order, dry_run, output)
    return 0 if found.is_complete or dry_run else _FAILED


def require_absent(ledgers: Ledgers, bookies: Sequence[BookieId]) -> None:
    """Raises `InvalidRequest` for writable bookies, which would get new entries while their copies are moved."""
    for bookie in bookies:
        if bookie in ledgers.live().writable:
            raise InvalidRequest(
                f"bookie {bookie} is running and takes entries",
                bookie=bookie,
                next_step=f"stop it first, or make it read-only: rollbook bookie readonly on; "
                f"to empty it while it serves: rollbook bookie drain {bookie}",
            ).with_http_step(
                "stop it first, or make it read-only: PUT /api/v1/bookies/{id}/pages/readonly; "
                "to empty it while it serves: POST /api/v1/bookies:drain"
            )


def _show(found: Evacuated, order: EvacuationOrder, dry_run: bool, output: str) -> None:
    rows: list[dict[str, Any]] = [
        {"ledger_id": each.ledger_id, "reason": each.reason} for each in found.failed
    ]
    facts = {
        "bookies": list(order.bookies),
        "ledgers": found.ledgers,
        "repaired": found.repaired,
        "closed": found.closed,
        "skipped_open": found.skipped_open,
        "failed": len(found.failed),
        "entries": found.entries,
        "entry_bytes": found.entry_bytes,
    }
    if output != "table":
        show_facts({**facts, "failures": rows}, output)
        return
    if rows:
        show_rows(_COLUMNS, rows, output)
        click.echo("")
    names = ", ".join(order.bookies)
    if dry_run:
        click.echo(f"{found.ledgers} ledgers name {names}. Nothing was changed.")
        return
    click.echo(
        f"{found.repaired} of {found.ledgers} ledgers repaired, {found.entries} entries copied, "
        f"{found.skipped_open} open ledgers skipped, {len(found.failed)} failed."
    )
