"""A process that works for a bench: a line in is a job, a line out its figures.

Also has the tools for measurements in such processes. It imports only the standard library, because
it also runs in the virtual environments of peers.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

Job = dict[str, Any]
Found = dict[str, Any]


async def serve(run: Callable[[Job], Awaitable[Found]]) -> None:
    """Runs the jobs from standard input. The loop is free for other tasks between two jobs, too."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        try:
            answer: Found = {"value": await run(json.loads(line))}
        except Exception as error:  # noqa: BLE001  # The harness prints it.
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


ADDS_SAMPLED: Final = 16  # One of this many adds is timed: timing all costs too much.
ADDS_BURSTS: Final = 8  # The number of bursts in a window.


class Stopwatch:
    """Measures wall time, and CPU time of all threads of this process."""

    def __init__(self) -> None:
        self._since, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> Found:
        return {
            "seconds": time.perf_counter() - self._since,
            "cpu_s": time.process_time() - self._cpu,
        }


# The quantiles of a spread, which are denser in the tail.
SHARES: Final = (
    *(step / 100 for step in range(99)),
    *(step / 1_000 for step in range(990, 1_000)),
    0.9995,
    0.9999,
)


def percentiles(latencies_ns: list[int]) -> Found:
    ordered = sorted(latencies_ns)

    def at(share: float) -> int:
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]

    shares = {"p50_ns": 0.5, "p99_ns": 0.99, "p999_ns": 0.999}
    told: Found = {name: at(share) for name, share in shares.items()}
    return told | {"spread_ns": [at(share) for share in SHARES]}
