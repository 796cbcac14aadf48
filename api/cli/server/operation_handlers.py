"""The work of each kind of long-running operation. It calls the same functions as the commands of the shell.

verify            {"ledger_id": 7}
recover           {"ledger_id": 7}
recover-bookies   {"bookies": ["bk-4"], "to": [], "skip_open": false}
drain             {"bookies": ["bk-2"], "at_most": 1, "force": false}
"""

import random
from collections.abc import Mapping
from typing import Any

from rollbook.api.cli.ledger.actions import recover_ledger
from rollbook.api.cli.ledger.segment_guard import HTTP_INSTEAD_OF_RECOVERY, require_no_part
from rollbook.api.cli.ledger.verify import verdict_facts
from rollbook.ledger.ledgers import Ledgers
from rollbook.logservice.orphan_ledgers import belonging_of
from rollbook.proto.errors import OperationIncomplete, RollbookError
from rollbook.proto.ids import LedgerId, parse_bookie_id
from rollbook.proto.runtime.clock import SystemClock
from rollbook.recovery.bookie_decommission import Departures
from rollbook.recovery.config import WorkerConfig
from rollbook.recovery.manual_rereplication import Evacuation, EvacuationOrder
from rollbook.recovery.operation_runner import OperationKind, OperationProgress
from rollbook.recovery.process_status_nodes import PresenceNodes
from rollbook.recovery.rolling_drain import DrainOperation

_PROBLEMS_SHOWN = 20


def kinds_of(ledgers: Ledgers, worker: WorkerConfig, name: str) -> dict[str, OperationKind]:
    """Returns the work of each kind; `name` is written into the locks of ledgers under repair."""
    store, cluster = ledgers.store, ledgers.cluster
    departures = Departures(store, cluster, SystemClock(), random.SystemRandom())
    drain = DrainOperation(departures, PresenceNodes(store, cluster))

    async def verify(run: OperationProgress) -> Mapping[str, Any]:
        ledger_id = LedgerId(run.about["ledger_id"])
        last_entry = (await ledgers.metadata(ledger_id)).metadata.last_entry
        done = 0

        def on_progress(entries: int) -> None:
            nonlocal done
            done += entries
            if last_entry is not None:  # Only a closed ledger has a known number of entries.
                run.on_progress(min(done, last_entry + 1), last_entry + 1)

        verdict = await ledgers.verify(ledger_id, None, on_progress=on_progress)
        total = done if last_entry is None else last_entry + 1
        run.on_progress(total, total)
        return verdict_facts(ledger_id, verdict)

    async def recover(run: OperationProgress) -> Mapping[str, Any]:
        run.on_progress(0, 1)
        return await recover_outside_logs(ledgers, run.about["ledger_id"])

    async def recover_bookies(run: OperationProgress) -> Mapping[str, Any]:
        order = EvacuationOrder(
            [parse_bookie_id(each) for each in run.about["bookies"]],
            [parse_bookie_id(each) for each in run.about["to"]],
            skips_open=run.about["skip_open"],
        )
        evacuation = Evacuation(ledgers, store, order, worker, name=name)
        found = await evacuation.run(run.on_progress)
        names = ("ledgers", "repaired", "skipped_open", "closed", "entries", "entry_bytes")
        facts = {each: getattr(found, each) for each in names}
        if not found.failed:
            return facts
        first = [f"{each.ledger_id}: {each.reason}" for each in found.failed[:_PROBLEMS_SHOWN]]
        raise OperationIncomplete(
            f"{len(found.failed)} of {found.ledgers} ledgers could not be repaired",
            **facts,
            first_failures=first,
            next_step="repair the causes of these failures, then send the request again with another key",
        )

    return {
        "verify": OperationKind(verify),
        "recover": OperationKind(recover),
        "recover-bookies": OperationKind(recover_bookies),
        "drain": OperationKind(drain.work, drain.undo),
    }


async def recover_outside_logs(ledgers: Ledgers, ledger_id: int) -> dict[str, Any]:
    """Recovers a ledger that is not a segment of a log. Raises `NoSuchLedger`, `PartOfLog`,
    `RecoveryIncomplete`.
    """
    await require_no_part(ledgers, [ledger_id], instead=HTTP_INSTEAD_OF_RECOVERY, may_insist=False)
    return await recover_ledger(ledgers, ledger_id, None)


def log_made_for(custom: Mapping[str, bytes]) -> str | None:
    """Returns the log for which a ledger with this custom metadata was created."""
    belonging = belonging_of(custom)
    return str(belonging.name) if belonging else None


def describe_error(error: RollbookError) -> Mapping[str, Any]:
    """Returns the error as a problem of RFC 9457. FastAPI is imported here because its import takes a third of a
    second, and few processes need it.
    """
    from rollbook.api.rest.problems import problem_of

    return problem_of(error)
