"""Makes `rollbook ledger rm` and `recover` refuse segments of logs, unless the user names the log."""

import random
from collections.abc import Sequence
from typing import Final

from rollbook.ledger.ledgers import Ledgers
from rollbook.logservice.log_metadata import LogMetadataStore
from rollbook.logservice.orphan_ledgers import belonging_of
from rollbook.proto.errors import NoSuchLedger, NoSuchLog, PartOfLog
from rollbook.proto.ids import LedgerId
from rollbook.proto.runtime.clock import SystemClock

HTTP_INSTEAD_OF_REMOVAL: Final = "at a log server: POST {1}:truncate, or DELETE {1}"
HTTP_INSTEAD_OF_RECOVERY: Final = "a log server recovers the ledger when it takes the log over; to move the log: POST {1}:transfer there"
INSTEAD_OF_RECOVERY: Final = "a log server recovers the ledger when it takes the log over; to move the log: rollbook log transfer {0} SERVER"


async def require_no_part(
    ledgers: Ledgers,
    ledger_ids: Sequence[int],
    part_of_log: str | None = None,
    *,
    instead: str,
    may_insist: bool = True,
) -> None:
    """Raises `PartOfLog` if a log needs the ledger. `instead` is the alternative for logs, where `{0}` is the
    log's name and `{1}` its HTTP path. `may_insist` means that the caller has the option `--part-of-log`.
    """
    nodes = LogMetadataStore(ledgers.store, ledgers.cluster, SystemClock(), random.SystemRandom())
    for ledger_id in ledger_ids:
        log = await _log_of(ledgers, nodes, ledger_id)
        if log is None or log == part_of_log:
            continue
        insist = f"; to continue nevertheless, use --part-of-log {log}"
        raise PartOfLog(
            f"the ledger is a segment of the log {log}",
            ledger_id=ledger_id,
            next_step=instead.format(log, "/v1/namespaces/{}/logs/{}".format(*log.split("/")))
            + (insist if may_insist else ""),
        )


async def _log_of(ledgers: Ledgers, nodes: LogMetadataStore, ledger_id: int) -> str | None:
    """Returns the log that needs the ledger, or None if no log needs it: it may be an orphan or a discarded
    segment.
    """
    try:
        stored = await ledgers.metadata(ledger_id, fresh=True)
        belonging = belonging_of(dict(stored.metadata.custom))
        if belonging is None:
            return None
        listed = (await nodes.read(belonging.name)).list
    except (NoSuchLedger, NoSuchLog):
        return None
    is_part = listed.uid == belonging.uid and any(
        segment.ledger_id == LedgerId(ledger_id) for segment in listed.segments
    )
    return str(belonging.name) if is_part else None
