"""Elections that work like BookKeeper's: each candidate has an ephemeral sequential node, its vote,
and the candidate with the lowest number leads. Each of the others watches the vote before its own.

    <folder>                   text: the leader, only shown to people
    <folder>/V_dddddddddd      text, ephemeral: a candidate

BookKeeper's auditor is elected in `underreplication/auditorelection`, and Rollbook's steward in our own tree.

- A vote belongs to a session, not to a process. After a lost reply the vote is found by its
  session, and we never cast two votes in one session (EL1).
- A leader may have been replaced without knowing it. Every change that an old leader must not make
  has `Vote.check` in its transaction, and can only be made in `Vote.session` (EL2).
- An abandoned vote blocks no candidate, since candidates remove it (EL3). If a session has two
  votes, a retry in Java left the older one, and its process does not know it. A vote without a
  session was left by a person or a backup.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Never

import structlog

from rollbook.proto.cluster.uncertain_writes import (
    children_surely,
    delete_surely,
    ensure_path,
    read_surely,
)
from rollbook.proto.errors import (
    BadMetadata,
    ConnectionLost,
    MetadataConflict,
    MetadataUnavailable,
    NoSuchNode,
    OutcomeUnknown,
    SessionExpired,
    Unavailable,
)
from rollbook.proto.formats.replication import (
    VOTE_PREFIX,
    number_of_vote,
    pack_vote,
    unpack_vote,
)
from rollbook.proto.ids import BookieId
from rollbook.proto.ports import (
    NO_SESSION,
    Check,
    CreateMode,
    MetadataStore,
    SessionId,
    Watch,
)
from rollbook.proto.tasks import first_of

logger = structlog.get_logger()

LOOK_AGAIN_S: Final = 30.0
_RETRY_PAUSE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Vote:
    """A vote that was cast. Names are never reused, so if a node of this name exists, it is this vote."""

    path: str
    session: SessionId

    @property
    def check(self) -> Check:
        return Check(self.path)


@dataclass(frozen=True, slots=True)
class _Cast:
    number: int
    path: str
    owner: SessionId


class Election:
    """A candidate in an election. A process has at most one for each folder and session."""

    def __init__(
        self, store: MetadataStore, folder: str, candidate: BookieId, *, above: str
    ) -> None:
        """`above` is an existing node. Missing nodes between it and `folder` are created."""
        self._store = store
        self._folder = folder
        self._above = above
        self._vote = pack_vote(candidate)
        self._candidate = candidate

    async def stand(self) -> Vote:
        """Casts a vote, or finds the vote that this session has already cast. Raises `Unavailable`,
        `SessionExpired`.
        """
        await ensure_path(self._store, self._folder, self._above)
        while True:
            session = self._store.session
            if session == NO_SESSION:
                raise MetadataUnavailable(path=self._folder)
            ours = [cast for cast in await self._casts() if cast.owner == session]
            if ours:
                for extra in ours[1:]:
                    await self._remove(extra)
                return Vote(ours[0].path, session)
            if self._store.session != session:
                continue
            # If the connection was lost, the next round of the loop looks for the vote.
            with suppress(ConnectionLost):
                await self._store.create(
                    f"{self._folder}/{VOTE_PREFIX}", self._vote, CreateMode.EPHEMERAL_SEQUENTIAL
                )

    async def lead(self) -> Vote:
        """Returns once this candidate leads. Raises `Unavailable`, `SessionExpired`."""
        vote = await self.stand()
        while not await self._wait_until_first(vote):
            vote = await self.stand()
        node = await read_surely(self._store, self._folder, fresh=False)
        if node is None or node.value != self._vote:
            with suppress(NoSuchNode, OutcomeUnknown, Unavailable, SessionExpired):
                await self._store.set(self._folder, self._vote)  # This is only written for people.
        logger.info("election_won", folder=self._folder, candidate=self._candidate)
        return vote

    async def until_lost(self, vote: Vote) -> None:
        """Returns when the vote is gone, and another candidate may lead."""
        watch = await self._store.watch(vote.path)
        try:
            while await read_surely(self._store, vote.path) is not None:
                await _next_or_later(watch)
        finally:
            await watch.close()

    async def serve(self, lead: Callable[[Vote], Coroutine[Any, Any, None]]) -> Never:
        """Runs `lead` while this candidate leads, and cancels it afterwards.

        Raises the errors of `lead`, but waits while the metadata store is unavailable. However it
        ends, it withdraws the vote first.
        """
        try:
            while True:
                try:
                    vote = await self.lead()
                    await first_of(lead(vote), self.until_lost(vote))
                    logger.warning("election_lost", folder=self._folder, candidate=self._candidate)
                except (Unavailable, OutcomeUnknown, SessionExpired) as error:
                    reason = error.code.reason
                    logger.warning("election_not_held", folder=self._folder, reason=reason)
                    await asyncio.sleep(_RETRY_PAUSE_S)
        finally:
            await self.withdraw()

    async def withdraw(self) -> None:
        """Withdraws the vote. If the store cannot be reached, the vote goes away with the session."""
        session = self._store.session
        with suppress(Unavailable, OutcomeUnknown, SessionExpired, NoSuchNode):
            for cast in await self._casts():
                if cast.owner == session:
                    await self._remove(cast)

    async def leader(self) -> BookieId | None:
        """Returns the leader that the first vote names, or None if there is no leader or its vote
        is unreadable.
        """
        for cast in await self._casts():
            node = await read_surely(self._store, cast.path)
            if node is not None:
                with suppress(BadMetadata):
                    return unpack_vote(node.value)
                return None
        return None

    async def _wait_until_first(self, vote: Vote) -> bool:
        """Returns True once the vote is the first one, or False if it was removed. Removes orphaned votes."""
        while True:
            casts = await self._casts()
            index = next((i for i, cast in enumerate(casts) if cast.path == vote.path), None)
            if index is None:
                return False
            before = [cast for cast in casts[:index] if not await self._remove_orphan(cast, casts)]
            if not before:
                return True
            watch = await self._store.watch(before[-1].path)
            try:
                if await read_surely(self._store, before[-1].path) is not None:
                    await _next_or_later(watch)
            finally:
                await watch.close()

    async def _remove_orphan(self, cast: _Cast, casts: list[_Cast]) -> bool:
        """Removes the vote if it is an orphan, and returns whether it was."""
        of_session = [each for each in casts if each.owner == cast.owner]
        if cast.owner != NO_SESSION and cast is of_session[-1]:
            return False
        logger.warning("orphan_vote_removed", path=cast.path, session=f"{cast.owner:#x}")
        await self._remove(cast)
        return True

    async def _remove(self, cast: _Cast) -> None:
        with suppress(NoSuchNode, MetadataConflict):
            await delete_surely(
                self._store, cast.path, is_ours=lambda node: node.stat.owner == cast.owner
            )

    async def _casts(self) -> list[_Cast]:
        """Returns the votes in the order of their numbers."""
        try:
            await self._store.sync()
            names = await children_surely(self._store, self._folder)
        except NoSuchNode:
            return []
        found = []
        for name in names:
            if (number := number_of_vote(name)) is None:
                continue
            path = f"{self._folder}/{name}"
            node = await read_surely(self._store, path, fresh=False)
            if node is not None:
                found.append(_Cast(number, path, node.stat.owner))
        return sorted(found, key=lambda cast: cast.number)


async def _next_or_later(watch: Watch) -> None:
    """Waits for a change, but only for a limited time, since a watch can be lost in unforeseen ways."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LOOK_AGAIN_S):
            try:
                await anext(watch)
            except StopAsyncIteration:
                raise MetadataUnavailable("the metadata store was closed") from None
