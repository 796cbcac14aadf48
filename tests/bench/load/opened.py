"""Runs `rollbook …` and prints a line with the seconds that opening the storage took.

    python -m tests.bench.load.opened KEEP server bookie …

With KEEP `journal` there are no checkpoints, so that the journal has its full length when the
process is restarted. With `nothing` there is no change.
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
        setattr(Storage, "checkpoint", _never)  # noqa: B010  # mypy forbids assignments to methods.
    setattr(Storage, "open", _open_timed)  # noqa: B010  # mypy forbids assignments to methods.
    rollbook()


if __name__ == "__main__":
    main()
