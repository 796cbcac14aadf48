"""The action of `rollbook ledger verify`."""

from collections.abc import Sequence
from typing import Any, Final

import click

from rollbook.api.cli.ledger.connection import LedgerAccess, password_of
from rollbook.api.cli.output import show_rows
from rollbook.api.cli.payload_output import print_bytes
from rollbook.api.cli.progress_bars import bar
from rollbook.ledger.core.copy_comparison import LedgerVerification
from rollbook.ledger.ledgers import Ledgers
from rollbook.proto.errors import EntryUnavailable, InvalidRequest, NoSuchLedger
from rollbook.proto.quorum import Quorum

_DEGRADED: Final = 8
_IN_DOUBT: Final = 5
_LOST: Final = 7
_CODES: Final = {"sound": 0, "degraded": _DEGRADED, "in doubt": _IN_DOUBT, "lost": _LOST}
_SEVERITY: Final = tuple(_CODES.values())
_FLAW_COLUMNS: Final = (
    "ledger_id",
    "fragment",
    "bookie",
    "state",
    "first_entry",
    "last_entry",
    "copies",
)


def verify_ledgers(
    access: LedgerAccess, ledger_ids: Sequence[int], every: bool, password: str | None, output: str
) -> int:
    """Verifies ledgers and returns the exit code."""
    if every == bool(ledger_ids):
        raise InvalidRequest("give either ids of ledgers or --all")

    async def verify(ledgers: Ledgers) -> list[dict[str, Any]]:
        ids = [each async for each in ledgers.list()] if every else list(ledger_ids)
        found: list[dict[str, Any]] = []
        for number, ledger_id in enumerate(ids, 1):
            try:
                verdict = await _verify_one(ledgers, ledger_id, password, number, len(ids))
                facts = verdict_facts(ledger_id, verdict)
            except NoSuchLedger:
                if not every:
                    raise
                continue  # The ledger was deleted after it was listed.
            except EntryUnavailable as error:
                # The end of this open ledger is unknown. The other ledgers are still verified.
                facts = _without_an_end(ledger_id, error)
            found.append(facts)
            if output == "ndjson":
                show_rows((), [facts], output)
        return found

    found = access.run(verify)
    if output == "json":
        show_rows((), found, output)
    elif output == "raw":
        print_bytes("".join(f"{each['ledger_id']} {each['verdict']}\n" for each in found).encode())
    elif output == "table":
        _show_verdicts(found)
    return max((_CODES[each["verdict"]] for each in found), key=_SEVERITY.index, default=0)


async def _verify_one(
    ledgers: Ledgers, ledger_id: int, password: str | None, number: int, total: int
) -> LedgerVerification:
    stored = await ledgers.metadata(ledger_id)
    expected = 0 if stored.metadata.last_entry is None else stored.metadata.last_entry + 1
    with bar(f"ledger {ledger_id} ({number} of {total})", expected) as advance:
        return await ledgers.verify(ledger_id, password_of(password), on_progress=advance)


def _without_an_end(ledger_id: int, error: EntryUnavailable) -> dict[str, Any]:
    facts = verdict_facts(ledger_id, LedgerVerification(Quorum(1, 1, 1)))
    return facts | {"verdict": "in doubt", "reason": error.message}


def verdict_facts(ledger_id: int, verdict: LedgerVerification) -> dict[str, Any]:
    word = "sound" if verdict.is_sound else "degraded"
    if verdict.in_doubt:
        word = "in doubt"
    if verdict.lost:
        word = "lost"
    return {
        "ledger_id": ledger_id,
        "verdict": word,
        "entries": verdict.entries,
        "copies": {state.value: count for state, count in verdict.copies.items()},
        "under_replicated": verdict.under_replicated,
        "below_ack": verdict.below_ack,
        "in_doubt": verdict.in_doubt,
        "lost": verdict.lost,
        "flaws": [
            {
                "ledger_id": ledger_id,
                "fragment": flaw.fragment,
                "bookie": flaw.bookie,
                "state": flaw.state.value,
                "first_entry": flaw.first_entry,
                "last_entry": flaw.last_entry,
                "copies": flaw.count,
            }
            for flaw in verdict.flaws
        ],
    }


def _show_verdicts(found: Sequence[dict[str, Any]]) -> None:
    columns = ("ledger_id", "verdict", "entries", "under_replicated", "below_ack", "lost", "copies")
    show_rows(columns, found, "table")
    for each in found:
        if "reason" in each:
            click.echo(
                f"ledger {each['ledger_id']} is open, and its end is in doubt: {each['reason']}",
                err=True,
            )
    if flaws := [flaw for each in found for flaw in each["flaws"]]:
        click.echo("")
        show_rows(_FLAW_COLUMNS, flaws, "table")
