"""Starts a chaos run in a separate process, and reports the result."""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.support.processes import ChildFailed, family
from tests.tally import Tally

_SILENCE_S_MAX: Final = 400.0
_SHOWN_MAX: Final = 30

Progress = Callable[[str], Callable[[int, int], None]]
"""Makes a progress bar with this label."""


def chaos(seconds: float, seed: int, progress: Progress, say: Callable[[str], None]) -> Tally:
    with tempfile.TemporaryDirectory(prefix="rollbook-chaos-") as folder, family() as children:
        conductor = children.start(
            sys.executable,
            "-m",
            "tests.chaos.logs.conductor",
            Path(folder),
            str(seconds),
            str(seed),
        )
        bars: dict[str, Callable[[int, int], None]] = {}
        while True:
            word, _, rest = conductor.line(_SILENCE_S_MAX).partition(" ")
            if word == "result":
                break
            if word != "progress":
                raise ChildFailed(f"the conductor says {word} {rest}")
            done, total, what = rest.split(maxsplit=2)
            if what not in bars:
                bars[what] = progress(what)
            bars[what](int(done), int(total))
        result = json.loads(rest)
    for line in result["lines"]:
        say(line)
    violations = result["violations"]
    for violation in violations[:_SHOWN_MAX]:
        say(f"BROKEN: {violation}")
    passed = max(0, result["logs"] - len(violations))
    return Tally("logs", passed=passed, failed=len(violations))
