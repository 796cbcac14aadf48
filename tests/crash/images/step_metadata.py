"""A metadata store without an event loop or a network: no call ever waits."""

from collections.abc import Callable, Iterable, Sequence

from rollbook.proto.metastore.core.tree import NodeRow, Tree
from rollbook.proto.ports import (
    ANY_VERSION,
    NO_SESSION,
    Create,
    CreateMode,
    Delete,
    Node,
    NodeStat,
    Op,
    OpResult,
    Set,
)

Rows = tuple[tuple[str, NodeRow], ...]


def _ignore() -> None:
    pass


class StepMetadata:
    """The part of the MetadataStore port that a bookie's identity needs."""

    def __init__(
        self, rows: Iterable[tuple[str, NodeRow]] = (), on_change: Callable[[], None] = _ignore
    ) -> None:
        self._tree = Tree()
        self._tree.load(rows)
        self._on_change = on_change
        self._txn = 0

    @property
    def rows(self) -> Rows:
        return tuple(self._tree.rows())

    async def get(self, path: str) -> Node | None:
        return self._tree.get(path)

    async def children(self, path: str) -> list[str]:
        return self._tree.children(path)

    async def create(
        self, path: str, value: bytes = b"", mode: CreateMode = CreateMode.PERSISTENT
    ) -> str:
        (made,) = await self.transaction([Create(path, value, mode)])
        assert isinstance(made, str)
        return made

    async def set(self, path: str, value: bytes, version: int | None = ANY_VERSION) -> NodeStat:
        (stat,) = await self.transaction([Set(path, value, version)])
        assert isinstance(stat, NodeStat)
        return stat

    async def delete(self, path: str, version: int | None = ANY_VERSION) -> None:
        await self.transaction([Delete(path, version)])

    async def transaction(self, ops: Sequence[Op]) -> list[OpResult]:
        self._txn += 1
        results = self._tree.apply(ops, NO_SESSION, self._txn, 0).results
        self._on_change()
        return results

    async def sync(self) -> None:
        pass
