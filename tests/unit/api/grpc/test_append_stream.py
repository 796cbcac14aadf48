"""The server's side of an append stream: how it ends and how it checks messages."""

import asyncio
from typing import Any

import grpc

from rollbook.api.grpc.append_stream import serve_append_stream
from rollbook.logservice.core.record_block import Codec, pack_block
from rollbook.logservice.messages import AppendResult, Bind, StreamAppend
from rollbook.proto.errors import InvalidRequest
from rollbook.proto.v1 import log_pb2


class SilentContext:
    """The context of a client that sends nothing."""

    async def send_initial_metadata(self, headers: object) -> None: ...

    async def read(self) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError


class Opened:
    """A core with one idle append stream."""

    def __init__(self) -> None:
        self.is_closed = False

    def open_append_stream(self, _: object = None) -> "Opened":
        return self

    async def ready(self) -> None:
        pass

    async def results(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.is_closed = True


async def test_append_call_cancelled_twice_closes_its_stream() -> None:
    """The call is cancelled when the client disconnects and again when the server stops."""
    core: Any = Opened()
    before = asyncio.all_tasks()
    call = asyncio.ensure_future(serve_append_stream(core, SilentContext()))
    await asyncio.sleep(0)  # The call waits for its reader and its writer task.
    call.cancel()
    await asyncio.sleep(0)  # The call waits for both tasks to end.
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert call.cancelled()
    assert core.is_closed
    assert asyncio.all_tasks() == before


class OneMessage(SilentContext):
    """The context of a client that sends one message and closes its side."""

    def __init__(self, message: bytes) -> None:
        self._said: list[Any] = [message, grpc.aio.EOF]

    async def read(self) -> Any:
        return self._said.pop(0)

    async def write(self, _: bytes) -> None: ...


class Checked(Opened):
    """Records the submissions and the round of the loop of each."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[tuple[int, int]] = []  # Binds and appends of each submission.
        self.turns: list[int] = []
        self._turn = 0
        self._results: asyncio.Queue[list[AppendResult]] = asyncio.Queue()
        asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn += 1
        if not self.is_closed:
            asyncio.get_running_loop().call_soon(self._next_turn)

    def submit(self, binds: list[Bind], appends: list[StreamAppend]) -> None:
        self.runs.append((len(binds), len(appends)))
        self.turns.append(self._turn)
        refused = InvalidRequest("not asked for here")
        self._results.put_nowait([AppendResult(each.number, error=refused) for each in appends])

    async def results(self) -> Any:
        return await self._results.get()


async def test_compressed_blocks_are_checked_in_several_loop_rounds() -> None:
    """LB3: a few kilobytes may unpack to many megabytes, so other tasks must run in between."""
    message = log_pb2.AppendStreamRequest()
    message.binds.add(ref=1, log="team/log")
    bomb = pack_block([bytes(1024 * 1024)] * 3, codec=Codec.ZSTD)
    for number, block in enumerate([pack_block([b"small"]), bomb, bomb, bomb]):
        message.appends.add(number=number, ref=1, block=block)
    core: Any = Checked()
    await serve_append_stream(core, OneMessage(message.SerializeToString()))
    assert core.runs == [(1, 2), (0, 1), (0, 1)]
    assert len(set(core.turns)) == 3


async def test_message_of_plain_blocks_is_checked_at_once() -> None:
    message = log_pb2.AppendStreamRequest()
    message.binds.add(ref=1, log="team/log")
    for number in range(100):
        message.appends.add(number=number, ref=1, block=pack_block([bytes(1000)]))
    core: Any = Checked()
    await serve_append_stream(core, OneMessage(message.SerializeToString()))
    assert core.runs == [(1, 100)]
