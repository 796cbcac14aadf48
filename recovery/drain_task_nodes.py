"""Stores in our own tree, as tasks for workers, the ledgers of bookies that drain or may not be whole.

    <own root>/drain/hhhh/hhhh/hhhh/hhhh/urLdddd…    a drain task, in the form of a mark

Drain tasks have the form of BookKeeper's marks. A worker handles a drain task like a mark, under the same
lock (`Marks.take`). If the task names a draining bookie, that bookie is replaced although it is registered.
Every other bookie of the task is checked: entries missing from its list are restored there. The steward
publishes a bounded number of tasks at a time.
"""

from typing import Final

from rollbook.proto.cluster.cluster_root import Cluster, ensure_own_root
from rollbook.proto.cluster.uncertain_writes import ensure_node
from rollbook.proto.cluster.underreplication_marks import MarkTree
from rollbook.proto.ports import MetadataStore

DRAIN: Final = "drain"
STEWARD: Final = "steward"  # The folder in which stewards are elected.


class DrainTasks(MarkTree):
    def __init__(self, store: MetadataStore, cluster: Cluster) -> None:
        super().__init__(store, f"{cluster.own_root}/{DRAIN}")
        self._cluster = cluster

    async def prepare(self) -> None:
        await ensure_own_root(self._store, self._cluster)
        await ensure_node(self._store, self.folder)
