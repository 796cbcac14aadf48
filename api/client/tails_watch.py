"""Implements `client.tails`: keeps the tails of many logs up to date, from all servers.

Each server answers for some of the logs. There is one stream to each server, and one merged state
(`logservice/core/watched_tails.py`). Messages name the servers, so that a new server is watched at
once. A broken stream begins again; in the meantime its server's reports are kept, and `unreached`
gives the reason.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

import grpc
from google.protobuf.message import DecodeError

from rollbook.api.client.channels import Channels
from rollbook.api.client.config import LogClientConfig
from rollbook.api.client.core.retries_and_outcomes import may_retry
from rollbook.api.client.retry_pauses import Pauses
from rollbook.api.grpc.protobuf_conversion import message_of, pack, unpack
from rollbook.api.grpc.status import error_of_call, hung_up
from rollbook.api.rpc_methods import WATCH_TAILS
from rollbook.logservice import messages
from rollbook.logservice.core.watched_tails import MergedTails
from rollbook.logservice.ids import LogName
from rollbook.proto.errors import (
    BadFrame,
    ClientClosed,
    ConnectionLost,
    InvalidRequest,
    QuorumTimeout,
    RollbookError,
)
from rollbook.proto.tasks import stop_tasks

_MISSED_MAX: Final = 2  # Heartbeats that a server may miss before it is asked again.
_ASK_AGAIN_S: Final = 1.0  # The pause between attempts while no server can be reached.
_MESSAGE: Final = message_of(messages.Tails)

AskServers = Callable[[], Awaitable[Iterable[str]]]


class TailsWatch:
    """A watch of the tails of many logs, which `Client.tails` returns. Close it, or use `async
    with`.

    `known` is always the reported state: reading it asks no server.
    """

    def __init__(
        self,
        request: messages.WatchTails,
        channels: Channels,
        config: LogClientConfig,
        ask_servers: AskServers,
    ) -> None:
        self.unreached: dict[str, RollbookError] = {}  # The unreachable servers, and the reasons.
        self._data = pack(request).SerializeToString()
        self._patience_s = _MISSED_MAX * request.heartbeat_ms / 1000
        self._channels, self._config, self._ask_servers = channels, config, ask_servers
        self._merged = MergedTails()
        self._loop = asyncio.get_running_loop()
        self._has_news = asyncio.Event()
        self._was_complete = False
        self._failure: RollbookError | None = None
        # The error while no server returns the list of servers.
        self._trouble: RollbookError | None = None
        self._is_closed = False
        self._streams: dict[str, asyncio.Task[None]] = {}
        self._meeting = self._loop.create_task(self._meet())

    @property
    def known(self) -> Mapping[LogName, messages.TailOfLog]:
        """Returns the tails of all logs, as far as they are known."""
        return self._merged.known

    @property
    def is_complete(self) -> bool:
        """Whether all servers have reported all tails."""
        return self._merged.is_complete

    async def ready(self, timeout_s: float | None = None) -> Mapping[LogName, messages.TailOfLog]:
        """Waits until all servers have reported everything; returns `known`. The default of
        `timeout_s` is the client's.

        Raises `QuorumTimeout`, which names the servers that could not be reached. If the call is
        cancelled, the watch continues.
        """
        try:
            async with asyncio.timeout(self._config.timeout_of(timeout_s)):
                while not self.is_complete:
                    self._raise_failure()
                    self._has_news.clear()
                    await self._has_news.wait()
        except TimeoutError:
            whys = [f"{server}: {error}" for server, error in self.unreached.items()]
            whys += [str(self._trouble)] if self._trouble is not None else []
            why = f": {'; '.join(whys)}" if whys else ""
            raise QuorumTimeout(
                f"not all servers have reported their logs in time{why}"
            ) from self._trouble
        return self.known

    async def next(self, timeout_s: float | None = None) -> messages.Tails | None:
        """Returns the changes since the last call, with each log once; the first call returns all
        tails. It returns None if nothing has changed in that time.

        Raises the error that ended the watch. A cancelled call loses no change: call it again.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while True:
                    self._raise_failure()
                    if (news := self._take_news()) is not None:
                        return news
                    self._has_news.clear()
                    await self._has_news.wait()
        return None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> messages.Tails:
        try:
            news = await self.next()
        except ClientClosed:
            raise StopAsyncIteration from None
        assert news is not None
        return news

    async def aclose(self) -> None:
        """Idempotent. If the call is cancelled, the watch is still closed."""
        self._is_closed = True
        self._has_news.set()
        tasks = [self._meeting, *self._streams.values()]
        await stop_tasks(*tasks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    # ------------------------------------------------------------------------------------------

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure.copy()
        if self._is_closed:
            raise ClientClosed

    def _take_news(self) -> messages.Tails | None:
        is_complete = self.is_complete
        changed = self._merged.take_changed()
        if not changed and is_complete == self._was_complete:
            return None
        self._was_complete = is_complete
        tails = [(log, self._merged.known.get(log)) for log in changed]
        return messages.Tails(
            tuple(tail for _, tail in tails if tail is not None),
            tuple(log for log, tail in tails if tail is None),
            is_complete,
            tuple(self._merged.servers),
        )

    async def _meet(self) -> None:
        """Requests the list of servers, until one of them answers."""
        while True:
            if len(self.unreached) == len(self._streams):
                try:
                    self._listen_to(await self._ask_servers())
                    self._trouble = None
                except RollbookError as error:
                    self._trouble = error
                    if not may_retry(error):
                        self._fail(error)
                        return
            await asyncio.sleep(_ASK_AGAIN_S)

    def _listen_to(self, servers: Iterable[str]) -> None:
        for server in servers:
            if server not in self._streams:
                self._streams[server] = self._loop.create_task(self._follow(server))

    def _forget_departed(self) -> None:
        """Forgets the tails of unreachable servers that have left the cluster."""
        servers = self._merged.servers
        for server in [each for each in self.unreached if each not in servers]:
            self._streams.pop(server).cancel()
            del self.unreached[server]

    async def _follow(self, server: str) -> None:
        pauses = Pauses(self._config)
        while True:
            try:
                await self._hear(server, pauses)
                error: RollbookError = ConnectionLost("the server ended the stream")
            except RollbookError as failed:
                error = failed
            if not may_retry(error):
                self._fail(error)
                return
            is_known = self._channels.routes.on_error(server, error)
            self.unreached[server] = error
            self._merged.on_broken(server)
            self._forget_departed()
            self._has_news.set()
            await asyncio.sleep(pauses.next_s(error, is_known=is_known))

    async def _hear(self, server: str, pauses: Pauses) -> None:
        """Reads one stream to its end."""
        ask = self._channels.to(server, waits=True).unary_stream(WATCH_TAILS.path)
        call = ask(self._data, metadata=self._channels.shown_to(server))
        try:
            is_new = True
            while (data := await self._read(call)) is not grpc.aio.EOF:
                if is_new:
                    self._channels.on_answered(server)
                    self._merged.on_stream(server)
                    pauses.reset()
                is_new = False
                try:
                    message = unpack(_MESSAGE.FromString(data), messages.Tails)
                except (DecodeError, InvalidRequest) as error:
                    raise BadFrame(f"the server sent an invalid message: {error}") from None
                self._on_message(server, message)
            if (status := await call.code()) is not grpc.StatusCode.OK:
                trailers = await call.trailing_metadata()
                raise error_of_call(status, await call.details() or "", trailers)
        finally:
            call.cancel()

    async def _read(self, call: Any) -> Any:
        try:
            async with asyncio.timeout(self._patience_s):
                return await call.read()
        except TimeoutError:
            raise QuorumTimeout("the server was silent for too long") from None
        except grpc.aio.AioRpcError as error:
            trailers = error.trailing_metadata()
            raise error_of_call(error.code(), error.details() or "", trailers) from None
        except asyncio.CancelledError:
            raise hung_up() from None

    def _on_message(self, server: str, message: messages.Tails) -> None:
        self.unreached.pop(server, None)
        self._merged.on_message(server, message)
        self._listen_to(self._merged.servers)
        self._forget_departed()
        self._has_news.set()

    def _fail(self, error: RollbookError) -> None:
        self._failure = error
        self._has_news.set()
