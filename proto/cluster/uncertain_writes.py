"""Decides whether our write was made if its reply was lost. No other module decides this (LR1).

A write that ends with `ConnectionLost` may have been made. It is requested again. If the second
request is refused, the node shows whether the first one was applied:

    create   ours iff the node has something that only we can have written: a token, or our session
    set      made iff the version is the expected one + 1 and the bytes are ours
    delete   made iff the node is gone, or was created again by another process

The contents alone prove nothing, since two clients may write the same. Once a new connection
answers, requests on an old one no longer take effect, so a read on the new connection is reliable.

A write that is safe only while a lock is held names the session that holds the lock, and can only
be made in this session. A request belongs to the session in which it was made, so it is enough to
read the current session once before each attempt.

These functions return or raise a definite result; `MetadataUnavailable` means that the write was
not made. If several attempts fail, they raise `ConnectionLost`, and the outcome is unknown until
the caller reads the node later.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from rollbook.proto.errors import (
    ConnectionLost,
    MetadataConflict,
    MetadataUnavailable,
    Missing,
    NodeExists,
    NoSuchNode,
    SessionExpired,
    Superseded,
)
from rollbook.proto.ports import (
    ANY_VERSION,
    NO_SESSION,
    CreateMode,
    MetadataStore,
    Node,
    Op,
    SessionId,
)

ATTEMPTS: Final = 6  # Each attempt waits for the connection as long as the store does.
_PAUSE_S: Final = 0.02  # The pause before the second attempt; it doubles with each further one.
_RACES_MAX: Final = 20

T = TypeVar("T")
IsOurs = Callable[[Node], bool]


async def create_surely(
    store: MetadataStore,
    path: str,
    value: bytes,
    is_ours: IsOurs,
    mode: CreateMode = CreateMode.PERSISTENT,
    *,
    only_if_lost: bool = False,
    session: SessionId | None = None,
) -> None:
    """Creates a node. Raises `NodeExists` if another process made it, and `NoSuchNode` if the parent does not
    exist.

    With `only_if_lost`, `is_ours` is used only after a reply was lost, for the case that other
    processes may write what it checks; before that, an existing node was made by another process.
    An ephemeral node is created in one session only, which is `session` if it is given. Raises
    `SessionExpired` if that session is over.
    """
    lost = False
    for attempt in range(ATTEMPTS):
        await _pause(attempt)
        try:
            _require(store, session)
            await store.create(path, value, mode)
            return
        except NodeExists:
            if only_if_lost and not lost:
                raise
            node = await _look(store, path)
            if node is None:  # Gone again.
                continue
            if is_ours(node):
                return
            raise
        except SessionExpired:
            if mode.is_ephemeral or session is not None:
                raise
        except MetadataUnavailable:
            if not lost:
                raise
        except ConnectionLost:
            lost = True
    raise _not_settled(lost, path)


async def ensure_node(store: MetadataStore, path: str, value: bytes = b"") -> None:
    """Creates the node unless it exists. Raises `NoSuchNode` if the parent does not exist."""
    if await read_surely(store, path, fresh=False) is None:
        await create_surely(store, path, value, is_ours=lambda _: True)


async def ensure_path(store: MetadataStore, path: str, above: str = "") -> None:
    """Creates the node and the missing nodes between it and `above`, which exists."""
    made = above
    for name in path[len(above) + 1 :].split("/"):
        made = f"{made}/{name}"
        await ensure_node(store, made)


async def set_surely(store: MetadataStore, path: str, value: bytes, version: int) -> int:
    """Sets a value and returns the new version. Raises `MetadataConflict` or `NoSuchNode` if that failed.

    After a lost reply, `MetadataConflict` only shows that the node has changed: our write may have
    been made and overwritten since. The caller finds out by evaluating the change again.
    """
    lost = False
    for attempt in range(ATTEMPTS):
        await _pause(attempt)
        try:
            return (await store.set(path, value, version)).version
        except MetadataConflict:
            node = await _look(store, path) if lost else None
            if node and (node.stat.version, node.value) == (version + 1, value):
                return node.stat.version
            raise
        except SessionExpired:
            continue
        except MetadataUnavailable:
            if not lost:
                raise
        except ConnectionLost:
            lost = True
    raise _not_settled(lost, path)


async def put_surely(store: MetadataStore, path: str, value: bytes) -> None:
    """Writes the node whatever its value is, even if it is equal. The last writer wins.

    Raises `NoSuchNode` if the parent does not exist, and `MetadataConflict` if others keep writing the node.
    """
    for _ in range(_RACES_MAX):
        node = await read_surely(store, path)
        try:
            if node is None:
                await create_surely(store, path, value, lambda found: found.value == value)
            else:
                await set_surely(store, path, value, node.stat.version)
            return
        except (NodeExists, MetadataConflict):
            continue
        except NoSuchNode:
            if node is None:
                raise
    raise MetadataConflict("other processes keep writing it", path=path)


async def delete_surely(
    store: MetadataStore,
    path: str,
    version: int | None = ANY_VERSION,
    is_ours: IsOurs = lambda _: True,
    *,
    session: SessionId | None = None,
) -> None:
    """Deletes a node. Raises `NoSuchNode` if the node was missing before, `MetadataConflict`, `NodeNotEmpty`.

    Before a retry, `is_ours` checks the present node, since our node may have been removed when a
    session ended. With `session`, it deletes only in this session, and raises `SessionExpired` once
    the session is over.
    """
    lost = False
    for attempt in range(ATTEMPTS):
        await _pause(attempt)
        try:
            if attempt:
                node = await _look(store, path)
                if node is None or not is_ours(node):
                    raise NoSuchNode(path=path)
            _require(store, session)
            await store.delete(path, version)
            return
        except NoSuchNode:
            if lost:
                return
            raise
        except SessionExpired:
            if session is not None:
                raise
        except MetadataUnavailable:
            if not lost:
                raise
        except ConnectionLost:
            lost = True
    raise _not_settled(lost, path)


async def transact_surely(
    store: MetadataStore,
    ops: Sequence[Op],
    was_made: Callable[[], Awaitable[bool]],
    *,
    session: SessionId | None = None,
) -> None:
    """Applies a transaction. Raises the error of the first operation that fails. `was_made` checks
    for something that no other transaction can have written. With `session`, the transaction is
    made only in this session, and `SessionExpired` is raised if the session ended before the
    transaction was made.
    """
    lost = False
    for attempt in range(ATTEMPTS):
        await _pause(attempt)
        try:
            _require(store, session)
            await store.transaction(ops)
            return
        except (Superseded, Missing) as refusal:
            if isinstance(refusal, SessionExpired) and session is None:
                continue
            if lost and await _settle(was_made()):
                return
            raise
        except MetadataUnavailable:
            if not lost:
                raise
        except ConnectionLost:
            lost = True
    raise _not_settled(lost, ops[0].path)


async def read_surely(store: MetadataStore, path: str, *, fresh: bool = True) -> Node | None:
    """Reads a node, and tries again if the connection breaks. With `fresh`, it sees every write
    that was acknowledged so far.
    """
    for attempt in range(ATTEMPTS):
        await _pause(attempt)
        try:
            if fresh:
                await store.sync()
            return await store.get(path)
        except (ConnectionLost, SessionExpired):
            continue
    raise MetadataUnavailable(path=path)


async def children_surely(store: MetadataStore, path: str) -> list[str]:
    """Lists the children of a node, and tries again if the connection breaks. Raises `NoSuchNode`."""
    for attempt in range(ATTEMPTS):
        await _pause(attempt)
        try:
            return await store.children(path)
        except (ConnectionLost, SessionExpired):
            continue
    raise MetadataUnavailable(path=path)


def _require(store: MetadataStore, session: SessionId | None) -> None:
    if session is None:
        return
    # NO_SESSION is refused: a store without a session would wait for its first session and write in
    # that one, which the caller cannot have named.
    if session == NO_SESSION or store.session != session:
        raise SessionExpired(session=session)


async def _look(store: MetadataStore, path: str) -> Node | None:
    return await _settle(read_surely(store, path))


async def _settle(look: Awaitable[T]) -> T:
    """Checks the outcome of a write whose reply was lost. If the check fails, the outcome stays unknown."""
    try:
        return await look
    except MetadataUnavailable as error:
        raise ConnectionLost(**error.ids) from None


def _not_settled(lost: bool, path: str) -> ConnectionLost | MetadataUnavailable:
    """Returns the error of a write whose attempts failed. If the session ended before anything was
    sent, the write was certainly not made.
    """
    return (ConnectionLost if lost else MetadataUnavailable)(path=path)


async def _pause(attempt: int) -> None:
    if attempt:
        await asyncio.sleep(_PAUSE_S * 2**attempt)
