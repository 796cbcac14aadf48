"""A range of records as one JSON object, which is made a piece at a time, as it is taken.

JSON of 10,000 records of 100 B takes 16 ms: made at once it would hold up everybody, for one who may not take
any of it. So

    a piece    is made when what is before it has left, but for what a connection may have unsent; and what
               others wait for goes between any two
    a newcomer has his made in the line of those who were told little yet (`newcomers.py`)
    at once    and with its length goes an answer of a piece
    who left   has nothing more made for him; nor has he who is hung up on (`untaken.py`)
"""

import asyncio
from collections.abc import Iterator
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rollbook.api.rest.following import pieces
from rollbook.api.rest.line import Line
from rollbook.api.rest.newcomers import Newcomer
from rollbook.api.rest.record_json import JSON, Encoding, dumped
from rollbook.api.rest.untaken import HELD_BYTES, NobodyTakesIt
from rollbook.logservice.core.block import Block
from rollbook.logservice.ids import Offset
from rollbook.logservice.words import ReadAnswer

_AT_ONCE_BYTES: Final = 16 * 1024


def records_response(
    newcomers: Line, answer: ReadAnswer, end: Offset, encoding: Encoding, headers: dict[str, str]
) -> Response:
    """`end`: of what is wanted of it."""
    texts = _texts(answer, end, encoding)
    size = sum(Block(block).unpacked_bytes for block in answer.blocks)
    if size <= _AT_ONCE_BYTES:
        return Response(b"".join(texts), 200, headers, JSON)
    return _InPieces(newcomers, texts, size, headers)


class _InPieces(Response):
    def __init__(
        self, newcomers: Line, texts: Iterator[bytes], size: int, headers: dict[str, str]
    ) -> None:
        """`size`: of what the texts are made of."""
        super().__init__(headers=headers, media_type=JSON)
        del self.headers["content-length"]
        self._held_bytes = size
        self._texts = texts
        self._newcomer = Newcomer(newcomers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        gone = asyncio.ensure_future(_until_gone(receive))
        try:
            await send({**head, HELD_BYTES: self._held_bytes})
            if scope["method"] != "HEAD":
                await self._tell(send, gone)
            await send({"type": "http.response.body", "body": b""})
        except NobodyTakesIt:
            pass
        finally:
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)

    async def _tell(self, send: Send, gone: asyncio.Future[None]) -> None:
        while not gone.done():
            await self._newcomer.wait()
            text = next(self._texts, None)
            if text is None:
                return
            await send({"type": "http.response.body", "body": text, "more_body": True})
            self._newcomer.on_told(len(text))
            await asyncio.sleep(0)  # What there is room for is sent without a wait.


def _texts(answer: ReadAnswer, end: Offset, encoding: Encoding) -> Iterator[bytes]:
    comma = b'{"records":['
    for piece in pieces(answer.blocks, answer.first_offset, end, encoding):
        yield comma + dumped(piece.facts["records"])[1:-1]
        comma = b","
    facts = {
        "next_offset": end,
        "head": answer.head,
        "tail": answer.tail,
        "is_sealed": answer.is_sealed,
    }
    yield (b"" if comma == b"," else comma) + b"]," + dumped(facts)[1:]


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
