"""Deletes a log: first its name, so that it can no longer be read or written, and its ledgers after a grace period.

    delete_log    marks the list as deleted, in one step with the guards; a guard prevents this
    stop_writer   fences the unclosed ledgers, so that a stale owner can ack nothing more
    free_log      deletes the ledgers and the list after the grace period

If a server dies in between, the next sweep frees the log (`log_sweeper.py`).
"""

import asyncio
from contextlib import suppress
from typing import Final

import structlog

from rollbook.ledger.ledgers import Ledgers
from rollbook.logservice.core.age_without_downtime import NO_GAPS, LivedTime
from rollbook.logservice.core.config_etag import check_etag
from rollbook.logservice.core.ledger_list import ListedLogState, LogEvent
from rollbook.logservice.core.log_incarnations import check_life, text_of
from rollbook.logservice.core.retention import is_free
from rollbook.logservice.ids import LogName, OwnerEpoch
from rollbook.logservice.log_metadata import LogMetadataStore, StoredLog
from rollbook.logservice.truncation import delete_discarded
from rollbook.proto.errors import (
    Guarded,
    MetadataConflict,
    NoSuchLedger,
    OwnerChanging,
    QuorumTimeout,
    Unavailable,
)
from rollbook.proto.ids import LedgerId

logger = structlog.get_logger()

_RACES_MAX: Final = 20


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
