"""Real processes that die at any moment, and power cuts on a file system that forgets."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.tally import Tally


@dataclass
class CrashResult(Tally):
    """Crashes survived with every promise kept; each broken promise is a failure."""

    acknowledged: int = 0
    unknown: int = 0


def run(kills: int, power_cuts: int, seed: int, report: Callable[[str], None]) -> CrashResult:
    """Kills owners of the embedded store under load, then cuts the power under them."""
    from tests.crash.embedded_store import crash_it  # Here, for children import this package, too.

    return crash_it(kills, power_cuts, seed, report)
