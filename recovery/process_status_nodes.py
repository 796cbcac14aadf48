"""Writes the status of each recovery process to an ephemeral node, for `rollbook recovery status`.

    <own root>/recovery/<session>   JSON: version, name, release, started_ms, parts, audit, drains, worker

`parts` has the state of each part of the process, the number of its restarts, and its last error. No decision
uses these nodes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rollbook.proto.cluster.cluster_root import Cluster, ensure_own_root
from rollbook.proto.cluster.uncertain_writes import (
    children_surely,
    create_surely,
    ensure_node,
    read_surely,
    set_surely,
)
from rollbook.proto.errors import MetadataConflict, NoSuchNode
from rollbook.proto.ports import CreateMode, MetadataStore, Node

FOLDER: Final = "recovery"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    name: str
    release: str = ""
    started_ms: int = 0
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    audit: Mapping[str, Any] = field(default_factory=dict)
    drains: Mapping[str, Any] = field(default_factory=dict)
    worker: Mapping[str, Any] = field(default_factory=dict)


def pack_presence(presence: ProcessStatus) -> bytes:
    fields = {name: getattr(presence, name) for name in ProcessStatus.__slots__}
    return json.dumps(fields | {"version": _VERSION}, sort_keys=True).encode("ascii")


def unpack_presence(node_name: str, data: bytes) -> ProcessStatus:
    """Return the report in the bytes of a node, for display. An unreadable field is left out."""
    try:
        fields = json.loads(data)
        known = {key: fields[key] for key in ProcessStatus.__slots__ if key in fields}
    except (ValueError, KeyError, TypeError, RecursionError):
        return ProcessStatus(node_name)
    return ProcessStatus(**({"name": node_name} | known))


class PresenceNodes:
    def __init__(self, store: MetadataStore, cluster: Cluster) -> None:
        self._store = store
        self._cluster = cluster
        self._folder = f"{cluster.own_root}/{FOLDER}"

    async def prepare(self) -> None:
        await ensure_own_root(self._store, self._cluster)
        await ensure_node(self._store, self._folder)

    async def write(self, presence: ProcessStatus) -> None:
        """Write this process's report to the node of its session, so that two processes with one name have
        a node each.
        """
        session = self._store.session
        path, data = f"{self._folder}/{session:016x}", pack_presence(presence)
        node = await read_surely(self._store, path)
        try:
            if node is None:
                await create_surely(
                    self._store, path, data, _is_ours, CreateMode.EPHEMERAL, session=session
                )
            elif node.value != data:
                await set_surely(self._store, path, data, node.stat.version)
        except (MetadataConflict, NoSuchNode):
            return  # The next report repeats this write.

    async def list(self) -> list[ProcessStatus]:
        try:
            names = await children_surely(self._store, self._folder)
        except NoSuchNode:
            return []
        found = []
        for name in names:
            node = await read_surely(self._store, f"{self._folder}/{name}")
            if node is not None:
                found.append(unpack_presence(name, node.value))
        return sorted(found, key=lambda each: each.name)

    async def drains(self) -> dict[str, int]:
        """Return the number of ledgers that still name each draining bookie, by the steward's last count."""
        for each in await self.list():
            if drains := each.drains.get("drains"):
                return {bookie: ledgers for bookie, (_, ledgers) in drains.items()}
        return {}


def _is_ours(_: Node) -> bool:
    """Return True: the node always belongs to this process, since its name is that of this session."""
    return True
