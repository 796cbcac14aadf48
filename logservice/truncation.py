"""Truncates a log: the list and its guards change in one step, and ledgers are deleted afterwards.

    plan ──► [ list: new head, whole ledgers to `discarded` ] + [ guards: the floor rises ]    one step
                  │ readers see the new head from here on
                  └─► fence and delete each discarded ledger ──► [ list: without that ledger ]

If a server dies in between, `discarded` stays in the list, and the next sweep deletes these ledgers (LL3).
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

import structlog

from rollbook.ledger.ledgers import Ledgers
from rollbook.logservice.core.config_etag import check_etag
from rollbook.logservice.core.downtime_gaps import NO_GAPS, LivedTime
from rollbook.logservice.core.ledger_list import (
    LEDGER_OF_LOG,
    NOT_COUNTED,
    LedgerList,
    ListedLogState,
    LogEvent,
    Sizes,
)
from rollbook.logservice.core.log_incarnations import check_life, text_of
from rollbook.logservice.core.retention import is_free
from rollbook.logservice.core.truncation import plan_truncation
from rollbook.logservice.ids import LogName, LogUid, Offset, OwnerEpoch
from rollbook.logservice.log_metadata import LogMetadataStore, StoredLog
from rollbook.logservice.messages import TruncateAnswer
from rollbook.proto.errors import (
    Guarded,
    MetadataConflict,
    NoSuchLedger,
    OutcomeUnknown,
    OwnerChanging,
    QuorumTimeout,
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


# --- Deleting a log ---------------------------------------------------------------------------


async def delete_log(
    nodes: LogMetadataStore,
    name: LogName,
    free_at_us: int,
    event: LogEvent,
    *,
    uid: str = "",
    etag: str = "",
    owned_by: OwnerEpoch | None = None,
) -> StoredLog:
    """Delete the log: it can no longer be read or written. Its ledgers are kept for the grace period, and
    another log may take its name.

    `owned_by`: the epoch of an owner that the caller informs, or that is gone. A later owner would not be
    informed, and would go on acking. A log that is already deleted is not changed. Raises `Guarded` if there
    are guards, `MetadataConflict` if its configuration has another etag, `OwnerChanging` if it has another owner,
    `LogReplaced` if it has another uid, `NoSuchLog`. After `ConnectionLost` the log may have been deleted.
    """
    for _ in range(_RACES_MAX):
        stored = await nodes.read(name)
        if stored.list.state is ListedLogState.DELETED:
            return stored
        if owned_by is not None and stored.list.owner_epoch != owned_by:
            raise OwnerChanging("the log has been opened since it was read", log=str(name))
        check_life(name, text_of(stored.list.uid), uid)
        check_etag(name, stored.list, etag)
        guards = await nodes.read_guards(name)
        try:
            return await nodes.replace_guarded(
                stored, stored.list.with_deleted(free_at_us).with_event(event), found=guards
            )
        except Guarded as guarded:
            raise Guarded(
                "protected cursors prevent the deletion",
                log=str(name),
                marks=guarded.ids["marks"],
                next_step="delete these cursors first, or end their protection",
            ) from None
        except MetadataConflict:
            continue  # An owner rolls, or a cursor moves: try again.
    raise MetadataConflict("the list changes again and again", log=str(name))


async def stop_writer(ledgers: Ledgers, stored: StoredLog) -> None:
    """Fence the unclosed ledgers of a deleted log. Then a server that cannot read the list, and believes that
    it still owns the log, can ack nothing more.

    That server cannot have begun another ledger, since it would have to list that ledger first. Raises
    `QuorumTimeout` if too few bookies respond; the log stays deleted.
    """

    async def fence(ledger_id: LedgerId) -> None:
        with suppress(NoSuchLedger):  # The ledger was deleted after the grace period.
            await (await ledgers.open_recover(ledger_id)).close()

    unclosed = [segment.ledger_id for segment in stored.list.unclosed]
    found = await asyncio.gather(*map(fence, unclosed), return_exceptions=True)
    for each in found:
        if isinstance(each, Unavailable):
            raise QuorumTimeout(
                "the log is deleted, but its last writer could not be stopped yet",
                log=str(stored.name),
                next_step="delete the log again",
            ) from each
        if isinstance(each, BaseException):
            raise each


async def free_log(
    ledgers: Ledgers,
    nodes: LogMetadataStore,
    stored: StoredLog,
    now_us: int,
    lived: LivedTime = NO_GAPS,
    *,
    keeps_name: bool = False,
) -> bool:
    """Delete the ledgers and the list of a deleted log, if its grace period is over. Returns whether all ledgers are gone.

    `keeps_name`: the empty list stays under its name, so that a new log of that name continues its versions (LL10).
    """
    if not is_free(stored.list, now_us, lived):
        return False
    condemned = await nodes.replace(stored, stored.list.with_ledgers_condemned())
    left = await delete_discarded(ledgers, nodes, condemned)
    if left.list.discarded:
        return False
    if left.is_displaced or not keeps_name:
        await nodes.remove(left)
    logger.info("log_freed", log=str(stored.name))
    return True
