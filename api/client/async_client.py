"""A client of named logs, for programs with an event loop. Other programs use `sync.py`."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar

from rollbook.api.client.append_stream import AppendStreamPool
from rollbook.api.client.caller_arguments import listed, milliseconds_of
from rollbook.api.client.channels import Channels, Security, checked_token
from rollbook.api.client.config import LogClientConfig
from rollbook.api.client.default_target import Target, unnamed_target
from rollbook.api.client.fork_guard import BelongsToProcess, on_used
from rollbook.api.client.log import Log, names_of
from rollbook.api.client.owner_cache import OwnerCache
from rollbook.api.client.server_discovery import ServerDiscovery
from rollbook.api.client.token_file import token_of_file
from rollbook.api.client.unacked_appends_report import UnackedRecords, attach, error_of
from rollbook.api.client.unary_calls import UnaryCalls
from rollbook.api.client.url import parse_log_url
from rollbook.api.rpc_methods import BY_REQUEST
from rollbook.logservice import messages
from rollbook.logservice.ids import LogName, parse_prefix
from rollbook.logservice.log_config import LogConfig
from rollbook.proto.errors import (
    BadConfig,
    ClientClosed,
    ConnectionLost,
    Outcome,
    QuorumTimeout,
    RecordsUnacked,
    RollbookError,
    ServerUnreachable,
    Unauthorized,
)
from rollbook.proto.runtime.malloc_tuning import keep_pieces_of_messages
from rollbook.proto.tasks import stop_tasks

if TYPE_CHECKING:
    from rollbook.api.client.tails_watch import TailsWatch

DEFAULTS: Final = LogClientConfig()
_ASKED_MAX: Final = 3  # The most servers that are asked about outages.
_PROBE_S: Final = 2.0  # The time-out of a direct call to a server that was unreachable before.
_PROBES_MAX: Final = 16
_DELETED_MAX: Final = 10_000
_OUTAGE_S: Final = 1.0  # Servers answer within half of this time.


class Ending(Protocol):
    """The interface of a writer for its client, which closes it."""

    async def drain(self) -> None: ...

    def warn_of_pending(self) -> None: ...

    def end(self) -> None: ...

    def take_loss(self) -> UnackedRecords | None: ...


W = TypeVar("W", bound=Ending)


def connect(
    url: str | None = None,
    config: LogClientConfig = DEFAULTS,
    *,
    token: str = "",
    token_file: str = "",
    authorities: str = "",
    certificate: str = "",
    key: str = "",
    tls_name: str = "",
    insecure: bool = False,
    wait_s: float = 0.0,
) -> "Client":
    """Returns a client for programs with an event loop. `rollbook.connect` describes the arguments.

        async with rollbook.aio.connect("log://127.0.0.1:7400") as client:
            log = await client.open("orders", create=True)

    The call itself does not connect to a server. `async with` connects like `Client.check`, and
    raises the same errors. Raises `BadConfig`.
    """
    if token and token_file:
        raise BadConfig("both token and token_file are given", next_step="leave one of them out")
    shown = checked_token(token) or token_of_file(token_file)
    target = unnamed_target() if url is None else Target(url)
    target = target.overridden(shown, authorities, certificate, key, insecure, tls_name)
    parsed = parse_log_url(target.url)
    security = Security(
        parsed.uses_tls,
        target.authorities,
        target.certificate,
        target.key,
        target.token,
        target.insecure,
        target.tls_name,
    )
    security.require_tls_is_used()
    security.require_safe(parsed.servers)
    return Client(parsed.servers, config, security, wait_s)


class Client(BelongsToProcess):
    """A client of named logs. It belongs to the loop on which it was made, and to its process, but
    not to a process that was forked from it.

    If a call that changes something is cancelled, the change is not undone; a cancelled read leaves
    nothing behind.
    """

    def __init__(
        self,
        servers: Iterable[str],
        config: LogClientConfig,
        security: Security,
        wait_s: float = 0.0,
    ) -> None:
        on_used()
        self._wait_s = wait_s
        keep_pieces_of_messages()
        self.config = config
        self.owners = OwnerCache(servers)
        self.channels = Channels(security, self.owners.routes)
        self.append_streams = AppendStreamPool(self.channels)
        self.owners.outages.ask = self._ask_outage
        self._calls = UnaryCalls(self.channels, self.owners, config)
        self._writers: dict[Ending, None] = {}
        self._takes_writers = True
        # Whether a change was cancelled, so that its outcome is unknown.
        self.has_cancelled_change = False
        self._guard: AsyncGenerator[None, None] | None = None
        self._discovery = ServerDiscovery(self.owners, self._meet)

    def __repr__(self) -> str:
        state = " (closed)" if self._calls.is_closed else ""
        return f"<Client of {', '.join(self.owners.servers)}{state}>"

    async def ask(
        self, request: Any, *, timeout_s: float | None = None, server: str | None = None
    ) -> Any:
        """Sends any request of `rollbook.logservice.messages` that has a single response. The other
        methods use this one.

        If the call is cancelled, a change may or may not have been made.
        """
        method = BY_REQUEST.get(type(request))
        changes = method is None or method.changes
        try:
            return await self._calls.ask(request, timeout_s=timeout_s, server=server)
        except RollbookError as error:
            if not changes:
                error.outcome = Outcome.NOT_APPLIED
            raise
        except asyncio.CancelledError:
            self.has_cancelled_change |= changes
            raise

    async def check(self) -> None:
        """Asks all named servers, until one of them answers. `async with` calls this.

        Raises `ServerUnreachable` at once if no server can be reached, `QuorumTimeout` after
        `connect_s` if they are silent, and `Unauthorized`.
        """
        loop = asyncio.get_running_loop()
        due = loop.time() + self.config.connect_s
        patient_until = loop.time() + self._wait_s
        while (failure := await self._why_unreachable(due)) is not None:
            is_silent = isinstance(failure, QuorumTimeout)
            if loop.time() >= (max(due, patient_until) if is_silent else patient_until):
                raise failure
            await asyncio.sleep(self.config.retry_pause_s_max)

    async def _why_unreachable(self, due: float) -> RollbookError | None:
        """Returns the reason why no server is reachable; None if one of them has responded. Raises
        `Unauthorized`."""
        left_s = max(due - asyncio.get_running_loop().time(), self.config.retry_pause_s_max)
        attempt_s = min(left_s, self.config.attempt_s)
        asking = [
            asyncio.ensure_future(self._calls.try_once(messages.GetLimits(), each, attempt_s))
            for each in self.owners.servers
        ]
        failures: list[RollbookError] = []
        try:
            for answer in asyncio.as_completed(asking):
                try:
                    await answer
                except RollbookError as error:
                    if isinstance(error, ServerUnreachable | QuorumTimeout | ConnectionLost):
                        failures.append(error)
                    elif isinstance(error, Unauthorized):
                        raise
                    else:  # Even a refusal shows that the server is reachable.
                        return None
                else:
                    return None
        finally:
            await stop_tasks(*asking)
        silent = [each for each in failures if isinstance(each, QuorumTimeout)]
        return silent[0] if silent else self.owners.nobody_answers(failures[-1])

    # --- Logs ---------------------------------------------------------------------------------

    async def open(self, name: str | LogName, create: LogConfig | bool = False) -> Log:
        """Opens a log. With `create`, the log is created unless it exists; if `create` is a
        `LogConfig`, an existing log must have that config.

        Raises `NoSuchLog`, `LogExists`. If the call is cancelled, the log may or may not have been
        created.
        """
        if self._guard is None:
            self._guard = self._until_the_loop_ends()
            await anext(self._guard)
        log = LogName.parse(name)
        if create is False:
            state = await self.ask(messages.GetLog(log))
        else:
            config = create if isinstance(create, LogConfig) else None
            state = await self.ask(messages.EnsureLog(log, config))
        self.owners.learn(log, state.owner, state.owner_epoch)
        await self._discovery.begin()  # Other servers must be known before one fails.
        return Log(self, state)

    async def _addresses(self) -> list[str]:
        return [each.address for each in await self.servers()]

    async def _meet(self) -> list[str]:
        """Returns the addresses of all servers. It also tries to reach servers without their
        relays."""
        addresses = await self._addresses()
        tried = (
            self._calls.try_once(messages.GetLimits(), each, _PROBE_S, is_direct=True)
            for each in self.owners.routes.unreachable[:_PROBES_MAX]
        )
        await asyncio.gather(*tried, return_exceptions=True)
        return addresses

    async def logs(self, namespace: str = "", prefix: str = "") -> AsyncIterator[LogName]:
        """Yields names of logs in order: all names, those in one namespace, or those that begin
        with `prefix`.

        `"shop"` is a namespace, `"shop/ord*"` and `"ord*"` (in `default`) are prefixes, and `"*"`
        means all names. Raises `InvalidRequest`.
        """
        namespace, prefix = listed(namespace, prefix)
        start_after = ""
        while True:
            page: messages.LogNames = await self.ask(
                messages.ListLogs(namespace, prefix, start_after)
            )
            for name in page.logs:
                yield name
            if not page.next_page:
                return
            start_after = page.next_page

    def tails(
        self,
        names: Iterable[str | LogName] = (),
        *,
        prefix: str | None = None,
        interval_ms: int = 20,
        heartbeat_ms: int = 5000,
    ) -> "TailsWatch":
        """Watches the tails of many logs at all servers, without opening the logs: those with these
        names, and those that begin with `prefix`, which is `"namespace/prefix"` or `"namespace/"`.
        Without names and prefix it watches all logs.

        `watch.known` is the latest state; `await watch.ready()` waits until it is complete. `async
        for` yields the changes, with at most one message per `interval_ms` and server. Raises
        `InvalidRequest`, `ClientClosed`.
        """
        self.require_open()
        named = names_of(names)
        if prefix is None:
            prefixes = () if named else ("",)
        else:
            parse_prefix(prefix)
            prefixes = (prefix,)
        request = messages.WatchTails(named, prefixes, interval_ms, heartbeat_ms)
        # Imported here because few programs follow many logs.
        from rollbook.api.client.tails_watch import TailsWatch

        return TailsWatch(request, self.channels, self.config, self._addresses)

    async def delete(
        self, name: str | LogName, *, etag: str = "", grace_s: float | None = None, uid: str = ""
    ) -> messages.DeleteLogAnswer:
        """Deletes a log. The log disappears at once; its ledgers are deleted after a grace period.

        With `etag`, the log is deleted only if its configuration still has this etag. With `uid`,
        only the log with this uid is deleted, and not one that was created under its name since.
        Raises `NoSuchLog`, `LogReplaced`. If the call is cancelled, the log may or may not be
        deleted.
        """
        grace_ms = None if grace_s is None else milliseconds_of(grace_s, "grace_s")
        answer: messages.DeleteLogAnswer = await self.ask(
            messages.DeleteLog(LogName.parse(name), etag, grace_ms, uid)
        )
        return answer

    async def deleted(
        self, namespace: str = "", prefix: str = ""
    ) -> tuple[messages.DeletedLog, ...]:
        """Returns the deleted logs whose records are still kept, by name. `namespace` and `prefix`
        are those of `logs`."""
        namespace, prefix = listed(namespace, prefix)
        answer: messages.DeletedLogs = await self.ask(
            messages.ListDeletedLogs(namespace, prefix, _DELETED_MAX)
        )
        return answer.logs

    async def undelete(
        self, name: str | LogName, *, uid: str = "", to: str | LogName | None = None
    ) -> LogName:
        """Brings a deleted log back, with its records, and returns its name.

        `uid` selects one log if several were deleted under the name. `to` is a new name, if the old
        one is taken. The log's cursors are restored, too, unless another log had its name. Raises
        `NoSuchLog`, `LogExists`, `LogDeleted` if its records are gone. If the call is cancelled,
        the log may or may not be back.
        """
        answer: messages.LogState = await self.ask(
            messages.UndeleteLog(
                LogName.parse(name), uid, None if to is None else LogName.parse(to)
            )
        )
        return answer.log

    # --- Cluster ------------------------------------------------------------------------------

    async def lookup(self, names: Iterable[str | LogName]) -> tuple[messages.LogOwner, ...]:
        """Returns the owners of these logs, and the suggested owners of those without one."""
        answer: messages.LogOwners = await self.ask(messages.Lookup(names_of(names)))
        return answer.owners

    async def servers(self) -> tuple[messages.ServerView, ...]:
        """Returns the registered servers, and their states."""
        answer: messages.Servers = await self.ask(messages.ListServers())
        return answer.servers

    async def transfer(self, name: str | LogName, to: str) -> messages.LogOwner:
        """Hands the log over to the server `to`, without failed appends. If the call is cancelled,
        the log may still move."""
        answer: messages.LogOwner = await self.ask(messages.TransferLog(LogName.parse(name), to))
        return answer

    async def drain(self, server: str, *, resume: bool = False) -> int:
        """Makes a server hand over its logs and accept no others, until `resume`. Returns how many
        logs it still has to hand over. If the call is cancelled, the server may or may not drain.
        """
        answer: messages.DrainAnswer = await self.ask(messages.DrainServer(server, resume))
        return answer.logs_left

    async def limits(self) -> messages.ServiceLimits:
        """Returns the server's limits for a record, a batch, a message, a stream, and a cursor's
        blob."""
        answer: messages.ServiceLimits = await self.ask(messages.GetLimits())
        return answer

    async def stats(self, address: str | None = None) -> messages.ServerStats:
        """Returns the counters of the server at this address."""
        answer: messages.ServerStats = await self.ask(messages.GetServerStats(), server=address)
        return answer

    async def outage(self) -> messages.Outage:
        """Returns the outages that one server knows of, such as those of bookies and the metadata
        store."""
        answer: messages.Outage = await self.ask(messages.GetOutage())
        return answer

    async def _ask_outage(self) -> messages.Outage | None:
        """Asks several servers at the same time, since one of them may be unavailable."""
        some = self.owners.servers[:_ASKED_MAX]
        asked = (self._calls.try_once(messages.GetOutage(), each, _OUTAGE_S) for each in some)
        found = await asyncio.gather(*asked, return_exceptions=True)
        outages = [each for each in found if isinstance(each, messages.Outage)]
        return max(outages, key=lambda each: len(each.obstacles), default=None)

    # --- The end ------------------------------------------------------------------------------

    def require_open(self) -> None:
        """Raises `ClientClosed`."""
        if self._calls.is_closed or not self._takes_writers:
            raise ClientClosed

    def adopt(self, writer: W) -> W:
        """Makes the client close this writer when it is closed itself."""
        self._writers[writer] = None
        return writer

    def disown(self, writer: "Ending") -> None:
        """Forgets a writer that has ended."""
        self._writers.pop(writer, None)

    async def close(self, *, timeout_s: float | None = None) -> None:
        """Flushes the open writers, within the time that their records have, or within `timeout_s`;
        0 does not wait. Then closes the connections. Idempotent.

        Raises `RecordsUnacked`, with the numbers, if records were not acknowledged and the caller
        has seen no error of their writer. If the call is cancelled, it does not wait for writers.
        Call it again, because connections may still be open.
        """
        try:
            await self._close(timeout_s)
        finally:
            if self._guard is not None:
                await self._guard.aclose()

    async def _close(self, timeout_s: float | None) -> None:
        self._takes_writers = False
        writers = list(self._writers)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await asyncio.gather(*(writer.drain() for writer in writers))
        except asyncio.CancelledError:
            for writer in writers:
                writer.warn_of_pending()
            raise
        finally:
            self._calls.is_closed = True
            await self.owners.outages.close()
            for writer in writers:
                writer.end()
            await self._discovery.close()
            await self.append_streams.close()
            await self.channels.close()
            await asyncio.sleep(0)  # Lets gRPC clean up cancelled calls.
        losses = (writer.take_loss() for writer in writers)
        if (error := error_of(loss for loss in losses if loss is not None)) is not None:
            raise error

    async def _until_the_loop_ends(self) -> AsyncGenerator[None, None]:
        """Closes a client that was left open when its loop ends, for example at the end of
        `asyncio.run`."""
        try:
            yield
        finally:
            if not self._calls.is_closed:
                await self._close(None)

    async def __aenter__(self) -> Self:
        try:
            await self.check()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except RecordsUnacked as unacked:
            if error is None:
                raise
            attach(unacked, error)
