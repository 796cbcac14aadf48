"""Stores lasting operations in metadata (the rules are in `core/operations.py`).

<own root>/operations/<id>      one operation, JSON
<own root>/operation-runner     votes of the processes that can run operations
"""

import asyncio
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from rollbook.proto.cluster.cluster_root import Cluster, ensure_own_root
from rollbook.proto.cluster.uncertain_writes import (
    children_surely,
    create_surely,
    delete_surely,
    ensure_node,
    read_surely,
    transact_surely,
)
from rollbook.proto.errors import (
    BadMetadata,
    MetadataConflict,
    Missing,
    NodeExists,
    NoSuchNode,
    Overloaded,
    UnsupportedVersion,
)
from rollbook.proto.ports import Check, MetadataStore, Op, SessionId, Set, Watch
from rollbook.recovery.core.operations import (
    KEPT_MAX,
    LastingOperation,
    is_operation_id,
    pack_operation,
    to_forget,
    unpack_operation,
)

logger = structlog.get_logger()

OPERATIONS: Final = "operations"
RUNNER: Final = "operation-runner"
_READS_AT_ONCE: Final = 64
_RACES_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class StoredOperation:
    operation: LastingOperation
    version: int


class OperationNodes:
    def __init__(self, store: MetadataStore, cluster: Cluster) -> None:
        self._store = store
        self._cluster = cluster
        self.folder = f"{cluster.own_root}/{OPERATIONS}"

    async def prepare(self) -> None:
        await ensure_own_root(self._store, self._cluster)
        await ensure_node(self._store, self.folder)

    async def create(self, operation: LastingOperation, now_ms: int) -> LastingOperation:
        """Create an operation, or return the existing one if the request is the same (OP2). Raises
        `DuplicateDiffers`, or `Overloaded` if the maximum number of operations have not ended.
        """
        await self.prepare()
        if (known := await self._known(operation)) is not None:
            return known
        if len(await children_surely(self._store, self.folder)) >= KEPT_MAX:
            kept = await self.forget(now_ms, KEPT_MAX - 1)
            if kept >= KEPT_MAX:
                raise Overloaded(
                    f"{kept} operations have not ended",
                    next_step="wait until some have ended, or cancel some",
                )
        data = pack_operation(operation)
        try:
            await create_surely(
                self._store, self._path(operation.id), data, lambda found: found.value == data
            )
        except NodeExists:
            if (known := await self._known(operation)) is None:
                raise
            return known
        return operation

    async def _known(self, operation: LastingOperation) -> LastingOperation | None:
        found = await self.read(operation.id)
        if found is None:
            return None
        found.operation.require_same(operation.kind, operation.about)
        return found.operation

    async def forget(self, now_ms: int, kept: int = KEPT_MAX) -> int:
        """Remove operations that need not be kept (OP3). Returns the number of operations that are left."""
        found = await self.list()
        gone = to_forget((each.operation for each in found), now_ms, kept)
        for operation_id in gone:
            try:
                await delete_surely(self._store, self._path(operation_id))
            except NoSuchNode:
                continue
        return len(found) - len(gone)

    async def read(self, operation_id: str) -> StoredOperation | None:
        """Return the operation, or None if it does not exist. Raises `BadMetadata`, `UnsupportedVersion`."""
        if not is_operation_id(operation_id):
            return None
        node = await read_surely(self._store, self._path(operation_id))
        if node is None:
            return None
        return StoredOperation(unpack_operation(node.value), node.stat.version)

    async def list(self, without: Container[str] = ()) -> "list[StoredOperation]":
        """Return all operations, the newest first. An unreadable operation is logged and left out."""
        try:
            names = sorted(await children_surely(self._store, self.folder))
        except NoSuchNode:
            return []
        await self._store.sync()
        remaining, found = iter(names), list[StoredOperation]()

        async def work() -> None:
            for name in remaining:
                if name in without or not is_operation_id(name):
                    continue
                node = await read_surely(self._store, self._path(name), fresh=False)
                if node is None:
                    continue
                try:
                    operation = unpack_operation(node.value)
                except (BadMetadata, UnsupportedVersion) as error:
                    logger.warning("operation_unreadable", operation=name, reason=error.message)
                    continue
                found.append(StoredOperation(operation, node.stat.version))

        await asyncio.gather(*(work() for _ in range(min(_READS_AT_ONCE, len(names)))))
        return sorted(
            found, key=lambda each: (each.operation.created_ms, each.operation.id), reverse=True
        )

    async def change(
        self,
        operation_id: str,
        step: Callable[[LastingOperation], LastingOperation],
        *,
        checks: Sequence[Check] = (),
        session: SessionId | None = None,
    ) -> LastingOperation:
        """Read an operation, and write what `step` makes of it if `checks` hold. With `session`, the write
        fails unless the session is still the same.

        Raises the errors of `step`, `Missing`, or `MetadataConflict` if a check does not hold.
        """
        path = self._path(operation_id)
        for _ in range(_RACES_MAX):
            found = await self.read(operation_id)
            if found is None:
                raise Missing(f"there is no operation {operation_id}", operation=operation_id)
            changed = step(found.operation)
            if changed == found.operation:
                return changed
            data, version = pack_operation(changed), found.version + 1

            async def was_made(data: bytes = data, version: int = version) -> bool:
                node = await read_surely(self._store, path)
                return node is not None and (node.stat.version, node.value) == (version, data)

            ops: tuple[Op, ...] = (*checks, Set(path, data, found.version))
            try:
                await transact_surely(self._store, ops, was_made, session=session)
            except (MetadataConflict, NoSuchNode):
                continue
            return changed
        raise MetadataConflict("other processes keep writing it", path=path)

    async def watch(self) -> Watch:
        return await self._store.watch(self.folder, recursive=True)

    def _path(self, operation_id: str) -> str:
        return f"{self.folder}/{operation_id}"
