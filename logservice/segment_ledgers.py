"""Makes the ledgers of segments, and drops a ledger that is not listed.

The metadata of a ledger names the version of the list that it was made for. Only a compare-and-set from
exactly that version can list it. If that fails, the ledger is never listed, and is deleted (LS3).
"""

from contextlib import suppress

import structlog

from rollbook.ledger.writer import LedgerWriter
from rollbook.logservice.core.degraded_ensembles import degraded_quorum
from rollbook.logservice.core.ledger_list import custom_metadata
from rollbook.logservice.log_metadata import StoredLog
from rollbook.logservice.server_context import OwnerContext
from rollbook.proto.errors import NotEnoughBookies, RollbookError
from rollbook.proto.quorum import Quorum

logger = structlog.get_logger()


async def make_ledger(
    context: OwnerContext, stored: StoredLog, *, bookies_min: int = 0
) -> LedgerWriter:
    """Make a ledger. The caller lists it by a change of exactly this list, or drops it. The ledger has
    fewer bookies than the log wants if no more are available and the log allows it (LS13), but at
    least `bookies_min`. Raises `NotEnoughBookies`.
    """
    config = stored.list.config
    try:
        return await _make_ledger(context, stored, config.quorum)
    except NotEnoughBookies:
        smaller = degraded_quorum(
            config.quorum, context.ledgers.count_usable(is_urgent=context.uses_reserve)
        )
        if smaller is None or smaller.ensemble < bookies_min or not config.degraded_segments:
            raise
    writer = await _make_ledger(context, stored, smaller)
    logger.warning(
        "segment_degraded",
        log=str(stored.name),
        ledger_id=writer.ledger_id,
        bookies=smaller.ensemble,
        wanted=config.quorum.ensemble,
    )
    return writer


async def _make_ledger(context: OwnerContext, stored: StoredLog, quorum: Quorum) -> LedgerWriter:
    return await context.ledgers.create(
        ensemble=quorum.ensemble,
        write=quorum.write,
        ack=quorum.ack,
        custom=custom_metadata(stored.name, stored.list.uid, stored.version),
        is_urgent=context.uses_reserve,
    )


async def drop_ledger(context: OwnerContext, writer: LedgerWriter) -> None:
    """Delete a ledger that was not listed and never written. If that fails, a search for orphans
    deletes it later.
    """
    await writer.stop()
    with suppress(RollbookError):
        await context.ledgers.delete(writer.ledger_id, is_forced=True)
