"""Deletes ledgers that were made for a log and never listed: their makers died, or lost the compare-and-set.

A ledger can be listed only by a change from exactly the version of the list that its metadata
names (LL8). So a ledger that is neither listed nor discarded, and was made for an older version
than the present one, will never be listed, and is deleted. If the list still has that version, the
maker may be about to list the ledger. The list then gets a new version first, so that the maker's
change fails (OR1). Age alone is never a reason to delete. Ledgers younger than an hour are left for
a later walk, so that no server is disturbed.

Ledgers of other applications in the cluster have no such metadata and are ignored.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import structlog

from rollbook.ledger.ledgers import Ledgers
from rollbook.logservice.core.ledger_list import (
    LEDGER_OF_LOG,
    LEDGER_OF_NAME,
    LEDGER_OF_VERSION,
    LedgerList,
    ListedLogState,
)
from rollbook.logservice.ids import LOG_UID_BYTES, LogName, LogUid
from rollbook.logservice.log_metadata import LogMetadataStore, StoredLog
from rollbook.proto.errors import (
    BadMetadata,
    InvalidRequest,
    MetadataConflict,
    NoSuchLedger,
    NoSuchLog,
    OutcomeUnknown,
    Superseded,
    Unavailable,
    UnsupportedVersion,
)
from rollbook.proto.ids import LedgerId

logger = structlog.get_logger()

YOUNG_MS: Final = 3_600_000
_LISTS_KEPT: Final = 1000
_RACES_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Belonging:
    """The log that a ledger's metadata names, and the version of the list that it was made for."""

    name: LogName
    uid: LogUid
    made_for: int


@dataclass(slots=True)
class OrphanReport:
    ledgers: int = 0  # Ledgers that belong to logs.
    deleted: int = 0
    left: int = 0  # Ledgers that could not be deleted now, or may not be orphans.


def belonging_of(custom: Mapping[str, bytes]) -> Belonging | None:
    """The log that a ledger belongs to, or None if it belongs to no log."""
    try:
        uid = bytes.fromhex(custom[LEDGER_OF_LOG].decode("ascii"))
        made_for = int(custom[LEDGER_OF_VERSION].decode("ascii"))
        name = LogName.parse(custom[LEDGER_OF_NAME].decode("ascii"))
    except (KeyError, ValueError, InvalidRequest):
        return None
    return Belonging(name, LogUid(uid), made_for) if len(uid) == LOG_UID_BYTES else None


class OrphanRepair:
    """One walk over all ledgers of the cluster. If the walk fails, the error is raised, and the walk is
    incomplete.
    """

    def __init__(self, ledgers: Ledgers, nodes: LogMetadataStore, now_ms: int) -> None:
        self._ledgers, self._nodes, self._now_ms = ledgers, nodes, now_ms
        # The lists of logs, as they were first read. The oldest are dropped.
        self._lists: dict[LogName, LedgerList | None] = {}
        self.report: Final = OrphanReport()

    async def run(self) -> OrphanReport:
        await self._ledgers.require_cluster()
        async for ledger_id in self._ledgers.list():
            try:
                stored = await self._ledgers.metadata(ledger_id)
            except (NoSuchLedger, BadMetadata, UnsupportedVersion):
                continue
            belonging = belonging_of(dict(stored.metadata.custom))
            if belonging is None:
                continue
            self.report.ledgers += 1
            if self._now_ms - stored.created_ms < YOUNG_MS:
                continue
            if await self._find_listed(ledger_id, belonging):
                continue
            if await self._never_will_be_listed(ledger_id, belonging):
                await self._delete(ledger_id, belonging)
            else:
                self.report.left += 1
        return self.report

    async def _find_listed(self, ledger_id: LedgerId, belonging: Belonging) -> bool:
        """Return whether the log's cached list has the ledger. Reads the list first if it is not cached.

        The cached list may be old, so the caller checks again with a fresh list whether the ledger is absent.
        """
        name = belonging.name
        if name not in self._lists:
            if len(self._lists) >= _LISTS_KEPT:
                del self._lists[next(iter(self._lists))]
            try:
                self._lists[name] = (await self._nodes.read(name)).list
            except NoSuchLog:
                self._lists[name] = None
        listed = self._lists[name]
        return listed is not None and listed.uid == belonging.uid and _has(listed, ledger_id)

    async def _read(self, belonging: Belonging) -> StoredLog | None:
        """The log, wherever its list is stored now (LL10), or None if the log is gone."""
        for _ in range(_RACES_MAX):
            with suppress(NoSuchLog):
                stored = await self._nodes.read(belonging.name)
                if stored.list.uid == belonging.uid:
                    return stored
            if (displaced := await self._nodes.read_displaced(belonging.uid)) is not None:
                return displaced
            # The log may have been restored under its name between the two reads.
            with suppress(NoSuchLog):
                if (await self._nodes.read(belonging.name)).list.uid == belonging.uid:
                    continue
            return None
        raise MetadataConflict(
            "the log is deleted and restored again and again", log=str(belonging.name)
        )

    async def _never_will_be_listed(self, ledger_id: LedgerId, belonging: Belonging) -> bool:
        """Return whether the ledger can no longer be listed (OR1). Gives the list a new version if the
        ledger's maker may be about to list it.
        """
        for _ in range(_RACES_MAX):
            stored = await self._read(belonging)
            if stored is None:
                return True
            if _has(stored.list, ledger_id):
                return False
            if belonging.made_for < stored.version or stored.list.state is ListedLogState.DELETED:
                return True
            # The version has decreased, since metadata was restored from a copy: nothing is certain.
            if belonging.made_for > stored.version:
                logger.warning(
                    "log_ledger_doubtful",
                    log=str(belonging.name),
                    ledger_id=ledger_id,
                    made_for=belonging.made_for,
                    version=stored.version,
                )
                return False
            await self._bump(stored)
        return False

    async def _bump(self, stored: StoredLog) -> None:
        try:
            await self._nodes.bump(stored)
        except (MetadataConflict, OutcomeUnknown):
            pass  # The list has changed, or may have changed: it is read again.

    async def _delete(self, ledger_id: LedgerId, belonging: Belonging) -> None:
        try:
            await self._ledgers.delete(ledger_id)
        except NoSuchLedger:
            return
        except (Unavailable, OutcomeUnknown, Superseded) as error:
            self.report.left += 1
            logger.info(
                "log_orphan_left",
                log=str(belonging.name),
                ledger_id=ledger_id,
                reason=error.code.reason,
            )
            return
        self.report.deleted += 1
        logger.info("log_orphan_deleted", log=str(belonging.name), ledger_id=ledger_id)


def _has(listed: LedgerList, ledger_id: LedgerId) -> bool:
    return listed.lists(ledger_id) or ledger_id in listed.discarded
