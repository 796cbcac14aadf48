"""A server process that may own the embedded store, and only waits to be killed.

python -m tests.crash.server URL [FLAW]
python -m tests.crash.server URL create
"""

import asyncio
import io
import sys

from rollbook.proto.runtime.logging_setup import configure_logs
from rollbook.proto.runtime.metastore import open_metadata_store
from tests.crash.flaws import FLAWS
from tests.crash.load import prepare


async def main(url: str, how: str = "") -> None:
    # These servers are killed, so their logs are noise.
    configure_logs(level="error", stream=io.StringIO())
    if how in FLAWS:
        FLAWS[how]()
    async with await open_metadata_store(url, serve=True, create=how == "create") as store:
        if how == "create":
            await prepare(store)
        else:
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
