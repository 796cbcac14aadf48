"""Crashes of every kind, one kind after the other, each on a file system of its own."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from tests.crash import CrashResult
from tests.support import forgetful
from tests.support.forgetful import ForgetfulDisk, Names
from tests.tally import missing_piece

How = TypeVar("How")  # How the crashes of one kind went.
Report = Callable[[str], None]
RunOnDisk = Callable[[ForgetfulDisk, int, int, Report], How]


def crash_in_series(
    kills: int,
    run_kills: Callable[[Path, int, int, Report], How],
    power_cuts: int,
    run_power_cuts: RunOnDisk[How],
    others: Sequence[tuple[str, RunOnDisk[How], int]],
    seed: int,
    report: Report,
    add: Callable[[CrashResult, How, str, Report], None],
) -> CrashResult:
    """Power cuts come in two halves, one for each rule of what makes a name durable.

    The others, each with its name and how many times it comes, go with them: they want a file
    system that forgets, too.
    """
    result = CrashResult("crashes")
    with tempfile.TemporaryDirectory(prefix="rollbook-crash-") as root:
        if kills:
            folder = Path(root) / "kills"
            folder.mkdir()
            add(result, run_kills(folder, kills, seed, report), "kills", report)
        if power_cuts and (why := forgetful.why_not()):
            result.skipped.append(missing_piece("fuse", why, forgetful.HOW_TO_ENABLE))
            return result
        for what, names, run, times in (
            ("power cuts", Names.EXT4, run_power_cuts, power_cuts - power_cuts // 2),
            ("power cuts (POSIX names)", Names.POSIX, run_power_cuts, power_cuts // 2),
            *((what, Names.EXT4, run, times) for what, run, times in others),
        ):
            if times:
                with forgetful.mount(Path(root) / what, names) as disk:
                    add(result, run(disk, times, seed, report), what, report)
                    gone = disk.statistics()
                    report(
                        f"forgotten: {gone['bytes_forgotten'] >> 10:,} KiB that were not synced, "
                        f"{gone['names_forgotten']:,} changes of names"
                    )
    return result
