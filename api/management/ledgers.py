"""Management of ledgers over HTTP: lists ledgers in pages, describes a ledger, reads its entries and deletes it,
and lists bad and lost entries.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from rollbook.api.cli.cluster.actions import list_bookies
from rollbook.api.cli.ledger.actions import (
    facts_as_bookkeeper,
    facts_of_ledger,
    fragments_of,
    in_pieces,
)
from rollbook.api.cli.ledger.segment_guard import HTTP_INSTEAD_OF_REMOVAL, require_no_part
from rollbook.api.management.store_calls import ACT_S, StoreCalls
from rollbook.ledger.ledgers import Ledgers
from rollbook.proto.cluster.ledger_nodes import StoredLedger
from rollbook.proto.cluster.underreplication_marks import Marks
from rollbook.proto.errors import (
    BadMetadata,
    NoSuchLedger,
    RecoveryIncomplete,
    UnsupportedVersion,
)
from rollbook.proto.ids import EntryId, LedgerId, parse_bookie_id
from rollbook.recovery.repair_failure_nodes import BadCopies, Failures

Facts = dict[str, Any]

_READS: Final = 64  # Concurrent reads of metadata.
# About the maximum number of ledgers that are read for one page. To find ledgers in a rare state, a caller may
# have to request several pages.
_LOOKED_AT_MAX: Final = 4096
_ENTRIES_MAX: Final = 1000
_ENTRY_BYTES_MAX: Final = 4 * 1024 * 1024


class LedgerManagement:
    def __init__(self, ledgers: Ledgers, calls: StoreCalls) -> None:
        self._ledgers = ledgers
        self._store = ledgers.store
        self._cluster = ledgers.cluster
        self._calls = calls
        self._marks = Marks(self._store, self._cluster.root)
        self._failures = Failures(self._store, self._cluster)
        self._bad = BadCopies(self._store, self._cluster)

    async def list_page(
        self,
        after: int,
        limit: int,
        *,
        state: str | None = None,
        bookie: str | None = None,
        short: bool | None = None,
    ) -> tuple[list[Facts], int | None]:
        """Returns rows with ids above `after`, and the `after` of the next page, or None if this is the last
        page.

        A page may have fewer rows than `limit`, or none, although there is a next page: the number of ledgers
        that are read for a page is bounded (MG3). `short` selects ledgers that are marked as lacking
        copies (True), or ledgers without this mark (False).
        """
        return await self._calls.look(self._page(after, limit, state, bookie, short))

    async def _page(
        self, after: int, limit: int, state: str | None, bookie: str | None, short: bool | None
    ) -> tuple[list[Facts], int | None]:
        wanted = None if bookie is None else parse_bookie_id(bookie)
        rows: list[Facts] = []
        looked_at = 0
        ids = self._marked(after) if short else self._ledgers.list(after + 1)
        async for piece in in_pieces(ids, _READS, None):
            found = await asyncio.gather(*map(self._read, piece))
            for ledger_id, stored in zip(piece, found, strict=True):
                if stored is None or (wanted and not stored.metadata.names(wanted)):
                    continue
                if state is not None and stored.metadata.state.value != state:
                    continue
                if short is False and await self._marks.read(ledger_id) is not None:
                    continue
                rows.append(facts_of_ledger(stored))
                if len(rows) == limit:
                    return rows, ledger_id
            looked_at += len(piece)
            if looked_at >= _LOOKED_AT_MAX:
                return rows, piece[-1]
        return rows, None

    async def _marked(self, after: int) -> AsyncIterator[LedgerId]:
        async for ledger_id in self._marks.ids():
            if ledger_id > after:
                yield ledger_id

    async def _read(self, ledger_id: LedgerId) -> StoredLedger | None:
        try:
            return await self._ledgers.metadata(ledger_id)
        except (NoSuchLedger, BadMetadata):
            # The ledger was deleted, or its metadata is unreadable. GET /api/v1/recovery shows how many
            # ledgers are unreadable.
            return None

    async def describe(self, ledger_id: int) -> Facts:
        """Returns the ledger with its fragments, its mark, and the reason why its last repair failed. Raises
        `NoSuchLedger`.
        """
        return await self._calls.look(self._describe(ledger_id))

    async def _describe(self, ledger_id: int) -> Facts:
        stored = await self._ledgers.metadata(ledger_id, fresh=True)
        mark = await self._marks.read(LedgerId(ledger_id))
        try:
            failure = await self._failures.read(LedgerId(ledger_id))
        except (BadMetadata, UnsupportedVersion):
            failure = None
        states = {row["id"]: row["state"] for row in await list_bookies(self._store, self._cluster)}
        return facts_of_ledger(stored) | {
            "fragments": [
                each | {"places": [states.get(name, "unknown") for name in each["ensemble"]]}
                for each in fragments_of(stored.metadata)
            ],
            "short": mark is not None,
            "missing": list(mark.mark.missing) if mark else [],
            "short_since_ms": mark.mark.marked_ms if mark else None,
            "repair_problem": failure.message if failure else None,
            "lost": [
                f"{loss.first_entry}-{loss.last_entry}"
                for loss in (failure.losses if failure else ())
            ],
        }

    async def describe_as_bookkeeper(self, ledger_id: int) -> Facts:
        """Raises `NoSuchLedger`."""
        return facts_as_bookkeeper(
            await self._calls.look(self._ledgers.metadata(ledger_id, fresh=True))
        )

    async def list_bad(self, after: int, limit: int) -> tuple[list[Facts], int | None]:
        """Returns the entries that checks found bad, and the entries that repairs found lost."""
        return await self._calls.look(self._bad_page(after, limit))

    async def _bad_page(self, after: int, limit: int) -> tuple[list[Facts], int | None]:
        rows: list[Facts] = []
        ids = [each async for each in _first_above(self._bad.ids(), after, limit + 1)]
        failed = [each async for each in _first_above(self._failures.ids(), after, limit + 1)]
        found = sorted({*ids, *failed})
        for ledger_id in found[:limit]:
            mark = await self._marks.read(ledger_id)
            since_ms = mark.mark.marked_ms if mark else None
            bad = await self._bad.read_stored(ledger_id)
            for bookie, ranges in (bad[0] if bad else {}).items():
                rows += (
                    _bad_row(ledger_id, "bad copy", "auditor", bookie, first, last, since_ms)
                    for first, last in ranges
                )
            try:
                failure = await self._failures.read(ledger_id)
            except (BadMetadata, UnsupportedVersion):
                continue
            for loss in failure.losses if failure else ():
                holders = ", ".join(loss.holders)
                failed_ms = failure.failed_ms if failure else None
                rows.append(
                    _bad_row(
                        ledger_id,
                        "no copy",
                        "worker",
                        holders,
                        loss.first_entry,
                        loss.last_entry,
                        failed_ms,
                    )
                )
        return rows, found[limit - 1] if len(found) > limit else None

    async def entries(self, ledger_id: int, first: int, last: int | None) -> dict[int, bytes]:
        """Returns the confirmed entries from `first` to `last`: at most 1000, and at most 4 MiB unless the first entry
        alone is larger. Raises `NoSuchLedger`, `EntryUnavailable`.
        """
        return await self._calls.look(self._read_entries(ledger_id, first, last), ACT_S)

    async def _read_entries(self, ledger_id: int, first: int, last: int | None) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        size = 0
        async with await self._ledgers.open(ledger_id) as reader:
            end = (
                reader.last_add_confirmed if last is None else min(last, reader.last_add_confirmed)
            )
            for entry_id in range(first, min(end, first + _ENTRIES_MAX - 1) + 1):
                (entry,) = await reader.read_few(EntryId(entry_id), EntryId(entry_id))
                size += len(entry.payload)
                if found and size > _ENTRY_BYTES_MAX:
                    break
                found[entry_id] = bytes(entry.payload)
        return found

    async def delete(self, ledger_id: int, *, force: bool) -> Facts:
        """Stops the ledger's writer, and deletes the ledger. Raises `NoSuchLedger`, `PartOfLog`,
        `RecoveryIncomplete`.
        """

        async def remove() -> Facts:
            await require_no_part(
                self._ledgers,
                [ledger_id],
                instead=HTTP_INSTEAD_OF_REMOVAL,
                may_insist=False,
            )
            try:
                await self._ledgers.delete(ledger_id, None, is_forced=force)
            except RecoveryIncomplete as error:
                error.next_step = (
                    "use force=true to delete it although its writer may continue for a while"
                )
                raise
            return {"ledger_id": ledger_id, "state": "deleted"}

        return await self._calls.walk(
            remove(), f"send GET /api/v1/ledgers/{ledger_id}, which returns 404 once it is deleted"
        )


def _bad_row(
    ledger_id: int,
    kind: str,
    said_by: str,
    bookies: str,
    first_entry: int,
    last_entry: int,
    since_ms: int | None,
) -> Facts:
    return {
        "ledger_id": ledger_id,
        "kind": kind,
        "said_by": said_by,
        "bookies": bookies,
        "first_entry": first_entry,
        "last_entry": last_entry,
        "since_ms": since_ms,
    }


async def _first_above(
    ids: AsyncIterator[LedgerId], after: int, count: int
) -> AsyncIterator[LedgerId]:
    async for ledger_id in ids:
        if ledger_id > after:
            yield ledger_id
            count -= 1
            if not count:
                return
