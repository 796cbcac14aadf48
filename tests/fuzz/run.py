"""The fuzzer behind `python -m tests fuzz`.

Inputs are run in blocks, each with one target and its own seed. Memory is measured twice: for each
block's first input by tracemalloc, which counts Python's allocations, and for whole blocks by the
process's high-water mark, which includes protobuf's.
"""

import random
import resource
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tests.fuzz.mutator import Mutator
from tests.fuzz.targets import Target, every_target
from tests.tally import Tally

BLOCK: Final = 250
SECONDS_MAX: Final = 1.0
RESIDENT_GROWTH_MAX: Final = 64 * 1024 * 1024
FAILURES_SHOWN: Final = 10


@dataclass(frozen=True)
class Failure:
    target: str
    seed: int
    data: bytes
    what: str

    def __str__(self) -> str:
        return f"{self.target}, seed {self.seed}: {self.what}\n  input {self.data.hex()}"


def run(runs: int, seed: int, report: Callable[[int, int], None]) -> Tally:
    """Prints each failure with its input, and calls `report` with the progress."""
    tally = Tally("inputs")
    for done, failures in fuzz(every_target(), runs, seed):
        for failure in failures[: max(0, FAILURES_SHOWN - tally.failed)]:
            sys.stdout.write(f"{failure}\n")
        tally.failed += len(failures)
        tally.passed = done - tally.failed
        report(done, runs)
    return tally


def fuzz(targets: Sequence[Target], runs: int, seed: int) -> Iterator[tuple[int, list[Failure]]]:
    """Yields after each block how many inputs are done and the failures that it found."""
    resident = _resident_bytes()
    for block in range(-(-runs // BLOCK)):
        count = min(BLOCK, runs - block * BLOCK)
        target = targets[block % len(targets)]
        chance = random.Random(f"{seed} {target.name} {block}")
        mutator = Mutator(chance, target.corpus, target.refit)
        failures: list[Failure] = []
        for index in range(count):
            data = mutator.next()
            what = judge(target, data, measure_memory=index == 0)
            if what is not None:
                failures.append(Failure(target.name, seed, data, what))
        grown = _resident_bytes() - resident
        if grown > RESIDENT_GROWTH_MAX:
            what = f"within this block the process grew by {grown} bytes"
            failures.append(Failure(target.name, seed, b"", what))
            resident += grown
        yield block * BLOCK + count, failures


def judge(target: Target, data: bytes, *, measure_memory: bool = False) -> str | None:
    """What the target does wrong with this input; None if nothing."""
    if measure_memory:
        tracemalloc.start()
    started = time.perf_counter()
    try:
        what = _broken_promise(target, data)
    finally:
        seconds = time.perf_counter() - started
        if measure_memory:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
    if what is not None:
        return what
    if measure_memory and peak > target.memory_bytes_max:
        return f"took {peak} bytes for an input of {len(data)}"
    if seconds > SECONDS_MAX and _is_slow(target, data):
        return f"took {seconds:.1f} s for {len(data)} bytes"
    return None


def _broken_promise(target: Target, data: bytes) -> str | None:
    try:
        value = target.decode(data)
    except target.errors:
        return None
    except Exception as error:  # noqa: BLE001 - Any other exception is a finding.
        return f"raised {type(error).__name__}: {error}"
    if target.encode is None:
        return None
    try:
        again = target.decode(target.encode(value))
    except Exception as error:  # noqa: BLE001 - Encoding a decoded value must not fail.
        return f"{value!r} does not come back: {type(error).__name__}: {error}"
    return None if again == value else f"{value!r} comes back as {again!r}"


def _is_slow(target: Target, data: bytes) -> bool:
    """Measures three times, because a busy machine may be slow once."""
    for _ in range(2):
        started = time.process_time()
        _broken_promise(target, data)
        if time.process_time() - started <= SECONDS_MAX:
            return False
    return True


def _resident_bytes() -> int:
    """The process's high-water mark."""
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
