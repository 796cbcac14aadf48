"""A process that may serve an embedded store: `python -m … PATH [create] [full]`.

It prints `ready`, then obeys lines. `owner?` prints yes or no. `create PATH` creates an ephemeral
node and prints `made` or the name of the error. `fork` starts a child that does nothing and
outlives this process, and prints its pid. `fork and end` waits for a child that ends at once. With
`full`, files cannot grow beyond 2 MiB.
"""

import asyncio
import os
import random
import resource
import signal
import sys

from rollbook.proto.errors import RollbookError
from rollbook.proto.metastore.service_client import StoreClient
from rollbook.proto.ports import CreateMode
from rollbook.proto.runtime.clock import SystemClock
from rollbook.proto.runtime.logging_setup import configure_logs
from rollbook.proto.runtime.metastore.embedded_connector import EmbeddedConnector, Role

FULL_BYTES = 2 * 1024 * 1024


async def main(path: str, *how: str) -> None:
    configure_logs()
    if "full" in how:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_BYTES, FULL_BYTES))
    connector = EmbeddedConnector(
        path, SystemClock(), random.Random(), Role.SERVER, create="create" in how
    )
    await StoreClient(connector, random.Random(), session_timeout_s=2).open()
    store = await StoreClient(connector, random.Random(), session_timeout_s=2).open()
    say("ready")
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
    )
    while line := await lines.readline():
        match line.decode().split():
            case ["owner?"]:
                say("yes" if connector.is_owner else "no")
            case ["create", node]:
                try:
                    await store.create(node, os.urandom(100_000), CreateMode.EPHEMERAL)
                    say("made")
                except RollbookError as error:
                    say(type(error).__name__)
            case ["fork"]:
                if (child := os.fork()) == 0:
                    signal.pause()
                say(str(child))
            case ["fork", "and", "end"]:
                if (child := os.fork()) == 0:
                    sys.exit()
                os.waitpid(child, 0)
                say(str(child))


def say(line: str) -> None:
    os.write(1, line.encode() + b"\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
