"""Crashes of every kind in sequence, each kind on its own file system."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from tests.crash import CrashResult
from tests.support import forgetful
from tests.support.forgetful import ForgetfulDisk, Names
from tests.tally import missing_piece

How = TypeVar("How")  # The result of the crashes of one kind.
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
    """Half of the power cuts use ext4's rule for durable names, the other half that of POSIX.

    `others` has the name, function and count of further kinds, which need a forgetful file system
    too.
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
