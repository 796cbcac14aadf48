"""The operations of a metadata store. Only this module defines what they do to nodes.

ZooKeeper is the model. Frequent mistakes:

- A node's version starts at 0 and grows by one with each set. A node that is deleted and created
  again starts at 0; `created_txn` distinguishes it from the deleted node.
- A sequential node's number is how many children, sequential or not, its parent has ever had. The
  parent keeps this count, and deletes do not change it, so no name is given twice in the life of a
  parent (MS4).
- The reasons for a refusal are checked in this order. A create is refused for a missing parent, for
  an existing node, or for an ephemeral parent; a set, check or delete for a missing node or another
  version; and a delete also for children.
- An operation of a transaction sees the effects of those before it; a transaction is applied as a
  whole or not at all.
- When a session ends, its ephemeral nodes are deleted in one transaction, in the order of their paths.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from rollbook.proto.errors import (
    InvalidRequest,
    MetadataConflict,
    NodeExists,
    NodeNotEmpty,
    NoSuchNode,
    RollbookError,
)
from rollbook.proto.metastore.core.request_checks import ROOT, name_of, parent_of
from rollbook.proto.ports import (
    NO_SESSION,
    Check,
    Create,
    Delete,
    Node,
    NodeStat,
    Op,
    OpResult,
    SessionId,
    Set,
    WatchEvent,
    WatchEventKind,
)

K = TypeVar("K", str, SessionId)


class NodeRow(NamedTuple):
    """A node as it is stored. The names of its children are not stored, since they follow from the paths."""

    value: bytes
    version: int
    created_txn: int
    modified_txn: int
    created_ms: int
    modified_ms: int
    owner: SessionId
    # How many children it has ever had; sequential children get their numbers from it.
    creates: int


@dataclass(frozen=True, slots=True)
class Applied:
    """One transaction that took effect."""

    results: list[OpResult]
    # The rows to store, by path; None means that the node is deleted.
    rows: dict[str, NodeRow | None]
    events: list[WatchEvent]


class Tree:
    """Applies transactions. The caller passes their numbers (`txn`, which grow) and times.

    All paths and sizes must have passed `check_path` and `check_ops`.
    """

    def __init__(self) -> None:
        self._nodes = _Nodes()
        self._nodes.put(ROOT, NodeRow(b"", 0, 0, 0, 0, 0, NO_SESSION, 0))

    def get(self, path: str) -> Node | None:
        row = self._nodes.rows.get(path)
        return None if row is None else Node(row.value, self._nodes.stat(path, row))

    def children(self, path: str) -> list[str]:
        """Returns the children's names, sorted. Raises `NoSuchNode`."""
        self._nodes.existing(path)
        return sorted(self._nodes.children.get(path, ()))

    def ephemerals(self, session: SessionId) -> list[str]:
        """Returns the paths of the session's ephemeral nodes, sorted."""
        return sorted(self._nodes.ephemerals.get(session, ()))

    def rows(self) -> Iterator[tuple[str, NodeRow]]:
        yield from self._nodes.rows.items()

    def load(self, rows: Iterable[tuple[str, NodeRow | None]]) -> None:
        """Loads rows of another tree, in any order: all of them, or those that changed."""
        for path, row in rows:
            self._nodes.put(path, row)

    def apply(self, ops: Sequence[Op], session: SessionId, txn: int, now_ms: int) -> Applied:
        """Applies a transaction. Raises the error of the first failing
        operation, with its index as `op`.
        """
        change = _Change(self._nodes, session, txn, now_ms)
        results: list[OpResult] = []
        for index, op in enumerate(ops):
            try:
                results.append(change.apply(op))
            except RollbookError as error:
                change.undo()
                error.ids["op"] = index
                raise
        return Applied(results, change.rows(), change.events)

    def end_session(self, session: SessionId, txn: int, now_ms: int) -> Applied:
        """Removes the session's ephemeral nodes."""
        return self.apply([Delete(path) for path in self.ephemerals(session)], session, txn, now_ms)


class _Nodes:
    """The rows of all nodes, and values derived from them."""

    def __init__(self) -> None:
        self.rows: dict[str, NodeRow] = {}
        # The names of children by parent; a parent without children has no key.
        self.children: dict[str, dict[str, None]] = {}
        self.ephemerals: dict[SessionId, dict[str, None]] = {}

    def existing(self, path: str) -> NodeRow:
        row = self.rows.get(path)
        if row is None:
            raise NoSuchNode(path=path)
        return row

    def stat(self, path: str, row: NodeRow) -> NodeStat:
        return NodeStat(
            row.version,
            row.created_txn,
            row.modified_txn,
            row.created_ms,
            row.modified_ms,
            row.owner,
            len(self.children.get(path, ())),
        )

    def put(self, path: str, row: NodeRow | None) -> None:
        """Sets or removes a node. All changes are made here, so a change is undone by putting the
        old row back.
        """
        before = self.rows.pop(path, None) if row is None else self.rows.get(path)
        if row is not None:
            self.rows[path] = row
        if (before is None) == (row is None):
            return  # The node is neither created nor deleted, and its owner never changes.
        known = row or before
        assert known is not None
        index = _add if before is None else _remove
        if path != ROOT:
            index(self.children, parent_of(path), name_of(path))
        if known.owner != NO_SESSION:
            index(self.ephemerals, known.owner, path)


def _add(index: dict[K, dict[str, None]], key: K, member: str) -> None:
    index.setdefault(key, {})[member] = None


def _remove(index: dict[K, dict[str, None]], key: K, member: str) -> None:
    members = index[key]
    del members[member]
    if not members:
        del index[key]


class _Change:
    """A transaction that is being applied."""

    def __init__(self, nodes: _Nodes, session: SessionId, txn: int, now_ms: int) -> None:
        self.events: list[WatchEvent] = []
        self._nodes, self._session, self._txn, self._now_ms = nodes, session, txn, now_ms
        self._before: list[tuple[str, NodeRow | None]] = []

    def apply(self, op: Op) -> OpResult:
        match op:
            case Create():
                return self._create(op)
            case Set():
                return self._set(op)
            case Delete():
                self._delete(op)
            case Check():
                self._matching(op.path, op.version)
        return None

    def rows(self) -> dict[str, NodeRow | None]:
        return {path: self._nodes.rows.get(path) for path, _ in self._before}

    def undo(self) -> None:
        for path, row in reversed(self._before):
            self._nodes.put(path, row)

    def _create(self, op: Create) -> str:
        parent_path = parent_of(op.path)
        parent = self._nodes.existing(parent_path)
        path = f"{op.path}{parent.creates:010d}" if op.mode.is_sequential else op.path
        if path in self._nodes.rows:
            raise NodeExists(path=path)
        if parent.owner != NO_SESSION:
            raise InvalidRequest("an ephemeral node cannot have children", path=path)
        owner = self._session if op.mode.is_ephemeral else NO_SESSION
        txn, now_ms = self._txn, self._now_ms
        self._put(parent_path, parent._replace(creates=parent.creates + 1))
        self._put(path, NodeRow(op.value, 0, txn, txn, now_ms, now_ms, owner, 0))
        self._tell(WatchEventKind.CREATED, path)
        self._tell(WatchEventKind.CHILDREN, parent_path)
        return path

    def _set(self, op: Set) -> NodeStat:
        row = self._matching(op.path, op.version)
        row = row._replace(
            value=op.value,
            version=row.version + 1,
            modified_txn=self._txn,
            modified_ms=self._now_ms,
        )
        self._put(op.path, row)
        self._tell(WatchEventKind.CHANGED, op.path)
        return self._nodes.stat(op.path, row)

    def _delete(self, op: Delete) -> None:
        self._matching(op.path, op.version)
        if op.path in self._nodes.children:
            raise NodeNotEmpty(path=op.path)
        self._put(op.path, None)
        self._tell(WatchEventKind.DELETED, op.path)
        self._tell(WatchEventKind.CHILDREN, parent_of(op.path))

    def _matching(self, path: str, version: int | None) -> NodeRow:
        row = self._nodes.existing(path)
        if version is not None and version != row.version:
            raise MetadataConflict(path=path, expected=version, found=row.version)
        return row

    def _put(self, path: str, row: NodeRow | None) -> None:
        self._before.append((path, self._nodes.rows.get(path)))
        self._nodes.put(path, row)

    def _tell(self, kind: WatchEventKind, path: str) -> None:
        self.events.append(WatchEvent(kind, path))
