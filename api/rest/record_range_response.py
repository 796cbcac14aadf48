"""Sends a range of records as one JSON object, which is encoded piece by piece as the client reads it.

10,000 records are a megabyte, and encoding them as JSON takes 20 ms. Encoded all at once, they would delay all other
clients, even if their own client reads nothing. Therefore:

    a piece    (`record_json_slices.py`) is encoded when all earlier ones were sent, except for the bytes that a connection
               may have unsent; so at most one piece is ahead. The event loop runs between any two pieces
    newcomers  pieces for a new client are encoded in the queue of new clients (`fairness/new_reader_pacing.py`)
    counted    all held bytes count: the blocks, the largest unpacked body, and a piece of JSON
               (`fairness/response_memory.py`). For a refused request nothing is encoded
    the first  piece is encoded before the head is sent, so that an error in it is a problem with its own status. If
               it is the only piece, the response has a length
    the end    is left out if a later piece fails: the object stays open, and the connection is closed without the
               last chunk, so that no client takes the part for the whole
    gone       for a client that has left, nothing more is encoded
"""

import asyncio
from collections.abc import Iterator
from typing import Final

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rollbook.api.rest.event_streams import until_gone
from rollbook.api.rest.fairness.loop_yield_queue import AdmissionQueue
from rollbook.api.rest.fairness.new_reader_pacing import Newcomer
from rollbook.api.rest.fairness.response_memory import HOLD, Hold
from rollbook.api.rest.record_json import JSON, Encoding, dumped
from rollbook.api.rest.record_json_slices import PIECE_BYTES, RecordSlice, pieces, wanted
from rollbook.logservice.core.record_block import packed_body_of
from rollbook.logservice.ids import Offset
from rollbook.logservice.messages import ReadAnswer
from rollbook.proto.tasks import stop_tasks

logger = structlog.get_logger()

_TEXT_BYTES: Final = 8 * PIECE_BYTES  # Eight times: a byte takes at most six in JSON (`\u0001`).


class RangeResponse(Response):
    def __init__(
        self,
        newcomers: AdmissionQueue,
        answer: ReadAnswer,
        end: Offset,
        encoding: Encoding,
        headers: dict[str, str],
    ) -> None:
        """`end`: the end of the requested range."""
        super().__init__(headers=headers, media_type=JSON)
        del self.headers["content-length"]
        blocks = wanted(answer.blocks, answer.first_offset, end)
        self._held_bytes = held_by(blocks)
        self._pieces: Iterator[RecordSlice] = pieces(blocks, answer.first_offset, end, encoding)
        self._made_below, self._end = answer.first_offset, end
        self._rest = b"]," + dumped(_facts(answer, end))[1:]
        self._newcomer = Newcomer(newcomers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hold: Hold = scope.get(HOLD, _without_bound)
        is_much = self._held_bytes > PIECE_BYTES
        if is_much:
            if not hold(self._held_bytes + _TEXT_BYTES):
                return
            await self._newcomer.wait()
        text, is_all = self._next_text(b'{"records":[')
        if is_all:
            self._pieces = iter(())  # Drops the references to the blocks.
            self.headers["content-length"] = str(len(text))
            if is_much and not hold(len(text)):
                return
        if is_all or scope["method"] == "HEAD":
            await self._send_head(send)
            await send(_body(text if is_all else b""))
            return
        gone = asyncio.ensure_future(until_gone(receive))
        try:
            await self._send_pieces(text, send, hold, gone, scope["path"])
        finally:
            await stop_tasks(gone)

    async def _send_pieces(
        self, text: bytes, send: Send, hold: Hold, gone: asyncio.Future[None], path: str
    ) -> None:
        await self._send_head(send)
        is_all = False
        while hold(self._held_bytes + max(len(text), _TEXT_BYTES)) and not gone.done():
            self._newcomer.on_sent(len(text))
            await send(_body(text, more=not is_all))
            if is_all:
                return
            # Yields once, so that the transport can send what fits its buffer.
            await asyncio.sleep(0)
            await self._newcomer.wait()
            try:
                text, is_all = self._next_text(b",")
            except (
                Exception
            ) as error:  # The request ends here: any error is logged, and cuts the response off.
                at = self._made_below
                logger.error("http_range_cut", path=path, next_offset=at, exc_info=error)
                return

    def _next_text(self, before: bytes) -> tuple[bytes, bool]:
        """The JSON of the next records, with the end of the object if they are the last ones; and whether they are."""
        piece = next(self._pieces, None)
        if piece is None:
            return before.removeprefix(b",") + self._rest, True
        text = before + piece.records[1:-1]
        self._made_below = piece.next_offset
        is_all = piece.next_offset >= self._end
        return (text + self._rest if is_all else text), is_all

    async def _send_head(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})


def held_by(blocks: list[bytes]) -> int:
    """Bytes held while records are sent: all stored blocks, and the unpacked body of one."""
    return sum(map(len, blocks)) + max(map(packed_body_of, blocks), default=0)


def _facts(answer: ReadAnswer, end: Offset) -> dict[str, object]:
    return {
        "next_offset": end,
        "head": answer.head,
        "tail": answer.tail,
        "is_sealed": answer.is_sealed,
    }


def _body(data: bytes, *, more: bool = False) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": more}


def _without_bound(_: int) -> bool:
    return True
