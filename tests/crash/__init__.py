"""Kills of real processes at any moment, and power cuts on a file system that forgets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.tally import Tally

SUBJECTS = ("bookie", "store")


@dataclass
class CrashResult(Tally):
    """Crashes survived with every promise kept; each broken promise is a failure."""

    acknowledged: int = 0
    unknown: int = 0


def run(
    of: Sequence[str], kills: int, power_cuts: int, seed: int, report: Callable[[str], None]
) -> CrashResult:
    """Kills processes under load `kills` times, then cuts their power `power_cuts` times."""
    from tests.crash import (
        bookie,
        callbacks,
        embedded_store,
    )  # Imported here, since child processes import this package too.

    subjects = {"bookie": bookie.crash_it, "store": embedded_store.crash_it}
    subjects["callbacks"] = callbacks.crash_it
    result = CrashResult("crashes")
    for name in of:
        each = subjects[name](kills, power_cuts, seed, report)
        result.acknowledged += each.acknowledged
        result.unknown += each.unknown
        result.passed += each.passed
        result.failed += each.failed
        result.skipped += each.skipped
    return result
