"""Runs images and flips on all cores, and the search for planted flaws."""

import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import Final

from tests.crash.images.cuts import Crashes, crash_everywhere
from tests.crash.images.flaws import FLAWS
from tests.crash.images.flips import KINDS, StoreAtRest, flip
from tests.crash.images.identities import crash_identity_everywhere
from tests.crash.images.life import small_and_quiet
from tests.simulation.run import parallel, settle
from tests.support.planting import planted
from tests.tally import Tally

Say = Callable[[str], None]
Progress = Callable[[int, int], None]

FAILURES_MAX: Final = 10
_BLANK_STRIDE: Final = 64  # A short run flips one in this many preallocated bytes.
# One in this many traces is of an identity, which is small; the others are of the storage.
_IDENTITY_ONE_IN: Final = 4
_FLIPS_PER_TASK: Final = 500


# --- Power cuts ---------------------------------------------------------------------------------


def crash(images_min: int, seed: int, progress: Progress, say: Say) -> Tally:
    """Judges traces from `seed` on until `images_min` images have been judged."""
    tally, crashes = Tally("images"), Crashes()
    started = time.monotonic()
    progress(0, images_min)
    for result in _traces(seed):
        crashes.add(result)
        progress(min(images_min, crashes.images), images_min)
        if crashes.images >= images_min or len(crashes.failures) >= FAILURES_MAX:
            break
    tally.passed, tally.failed = crashes.images, len(crashes.failures)
    for failure in crashes.failures[:FAILURES_MAX]:
        say(failure)
    seconds = time.monotonic() - started
    say(
        f"{crashes.images:,} images of {crashes.moments:,} moments of {crashes.traces:,} traces, "
        f"{crashes.again:,} of them of a second crash; {crashes.images / seconds:,.0f} a second"
    )
    return tally


def _traces(seed: int) -> Iterator[Crashes]:
    """Yields the result of each trace, in order, computed by one process per core."""
    processes = os.cpu_count() or 1
    seeds = count(seed)
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("fork"), initializer=settle)
    waiting: list[Future[Crashes]] = []
    try:
        while True:
            while len(waiting) < 3 * processes:
                waiting.append(pool.submit(_crash_trace, next(seeds)))
            yield waiting.pop(0).result()
    finally:
        pool.shutdown(cancel_futures=True)


def _crash_trace(seed: int) -> Crashes:
    with small_and_quiet():
        if seed % _IDENTITY_ONE_IN == 0:
            return crash_identity_everywhere(seed)
        return crash_everywhere(seed)


# --- Flips --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Places:
    """Positions in one kind of store: the `first`-th, and each `stride`-th after it."""

    kind: int
    first: int
    stride: int
    blank_stride: int
    seed: int


def flip_bytes(seed: int, progress: Progress, say: Say, which: str) -> Tally:
    """Flips one bit of each written byte, in stores with different digests in turn.

    `which`: each byte `once`; one `half` of them, which the seed chooses; or `all` bytes, including
    preallocated ones, in a store of each kind.
    """
    tally = Tally("flips")
    tasks = _flip_tasks(seed, which)
    started = time.monotonic()
    for done, (flipped, failures) in enumerate(parallel(_flip_some, tasks), 1):
        tally.passed += flipped - len(failures)
        tally.failed += len(failures)
        for failure in failures:
            say(failure)
        progress(done, len(tasks))
        if tally.failed >= FAILURES_MAX:
            break
    share = "every second byte" if which == "half" else "each byte"
    kinds = "each of" if which == "all" else "one of"
    blank = "all" if which == "all" else f"every {_BLANK_STRIDE}th"
    seconds = time.monotonic() - started
    say(
        f"{tally.passed + tally.failed:,} flips: {share} written, in {kinds} {len(KINDS)} stores "
        f"of different digests, and {blank} of those reserved; {tally.passed / seconds:,.0f} a second"
    )
    return tally


def _flip_tasks(seed: int, which: str) -> list[_Places]:
    with small_and_quiet():
        places = max(len(list(StoreAtRest(kind).places())) for kind in KINDS)
    chunks = -(-places // _FLIPS_PER_TASK)
    if which == "all":
        return [
            _Places(kind, first, chunks, chunks, seed)
            for kind in range(len(KINDS))
            for first in range(chunks)
        ]
    # The stores have the same layout: bytes that one store skips are flipped in another.
    chunks = -(-chunks // len(KINDS)) * len(KINDS)
    tasks = [
        _Places(first % len(KINDS), first, chunks, chunks * _BLANK_STRIDE, seed)
        for first in range(chunks)
    ]
    if which == "half":
        tasks = [task for task in tasks if task.first // len(KINDS) % 2 == seed % 2]
    return tasks


def _flip_some(task: _Places) -> tuple[int, list[str]]:
    chance = random.Random(f"flips {task}")
    with small_and_quiet():
        store = StoreAtRest(KINDS[task.kind])
        written = list(store.places())[task.first :: task.stride]
        blank = list(store.blank_places())[task.first :: task.blank_stride]
        results = [flip(store, path, position, chance) for path, position in (*written, *blank)]
    return len(results), [result for result in results if result]


# --- Planted flaws ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    flaw: str
    images: int  # Images judged until the flaw was found.
    what: str | None
    cpu_s: float


def find_flaws(seed: int, say: Say, one_in: int = 1) -> Tally:
    """Checks that each planted flaw is found within its number of images.

    `one_in`: tries one in this many flaws, chosen by the seed.
    """
    tally = Tally("flaws")
    say(f"{'planted in the bookie':<48}{'images':>8}{'within':>9}{'CPU s':>7}  seen as")
    for found in parallel(
        find_flaw, [(name, seed) for name in list(FLAWS)[seed % one_in :: one_in]]
    ):
        flaw = FLAWS[found.flaw]
        told = found.what or "MISSED"
        say(f"{found.flaw:<48}{found.images:>8,}{flaw.images_max:>9,}{found.cpu_s:>7.1f}  {told}")
        tally.passed += found.what is not None
        tally.failed += found.what is None
    return tally


def find_flaw(task: tuple[str, int]) -> Found:
    name, seed = task
    flaw, images, started = FLAWS[name], 0, time.process_time()
    what: str | None = None
    with small_and_quiet(), planted(flaw.patches):
        for each in count(seed):
            crash_all = crash_identity_everywhere if flaw.is_of_identity else crash_everywhere
            crashes = crash_all(each, sample=6)
            images += crashes.images
            if crashes.failures:
                what = crashes.failures[0]
            if what or images >= flaw.images_max:
                break
    return Found(name, images, what, time.process_time() - started)
