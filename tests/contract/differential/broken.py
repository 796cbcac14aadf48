"""Stores with one planted mistake each, which the histories must find."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from rollbook.proto.errors import ConnectionLost, NodeExists, RollbookError, SessionExpired
from rollbook.proto.metastore.core.request_checks import parent_of
from rollbook.proto.metastore.core.tree import Applied, Tree, _Change
from rollbook.proto.metastore.memory import MemoryService
from rollbook.proto.ports import (
    NO_SESSION,
    Check,
    Create,
    Delete,
    MetadataStore,
    NodeStat,
    Op,
    OpResult,
    SessionId,
    Set,
    WatchEvent,
    WatchEventKind,
)
from tests.contract.differential.stages import MemorySeat, MemoryStage

# --- Mistakes in what operations mean ------------------------------------------------------------


class BrokenTree(Tree):
    change: type[_Change] = _Change

    def apply(self, ops: Sequence[Op], session: SessionId, txn: int, now_ms: int) -> Applied:
        change = self.change(self._nodes, session, txn, now_ms)
        results: list[OpResult] = []
        for index, op in enumerate(ops):
            try:
                results.append(change.apply(op))
            except RollbookError as error:
                change.undo()
                error.ids["op"] = index
                raise
        return Applied(results, change.rows(), change.events)


class NumbersFromTheHighestChild(BrokenTree):
    class change(_Change):  # noqa: N801 (the attribute of the class above)
        def _create(self, op: Create) -> str:
            parent = parent_of(op.path)
            if op.mode.is_sequential and (row := self._nodes.rows.get(parent)):
                names = self._nodes.children.get(parent, {})
                numbers = [int(name[-10:]) for name in names if name[-10:].isdecimal()]
                self._put(parent, row._replace(creates=max(numbers, default=-1) + 1))
            return super()._create(op)


class CountsFailedCreates(BrokenTree):
    class change(_Change):  # noqa: N801
        def _create(self, op: Create) -> str:
            try:
                return super()._create(op)
            except NodeExists:
                parent = parent_of(op.path)
                row = self._nodes.rows[parent]
                self._nodes.put(parent, row._replace(creates=row.creates + 1))
                raise


class VersionStays(BrokenTree):
    class change(_Change):  # noqa: N801
        def _set(self, op: Set) -> NodeStat:
            stat = super()._set(op)
            row = self._nodes.rows[op.path]
            self._put(op.path, row._replace(version=row.version - 1))
            return replace(stat, version=stat.version - 1)


class DeletesAnyVersion(BrokenTree):
    class change(_Change):  # noqa: N801
        def _delete(self, op: Delete) -> None:
            super()._delete(Delete(op.path))


class DeletesWholeFamilies(BrokenTree):
    class change(_Change):  # noqa: N801
        def _delete(self, op: Delete) -> None:
            self._matching(op.path, op.version)
            for name in list(self._nodes.children.get(op.path, ())):
                self._delete(Delete(f"{op.path}/{name}"))
            super()._delete(op)


class KeepsHalfOfARefusedTransaction(BrokenTree):
    class change(_Change):  # noqa: N801
        def undo(self) -> None:
            pass


class ChecksNothing(BrokenTree):
    class change(_Change):  # noqa: N801
        def apply(self, op: Op) -> OpResult:
            return None if isinstance(op, Check) else super().apply(op)


class NeverTellsOfDeletedChildren(BrokenTree):
    class change(_Change):  # noqa: N801
        def _delete(self, op: Delete) -> None:
            super()._delete(op)
            self.events.remove(WatchEvent(WatchEventKind.CHILDREN, parent_of(op.path)))


class KeepsEphemerals(BrokenTree):
    def end_session(self, session: SessionId, txn: int, now_ms: int) -> Applied:
        return self.apply([], session, txn, now_ms)


class AdoptsEphemerals(BrokenTree):
    class change(_Change):  # noqa: N801
        def _set(self, op: Set) -> NodeStat:
            stat = super()._set(op)
            row = self._nodes.rows[op.path]
            if row.owner == NO_SESSION:
                return stat
            self._nodes.put(op.path, None)
            self._nodes.put(op.path, row._replace(owner=self._session))
            return replace(stat, owner=self._session)


# --- Mistakes in what clients make of failures ----------------------------------------------------


class Repeats:
    """Repeats calls that failed with the connection or the session, and may have been applied."""

    def __init__(self, store: MetadataStore, cause: type[RollbookError]) -> None:
        self._store = store
        self._cause = cause

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._store, name)
        if name not in ("create", "set", "delete", "transaction", "get", "children"):
            return attribute
        return self._repeating(attribute)

    def _repeating(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any) -> Any:
            try:
                return await method(*arguments)
            except self._cause:
                return await method(*arguments)

        return call


# --- Stages ---------------------------------------------------------------------------------------

BROKEN_TREES: Final = (
    NumbersFromTheHighestChild,
    CountsFailedCreates,
    VersionStays,
    DeletesAnyVersion,
    DeletesWholeFamilies,
    KeepsHalfOfARefusedTransaction,
    ChecksNothing,
    NeverTellsOfDeletedChildren,
    KeepsEphemerals,
    AdoptsEphemerals,
)
REPEATED_CAUSES: Final = (ConnectionLost, SessionExpired)


class BrokenStage(MemoryStage):
    name = "broken"

    def __init__(self, service: MemoryService, tree: type[BrokenTree]) -> None:
        super().__init__(service)
        service._host.service.tree.__class__ = tree


class RepeatingStage(MemoryStage):
    name = "repeating"

    def __init__(self, service: MemoryService, cause: type[RollbookError]) -> None:
        super().__init__(service)
        self._cause = cause

    async def seat(self) -> MemorySeat:
        seat = await super().seat()
        return RepeatingSeat(seat._service, seat._client, self._cause)


class RepeatingSeat(MemorySeat):
    def __init__(
        self, service: MemoryService, client: MetadataStore, cause: type[RollbookError]
    ) -> None:
        super().__init__(service, client)
        self._cause = cause

    @property
    def store(self) -> MetadataStore:
        return cast(MetadataStore, Repeats(self._client, self._cause))
