"""A server that stores nothing: it counts bytes and sends responses of a given length.

    python -m tests.bench.load.sink REQUEST_BYTES REPLY_BYTES

It shows the generator's own limit. All frames have one size. Prints its port.
"""

import asyncio
import sys


class _Sink(asyncio.BufferedProtocol):
    def __init__(self, request_bytes: int, reply_bytes: int) -> None:
        self._request_bytes = request_bytes
        self._reply = bytes(reply_bytes)
        self._buffer = bytearray(1 << 18)
        self._unanswered_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        count, self._unanswered_bytes = divmod(self._unanswered_bytes + nbytes, self._request_bytes)
        self._transport.write(self._reply * count)


async def _main(request_bytes: int, reply_bytes: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Sink(request_bytes, reply_bytes), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(*map(int, sys.argv[1:])))
