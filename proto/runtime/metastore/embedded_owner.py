"""The owner of an embedded store: the one process that has the file open and serves all other processes.

Beside the file `P` there are:

    P.lock   locked (`flock`) by the owner as long as it lives; holds its process id
    P.sock   the Unix socket on which it serves

The process with the lock is the owner, whatever the other files show (MS2). Only the holder of the
lock opens the file, and removes or creates the socket; an owner that ends removes nothing. The lock
ends with the process, since no child inherits it: O_CLOEXEC closes it in executed programs, and
forked processes close it before they do anything else. It is never stolen: while an owner is
stopped, so is the store, and waiting processes report the owner's process id.

If a write fails for another reason than lack of room, the process ends with status
`EXIT_STORAGE_FAILED`: its memory is then ahead of the file, and only the file counts. The next
owner starts from the file.
"""

import asyncio
import contextlib
import fcntl
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Self, cast

import structlog

from rollbook.proto.errors import BadConfig, BadFrame
from rollbook.proto.metastore.core.metadata_service import CommitGroup
from rollbook.proto.metastore.core.service_codec import (
    REQUEST_FRAME_BYTES_MAX,
    pack_from_service,
    unpack_from_client,
)
from rollbook.proto.metastore.core.service_messages import (
    Answer,
    Ask,
    FromClient,
    FromService,
    HangUp,
    Hello,
)
from rollbook.proto.metastore.local_channel import LocalChannel
from rollbook.proto.metastore.service_client import Receiver
from rollbook.proto.metastore.service_host import Host
from rollbook.proto.ports import Clock, Randomness
from rollbook.proto.runtime.metastore.embedded_sqlite import StoreFile
from rollbook.proto.runtime.storage_failed_exit_code import EXIT_STORAGE_FAILED
from rollbook.proto.runtime.system_error_text import describe_error
from rollbook.proto.tasks import stop_tasks
from rollbook.proto.wire.frames import FrameDecoder

logger = structlog.get_logger()

_LOOK_S: Final = (
    # The interval between checks of free space. Writes in this time take less space than the lower bound.
    1.0
)
CONNECTIONS_MAX: Final = 1024
# The maximum number of unanswered requests of one connection; they are enough to fill a batch.
UNANSWERED_MAX: Final = 128
UNREAD_EVENT_BYTES_MAX: Final = 4 * 1024 * 1024
HELLO_TIMEOUT_S: Final = 10.0
# The limit is 108 on Linux and 104 elsewhere, including a zero at the end.
_SOCKET_PATH_BYTES_MAX: Final = 100

Fatal = Callable[[BaseException], None]


def end_process(error: BaseException) -> None:
    logger.error("metadata_store_failed", reason=str(error), exit_status=EXIT_STORAGE_FAILED)
    sys.stderr.flush()
    os._exit(EXIT_STORAGE_FAILED)


class StoreLock:
    def __init__(self, path: str) -> None:
        self._path = f"{path}.lock"
        self._descriptor = -1

    def try_take(self) -> bool:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        _CLOSED_IN_CHILDREN[descriptor] = None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            _CLOSED_IN_CHILDREN.pop(descriptor, None)
            os.ftruncate(descriptor, 0)
            os.close(descriptor)


def describe_owner(path: str) -> str:
    """Describes the process that holds the lock, for processes that wait for it."""
    try:
        with open(f"{path}.lock", "rb") as file:
            pid = int(file.read(20))
        os.kill(pid, 0)
    except (OSError, ValueError):  # The process has ended, or the file has no process id.
        return f"no process serves {path}"
    if _is_stopped(pid):
        return f"{path} is held by stopped process {pid}"
    return f"process {pid}, which holds {path}, does not answer"


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] in b"Tt"
    except OSError:  # The process has ended, or this system has no such folder.
        return False


class StoreOwner:
    def __init__(self, path: str, lock: StoreLock, file: StoreFile, host: Host) -> None:
        self._path = path
        self._lock = lock
        self._file = file
        self._host = host
        self._server: asyncio.Server | None = None
        self._looking: asyncio.Task[None] | None = None

    @property
    def is_stuck(self) -> bool:
        """True if the disk is so full that nothing can be stored."""
        return self._file.is_stuck

    @classmethod
    async def take(
        cls,
        path: str,
        clock: Clock,
        randomness: Randomness,
        *,
        create: bool,
        serve: bool = True,
        on_fatal: Fatal = end_process,
    ) -> Self | None:
        """Takes the store, or returns None if another process owns it. Without `serve`, no other
        process can use the store.
        """
        lock = StoreLock(path)
        if not lock.try_take():
            return None
        file = None
        try:
            new_id = f"{randomness.getrandbits(128):032x}" if create else None
            file, kept = await StoreFile.open(path, new_id)

            async def keep(batch: CommitGroup) -> None:
                try:
                    await file.keep(batch)
                except Exception as error:
                    on_fatal(error)
                    raise

            owner = cls(path, lock, file, Host(kept, clock, keep))
            file.may_wait = serve  # A short command reports a full disk at once instead of waiting.
            if serve:
                await owner._serve()
                await owner._look_for_room()
                owner._looking = asyncio.get_running_loop().create_task(owner._look_on())
            owner._host.start()
        except BaseException:
            if file is not None:
                await file.close()
            lock.release()
            raise
        logger.info("metadata_store_taken", path=path, serving=serve, last_txn=kept.last_txn)
        return owner

    def connect(self, receiver: Receiver) -> LocalChannel:
        return LocalChannel(self._host, receiver)

    async def close(self) -> None:
        """Releases the store. Its sessions live on with the next owner."""
        self._file.may_wait = False  # A process that ends does not wait for room.
        await stop_tasks(self._looking)
        if self._server is not None:
            for listening in self._server.sockets:
                _CLOSED_IN_CHILDREN.pop(listening.fileno(), None)
            self._server.close()
        try:
            await self._host.close()
            await self._file.close()
        finally:
            self._lock.release()
        logger.info("metadata_store_left", path=self._path)

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            await self._look_for_room()

    async def _look_for_room(self) -> None:
        room = self._host.service.room
        try:
            free = await self._file.free_bytes()
        except OSError:
            return  # The disk does not report its free space, so writes are just tried.
        if room.on_free(free):
            if room.is_full:
                logger.warning(
                    "metadata_store_takes_nothing_more", path=self._path, free_bytes=free
                )
            else:
                logger.info("metadata_store_takes_all_again", path=self._path, free_bytes=free)

    async def _serve(self) -> None:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # On Linux the socket has this mode from its creation on; elsewhere it is set a moment later, below.
            with contextlib.suppress(OSError):
                os.fchmod(listening.fileno(), 0o600)
            with socket_address(self._path) as address:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(address)
                listening.bind(address)
                os.chmod(address, 0o600)
        except OSError as error:
            listening.close()
            raise BadConfig(
                f"cannot listen on {self._path}.sock: {describe_error(error)}"
            ) from error
        _CLOSED_IN_CHILDREN[listening.fileno()] = None
        # By default, Python 3.13 and later would remove the socket when the server closes.
        keep_name: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: _Served(self._host), sock=listening, backlog=CONNECTIONS_MAX, **keep_name
        )


@contextlib.contextmanager
def socket_address(path: str) -> Iterator[str]:
    """Returns a name for the socket of a store that is short enough for a socket address, however
    deep the folder is.
    """
    full = f"{path}.sock"
    if len(os.fsencode(full)) <= _SOCKET_PATH_BYTES_MAX:
        yield full
        return
    if not os.path.isdir("/proc/self/fd"):
        raise BadConfig(
            f"{path} is too long a path for a socket beside it; the limit is {_SOCKET_PATH_BYTES_MAX} bytes"
        )
    folder = os.open(os.path.dirname(full), os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(full)}"
    finally:
        os.close(folder)


class _Served(asyncio.Protocol):
    """The connection of one client. It limits both the requests and the responses that wait.

    At most `UNANSWERED_MAX` requests are read without being answered, and none while responses wait
    to be read. Events come without a request: a client that lets too many of them wait is
    disconnected, and gets RESYNC when it comes back.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._frames = FrameDecoder(REQUEST_FRAME_BYTES_MAX)
        self._transport: asyncio.Transport
        self._descriptor = -1
        self._connection = 0
        self._unheard: list[FromClient] = []
        self._unanswered = 0
        # True while sent messages wait in this process until the client reads them.
        self._is_stuffed = False
        self._unread_event_bytes = 0
        self._hello_timer: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._descriptor = transport.get_extra_info("socket").fileno()
        _CLOSED_IN_CHILDREN[self._descriptor] = None
        loop = asyncio.get_running_loop()
        self._hello_timer = loop.call_later(HELLO_TIMEOUT_S, self._abort, "it said no hello")
        if self._host.connection_count >= CONNECTIONS_MAX:
            self._abort("there are too many")
            return
        self._connection = self._host.connect(self._say)

    def connection_lost(self, exc: Exception | None) -> None:
        _CLOSED_IN_CHILDREN.pop(self._descriptor, None)
        self._hello_timer.cancel()
        self._host.disconnect(self._connection)

    def data_received(self, data: bytes) -> None:
        try:
            self._unheard += map(unpack_from_client, self._frames.feed(data))
        except BadFrame as error:
            self._abort(error.message)
            return
        self._hear()

    def _hear(self) -> None:
        room = 0 if self._is_stuffed else UNANSWERED_MAX - self._unanswered
        if room > 0 and self._unheard:
            heard, self._unheard = self._unheard[:room], self._unheard[room:]
            self._unanswered += sum(isinstance(message, Ask) for message in heard)
            if any(isinstance(message, Hello) for message in heard):
                self._hello_timer.cancel()
            self._host.hear(self._connection, heard)
        if self._unheard or self._is_stuffed:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self._is_stuffed = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_stuffed = False
        self._unread_event_bytes = 0
        self._hear()

    def _say(self, messages: Sequence[FromService | HangUp]) -> None:
        frames: list[bytes] = []
        for message in messages:
            if isinstance(message, HangUp):
                self._transport.write(b"".join(frames))
                logger.info("metadata_connection_closed", reason=message.reason)
                self._transport.close()
                return
            frames.append(pack_from_service(message))
            if isinstance(message, Answer):
                self._unanswered -= 1
            elif self._is_stuffed:
                self._unread_event_bytes += len(frames[-1])
        self._transport.write(b"".join(frames))
        if self._unread_event_bytes > UNREAD_EVENT_BYTES_MAX:
            self._abort("it does not read its events")
        elif self._unheard:  # This is called later, since the host is in the middle of sending.
            asyncio.get_running_loop().call_soon(self._hear)

    def _abort(self, reason: str) -> None:
        if not self._transport.is_closing():
            logger.warning("metadata_connection_refused", reason=reason)
            self._transport.abort()


_CLOSED_IN_CHILDREN: Final[dict[int, None]] = {}
"""Descriptors that a forked child closes: otherwise it would keep the lock and the parent's clients
after the parent's death.
"""


def _close_in_child() -> None:
    for descriptor in _CLOSED_IN_CHILDREN:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _CLOSED_IN_CHILDREN.clear()


os.register_at_fork(after_in_child=_close_in_child)
