"""Passes requests on to the service core with deadlines, or to the server that owns the log.

If another server owns the log, the client is redirected to the owner (307, `Location`). If the request has
`Log-Forward: auto`, or the owner has no HTTP, this server asks the owner over gRPC instead. If neither is
possible, for example because of `Log-Forward: never`, the response is a retryable 503.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol

from rollbook.api.access.authorized_service import AuthorizedService
from rollbook.api.rest.fairness.loop_yield_queue import AdmissionQueue
from rollbook.api.rest.fairness.new_reader_pacing import ROUNDS
from rollbook.api.rest.fairness.reader_turns import ReaderTurns, UnsentRecords
from rollbook.api.rpc_methods import BY_REQUEST
from rollbook.logservice.ids import Offset
from rollbook.logservice.messages import (
    AtTail,
    Consistency,
    FindOffset,
    FoundOffset,
    GetTail,
    LogTail,
    Progress,
    ReadStream,
)
from rollbook.logservice.position_syntax import AtOffset, Earliest, Position
from rollbook.proto.errors import InvalidRequest, NotOwner, RollbookError
from rollbook.proto.tasks import stop_tasks

TIMEOUT_MS: Final = 30_000
TIMEOUT_MS_MAX: Final = 600_000
_STAND_MS: Final = 5_000

Forward = Literal["auto", "never"]


@dataclass(frozen=True, slots=True)
class Asking:
    """How a request is to be served."""

    timeout_ms: int = TIMEOUT_MS
    forward: Forward | None = None
    uid: str = ""  # The uid of the intended log; empty: any log of that name.

    def of(self, request: Any) -> Any:
        """The request, with the uid of the intended log. Raises `InvalidRequest` if it has another uid."""
        said = getattr(request, "uid", self.uid)
        if said == self.uid or not self.uid:
            return request
        if said:
            raise InvalidRequest(f"Log-Uid is {self.uid}, but the request also has the uid {said}")
        return replace(request, uid=self.uid)


class PeerServers(Protocol):
    """Asks other log servers."""

    async def ask(self, request: Any, address: str, due: float) -> Any:
        """Raises the errors of the other server, and of the connection to it."""


class OwnerRouting:
    def __init__(
        self,
        core: AuthorizedService,
        url_of: Callable[[str], str],
        peers: PeerServers | None = None,
    ) -> None:
        """`url_of`: the HTTP URL of the server with a gRPC address; empty if it has none."""
        self.url_of = url_of
        self._core = core
        self._peers = peers
        self.followers: dict[asyncio.Task[Any], None] = {}
        self.rests = UnsentRecords()
        self.newcomers = AdmissionQueue(ROUNDS)
        self._turns = ReaderTurns()

    async def ask(
        self, request: Any, asking: Asking, *, more_ms: int = 0, due: float | None = None
    ) -> Any:
        """Returns the response, within the request's time-out plus `more_ms`. Raises `RollbookError`.

        `due`: the end of this time, for an HTTP request that needs more than one call.
        """
        method, request = BY_REQUEST[type(request)], asking.of(request)
        if due is None:
            due = asyncio.get_running_loop().time() + (asking.timeout_ms + more_ms) / 1000

        async def ask_owner(error: NotOwner, request: Any) -> Any:
            owner = str(error.ids.get("owner") or "")
            wanted = asking.forward or ("never" if self.url_of(owner) else "auto")
            if wanted == "never" or not owner or self._peers is None:
                raise error
            return await self._peers.ask(request, owner, due)

        try:
            async with asyncio.timeout_at(due):
                return await self._core.ask(method, request, due, ask_owner)
        except RollbookError as error:
            self._core.explained(error)
            raise
        except TimeoutError:
            raise self._core.late(method) from None

    async def begun(self, asked: ReadStream, asking: Asking) -> ReadStream:
        """Fixes the uid of a read, and its end unless it follows the log: a stream opens the log again for each turn,
        and whenever a slow client reads again. The uid is that of the log which has the name now. The end is the
        present tail; without it, reading a log that grows as fast as it is read would never end.

        If the end is fixed, so is the start: a position relative to the tail is resolved once. Only `earliest` is
        resolved by each read, since the head may move in the meantime, which is no failure.
        """
        wanted = FindOffset(asked.log, asked.start, asked.uid)
        found: FoundOffset = await self.ask(wanted, asking)
        asked = replace(asked, uid=found.uid)
        if asked.at_tail is AtTail.FOLLOW:
            return asked
        end = found.tail
        if asked.at_tail is not AtTail.STOP:
            reads = asked.at_tail is AtTail.STOP_AT_READ_BARRIER
            consistency = Consistency.READ_BARRIER if reads else Consistency.BARRIER
            barrier = GetTail(asked.log, consistency, asked.uid)
            tail: LogTail = await self.ask(barrier, asking)
            end = max(end, tail.tail)
        return replace(
            asked,
            start=asked.start if isinstance(asked.start, Earliest) else AtOffset(found.offset),
            until_offset=end if asked.until_offset is None else min(asked.until_offset, end),
            at_tail=AtTail.FOLLOW,
        )

    def follow(self, request: Any, stands: Offset | None = None) -> AsyncGenerator[Any, None]:
        """A reader's events. A caller that stops early closes the generator. `stands`: where the reader resumes."""
        method = BY_REQUEST[type(request)]
        if not isinstance(request, ReadStream):
            return self._core.watch(method, request)

        async def stand(position: Position) -> Progress:
            asked = FindOffset(request.log, position, request.uid)
            found: FoundOffset = await self.ask(asked, Asking(_STAND_MS))
            return Progress.held_back(found.offset, found.head, found.tail)

        return self._turns.take(
            lambda through: self._core.watch(method, request, through, stands), stand, stands
        )

    async def close(self) -> None:
        """Ends all streams; their clients resume at another server."""
        await stop_tasks(*self.followers)
