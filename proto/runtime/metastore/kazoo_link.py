"""Adapts kazoo to the ZooKeeper store. One thread owns the socket. The module adds features that kazoo lacks.

The thread passes everything that it receives (responses, changes, the state of the session) to the
event loop, in this order. kazoo 2.11 lacks the following features, and this module adds them:

- Persistent watches (ZooKeeper 3.6): two requests, and events that kazoo would drop.
- A request knows whether it has left this process. Until then it can be taken back.
- A request belongs to the session that its caller assumed. In a later session it is refused.
- A server that is silent for as long as kazoo waits for a heartbeat is given up, even while
  requests are sent to it. kazoo would count its own requests as heartbeats. (If this process was
  stopped for this time, the session may be over, too.)
- Bytes that TLS has decrypted are read at once. kazoo would wait for more bytes on the socket.
- An unknown error code, from a later ZooKeeper, fails only one request. In kazoo the thread would end.
- A new session sees everything that the previous one saw. kazoo forgets the last transaction when a
  session expires, and a replica that lags could then hide the client's own writes. (Therefore an
  ensemble that was reset to an old backup is not accepted until the process is restarted.)
"""
# ruff: noqa: SLF001 (kazoo has no public way to any of this)

import asyncio
import importlib.util
import logging
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import (
    EXCEPTIONS,
    ConnectionDropped,
    SessionExpiredError,
    SystemZookeeperError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import ReplyHeader, Watch, int_struct, write_string
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry

from rollbook.proto.errors import BadConfig
from rollbook.proto.metastore.url import ZooKeeperOptions
from rollbook.proto.ports import SessionId
from rollbook.proto.runtime.system_error_text import describe_error
from rollbook.proto.runtime.tls import trusting_context

logger = structlog.get_logger()

_RECONNECT: Final = {"delay": 0.02, "backoff": 2, "max_jitter": 0.5, "max_delay": 1.0}
IN_FLIGHT_MAX: Final = 128  # This is enough to keep a connection busy; see `_WakeUps`.
_WATCHES_OF_ANY_TYPE: Final = 3
# The time limit for connecting to a host. Larger: `stop` may have to wait longer.
_CONNECT_TIMEOUT_S_MAX: Final = 3.0
_ABORT_INTERVAL_S: Final = 0.1
_NO_TROUBLE_YET: Final = "it does not answer"

# kazoo logs the same events as we do, and at lower levels it also logs credentials.
_SILENT_LOGGER: Final = logging.Logger("kazoo of rollbook")
_SILENT_LOGGER.disabled = True


class Request(Protocol):
    """The common part of kazoo's request classes."""

    @property
    def type(self) -> int: ...

    def serialize(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class AddWatch:
    path: str
    recursive: bool
    type: ClassVar[int] = 106

    def serialize(self) -> bytes:
        return bytes(write_string(self.path) + int_struct.pack(self.recursive))

    @classmethod
    def deserialize(cls, _buffer: bytes, _offset: int) -> None:
        """Returns nothing, since the answer has no body."""


@dataclass(frozen=True, slots=True)
class RemoveWatches:
    """A request that removes what `AddWatch` added for this path, in either mode."""

    path: str
    type: ClassVar[int] = 18

    def serialize(self) -> bytes:
        return bytes(write_string(self.path) + int_struct.pack(_WATCHES_OF_ANY_TYPE))

    @classmethod
    def deserialize(cls, _buffer: bytes, _offset: int) -> None:
        """Returns nothing, since the answer has no body."""


class SessionListener(Protocol):
    """The methods are called on the event loop, in the order of the events."""

    def on_connected(self, session: SessionId) -> None: ...

    def on_suspended(self) -> None:
        """Called when the connection is suspended. All requests that were sent have failed."""

    def on_expired(self) -> None: ...

    def on_refused(self) -> None:
        """Called when ZooKeeper refuses our credentials. No event follows."""

    def on_died(self) -> None:
        """Called when kazoo's thread ended unexpectedly. Call `start` again, with a new session."""

    def on_change(self, event_type: int, path: str) -> None: ...


class Reply:
    """The answer to one request. kazoo completes it on its thread, and the future belongs to our loop."""

    __slots__ = ("_loop", "_unsent", "future", "session")

    def __init__(self, loop: asyncio.AbstractEventLoop, session: SessionId) -> None:
        self.future: asyncio.Future[Any] = loop.create_future()
        self.session = session
        self._loop = loop
        self._unsent = [True]

    def take(self) -> bool:
        """Takes the request, and returns True only for the first caller. kazoo's thread takes it to
        send it, and our caller takes it to withdraw it.
        """
        try:
            return self._unsent.pop()
        except IndexError:
            return False

    def set(self, value: object = None) -> None:
        _hand_over(self._loop, self._resolve, value, None)

    def set_exception(self, error: Exception) -> None:
        _hand_over(self._loop, self._resolve, None, error)

    def _resolve(self, value: object, error: Exception | None) -> None:
        if self.future.done():  # The caller gave up.
            return
        if error is None:
            self.future.set_result(value)
        else:
            self.future.set_exception(error)


class KazooLink:
    """A client of a ZooKeeper ensemble. Its methods must be called on the event loop."""

    def __init__(
        self,
        listener: SessionListener,
        hosts: str,
        options: ZooKeeperOptions,
        session_timeout_s: float,
    ) -> None:
        """Makes the client. Raises `BadConfig` if the options cannot be used on this machine."""
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._handler = _Handler(self._on_thread_end, _tls_context(options))
        self._client = _Client(
            self._on_change,
            hosts=hosts,
            timeout=session_timeout_s,
            handler=self._handler,
            connection_retry=KazooRetry(
                max_tries=-1, sleep_func=self._handler.sleep_func, **_RECONNECT
            ),
            auth_data=[options.auth] if options.auth else None,
            sasl_options=_sasl_options(options),
            logger=_SILENT_LOGGER,
        )
        self._client.add_listener(self._on_state)
        self._is_stopping = False

    @property
    def trouble(self) -> str:
        return self._handler.trouble

    def start(self) -> None:
        self._client.start_async()

    def send(self, request: Request, session: SessionId) -> Reply:
        """Sends a request. The caller makes sure that at most `IN_FLIGHT_MAX` are
        in flight.
        """
        reply = Reply(self._loop, session)
        self._client._call(request, reply)
        return reply

    async def stop(self, timeout_s: float) -> None:
        """Ends the thread, and also the session if a server answers in time."""
        self._is_stopping = True
        done = asyncio.Event()
        stopper = threading.Thread(target=self._stop, args=(done,), name="zookeeper-stop")
        stopper.start()
        try:
            async with asyncio.timeout(timeout_s):
                await done.wait()
        except TimeoutError:
            while not done.is_set():  # The thread may be about to connect.
                self._handler.abort()
                await asyncio.sleep(_ABORT_INTERVAL_S)
        stopper.join()

    def _stop(self, done: asyncio.Event) -> None:
        try:
            self._client.stop()
            self._client.close()
        finally:
            _hand_over(self._loop, done.set)

    # --- On kazoo's thread ---

    def _on_state(self, state: str) -> None:
        if self._is_stopping:
            return
        listener = self._listener
        if state == KazooState.CONNECTED:
            session, _password = self._client.client_id
            _hand_over(self._loop, listener.on_connected, session)
        elif state == KazooState.SUSPENDED:
            _hand_over(self._loop, listener.on_suspended)
        elif self._client.client_state == KeeperState.EXPIRED_SESSION:
            _hand_over(self._loop, listener.on_expired)
        elif self._client.client_state == KeeperState.AUTH_FAILED:
            self._is_stopping = True
            _hand_over(self._loop, listener.on_refused)

    def _on_thread_end(self) -> None:
        if not self._is_stopping:
            _hand_over(self._loop, self._listener.on_died)

    def _on_change(self, event_type: int, path: str) -> None:
        _hand_over(self._loop, self._listener.on_change, event_type, path)


def _tls_context(options: ZooKeeperOptions) -> ssl.SSLContext | None:
    if not options.tls:
        return None
    try:
        context = trusting_context(options.ca)
        if options.cert:
            context.load_cert_chain(options.cert, options.key or None, options.key_password or None)
    except OSError as error:  # An `SSLError`, too.
        raise BadConfig(f"metadata URL: the TLS files cannot be used: {error}") from error
    return context


def _sasl_options(options: ZooKeeperOptions) -> dict[str, str] | None:
    if options.sasl is None:
        return None
    if importlib.util.find_spec("puresasl") is None:
        raise BadConfig(
            "metadata URL: sasl needs a package that is not installed",
            next_step="pip install pure-sasl",
        )
    mechanism, user, password = options.sasl
    login = {"username": user, "password": password} if user else {}
    return {"mechanism": mechanism, "service": "zookeeper", **login}


def _hand_over(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *args: Any) -> None:
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        pass  # If the loop is closed, there is no waiter any more.


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types.
    """Calls back on the connection's thread. kazoo's two worker threads would only pass the call on."""

    def __init__(
        self, on_thread_end: Callable[[], None], tls_context: ssl.SSLContext | None
    ) -> None:
        super().__init__()
        self._on_thread_end = on_thread_end
        self._tls_context = tls_context
        self._connection: socket.socket | None = None
        self.trouble = _NO_TROUBLE_YET  # The reason why there is no connection.

    def start(self) -> None:
        """Starts no workers."""

    def stop(self) -> None:
        """Does nothing, since there are no workers to stop."""

    def spawn(self, func: Callable[..., object], *args: Any, **kwargs: Any) -> threading.Thread:
        def run() -> None:
            try:
                func(*args, **kwargs)
            except Exception:  # kazoo does not catch it, and its thread ends here.
                logger.exception("zookeeper_client_died")
            finally:
                self._on_thread_end()

        thread = threading.Thread(target=run, name="zookeeper", daemon=True)
        thread.start()
        return thread

    def create_connection(
        self, address: tuple[str, int], hostname: str, timeout: float, **_options: Any
    ) -> socket.socket:
        connection = socket.create_connection(address, min(timeout, _CONNECT_TIMEOUT_S_MAX))
        self._connection = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls_context is not None:
            connection = self._tls_context.wrap_socket(connection, server_hostname=hostname)
            self._connection = connection
        return connection

    def select(
        self, readable: Sequence[Any], writable: Sequence[Any], _: Sequence[Any], timeout: float
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Waits for the socket. It also reports bytes that TLS has already decrypted, which the
        system does not report. It takes one system call; kazoo's own way takes five, since it
        creates and closes an epoll each time.
        """
        poll = select.poll()
        for sockets, event in ((readable, select.POLLIN), (writable, select.POLLOUT)):
            for waiting in sockets:
                poll.register(waiting, event)
        ready = {s.fileno() for s in readable if isinstance(s, ssl.SSLSocket) and s.pending()}
        ready |= {descriptor for descriptor, _ in poll.poll(0 if ready else timeout * 1000)}
        return (
            [s for s in readable if s.fileno() in ready],
            [s for s in writable if s.fileno() in ready],
            [],
        )

    def create_socket_pair(self) -> tuple[socket.socket, "_WakeUps"]:
        reading, writing = socket.socketpair()
        return reading, _WakeUps(writing)

    def abort(self) -> None:
        """Ends all waits for the socket."""
        if self._connection is not None:
            try:
                self._connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # The socket is closed already.


class _WakeUps:
    """Wakes kazoo's thread with a byte for each request, and never blocks the event loop.

    A byte is left out only if the socket's buffer is full. The buffer then holds more bytes than
    there are requests in flight.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end

    def send(self, data: bytes) -> None:
        try:
            self._end.send(data)
        except BlockingIOError:
            pass

    def close(self) -> None:
        self._end.close()


class _Client(KazooClient):  # type: ignore[misc]  # kazoo has no types.
    def __init__(self, on_change: Callable[[int, str], None], **options: Any) -> None:
        super().__init__(**options)
        self.on_change = on_change
        self._connection = _KazooConnection(
            self,
            self._conn_retry.copy(),
            logger=self.logger,
            sasl_options=options.get("sasl_options"),
        )

    def _reset(self) -> None:
        seen = getattr(self, "last_zxid", 0)
        super()._reset()
        self.last_zxid = seen


class _KazooConnection(ConnectionHandler):  # type: ignore[misc]  # kazoo has no types.
    _heard_s = 0.0

    def _connect(self, host: str, hostip: str, port: int) -> tuple[float, float]:
        try:
            timeouts: tuple[float, float] = super()._connect(host, hostip, port)
        except Exception as error:
            self.handler.trouble = describe_error(
                error.__context__ or error
            )  # kazoo hides the original error.
            raise
        self.handler.trouble = _NO_TROUBLE_YET
        self._heard_s = time.monotonic()
        return timeouts

    def _read_socket(self, read_timeout: float) -> Any:
        self._heard_s = time.monotonic()
        return super()._read_socket(read_timeout)

    def _read_response(self, header: ReplyHeader, buffer: bytes, offset: int) -> Any:
        if header.err and header.err not in EXCEPTIONS:
            header = header._replace(err=SystemZookeeperError.code)
        return super()._read_response(header, buffer, offset)

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        client = self.client
        if client._pending and time.monotonic() - self._heard_s > read_timeout:
            raise ConnectionDropped("the server is silent")
        self._drop_what_is_not_to_be_sent()
        super()._send_request(read_timeout, connect_timeout)

    def _drop_what_is_not_to_be_sent(self) -> None:
        """Drops requests that must not be sent. Their wake-ups stay, since kazoo ignores extra ones."""
        queue = self.client._queue
        while queue:
            reply = queue[0][1]
            if not isinstance(reply, Reply):
                return
            if reply.session != self.client._session_id:
                reply.set_exception(SessionExpiredError())
            elif reply.take():
                return
            queue.popleft()

    def _read_watch_event(self, buffer: bytes, offset: int) -> None:
        event, _ = Watch.deserialize(buffer, offset)
        self.client.on_change(event.type, event.path)
