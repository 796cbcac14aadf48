"""Short chaos runs: planted bugs are found, and nothing outlives a run that is killed.

`python -m tests chaos` is the long form.
"""

import sys
import time
from pathlib import Path
from typing import Final

import pytest

from tests.chaos import network
from tests.chaos.run import run
from tests.support.processes import family
from tests.tally import missing_piece

_SECONDS: Final = 12
_SEEDS: Final = range(4)  # Usually one seed is enough.
_PATIENCE_S: Final = 60.0


@pytest.mark.timeout(600)  # Several runs, each with its own time-out.
@pytest.mark.parametrize(
    ("flaw", "rule"), [("ends_at_the_lac", "lost"), ("calls_pending_refused", "refused")]
)
def test_a_planted_bug_is_found(flaw: str, rule: str) -> None:
    """Writers leave ledgers in the state in which the bug shows."""
    assert any(
        violation.startswith(f"{rule}:")
        for seed in _SEEDS
        for violation in run(_SECONDS, seed, flaw=flaw).violations
    )


def test_nothing_outlives_a_run_that_is_killed(tmp_path: Path) -> None:
    """Neither processes nor the networks and mounts that they hold."""
    if why := network.why_not():
        pytest.skip(missing_piece("netns", why, network.HOW_TO_ENABLE))
    code = (
        "import sys; from tests.chaos.run import run;"
        "run(600, 0, lambda what: lambda done, total: print(what, flush=True))"
    )
    with family() as children:
        runner = children.start(sys.executable, "-c", code, environment={"TMPDIR": str(tmp_path)})
        assert runner.line(_PATIENCE_S) == "seconds of chaos"
        assert _commands_below(tmp_path)
        runner.kill()
        deadline = time.monotonic() + _PATIENCE_S
        while found := _commands_below(tmp_path):
            assert time.monotonic() < deadline, found
            time.sleep(0.1)
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


def _commands_below(folder: Path) -> list[str]:
    """Command lines of a run's processes: each has a path below the run's folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_text().replace("\0", " ")
        except OSError:  # The process has ended.
            continue
        if f"{folder}/rollbook-" in command:
            found.append(command)
    return found
