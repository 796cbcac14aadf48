"""`rollbook …`, that says on a line of its own how many seconds it took to open its storage.

    python -m tests.bench.load.opened KEEP server bookie …

With KEEP `journal` nothing is ever checkpointed, so that the journal is as long as it was when the
process starts again; with `nothing` all is as usual.
"""

import asyncio
import sys
import time
from typing import Any

from rollbook.api.cli.main import main as rollbook
from rollbook.bookie.storage import Storage

_open = Storage.open


async def _open_timed(*arguments: Any, **keywords: Any) -> Storage:
    began = time.perf_counter()
    storage = await _open(*arguments, **keywords)
    print(f"{time.perf_counter() - began:.6f}", flush=True)
    return storage


async def _never(_storage: Storage) -> bool:
    await asyncio.Event().wait()
    raise AssertionError


def main() -> None:
    if sys.argv.pop(1) == "journal":
        setattr(Storage, "checkpoint", _never)  # noqa: B010  # To mypy a method is no variable.
    setattr(Storage, "open", _open_timed)  # noqa: B010  # To mypy a method is no variable.
    rollbook()


if __name__ == "__main__":
    main()
