"""Stores the incarnation in which the steward last saw each bookie whole.

    <own root>/whole/<bookie id>    JSON `{"incarnation": "4e0c…", "version": 1}`

A format gives a bookie a new incarnation and makes it forget closed ledgers: it has no doubts about them, and
denies all their entries. All ledgers of a bookie are checked if its incarnation is not the one that was last
seen whole (LC6).
"""

import json
from typing import Final

import structlog

from rollbook.proto.cluster.cluster_root import Cluster, ensure_own_root
from rollbook.proto.cluster.uncertain_writes import ensure_node, put_surely, read_surely
from rollbook.proto.ids import BookieId
from rollbook.proto.ports import MetadataStore

logger = structlog.get_logger()

WHOLE: Final = "whole"


class WholeNodes:
    def __init__(self, store: MetadataStore, cluster: Cluster) -> None:
        self._store = store
        self._cluster = cluster
        self._folder = f"{cluster.own_root}/{WHOLE}"

    async def read(self, bookie: BookieId) -> str | None:
        """Return the incarnation, or None if the bookie was never seen whole or the node is unreadable."""
        node = await read_surely(self._store, self.path(bookie))
        if node is None:
            return None
        try:
            incarnation = json.loads(node.value)["incarnation"]
        except (ValueError, KeyError, TypeError, RecursionError):
            incarnation = None
        if not isinstance(incarnation, str):
            logger.warning("whole_unreadable", bookie=bookie)
            return None
        return incarnation

    async def write(self, bookie: BookieId, incarnation: str) -> None:
        await ensure_own_root(self._store, self._cluster)
        await ensure_node(self._store, self._folder)
        fields = {"version": 1, "incarnation": incarnation}
        data = json.dumps(fields, sort_keys=True).encode("ascii")
        await put_surely(self._store, self.path(bookie), data)

    def path(self, bookie: BookieId) -> str:
        return f"{self._folder}/{bookie}"
