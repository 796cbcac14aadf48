"""A server process that may own the embedded store; it does nothing else, and waits to be killed.

    python -m tests.crash.server URL [careless]
    python -m tests.crash.server URL create

`careless` is the proof that power cuts can be told from luck: this owner's SQLite never syncs.
"""

import asyncio
import contextlib
import functools
import os
import sqlite3
import sys
from typing import Any
from unittest import mock

from rollbook.proto.runtime.logs import configure_logs
from rollbook.proto.runtime.metastore import open_metadata_store
from tests.crash.load import prepare


class CarelessConnection(sqlite3.Connection):
    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        is_about_syncing = "synchronous" in sql.lower()
        return super().execute("PRAGMA synchronous = OFF" if is_about_syncing else sql, *arguments)


async def main(url: str, how: str = "careful") -> None:
    configure_logs(level="error")
    if how == "careless":
        careless = functools.partial(sqlite3.connect, factory=CarelessConnection)
        mock.patch.object(sqlite3, "connect", careless).start()
    async with await open_metadata_store(url, serve=True, create=how == "create") as store:
        if how == "create":
            await prepare(store)
        else:
            os.write(1, b"ready\n")
            await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(*sys.argv[1:]))
