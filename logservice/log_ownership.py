"""Decides which logs this server owns, and responds to requests for other logs with the server to ask.

`core/ownership_rules.py` has the rules for which server may take a log. While this server opens a log or hands it
over, requests for it wait. To hand a log over, this server closes the log's ledger, and removes its name
from the log's list. The next owner has nothing to recover, and no append fails: clients send the waiting
appends to the next owner (SV3).

When this server's registration session is over, it drops its owners with everything that they have not
confirmed, and opens the logs again on request (SV4).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NoReturn

import structlog

from rollbook.ledger.ledgers import Ledgers
from rollbook.logservice.clock_skew import ServerClock
from rollbook.logservice.config import LogServiceConfig
from rollbook.logservice.core.ledger_list import LedgerList
from rollbook.logservice.core.log_incarnations import check_life, text_of
from rollbook.logservice.core.owner_placement import life_of, server_name
from rollbook.logservice.core.ownership_rules import (
    RETRY_MS,
    claim_by_list,
    claim_on_living,
    has_no_owner,
    released_by,
    suggested_server,
)
from rollbook.logservice.core.producer_memory_budget import ProducerMemory
from rollbook.logservice.core.server_record import ServerRecord
from rollbook.logservice.core.takeover_backoff import TakeoverPatience
from rollbook.logservice.core.unopened_logs import FailedOpening, UnopenedLogs
from rollbook.logservice.cursor_lags import CursorLags
from rollbook.logservice.ids import LogName, ServerId, ServerInfo
from rollbook.logservice.log_metadata import LogMetadataStore, StoredLog
from rollbook.logservice.log_sweeper import Sweeper
from rollbook.logservice.lost_segments import LostSegments
from rollbook.logservice.membership import ServerMembership
from rollbook.logservice.outage_watch import OutageWatch
from rollbook.logservice.owner import Owner
from rollbook.logservice.peer_liveness import PeerLiveness
from rollbook.logservice.server_context import OwnerContext
from rollbook.logservice.stall_detector import StallDetector
from rollbook.logservice.tail_cache import TailMemory
from rollbook.proto.errors import (
    Missing,
    NoSuchLog,
    NotOwner,
    OutcomeUnknown,
    OwnerChanging,
    QuorumTimeout,
    RollbookError,
    SessionExpired,
    Unavailable,
)
from rollbook.proto.ports import Clock, MetadataStore, Randomness, Transport
from rollbook.proto.tasks import joined, stop_tasks, to_its_end

logger = structlog.get_logger()

_HAND_OVER: Final = "handed over to"
_LOOK_S: Final = 5.0
# Smaller changes of this clock's difference from the metadata store's are not reported.
_CLOCK_NEWS_US: Final = 1_000_000
# The pause between two comparisons of this clock with the metadata store's.
_COMPARE_S: Final = 20.0
_LOST_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class _Grounds:
    """The reason why this server opens a log."""

    reason: str
    seen: StoredLog | None = None  # The list that allows this server to open the log.
    detect_s: float = 0.0  # Seconds that it took to find out that this server may open the log.
    is_rude: bool = False  # True: other servers still believe that the owner is alive.


class LogServer:
    def __init__(
        self,
        name: str,
        release: str,
        *,
        ledgers: Ledgers,
        nodes: LogMetadataStore,
        lease: MetadataStore,
        transport: Transport,
        clock: Clock,
        randomness: Randomness,
        config: LogServiceConfig,
    ) -> None:
        """`lease` is a client of the metadata store. Its session runs out after `config.lease_s`."""
        self.config = config
        self.ledgers, self.nodes = ledgers, nodes
        self.server_id: Final = life_of(name, f"{randomness.getrandbits(32):08x}")
        self.membership: Final = ServerMembership(
            lease,
            ledgers.cluster.own_root,
            on_session_lost=self._on_session_lost,
            on_store=lambda answers: self.outage.on_store(answers=answers),
        )
        self.outage: Final = OutageWatch(ledgers, nodes, clock)
        self.opened = self.taken_over = self.handed_over = 0
        self._release = release
        self._randomness = randomness
        self.clock: Final = ServerClock(self.server_id, clock, nodes, self._clocks_of_others)
        self._peers = PeerLiveness(transport, clock)
        self._patience = TakeoverPatience()
        self._stall_detector = StallDetector(clock, config.lease_s)
        self.tail_memory: Final = TailMemory(config.tail_memory_bytes)
        self.producer_memory: Final = ProducerMemory(config.producer_memory_bytes)
        self._context: OwnerContext | None = None  # None before `start`.
        self._owners: dict[LogName, Owner] = {}
        self._openings: dict[LogName, asyncio.Task[Owner]] = {}
        # The list from which each opening began.
        self._opened_from: dict[LogName, StoredLog | None] = {}
        self._closings: dict[LogName, asyncio.Task[None]] = {}
        # Each task waits until an owner that has lost its log has ended all its tasks.
        self._endings: dict[asyncio.Task[None], None] = {}
        self._unopened = UnopenedLogs()
        # Lost logs whose lists may still name this server.
        self._lost: OrderedDict[LogName, None] = OrderedDict()
        self._may_open = asyncio.Semaphore(config.opens_max)
        self._balancing: asyncio.Task[None] | None = None
        self._comparing: asyncio.Task[None] | None = None
        self.cursor_lags: Final = CursorLags(nodes, self)
        self.lost_segments: Final = LostSegments(ledgers.nodes, nodes)
        self._sweeper = Sweeper(
            ledgers,
            nodes,
            self,
            self.cursor_lags,
            self.lost_segments,
            self.clock,
            randomness,
            sweep_interval_s=config.sweep_interval_s,
            orphans_interval_s=config.orphans_interval_s,
        )
        self.on_owner_changed: Callable[[LogName], None] = nobody_listens
        self._is_closed = False

    async def start(self, address: str, http: str = "") -> None:
        """Start serving. Call this when the address accepts connections, since other servers send clients
        there from now on. `http` is the URL of the REST interface.
        """
        info, clock = ServerInfo(self.server_id, address), self.clock
        self._stall_detector.start()
        await clock.compare()
        await self.membership.start(
            ServerRecord(
                info,
                self._release,
                clock.wall_us(),
                quorum=self.config.quorum,
                http=http,
                clock_apart_us=clock.apart_us,
            )
        )
        await self._on_clock_compared()
        self._context = OwnerContext(
            info,
            self.ledgers,
            self.nodes,
            clock,
            self._randomness,
            stall_detector=self._stall_detector,
            tail_memory=self.tail_memory,
            producer_memory=self.producer_memory,
        )
        loop = asyncio.get_running_loop()
        self._balancing = loop.create_task(self._balance())
        self._comparing = loop.create_task(self._compare_clocks())
        self._sweeper.start()
        self.outage.start()
        logger.info("log_server_started", server=self.server_id, address=address)

    async def close(self, within_s: float = 10.0) -> None:
        """Hand over the owned logs. A log that takes too long is dropped, and its next owner recovers it.

        Idempotent. A cancelled call completes before it raises.
        """
        await to_its_end(self._close(asyncio.get_running_loop().time() + within_s))

    async def _close(self, due: float) -> None:
        self._is_closed = True
        await self._sweeper.close()
        await self.outage.close()
        await self.cursor_lags.close()
        for task in (self._balancing, self._comparing):
            await stop_tasks(task)
        await self.clock.close()
        openings = list(self._openings.values())
        await stop_tasks(*openings)
        # Unregister first, so that other servers are suggested for the released logs.
        await self.membership.close()
        try:
            async with asyncio.timeout_at(due):
                await self._let_go(list(self._owners), "its server is stopped")
        except TimeoutError:
            logger.warning("logs_not_handed_over", logs=len(self._owners))
        for owner in list(self._owners.values()):
            owner.lose("its server is stopped")
        await asyncio.gather(*self._closings.values(), *self._endings, return_exceptions=True)
        self._stall_detector.close()
        await self._peers.close()
        if self._context is not None:
            logger.info("log_server_stopped", server=self.server_id)
            self._context = None

    # --- Who owns a log ---------------------------------------------------------------------

    @property
    def owned_logs(self) -> list[LogName]:
        return list(self._owners)

    @property
    def logs_degraded(self) -> int:
        """The number of owned logs that write a segment to fewer bookies than they want (LS13, LS16)."""
        return sum(owner.lacking_slots > 0 for owner in self._owners.values())

    @property
    def logs_unopened(self) -> int:
        """The number of logs that this server should own and has repeatedly failed to open."""
        return self._unopened.count_stuck(self.clock.monotonic_ns() / 1e9)

    def find_unopened(self, name: LogName) -> FailedOpening | None:
        """The failures of a log that this server has repeatedly failed to open, otherwise None."""
        return self._unopened.find_stuck(name, self.clock.monotonic_ns() / 1e9)

    def is_alive(self, server_id: ServerId) -> bool:
        return self.membership.is_alive(server_id)

    def is_suggested(self, name: LogName) -> bool:
        """Return whether the log's name alone suggests this server."""
        suggested = self.membership.suggestions.server_for(name)
        return suggested is not None and suggested == server_name(self.server_id)

    @property
    def address(self) -> str:
        """The address that clients use; empty before `start`."""
        return "" if self._context is None else self._context.server.address

    @property
    def is_draining(self) -> bool:
        return self.membership.is_draining

    def find(self, name: LogName, uid: str = "") -> Owner | None:
        """The owner, if this server owns the log. With a `uid`, only if the log has that uid. Does not wait."""
        owner = self._owners.get(name)
        if owner is None or owner.failure is not None:
            return None
        return owner if owner.uid == uid or not uid else None

    async def find_opened(self, name: LogName) -> Owner | None:
        """The owner at this server. Waits for an opening in progress, which continues if this is cancelled."""
        opening = self._openings.get(name)
        if opening is not None:
            await asyncio.gather(asyncio.shield(opening), return_exceptions=True)
        return self.find(name)

    async def find_proven(self, name: LogName, uid: str = "") -> Owner | None:
        """Find the owner as `find` does, and check that it was not replaced without noticing, since a
        reader must not get a replaced owner (SV6). If the check fails or takes too long, return the owner
        unchecked.
        """
        owner = self.find(name, uid)
        if owner is None:
            return None
        # If the owner was replaced, `find` does not return it any more.
        with suppress(Unavailable, OutcomeUnknown):
            await owner.prove()
        return self.find(name, uid)

    async def owner_of(
        self, name: LogName, due: float, *, uid: str = "", heeds_preference: bool = True
    ) -> Owner:
        """Return the owner at this server; opens the log if this server should own it. With
        `heeds_preference=False`, the log's name alone suggests the server, whichever server the list prefers.

        Raises `NotOwner` with the server to ask, `OwnerChanging`, `NoSuchLog`, `LogDeleted`, `LogReplaced` if
        the log has another `uid`, and errors that prevent an opening. After each of these errors, no part of
        the caller's request was done. If this is cancelled, an opening continues.
        """
        owner = await self._owner_of(name, due, heeds_preference)
        if uid and owner.uid != uid:
            await self._within(due, self.refuse_other_life(name, uid))
        return owner

    async def refuse_other_life(self, name: LogName, uid: str) -> NoReturn:
        """Raise `LogReplaced` if the log that has this name now has another uid than the caller expects.

        Otherwise this server knew an earlier log, which was deleted elsewhere, so raise `OwnerChanging`. Also
        raises `NoSuchLog`, `LogDeleted`.
        """
        present = text_of((await self._read(name)).list.uid)
        owner = self.find(name)
        if owner is not None and owner.uid != present:
            owner.lose("the log was deleted, and another one has its name")
        check_life(name, present, uid)
        raise OwnerChanging(
            "this server has not yet opened the log that has this name now",
            log=str(name),
            retry_after_ms=RETRY_MS,
        )

    async def _owner_of(self, name: LogName, due: float, heeds_preference: bool) -> Owner:
        while (owner := self.find(name)) is None:
            work = self._closings.get(name) or self._openings.get(name)
            if work is None:
                if self._context is None:
                    raise OwnerChanging("this server is starting", retry_after_ms=RETRY_MS)
                grounds = await self._within(due, self._why_ours(name, heeds_preference))
                if self._is_closed:
                    raise _being_stopped()
                if self.find(name) or name in self._openings or name in self._closings:
                    continue  # Another caller has started it.
                work = self._start(name, grounds)
            await self._within(due, joined(work, _being_given_up))
        return owner

    async def open_by_reserve(self, name: LogName) -> Owner:
        """Open a log to make room on full bookies, which store this owner's writes in their reserve. `find`
        does not return the owner, so it gets no appends; the caller closes it. Raises `NotOwner` if another
        server was quicker, `NoSuchLog`, `LogDeleted`, `RecoveryIncomplete`, `NotEnoughBookies`,
        `MetadataUnavailable`.
        """
        if self._context is None:
            raise OwnerChanging("this server is starting", retry_after_ms=RETRY_MS)
        context = replace(self._context, uses_reserve=True)
        return await Owner.open(name, context, reason="bookies are full", makes_ahead=False)

    def _start(self, name: LogName, grounds: "_Grounds") -> "asyncio.Task[Owner]":
        opening = asyncio.get_running_loop().create_task(self._open(name, grounds))
        self._openings[name] = opening
        self._opened_from[name] = grounds.seen
        opening.add_done_callback(partial(self._on_opening_over, name))
        return opening

    def _on_opening_over(self, name: LogName, opening: "asyncio.Task[Owner]") -> None:
        if self._openings.get(name) is opening:  # The opening was cancelled before it began.
            del self._openings[name], self._opened_from[name]
        _look_at(opening)

    async def _within(self, due: float, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            async with asyncio.timeout_at(due):
                return await work
        except TimeoutError:
            raise OwnerChanging(
                "this takes longer than the request may take", retry_after_ms=RETRY_MS
            ) from None
        except (
            SessionExpired
        ):  # Nothing was appended. Another server or session can serve the request.
            raise OwnerChanging(
                "this server's metadata session is over", retry_after_ms=RETRY_MS
            ) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._is_closed and task is not None and not task.cancelling():
                # The server closes and has cancelled the work, but the request was not cancelled.
                raise _being_stopped() from None
            raise

    async def _why_ours(self, name: LogName, heeds_preference: bool) -> "_Grounds":
        """Return why this server may open the log. If it may not, raise `NotOwner` with the server to ask, or
        `OwnerChanging`.
        """
        asked_s = asyncio.get_running_loop().time()
        grounds = await self._grounds(name, heeds_preference)
        return replace(grounds, detect_s=asyncio.get_running_loop().time() - asked_s)

    async def _grounds(self, name: LogName, heeds_preference: bool) -> "_Grounds":
        await self._check_clock()
        seen = await self._read(name)
        listed, owner = seen.list, seen.list.owner
        claim = claim_by_list(
            owner,
            self.server_id,
            self.membership.is_alive,
            takes_logs=not self.is_draining and not self.clock.is_odd,
        )
        if claim is None:
            assert owner is not None
            refuses = await self._peers.check_dead(owner.address)
            wait_ns = self._patience.wait_ns(name, self.clock.monotonic_ns())
            claim = claim_on_living(listed, refuses=refuses, wait_ns=wait_ns)
        if claim.releases:  # The list names this server, which lost the log and takes no logs now.
            seen = await self.nodes.change(name, partial(released_by, server_id=self.server_id))
        if claim.needs_suggestion:
            judged = listed if heeds_preference else listed.with_preferred_server("")
            await self._require_suggested(name, judged, claim.passed_over)
        return _Grounds(claim.reason, seen, is_rude=claim.is_rude)

    async def _require_suggested(
        self, name: LogName, listed: LedgerList, without: tuple[str, ...]
    ) -> None:
        """Raises `NotOwner` if another server should own the log, unless that server refuses connections, and
        `OwnerChanging` if no server takes logs.
        """
        while True:
            suggested = self._suggested(name, listed, without)
            if suggested is None:
                self.clock.require()
                raise OwnerChanging("no server takes logs", retry_after_ms=10 * RETRY_MS)
            if suggested.info.server_id == self.server_id:
                return
            if not await self._peers.check_dead(suggested.info.address):
                raise NotOwner(owner=suggested.info.address, owner_epoch=listed.owner_epoch)
            without = (*without, suggested.name)

    def _suggested(
        self, name: LogName, listed: LedgerList, without: tuple[str, ...]
    ) -> ServerRecord | None:
        preferred, suggestions = listed.preferred_server, self.membership.suggestions
        suggested = suggested_server(name, preferred, suggestions, without)
        return None if suggested is None else self.membership.find(suggested)

    async def whom_to_ask(self, name: LogName) -> tuple[LedgerList, ServerInfo | None, bool]:
        """Return the log's list, the server to ask (the owner if it is alive, otherwise the suggested
        server), and whether this server is the owner.
        """
        listed = (await self._read(name)).list
        if listed.owner is not None and self.membership.is_alive(listed.owner.server_id):
            return listed, listed.owner, True
        suggested = self._suggested(name, listed, ())
        return listed, suggested.info if suggested is not None else None, False

    def is_nobodys(self, name: LogName, listed: LedgerList) -> bool:
        """Return whether no owner uses this list, as far as this server knows, so that it may be changed
        without an owner. A server that opens the log concurrently sees the change. Before its start this
        server returns False, since it knows no other servers.
        """
        if self._context is None or self.find(name) is not None or name in self._closings:
            return False
        seen = self._opened_from.get(name)
        return has_no_owner(
            listed,
            self.server_id,
            self.membership.is_alive,
            is_opening=name in self._openings,
            seen=None if seen is None else seen.list,
        )

    async def _read(self, name: LogName) -> StoredLog:
        stored = await self.nodes.read(name)
        stored.list.require_living(name)
        return stored

    # --- Opening ----------------------------------------------------------------------------

    async def _open(self, name: LogName, grounds: "_Grounds") -> Owner:
        try:
            return await self._opened(name, grounds)
        # Remove the opening in the turn in which it ends. A caller that finds a finished opening and no owner
        # would wait for ever.
        finally:
            del self._openings[name], self._opened_from[name]

    async def _opened(self, name: LogName, grounds: "_Grounds") -> Owner:
        loop = asyncio.get_running_loop()
        since_s = loop.time()
        try:
            async with self._may_open, asyncio.timeout(self.config.open_deadline_s):
                assert self._context is not None
                await self._check_clock()
                self.clock.require()
                waited_s = loop.time() - since_s
                owner = await Owner.open(
                    name,
                    self._context,
                    reason=grounds.reason,
                    seen=grounds.seen,
                    on_listed=partial(self._on_taken, name) if grounds.is_rude else None,
                    makes_ahead=name not in self._unopened,
                )
        except TimeoutError:
            late = OwnerChanging("it could not be opened in time", retry_after_ms=RETRY_MS)
            self._on_unopened(name, late)
            raise late from None
        except RollbookError as error:
            self._on_unopened(name, error)
            raise
        self._unopened.forget(name)
        self._lost.pop(name, None)
        self.opened += 1
        logger.info(
            "log_opened",
            log=str(name),
            owner_epoch=owner.owner_epoch,
            reason=grounds.reason,
            detect_ms=round(grounds.detect_s * 1000, 1),
            wait_ms=round(waited_s * 1000, 1),
            **owner.opening_ms,
        )
        self._owners[name] = owner
        self.on_owner_changed(name)
        owner.until_lost.add_done_callback(lambda _: self._on_lost(name, owner))
        return owner

    def _on_unopened(self, name: LogName, error: RollbookError) -> None:
        """Take note of a failed opening. The next attempts make no ledger ahead: if many logs cannot be
        recovered, each attempt would make a ledger and delete it.
        """
        # Another server owns the log, or the log does not exist.
        if isinstance(error, NotOwner | Missing):
            self._unopened.forget(name)
            return
        why, now_s = error.message or error.code.reason, self.clock.monotonic_ns() / 1e9
        failed = self._unopened.on_failed(name, now_s, why, error.next_step)
        if failed.is_news:
            logger.warning(
                "log_not_opened",
                log=str(name),
                reason=error.code.reason,
                detail=why,
                attempts=failed.attempts,
            )

    def _on_taken(self, name: LogName) -> None:
        """Take note that a log was taken from a server that others believe to be alive."""
        self.taken_over += 1
        self._patience.on_taken(name, self.clock.monotonic_ns())

    def _on_lost(self, name: LogName, owner: Owner) -> None:
        if self._owners.get(name) is owner:
            del self._owners[name]
            self._lost[name] = None
            if len(self._lost) > _LOST_MAX:
                self._lost.popitem(last=False)
        self.on_owner_changed(name)
        ending = asyncio.get_running_loop().create_task(owner.ended())
        self._endings[ending] = None
        ending.add_done_callback(self._endings.pop)

    def _on_session_lost(self) -> None:
        """Drop all owners: other servers may own these logs by now, so nothing is confirmed before
        they are opened again.
        """
        for owner in list(self._owners.values()):
            owner.lose("the session of its server is over")

    # --- Letting go -------------------------------------------------------------------------

    async def drain(self, due: float) -> int:
        """Take no more logs, and hand over the owned ones. Returns the number of logs that are left at `due`."""
        await self._tell(due, is_draining=True)
        try:
            async with asyncio.timeout_at(due):
                while self._owners or self._openings or self._closings:
                    await asyncio.gather(*self._openings.values(), return_exceptions=True)
                    names = [*self._closings, *self._owners]
                    await self._let_go(names, f"{self.server_id} is drained")
        except TimeoutError:
            pass
        return len(self._owners) + len(self._closings)

    async def resume(self, due: float) -> None:
        await self._tell(due, is_draining=False)

    async def _tell(self, due: float, *, is_draining: bool) -> None:
        try:
            async with asyncio.timeout_at(due):
                await self.membership.tell(is_draining=is_draining)
        except TimeoutError:
            does = "takes no more logs" if is_draining else "takes logs again"
            raise QuorumTimeout(
                f"the metadata store did not confirm in time that {self.server_id} {does}; others may see it or not",
                next_step="send the same request again",
            ) from None

    async def release_lost(self) -> None:
        """Release lost logs whose lists still name this server. Otherwise no server would apply retention to
        them: the others take this server for the owner, and this server sweeps a log that it does not own only
        if the log's name suggests it.
        """
        for name in list(self._lost):
            self._lost.pop(name, None)
            try:
                stored = await self.nodes.read(name)
                owner = stored.list.owner
                is_ours = owner is not None and owner.server_id == self.server_id
                if is_ours and self.is_nobodys(name, stored.list):
                    await self.nodes.replace(stored, stored.list.with_released())
            except NoSuchLog:
                pass
            except RollbookError as error:
                self._lost[name] = None
                logger.info("log_not_disowned", log=str(name), reason=error.code.reason)

    async def transfer(self, name: LogName, to: ServerRecord) -> None:
        """Release an owned log so that the server `to` opens it on request, and is suggested from now on."""
        await self.let_go(name, f"{_HAND_OVER} {to.name}", preferred=to.name)

    async def _let_go(self, names: list[LogName], reason: str) -> None:
        """Hand over logs, `hand_overs_max` at a time. Requests for a log wait while it is handed over."""
        turns = asyncio.Semaphore(self.config.hand_overs_max)

        async def let_go(name: LogName) -> None:
            async with turns:
                await self.let_go(name, reason)

        tasks = [asyncio.get_running_loop().create_task(let_go(name)) for name in names]
        try:
            await asyncio.gather(*tasks)
        finally:
            await stop_tasks(*tasks)

    async def let_go(self, name: LogName, reason: str, preferred: str | None = None) -> None:
        """Hand the log over: close it, so that the next owner has nothing to recover, and set the `preferred`
        server if there is one. After a cancelled call, the hand-over continues.
        """
        closing = self._closings.get(name)
        if closing is None:
            owner = self._owners.pop(name, None)
            if owner is None:
                return
            closing = asyncio.get_running_loop().create_task(
                self._close_owner(name, owner, reason, preferred)
            )
            closing.add_done_callback(_look_at)
            self._closings[name] = closing
        await asyncio.shield(closing)

    async def _close_owner(
        self, name: LogName, owner: Owner, reason: str, preferred: str | None
    ) -> None:
        try:
            await owner.close(reason)
            self.handed_over += 1
            if preferred is not None:
                await self.nodes.change(name, lambda it: it.with_preferred_server(preferred))
        except RollbookError as error:  # The owner has ended; the preferred server was not listed.
            logger.warning("log_not_closed", log=str(name), reason=error.code.reason)
        finally:
            del self._closings[name]
            self.on_owner_changed(name)

    async def _balance(self) -> None:
        """The task that releases idle logs. When the servers have not changed for `rebalance_after_s`, it also
        hands over the logs that other servers should own.
        """
        loop, look_s = asyncio.get_running_loop(), min(self.config.rebalance_after_s, _LOOK_S)
        changed_at = loop.time()
        while True:
            generation = self.membership.generation
            await self.membership.changed(generation, look_s)
            if self.membership.generation != generation:
                changed_at = loop.time()
                continue
            await self._tell_how_many()
            await self._let_go_of_idle()
            if loop.time() >= changed_at + self.config.rebalance_after_s:
                await self._hand_over_to_others()

    async def _hand_over_to_others(self) -> None:
        """Hand logs over to the servers that should own them, if these accept connections. Logs that are
        handed to a server with a wrong address would come back.
        """
        by_target: dict[str, list[LogName]] = {}
        for name, owner in self._owners.items():
            suggested = self._suggested(name, owner.list, ())
            if suggested is not None and suggested.info.server_id != self.server_id:
                by_target.setdefault(suggested.info.address, []).append(name)
        for address, names in by_target.items():
            if await self._peers.check_answering(address):
                await self._let_go(names, f"{_HAND_OVER} {address}")

    async def _let_go_of_idle(self) -> None:
        idle_ns = self.clock.monotonic_ns() - round(self.config.idle_s_max * 1e9)
        idle = [name for name, owner in self._owners.items() if owner.idle_since_ns < idle_ns]
        if idle:
            await self._let_go(idle, "it is not in use")

    # --- Clocks -----------------------------------------------------------------------------

    def _clocks_of_others(self) -> dict[str, int]:
        found = self.membership.clocks_apart_us
        found.pop(server_name(self.server_id), None)
        return found

    async def _compare_clocks(self) -> None:
        while True:
            await asyncio.sleep(_COMPARE_S)
            try:
                await self.clock.compare()
                await self._on_clock_compared()
            except RollbookError as error:
                logger.info("clock_not_compared", reason=error.code.reason)

    async def _on_clock_compared(self) -> None:
        """Report this clock's difference. If the clock is not trusted, release all logs (CK1)."""
        await self._tell_clock()
        if not self.clock.is_odd:
            await self.nodes.beat(self.clock.wall_us())
        elif self._owners:
            await self._let_go(list(self._owners), "its server's clock disagrees with most others")

    async def _check_clock(self) -> None:
        if await self.clock.check():
            await self._tell_clock()

    async def _tell_clock(self) -> None:
        """Report this clock's difference from the metadata store's if it has changed by `_CLOCK_NEWS_US`, so that
        all servers judge the clock alike.
        """
        apart_us, published_us = self.clock.apart_us, self.membership.clock_published_us
        if apart_us is not None and abs(apart_us - (published_us or 0)) >= _CLOCK_NEWS_US:
            await self.membership.tell(clock_apart_us=apart_us)

    async def _tell_how_many(self) -> None:
        try:
            await self.membership.tell(
                logs_owned=len(self._owners),
                logs_degraded=self.logs_degraded,
                logs_unopened=self.logs_unopened,
                segments_lost=len(self.lost_segments),
            )
        except RollbookError:
            pass  # `_balance` soon reports again.


def _being_stopped() -> OwnerChanging:
    return OwnerChanging("this server is being stopped", retry_after_ms=RETRY_MS)


def _being_given_up() -> OwnerChanging:
    return OwnerChanging("this server is giving the log up", retry_after_ms=RETRY_MS)


def nobody_listens(_: LogName) -> None:
    """The default callback. It does nothing, since nobody watches tails."""


def _look_at(work: "asyncio.Task[Any]") -> None:
    """Mark the task's exception as retrieved. Waiting tasks get it, but there may be no waiting task."""
    if not work.cancelled():
        work.exception()
