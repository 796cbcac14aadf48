"""A bookie dies under load repeatedly, and nothing it promised is lost.

- *Kill*: SIGKILL; the next process takes over its files. Sometimes that process is killed during
  its start, or is paused before the kill, or is stopped by SIGTERM while clients work.
- *Power cut*: the disk stops amid un-synced writes, the process dies, and the file system forgets
  un-synced data, or keeps a random share of it. A cut that forgot nothing does not count.
- *Failed fsync*: the bookie ends by itself with the exit code for that; the next one serves what it
  found; then the power is cut.
- *Full disk*: adds are refused, but fences and recoveries still work, also after a kill; once there
  is room, the bookie accepts adds again by itself.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rollbook.proto.runtime.storage_failed_exit_code import EXIT_STORAGE_FAILED
from tests.crash import CrashResult
from tests.crash.bookie_rig import PATIENCE_S, Outcome, Rig, Subject
from tests.crash.series import Report, crash_in_series
from tests.support import bookies
from tests.support.forgetful import ForgetfulDisk
from tests.support.processes import family

_STOP_S: Final = 0.3
_TERMINATE_EVERY: Final = 10
_SLEEP_EVERY: Final = 13
_KILL_AGAIN_EVERY: Final = 5
_START_S: Final = 0.15  # About the duration of a start; a second kill comes during it.
_SHARES_KEPT: Final = (0.0, 0.0, 0.2, 0.5, 0.9)  # Shares of un-synced data, at a power cut.
_SYNC_DELAYS_S: Final = (0.0, 0.003, 0.02)  # On a slow disk, a cut hits a running write more often.
_REQUESTS_BEFORE_CUT_MAX: Final = 200
# The last value is reached only during a checkpoint.
_BYTES_AT_CUT: Final = (1, 1, 64 << 10, 256 << 10)
_CUTS_IN_VAIN_MAX: Final = 20  # In a third of the cuts all data happens to be written back.
_FAILURE_PER_CUTS: Final = 5
_FULL_PER_CUTS: Final = 8
_FAILED_SYNCS_MAX: Final = 40  # They cannot all have been syncs of checkpoints, which are repeated.
_REPORT_EVERY: Final = 10

Crash = Callable[[int], Awaitable[None]]


def run_kills(folder: Path, kills: int, seed: int, report: Report, *, flaw: str = "-") -> Outcome:
    with _subject(folder, folder, flaw) as subject:
        rig = Rig(subject, seed)

        async def kill(number: int) -> None:
            if number % _TERMINATE_EVERY == 0:
                await _terminate(rig)
                await rig.start()
                await rig.let_work()
            if number % _SLEEP_EVERY == 0:
                subject.stop()
                await asyncio.sleep(_STOP_S)
                subject.resume()
                await rig.let_work(1)
            await rig.kill()
            if number % _KILL_AGAIN_EVERY == 0:
                _kill_on_the_way_up(rig)

        return asyncio.run(_repeat(rig, kill, kills, "kills", report))


async def _terminate(rig: Rig) -> None:
    """Sends SIGTERM under load; the bookie must end soon, with exit code 0."""
    started = time.monotonic()
    rig.subject.terminate()
    await rig.load.crash()
    status = rig.subject.wait()
    if status:
        rig.judge.violations.append(f"SIGTERM ended it with {status}")
    rig.endings_s.append(time.monotonic() - started)


def _kill_on_the_way_up(rig: Rig) -> None:
    rig.subject.launch()
    time.sleep(rig.chance.uniform(0, _START_S))
    rig.subject.kill()


def run_power_cuts(
    disk: ForgetfulDisk, cuts: int, seed: int, report: Report, *, flaw: str = "-"
) -> Outcome:
    with _subject(disk.path, disk.path.parent, flaw) as subject:
        rig = Rig(subject, seed)

        async def cut(number: int) -> None:
            chance = rig.chance
            # The data that the next process finds and relies on must be durable too.
            if number % 2 == 0:
                await rig.kill()
                await rig.start()
                await rig.let_work(50)
            for _ in range(_CUTS_IN_VAIN_MAX):
                if dropped := await _cut_the_power(disk, rig):
                    rig.dropped.append(dropped)
                    break
                await rig.start()
            else:
                rig.judge.violations.append("no power cut finds anything that is not synced")
            if number % _KILL_AGAIN_EVERY == 0:
                _kill_on_the_way_up(rig)
                disk.forget(keep=chance.choice(_SHARES_KEPT), seed=chance.randrange(1 << 30))
            disk.slow_sync(chance.choice(_SYNC_DELAYS_S))

        return asyncio.run(_repeat(rig, cut, cuts, "power cuts", report))


async def _cut_the_power(disk: ForgetfulDisk, rig: Rig) -> int:
    """Cuts the power while data is un-synced; returns how many bytes were lost."""
    chance = rig.chance
    disk.halt(
        after_requests=chance.randrange(_REQUESTS_BEFORE_CUT_MAX),
        dirty_bytes=chance.choice(_BYTES_AT_CUT),
    )
    await rig.until(lambda: disk.is_halted, "un-synced writes")
    rig.subject.strike()
    disk.unplug()
    rig.subject.wait()  # Wait before the disk is back, since the process still has files open.
    forgotten = disk.statistics()["bytes_forgotten"]
    after = disk.forget(keep=chance.choice(_SHARES_KEPT), seed=chance.randrange(1 << 30))
    await rig.load.crash()
    return after["bytes_forgotten"] - forgotten


def run_failed_syncs(
    disk: ForgetfulDisk,
    failures: int,
    seed: int,
    report: Report,
    *,
    flaw: str = "-",
    journal_file_bytes: int = 1 << 20,
) -> Outcome:
    """Checks that a failed fsync ends the bookie, and that the next one loses no promise.

    After a failed fsync the kernel holds pages that it takes for clean and the disk never got.

    The next process reads these pages and serves them to readers; then the power is cut. With
    large journal files, the failed fsync is nearly always one of adds.
    """
    with _subject(disk.path, disk.path.parent, flaw, journal_file_bytes) as subject:
        rig = Rig(subject, seed)

        async def fail(_number: int) -> None:
            await _fail_a_sync(disk, rig)
            await rig.start()
            await rig.let_work(20)
            await rig.kill()
            disk.forget()

        return asyncio.run(_repeat(rig, fail, failures, "failed fsyncs", report))


async def _fail_a_sync(disk: ForgetfulDisk, rig: Rig) -> None:
    """Fails syncs until the bookie ends by itself: it may repeat a checkpoint whose sync failed."""
    rig.judge.may_fail = True
    enough = disk.statistics()["syncs_failed"] + _FAILED_SYNCS_MAX
    while rig.subject.is_running and disk.statistics()["syncs_failed"] < enough:
        disk.fail_sync(rig.chance.randrange(1, 20))
        await asyncio.sleep(0.1)
    disk.fail_sync(0)
    if rig.subject.is_running:
        rig.judge.violations.append("it went on though its disk failed")
        rig.subject.kill()
    elif (status := rig.subject.wait()) != EXIT_STORAGE_FAILED:
        rig.judge.violations.append(f"a bookie whose disk failed ended with {status}")
    await rig.load.crash()
    rig.judge.may_fail = False


def run_full_disks(
    disk: ForgetfulDisk, times: int, seed: int, report: Report, *, flaw: str = "-"
) -> Outcome:
    with _subject(disk.path, disk.path.parent, flaw) as subject:
        rig = Rig(subject, seed)

        async def fill(number: int) -> None:
            judge = rig.judge
            judge.may_be_read_only = True
            disk.limit_free(rig.chance.randrange(0, 2 << 20))
            refused = judge.outcomes["refused for want of room"]
            await rig.until(
                lambda: judge.outcomes["refused for want of room"] > refused, "it to be full"
            )
            await rig.load.recover_one()
            if number % 2 == 0:
                await rig.kill()
                await rig.start()
                await rig.load.recover_one()
            disk.limit_free(None)
            acknowledged = judge.outcomes["acknowledged as usual"]
            await rig.until(
                lambda: judge.outcomes["acknowledged as usual"] > acknowledged, "room for adds"
            )
            await rig.load.rest()
            judge.may_be_read_only = False
            await rig.kill()
            disk.forget()

        return asyncio.run(_repeat(rig, fill, times, "full disks", report))


async def _repeat(rig: Rig, crash: Crash, times: int, what: str, report: Report) -> Outcome:
    """Ends early when a promise is broken."""
    await rig.start()
    number = 0
    while number < times and not rig.judge.violations:
        await rig.let_work()
        number += 1
        await crash(number)
        await rig.start()
        if number % _REPORT_EVERY == 0 or number == times:
            acknowledged = rig.judge.outcomes["acknowledged"]
            report(f"bookie: {number:,} of {times:,} {what}, {acknowledged:,} adds acknowledged")
    return await rig.finish(number)


@contextmanager
def _subject(
    folder: Path, native: Path, flaw: str, journal_file_bytes: int = 1 << 20
) -> Iterator[Subject]:
    """A new bookie, and a cluster whose metadata store is never killed and forgets nothing."""
    with family() as children:
        url = f"sqlite://{native}/metadata.db"
        command = ("rollbook.api.cli.main", "cluster", "init", "--metadata", url)
        assert children.start_module(*command).wait(PATIENCE_S) == 0
        bookies.give_out_ids(url)
        children.start_module(
            "tests.crash.server", url
        )  # The process that serves the metadata store must not be killed.
        yield Subject(
            folder / "bookie", children, url, flaw=flaw, journal_file_bytes=journal_file_bytes
        )


def crash_it(kills: int, power_cuts: int, seed: int, report: Report) -> CrashResult:
    others = (
        ("failed fsyncs", run_failed_syncs, -(-power_cuts // _FAILURE_PER_CUTS)),
        ("full disks", run_full_disks, -(-power_cuts // _FULL_PER_CUTS)),
    )
    return crash_in_series(kills, run_kills, power_cuts, run_power_cuts, others, seed, report, _add)


def _add(result: CrashResult, outcome: Outcome, what: str, report: Report) -> None:
    result.acknowledged += outcome.acknowledged
    result.unknown += outcome.unknown
    result.failed += len(outcome.violations)
    result.passed += outcome.crashes
    for violation in outcome.violations[:20]:
        report(f"BROKEN: {violation}")
    if outcome.dropped:
        report(
            f"bookie: each of {len(outcome.dropped)} {what} took back un-synced writes, bytes: "
            + " ".join(f"{each:,}" for each in outcome.dropped)
        )
    outages_ms = sorted(1000 * seconds for seconds in outcome.outages_s)
    if outcome.endings_s:
        report(f"bookie: SIGTERM under load takes {max(outcome.endings_s):.1f} s (longest)")
    report(
        f"bookie: {outcome.crashes} {what}: {outcome.acknowledged:,} adds acknowledged, "
        f"{outcome.unknown:,} unknown, {outcome.refused:,} refused, {len(outcome.violations)} "
        f"promises broken; serves again after {outages_ms[len(outages_ms) // 2]:.0f} ms (median), "
        f"{outages_ms[-1]:.0f} ms (longest)"
    )
