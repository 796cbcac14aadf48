"""The service core with access control. Only this class decides which requests a caller may make, and how
many.

gRPC and HTTP call only this class, with the caller in `CALLER`. A call beyond the quota is refused
immediately: `Throttled` has the time after which a retry may succeed. A stream is slowed down instead: it is
read or sent no faster than the quota allows, and progress events name the quota as the reason
(`WaitsFor.THROTTLE`).
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import ExitStack, aclosing
from dataclasses import fields, replace
from functools import partial
from typing import Any, Final, cast

from rollbook.api.access.audit import AuditLog
from rollbook.api.access.authenticator import CALLER, AuthenticatedCaller
from rollbook.api.access.authorized_append_stream import AuthorizedAppendStream
from rollbook.api.access.core.grants import (
    Right,
    VisibleLogs,
    is_act,
    is_visible,
    may_ask,
    narrowed,
    shown_by,
    visible_of,
)
from rollbook.api.access.core.quota_cost import size_of
from rollbook.api.access.permission_errors import refusal_of
from rollbook.api.access.read_quota_throttle import MISSES_MAX, ReadThrottle, may_pass
from rollbook.api.rpc_methods import Method, late
from rollbook.logservice import messages
from rollbook.logservice.core.record_block import opened_bytes_of
from rollbook.logservice.ids import LogName, Offset
from rollbook.logservice.position_syntax import AtOffset
from rollbook.proto.errors import NotOwner, RollbookError, Throttled, Unauthorized

_WAITS_S: Final = 1.0  # If a request takes longer, the server checks what is unavailable.
_TAIL_S: Final = 5.0
_NAMES_MAX: Final = 1000  # The most names in one page.
_READS: Final = (
    messages.Read,
    messages.ListLogs,
    messages.ListCursors,
)  # Calls that the read quota limits.

Elsewhere = Callable[[NotOwner, Any], Awaitable[Any]]
Events = AsyncGenerator[Any, None]
Read = Callable[[Any], Events]
Through = Callable[[Read, Any], Events]


class AuthorizedService:
    def __init__(
        self,
        core: messages.ServiceCore,
        audit: AuditLog | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._core = core
        # The default is for servers without authentication.
        self._audit = audit or AuditLog(now_ns, heeds_level=True)
        self._now_ns = now_ns

    # --- Calls ------------------------------------------------------------------------------

    async def ask(
        self,
        method: Method,
        request: Any,
        due: float,
        elsewhere: Elsewhere | None = None,
        server: str = "",
    ) -> Any:
        """Returns the response. Raises `Unauthorized`, `Throttled`, and the core's errors.

        `elsewhere` is called if another server owns the log: it sends the request to the owner, or raises the error
        again. The owner sees this server's principal, so only this server can check the caller. `server`: the
        server that the client requests, if it is another one; then `elsewhere` sends the request there, and the
        core is not called.
        """
        caller = CALLER.get()
        try:
            _require_in_force(caller)  # Open streams check this, too.
            self._require(caller, request)
            self._charge(caller, request)
        except (Unauthorized, Throttled) as refusal:
            self._on_refused(caller, method, request, refusal)
            raise
        if isinstance(request, messages.Lookup):
            shown = (log for log in request.logs if is_visible(caller.principal.grants, str(log)))
            request = messages.Lookup(tuple(shown))
        waiting = self.look_if_late()
        try:
            answer = await self._answer(caller, method, request, due, elsewhere, server)
        except NotOwner:
            raise  # Nothing was done, and the client will ask another server.
        except BaseException as error:
            if is_act(request):  # The change may have been made, even if the client has left.
                known = error if isinstance(error, RollbookError) else late(method)
                self._audit.failed(known, **_who(caller, method, request))
            raise
        finally:
            waiting.cancel()
        if is_act(request) and getattr(answer, "was_created", True):
            self._audit.done(**_who(caller, method, request))
        self._charge_read(caller, answer)
        return answer

    def look_if_late(self) -> asyncio.TimerHandle:
        """After `_WAITS_S`, makes the server check what is unavailable, unless the caller cancels the timer."""
        return asyncio.get_running_loop().call_later(_WAITS_S, self._core.on_waiting)

    def explained(self, error: RollbookError) -> RollbookError:
        """Returns the error. A time-out or `OwnerChanging` also names the known outages that may have delayed
        the call.
        """
        return self._core.explained(error)

    def late(self, method: Method) -> RollbookError:
        """The error for a call that has passed its deadline; it names known outages, as in `explained`."""
        return self._core.explained(late(method))

    async def _answer(
        self,
        caller: AuthenticatedCaller,
        method: Method,
        request: Any,
        due: float,
        elsewhere: Elsewhere | None,
        server: str,
    ) -> Any:
        if server and elsewhere is not None:
            return await elsewhere(NotOwner(owner=server), request)
        if isinstance(request, messages.ListLogs):
            return await self._list_visible(caller, request, due)
        if isinstance(request, messages.ListDeletedLogs):
            return _visible_deleted(caller, await self._core.list_deleted_logs(request, due))
        request = _without_writes(caller, request)
        try:
            return await getattr(self._core, method.core_name)(_signed(caller, request), due)
        except NotOwner as error:
            if elsewhere is None:
                raise
            return await elsewhere(error, request)

    async def _list_visible(
        self, caller: AuthenticatedCaller, asked: messages.ListLogs, due: float
    ) -> messages.LogNames:
        """Leaves out hidden names before it cuts the list into pages, so that the last name of a page
        is never a hidden name."""
        grants = caller.principal.grants
        if grants.shows_all:
            return await self._core.list_logs(asked, due)
        limit = max(1, min(asked.limit, _NAMES_MAX))
        shown = shown_by(grants, asked.namespace, asked.prefix)
        if shown is None:
            found = set(await self._visible_of(caller, asked, limit, due))
        else:
            found = set(await self._named(caller, shown, asked.start_after, due))
            for namespace, prefix in shown.prefixes:
                part = replace(asked, namespace=namespace, prefix=prefix)
                found.update(await self._visible_of(caller, part, limit, due))
        logs = sorted(found, key=lambda log: (log.namespace, log.name))
        next_page = str(logs[limit - 1]) if len(logs) > limit else ""
        return messages.LogNames(tuple(logs[:limit]), next_page)

    async def _visible_of(
        self, caller: AuthenticatedCaller, asked: messages.ListLogs, limit: int, due: float
    ) -> list[LogName]:
        """Returns the first visible names: at most `limit` + 1."""
        found: list[LogName] = []
        page = messages.LogNames((), asked.start_after)
        at_once = limit + 1  # This is enough if the caller may see all of these names, as usual.
        while len(found) <= limit:
            rest = replace(asked, start_after=page.next_page, limit=at_once)
            at_once = _NAMES_MAX
            page = await self._core.list_logs(rest, due)
            found += (log for log in page.logs if is_visible(caller.principal.grants, str(log)))
            if not page.next_page:
                break
        return found[: limit + 1]

    async def _named(
        self, caller: AuthenticatedCaller, shown: VisibleLogs, start_after: str, due: float
    ) -> list[LogName]:
        """Returns the existing logs that the caller's grants name individually."""
        after = tuple(start_after.partition("/")[::2])
        names = [
            LogName.parse(log) for log in shown.logs if is_visible(caller.principal.grants, log)
        ]
        wanted = tuple(log for log in names if (log.namespace, log.name) > after)
        if not wanted:
            return []
        owners = await self._core.lookup(messages.Lookup(wanted), due)
        return [each.log for each in owners.owners]

    def _require(self, caller: AuthenticatedCaller, request: Any) -> None:
        if not may_ask(caller.principal.grants, request):
            raise refusal_of(caller.principal.name, request)

    def _charge(self, caller: AuthenticatedCaller, request: Any) -> None:
        account = caller.account
        if isinstance(request, messages.Append | messages.Seal) and request.block is not None:
            if account.appends.is_limited:
                now_ns = self._now_ns()
                account.appends.require(now_ns)
                account.appends.take(*size_of(request.block), now_ns)
        elif isinstance(request, _READS) and account.reads.is_limited:
            account.reads.require(self._now_ns())

    def _charge_read(self, caller: AuthenticatedCaller, answer: Any) -> None:
        if isinstance(answer, messages.ReadAnswer) and caller.account.reads.is_limited:
            records = max(answer.next_offset - answer.first_offset, 0)
            caller.account.reads.take(records, _bytes_of(answer.blocks), self._now_ns())
        elif isinstance(answer, messages.LogNames) and caller.account.reads.is_limited:
            size = sum(len(log.namespace) + len(log.name) for log in answer.logs)
            caller.account.reads.take(1 + len(answer.logs), 1 + size, self._now_ns())
        elif isinstance(answer, messages.Cursors) and caller.account.reads.is_limited:
            size = sum(len(cursor.name) + len(cursor.blob) for cursor in answer.cursors)
            caller.account.reads.take(1 + len(answer.cursors), 1 + size, self._now_ns())

    def _on_refused(
        self, caller: AuthenticatedCaller, method: Method, request: Any, refusal: RollbookError
    ) -> None:
        self._audit.refused(refusal, **_who(caller, method, request))

    # --- Streams ----------------------------------------------------------------------------

    def watch(
        self,
        method: Method,
        request: Any,
        through: Through | None = None,
        stands: Offset | None = None,
    ) -> Events:
        """Yields the request's events. A caller that leaves early must close the generator. `through` makes
        the events from the core's method and the request; None: the core's method makes them. `stands`: the
        position at which a reader resumes.
        """
        caller = CALLER.get()
        read = getattr(self._core, method.core_name)
        if through is not None:
            read = partial(through, read)
        if caller.authenticator is None:
            return cast(Events, read(request))
        return self._watch(caller, method, request, read, stands)

    async def _watch(
        self,
        caller: AuthenticatedCaller,
        method: Method,
        request: Any,
        read: Read,
        stands: Offset | None,
    ) -> Events:
        """Holds no event while it waits for the quota. Events are charged before they are sent, so that a
        client gains nothing by leaving early.
        """
        reads = caller.account.reads
        with ExitStack() as stack:
            try:
                self._require(caller, request)
                stack.enter_context(caller.account.stream())
            except (Unauthorized, Throttled) as refusal:
                self._on_refused(caller, method, request, refusal)
                raise
            request = _without_writes(caller, request)
            grants = caller.principal.grants
            if isinstance(request, messages.WatchTails):
                request = narrowed(grants, request)
            if not isinstance(request, messages.ReadStream):
                async with aclosing(read(request)) as events:
                    async for event in events:
                        _require_in_force(caller)
                        yield (
                            visible_of(grants, event)
                            if isinstance(event, messages.Tails)
                            else event
                        )
                return
            heartbeat_s = max(request.heartbeat_ms, 100) / 1000
            waiting = ReadThrottle(caller.account, heartbeat_s, self._now_ns)
            stack.callback(waiting.end)
            async with aclosing(self._waited_off(caller, waiting, request, stands)) as wait:
                async for progress in wait:
                    request = request.resumed_at(progress.position)
                    yield progress
            async with aclosing(read(request)) as events:
                async for event in events:
                    _require_in_force(caller)
                    if not isinstance(event, messages.Records):
                        waiting.on_sent(event)
                        yield event
                        continue
                    stands = event.next_offset
                    reads.take(stands - event.base_offset, _bytes_of(event.blocks), self._now_ns())
                    waiting.end()
                    yield event
                    del event  # Otherwise the event would stay in memory until the next one.
                    async with aclosing(self._waited_off(caller, waiting, request, stands)) as wait:
                        async for progress in wait:
                            yield progress

    async def _waited_off(
        self,
        caller: AuthenticatedCaller,
        waiting: ReadThrottle,
        asked: messages.ReadStream,
        stands: Offset | None,
    ) -> AsyncGenerator[messages.Progress, None]:
        """Waits for the quota, and yields the reader's position at each heartbeat. `stands`: that position;
        None: the start of the read.

        If `stands` is None, an error in finding the position is raised. Otherwise `MISSES_MAX` heartbeats in a row may
        fail to find it, if the error may be temporary.
        """
        if not waiting.begin():
            return
        misses = 0
        while not await waiting.step():
            _require_in_force(caller)
            if not waiting.take_heartbeat():
                continue
            with waiting.away():
                try:
                    progress = await self._progress(asked, stands)
                except RollbookError as error:
                    if stands is None or misses == MISSES_MAX or not may_pass(error):
                        raise
                    misses += 1
                    continue
                stands, misses = progress.position, 0
                yield progress

    async def _progress(
        self, asked: messages.ReadStream, stands: Offset | None
    ) -> messages.Progress:
        due = asyncio.get_running_loop().time() + _TAIL_S
        start = asked.start if stands is None else AtOffset(stands)
        found = await self._core.find_offset(messages.FindOffset(asked.log, start, asked.uid), due)
        return messages.Progress.held_back(found.offset, found.head, found.tail)

    def open_append_stream(
        self, relayed: messages.CoreStream | None = None
    ) -> messages.AppendStream:
        """`relayed`: a stream to another server, used in place of the core's stream. Raises `Throttled`."""
        caller = CALLER.get()

        def open_stream() -> messages.CoreStream:
            return self._core.open_append_stream() if relayed is None else relayed

        if caller.authenticator is None:
            return open_stream()
        return AuthorizedAppendStream(open_stream, caller, self._audit, self._now_ns)


def _signed(caller: AuthenticatedCaller, request: Any) -> Any:
    """Adds the principal's name to a cursor commit, so that a new cursor counts as one of that principal's cursors."""
    if not isinstance(request, messages.CommitCursor) or caller.authenticator is None:
        return request
    said = {each.name: getattr(request, each.name) for each in fields(request)}
    return messages.CommitCursorBy(**said, principal=caller.principal.name)


def _without_writes(caller: AuthenticatedCaller, request: Any) -> Any:
    """If the caller may not append, replaces a barrier by a read barrier, which writes no entry to the log."""
    is_barrier = (
        isinstance(request, messages.GetTail)
        and request.consistency is messages.Consistency.BARRIER
    )
    stops = (
        isinstance(request, messages.ReadStream)
        and request.at_tail is messages.AtTail.STOP_AT_BARRIER
    )
    if not (is_barrier or stops) or caller.principal.grants.may(Right.APPEND, str(request.log)):
        return request
    if stops:
        return replace(request, at_tail=messages.AtTail.STOP_AT_READ_BARRIER)
    return replace(request, consistency=messages.Consistency.READ_BARRIER)


def _require_in_force(caller: AuthenticatedCaller) -> None:
    if not caller.is_in_force():
        raise Unauthorized("the caller's access has changed: connect again")


def _bytes_of(blocks: tuple[bytes, ...]) -> int:
    """The sum of the blocks' sizes, each stored or unpacked, whichever is larger, so compression saves no quota."""
    return sum(map(opened_bytes_of, blocks))


def _who(caller: AuthenticatedCaller, method: Method, request: Any) -> dict[str, Any]:
    where = getattr(request, "log", None) or getattr(request, "server", "")
    return {
        "principal": caller.principal.name,
        "peer": caller.peer,
        "method": method.name,
        "log" if hasattr(request, "log") else "server": str(where),
    }


def _visible_deleted(
    caller: AuthenticatedCaller, found: messages.DeletedLogs
) -> messages.DeletedLogs:
    grants = caller.principal.grants
    return replace(
        found, logs=tuple(each for each in found.logs if is_visible(grants, str(each.log)))
    )
