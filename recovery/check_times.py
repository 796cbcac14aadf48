"""Stores the time when each check of the auditor was last completed."""

import json
from typing import Final

from rollbook.proto.cluster.cluster_root import Cluster, ensure_own_root
from rollbook.proto.cluster.uncertain_writes import ensure_node, put_surely, read_surely
from rollbook.proto.cluster.underreplication_marks import Checked, Marks
from rollbook.proto.ports import MetadataStore
from rollbook.recovery.core.ledger_checks import CheckKind

CHECKED: Final = "checked"


class CheckTimes:
    """The time when each check was last completed. The time is stored in BookKeeper's node if BookKeeper has
    this kind of check.

    <own root>/checked/bookies    JSON `{"completed_ms": 17…, "version": 1}`
    """

    def __init__(self, store: MetadataStore, cluster: Cluster, marks: Marks) -> None:
        self._store = store
        self._cluster = cluster
        self._marks = marks
        self._folder = f"{cluster.own_root}/{CHECKED}"

    async def completed_ms(self, kind: CheckKind) -> int | None:
        """Return the time when the check was last completed, or None if it never was or the time is
        unreadable.
        """
        if (check := _BOOKKEEPERS.get(kind)) is not None:
            return await self._marks.checked_at_ms(check)
        node = await read_surely(self._store, f"{self._folder}/{kind.value}")
        try:
            completed_ms = json.loads(node.value)["completed_ms"] if node else None
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return completed_ms if type(completed_ms) is int else None

    async def write(self, kind: CheckKind, at_ms: int) -> None:
        if (check := _BOOKKEEPERS.get(kind)) is not None:
            await self._marks.set_checked_at(check, at_ms)
            return
        await ensure_own_root(self._store, self._cluster)
        await ensure_node(self._store, self._folder)
        data = json.dumps({"completed_ms": at_ms, "version": 1}, sort_keys=True).encode("ascii")
        await put_surely(self._store, f"{self._folder}/{kind.value}", data)


_BOOKKEEPERS: Final = {
    CheckKind.PLACEMENT: Checked.PLACEMENT,
    CheckKind.COPIES: Checked.REPLICAS,
    CheckKind.LEDGERS: Checked.ALL_LEDGERS,
}
