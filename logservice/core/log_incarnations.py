"""Tells apart logs that have had the same name: a deleted log, and a log that was created later (LL9).

A log's uid is drawn when it is created. Servers return it with tails, states, reads and cursors; clients send it
with their requests. A request without a uid means the log that has the name now.
"""

from rollbook.logservice.ids import LogName, LogUid
from rollbook.proto.errors import LogReplaced


def text_of(uid: LogUid) -> str:
    """The uid as clients see it."""
    return uid.hex()


def check_life(log: LogName, uid: str, wanted: str) -> None:
    """Check that the log is the wanted one. `uid`: the uid of the log that has the name now. An empty
    `wanted` means any log. Raises `LogReplaced`.
    """
    if wanted and wanted != uid:
        raise LogReplaced(
            log=str(log),
            uid=uid,
            expected_uid=wanted,
            next_step="open the log again; offsets, conditions and cursors of the deleted log do not apply to it",
        )
