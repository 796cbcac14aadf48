"""Connects a client to an embedded store. The client becomes the owner if there is none; otherwise
it uses the socket of the owner.

A server tries to take the lock whenever it has no connection, so the first server that notices the
owner's death becomes the next owner. A visitor tries it, too, but opens no socket: it uses the file
alone for a short command, while other processes wait. A plain client never takes the lock.
"""

import asyncio
import errno
import os
import shlex
import socket
from collections.abc import Sequence
from enum import Enum
from typing import Final, cast

from rollbook.proto.errors import BadConfig, BadFrame, MetadataUnavailable, NoSuchCluster
from rollbook.proto.metastore.core.service_codec import (
    ANSWER_FRAME_BYTES_MAX,
    pack_from_client,
    unpack_from_service,
)
from rollbook.proto.metastore.core.service_messages import FromClient
from rollbook.proto.metastore.service_client import Receiver, ServiceChannel
from rollbook.proto.ports import Clock, Randomness
from rollbook.proto.runtime.metastore.embedded_owner import (
    Fatal,
    StoreOwner,
    describe_owner,
    end_process,
    socket_address,
)
from rollbook.proto.runtime.system_error_text import MAKE_ROOM, describe_error, is_full
from rollbook.proto.wire.frames import FrameDecoder


class Role(Enum):
    SERVER = "server"
    VISITOR = "visitor"
    CLIENT = "client"


class EmbeddedConnector:
    def __init__(
        self,
        path: str,
        clock: Clock,
        randomness: Randomness,
        role: Role,
        *,
        create: bool = False,
        on_fatal: Fatal = end_process,
    ) -> None:
        # The real path is used, so that all names of a file lead to one lock.
        self._path = os.path.realpath(path)
        self._clock = clock
        self._randomness = randomness
        self._role = role
        self._create = create
        self._on_fatal = on_fatal
        self._owner: StoreOwner | None = None

    @property
    def is_owner(self) -> bool:
        return self._owner is not None

    async def connect(self, receiver: Receiver, timeout_s: float) -> ServiceChannel:
        try:
            return await self._connect(receiver)
        except OSError as error:
            raise BadConfig(
                f"cannot use {self._path}: {describe_error(error)}",
                next_step=f"{MAKE_ROOM}, and start this again" if is_full(error) else _WRITABLE,
            ) from error

    async def _connect(self, receiver: Receiver) -> ServiceChannel:
        self._look_for_file()
        if self._role is not Role.CLIENT and self._owner is None:
            self._owner = await StoreOwner.take(
                self._path,
                self._clock,
                self._randomness,
                create=self._create,
                serve=self._role is Role.SERVER,
                on_fatal=self._on_fatal,
            )
        if self._owner is not None:
            return self._owner.connect(receiver)
        return await self._connect_to_owner(receiver)

    def _look_for_file(self) -> None:
        directory = os.path.dirname(self._path)
        if self._create and not os.path.isdir(directory):
            raise BadConfig(
                f"there is no directory {directory}",
                next_step=f"mkdir -p {shlex.quote(directory)}",
            )
        if not self._create and not os.path.exists(self._path):
            raise NoSuchCluster(
                f"there is no metadata store {self._path}",
                next_step=f"create it: rollbook cluster init --metadata sqlite://{self._path}",
            )

    def why_silent(self) -> str:
        if self._owner is not None and self._owner.is_stuck:
            return f"the disk of {self._path}, which this process holds, is full"
        if self.is_owner:
            return f"this process owns {self._path}, and its disk is slow"
        return describe_owner(self._path)

    async def close(self) -> None:
        owner, self._owner = self._owner, None
        if owner is not None:
            await owner.close()

    async def _connect_to_owner(self, receiver: Receiver) -> ServiceChannel:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            with socket_address(self._path) as address:
                # This succeeds or fails at once, since it is a Unix socket.
                connection.connect(address)
        except OSError as error:
            connection.close()
            if error.errno not in (errno.ECONNREFUSED, errno.ENOENT, errno.EAGAIN):
                raise
            raise MetadataUnavailable(describe_owner(self._path), next_step=_ADVICE) from error
        _, protocol = await asyncio.get_running_loop().create_unix_connection(
            lambda: _SocketChannel(receiver), sock=connection
        )
        return protocol


_WRITABLE: Final = "its directory must be there, and writable for the user of this process"
_ADVICE: Final = "start a server on it, or wait for one that is starting"


class _SocketChannel(asyncio.Protocol):
    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._frames = FrameDecoder(ANSWER_FRAME_BYTES_MAX)
        self._transport: asyncio.Transport

    def send(self, messages: Sequence[FromClient]) -> None:
        self._transport.write(b"".join(map(pack_from_client, messages)))

    def close(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            messages = [unpack_from_service(body) for body in self._frames.feed(data)]
        except BadFrame as error:
            self._transport.abort()
            self._receiver.on_lost(error.message)
        else:
            self._receiver.on_messages(messages)

    def connection_lost(self, exc: Exception | None) -> None:
        self._receiver.on_lost("its owner closed the connection")
