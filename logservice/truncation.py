"""Truncates a log: the list and its guards change in one step, and ledgers are deleted afterwards.

    plan ──► [ list: new head, whole ledgers to `discarded` ] + [ guards: the floor rises ]    one step
                  │ readers see the new head from here on
                  └─► fence and delete each discarded ledger ──► [ list: without that ledger ]

If a server dies in between, `discarded` stays in the list, and the next sweep deletes these ledgers (LL3).
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import structlog

from rollbook.ledger.ledgers import Ledgers
from rollbook.logservice.core.ledger_list import (
    LEDGER_OF_LOG,
    NOT_COUNTED,
    LedgerList,
    LogEvent,
    Sizes,
)
from rollbook.logservice.core.truncation_plan import plan_truncation
from rollbook.logservice.ids import LogName, LogUid, Offset
from rollbook.logservice.log_metadata import LogMetadataStore, StoredLog
from rollbook.logservice.messages import TruncateAnswer
from rollbook.proto.errors import (
    Guarded,
    MetadataConflict,
    NoSuchLedger,
    OutcomeUnknown,
    Superseded,
    Unavailable,
)
from rollbook.proto.ids import LedgerId

logger = structlog.get_logger()

_AT_A_TIME: Final = 8
_RACES_MAX: Final = 20


async def truncate(
    nodes: LogMetadataStore,
    stored: StoredLog,
    before: Offset,
    *,
    confirmed: Offset,
    is_begun: bool,
    event: LogEvent | None = None,
    dry_run: bool = False,
    written: Sizes = NOT_COUNTED,
) -> tuple[StoredLog, TruncateAnswer]:
    """Try once to truncate the list that was read. `confirmed` and `is_begun` mean the same as in
    `LedgerList.with_head`.

    A dry run returns the guards that prevent the truncation, and does not raise `Guarded`. Raises `Guarded`,
    `MetadataConflict` if the list or a guard has changed, `InvalidRequest` beyond the tail, `LogDeleted`. After
    `ConnectionLost` the log may have been truncated.
    """
    guards = await nodes.read_guards(stored.name)
    plan = plan_truncation(
        stored.list,
        before,
        confirmed=confirmed,
        is_begun=is_begun,
        guards=guards.guards,
        written=written,
    )
    if dry_run:
        return stored, plan.answer
    if plan.listed == stored.list:
        return stored, plan.answer
    listed = plan.listed if event is None else plan.listed.with_event(event)
    stored = await nodes.replace_guarded(stored, listed, found=guards)
    logger.info(
        "log_truncated",
        log=str(stored.name),
        head=plan.answer.new_head,
        records=plan.answer.records,
        ledgers=len(plan.answer.segments),
        reason=event.reason if event else "",
    )
    return stored, plan.answer


async def truncate_closed(
    ledgers: Ledgers,
    nodes: LogMetadataStore,
    name: LogName,
    before: Offset,
    confirmed: Offset,
    event: LogEvent,
    *,
    is_nobodys: Callable[[LedgerList], bool],
    dry_run: bool = False,
) -> TruncateAnswer | None:
    """Truncate a log that has no owner, on any server. `confirmed`: the end of a closed segment, which never changes.

    Returns None if an owner uses the log's list. The change is made to exactly the list that was read, so it fails if
    a server becomes the owner in between. `event` is recorded with the epoch of that list's last owner. Raises
    `Guarded`, `MetadataConflict`, `InvalidRequest`, `LogDeleted`. After `ConnectionLost` the log may have been
    truncated.
    """
    for _ in range(_RACES_MAX):
        stored = await nodes.read(name)
        if not is_nobodys(stored.list):
            return None
        try:
            stored, answer = await truncate(
                nodes,
                stored,
                before,
                confirmed=confirmed,
                is_begun=False,
                event=replace(event, owner_epoch=stored.list.owner_epoch),
                dry_run=dry_run,
            )
        except Guarded:
            raise
        except MetadataConflict:
            continue
        if not dry_run:
            await delete_discarded(ledgers, nodes, stored)
        return answer
    raise MetadataConflict("the list changes again and again", log=str(name))


async def delete_discarded(
    ledgers: Ledgers, nodes: LogMetadataStore, stored: StoredLog
) -> StoredLog:
    """Fence and delete the discarded ledgers. A ledger that cannot be deleted now stays listed as `discarded`.

    Raises `NoSuchLog`, `MetadataConflict`, `MetadataUnavailable`, `ConnectionLost`, only if the list cannot be changed.
    """
    listed, gone = stored.list, list[LedgerId]()
    for start in range(0, len(listed.discarded), _AT_A_TIME):
        some = listed.discarded[start : start + _AT_A_TIME]
        done = await asyncio.gather(
            *(_delete(ledgers, stored.name, listed.uid, ledger_id) for ledger_id in some)
        )
        gone += [ledger_id for ledger_id, is_gone in zip(some, done, strict=True) if is_gone]
    if not gone:
        return stored
    return await nodes.change_stored(stored, lambda listed: listed.without_discarded(gone))


async def _delete(ledgers: Ledgers, name: LogName, uid: LogUid, ledger_id: LedgerId) -> bool:
    """Delete a ledger. Returns whether it is gone now, or belongs to another log."""
    try:
        found = await ledgers.metadata(ledger_id, fresh=True)
        if dict(found.metadata.custom).get(LEDGER_OF_LOG) != uid.hex().encode():
            # The ledger belongs to another log: two clusters were mixed, or metadata was restored by
            # hand.
            logger.error(
                "log_ledger_not_deleted", log=str(name), ledger_id=ledger_id, owner="another"
            )
            return True
        await ledgers.delete(ledger_id)
    except NoSuchLedger:
        return True
    except (Unavailable, OutcomeUnknown, Superseded) as error:
        logger.info(
            "log_ledger_deletion_put_off",
            log=str(name),
            ledger_id=ledger_id,
            reason=error.code.reason,
        )
        return False
    return True
