"""The action of `rollbook recovery heal`."""

import re
from collections.abc import Sequence
from typing import Any, Final

import click

from rollbook.api.cli.bookie_admin_client import AdminClient
from rollbook.api.cli.ledger.connection import LedgerAccess
from rollbook.api.cli.output import show_facts, show_rows
from rollbook.api.cli.progress_bars import bar_of_shares
from rollbook.api.cli.recovery.possible_loss_adapters import AdminDoubts
from rollbook.ledger.ledgers import Ledgers
from rollbook.proto.errors import BadConfig, BookieUnreachable, InvalidRequest
from rollbook.proto.ids import LEDGER_ID_MAX, BookieId, parse_bookie_id
from rollbook.recovery.config import HealConfig
from rollbook.recovery.core.entry_spans import WHOLE, EntrySpan
from rollbook.recovery.ledger_loss_healer import HealingOutcome, LedgerHealing
from rollbook.recovery.possible_loss_healer import Healing, PossibleLossHealer

_MIB: Final = 1024 * 1024
_WAITING: Final = 5
_LOST: Final = 7
_ACCEPTED: Final = re.compile(r"(\d{1,19})(?::(\d{1,19})-(\d{1,19}))?")
_COLUMNS: Final = ("ledger_id", "outcome", "lost", "given_up", "waiting", "reason")


def heal_bookie(
    access: LedgerAccess,
    bookie: str,
    accepted: Sequence[str],
    includes_all: bool,
    dry_run: bool,
    http: str | None,
    token_file: str | None,
    ca_file: str | None,
    insecure: bool,
    mib_per_s: int,
    output: str,
) -> int:
    """Heals a bookie and returns the exit code."""
    bookie_id = parse_bookie_id(bookie)
    given_up = accepted_of(accepted)

    async def heal(ledgers: Ledgers) -> Healing:
        url = http or _pages_of(ledgers, bookie_id)
        tls = (access.tls_certificate, access.tls_key)
        client = AdminClient(url, token_file, ca_file, *tls, insecure)
        healer = PossibleLossHealer(
            ledgers,
            bookie_id,
            AdminDoubts(client),
            HealConfig(bytes_per_s_max=mib_per_s * _MIB),
            accepted=given_up,
            includes_all=includes_all,
            is_rehearsal=dry_run,
        )
        with bar_of_shares(f"healing {bookie_id}") as on_progress:
            return await healer.heal(on_progress)

    healing = access.run(heal)
    _show(healing, dry_run, output)
    if healing.ledgers[HealingOutcome.WAITING]:
        return _WAITING
    return _LOST if healing.ledgers[HealingOutcome.LOST] else 0


def accepted_of(texts: Sequence[str]) -> dict[int, list[EntrySpan]]:
    """Returns the ranges in `--accept-loss` by ledger. Raises `InvalidRequest`."""
    found: dict[int, list[EntrySpan]] = {}
    for text in texts:
        match = _ACCEPTED.fullmatch(text)
        if match is None or max(int(each) for each in match.groups("0")) > LEDGER_ID_MAX:
            raise InvalidRequest(
                f"--accept-loss {text!r} is invalid", next_step="write LEDGER or LEDGER:FIRST-LAST"
            )
        ledger_id, first, last = match.groups()
        accepted = WHOLE if first is None else EntrySpan(int(first), int(last))
        if accepted.first_entry > accepted.last_entry:
            raise InvalidRequest(f"--accept-loss {text!r} ends before it begins")
        found.setdefault(int(ledger_id), []).append(accepted)
    return found


def _pages_of(ledgers: Ledgers, bookie: BookieId) -> str:
    info = ledgers.live().find(bookie)
    if info is None:
        raise BookieUnreachable("it is not registered", bookie=bookie, next_step="start it first")
    if info.http_address is None:
        raise BadConfig(
            "the bookie has registered no admin pages",
            bookie=bookie,
            next_step="start it with --http",
        )
    return str(info.http_address)


def _show(healing: Healing, dry_run: bool, output: str) -> None:
    rows = [_facts_of(each) for each in healing.remarkable]
    facts = {
        "bookie": healing.bookie,
        "ledgers": {outcome.value: healing.ledgers[outcome] for outcome in HealingOutcome},
        "closed": healing.closed,
        "entries": healing.entries,
        "entry_bytes": healing.entry_bytes,
        "doubts_everything": healing.doubts_everything,
    }
    if output != "table":
        show_facts({**facts, "remarkable": rows}, output)
        return
    if rows:
        show_rows(_COLUMNS, rows, output)
        click.echo("")
    click.echo(summary(healing, dry_run))


def _facts_of(healed: LedgerHealing) -> dict[str, Any]:
    return {
        "ledger_id": healed.ledger_id,
        "outcome": healed.outcome.value,
        "lost": [_text(each) for each in healed.lost],
        "given_up": [_text(each) for each in healed.given_up],
        "waiting": [_text(each) for each in healed.waiting],
        "reason": "; try: ".join(filter(None, (healed.reason, healed.next_step))),
    }


def _text(entries: EntrySpan) -> str:
    first, last = entries
    if entries == WHOLE:
        return "all"
    if last == WHOLE.last_entry:
        return f"{first}-"
    return str(first) if first == last else f"{first}-{last}"


def summary(healing: Healing, dry_run: bool) -> str:
    """Returns a sentence that says whether the bookie has all its entries again, and what was healed, copied back
    or closed. For a dry run, it says what would be done.
    """
    counts = healing.ledgers
    total, bookie = counts.total(), healing.bookie
    done = _count(healing.entries, "entry", "entries")
    closed = _count(healing.closed, "ledger", "ledgers")
    if dry_run:
        return (
            f"{bookie}: {_count(total, 'ledger', 'ledgers')} to look after; at least {done} to bring"
            f" back, {closed} to be closed first. Nothing was done."
        )
    if not total and not healing.doubts_everything:
        return f"{bookie} is in no doubt about anything."
    if healing.are_ledgers_whole:
        return f"{bookie} is whole: {_count(total, 'ledger', 'ledgers')} healed, {done} brought back, {closed} closed for it."
    left = [
        f"{_count(counts[outcome], 'ledger', 'ledgers')} {what}"
        for outcome, what in (
            (HealingOutcome.WAITING, "cannot be healed now"),
            (HealingOutcome.LOST, "with entries that have no copy anywhere"),
        )
        if counts[outcome]
    ]
    return f"{bookie} stays in doubt: {' and '.join(left)}; {done} brought back."


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
