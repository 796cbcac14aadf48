"""Finds the bookie's ledgers that metadata does not name.

The scan reads only the bookie's own cluster: it checks the instance id and our own trees before and
after. If the store is unavailable, empty or belongs to another cluster, the scan raises an error,
because nothing is known about any ledger.

The scan compares ids while it walks the metadata. Both are in ascending order, so that only one
directory of the metadata is in memory at a time. Long ranges of ids without a ledger of this bookie
are skipped.
"""

import asyncio
from array import array
from typing import Final

from rollbook.bookie.core.journal_index import IntArray
from rollbook.proto.cluster.cluster_root import Cluster, ensure_layout, require_cluster
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.errors import BadMetadata, NoSuchLedger
from rollbook.proto.ids import LedgerId
from rollbook.proto.ports import MetadataStore

# Gaps of at least this many ids are skipped; a directory of the tree has at most 10,000.
_SKIP_MIN: Final = 100_000
_IDS_PER_STEP: Final = 1024
_READS_AT_ONCE: Final = 16


class DeletedLedgerScan:
    def __init__(self, store: MetadataStore, cluster: Cluster) -> None:
        self._store = store
        self._cluster = cluster
        self._nodes = LedgerNodes(store, cluster.root, cluster.layout)

    async def absent_of(self, ids: IntArray) -> IntArray:
        """Returns the ids (ascending) that were absent from the metadata during the whole call.

        If the LAYOUT was lost since the start, it is written again: without it, every check of the
        cluster walks the whole tree. Raises `Unavailable`, `OutcomeUnknown`, `WrongCluster`,
        `NoSuchCluster`, …
        """
        await require_cluster(self._store, self._cluster)
        await ensure_layout(self._store, self._cluster)
        absent = array("q")
        at, count = 0, len(ids)
        walk = self._nodes.ids(LedgerId(ids[0])) if ids else None
        while walk and at < count:
            step = 0
            async for seen in walk:
                while at < count and ids[at] < seen:
                    absent.append(ids[at])
                    at += 1
                if at < count and ids[at] == seen:
                    at += 1
                if at == count or ids[at] - seen > _SKIP_MIN:
                    break
                step += 1
                if step % _IDS_PER_STEP == 0:
                    await asyncio.sleep(0)  # Adds that wait on the loop run first.
            else:
                absent.extend(ids[at:])
                break
            walk = self._nodes.ids(LedgerId(ids[at])) if at < count else None
        await require_cluster(self._store, self._cluster)
        return absent

    async def still_absent(self, ids: IntArray) -> IntArray:
        """Returns the given ids whose metadata is still absent; reads each separately. Raises
        `Unavailable`, `OutcomeUnknown`, `WrongCluster`, `NoSuchCluster`."""
        await require_cluster(self._store, self._cluster)
        absent = array("q")
        for start in range(0, len(ids), _READS_AT_ONCE):
            batch = ids[start : start + _READS_AT_ONCE]
            found = await asyncio.gather(*map(self._exists, batch))
            absent.extend(each for each, exists in zip(batch, found, strict=True) if not exists)
        return absent

    async def _exists(self, ledger_id: int) -> bool:
        try:
            await self._nodes.read(LedgerId(ledger_id), fresh=True)
        except NoSuchLedger:
            return False
        except BadMetadata:
            return True  # The ledger exists, even if its metadata is unreadable.
        return True
