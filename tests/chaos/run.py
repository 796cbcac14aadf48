"""Starts a chaos run in a separate process with its own namespaces, and reports the result.

Whatever ends this process ends that one, and whatever ends that one ends all that it has started:
processes die with their parent, and networks and mounts with the last process in them.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.chaos import network
from tests.support import forgetful, zookeeper
from tests.support.processes import ChildFailed, family
from tests.tally import Tally, missing_piece

CLOSED_WITHIN_S: Final = 120.0  # For a busy machine; a quiet one needs 10.
_SILENCE_S_MAX: Final = 300.0
_SHOWN_MAX: Final = 30

Progress = Callable[[str], Callable[[int, int], None]]
"""Makes a progress bar with this label."""


@dataclass(slots=True)
class Outcome:
    violations: list[str]
    ledgers: int
    acked: int
    unknown_share: float
    closed_after_s: float
    faults: int
    lines: list[str] = field(default_factory=list)  # Further lines for the report.
    skipped: list[str] = field(default_factory=list)


def run(
    seconds: float,
    seed: int,
    progress: Progress = lambda _what: lambda _done, _total: None,
    *,
    closed_within_s: float = CLOSED_WITHIN_S,
    flaw: str = "-",
) -> Outcome:
    """`flaw` names one of `flaws.py`, planted in all clients."""
    skipped: list[str] = []
    alone: tuple[str, ...] = network.ALONE
    if why := network.why_not():
        skipped.append(missing_piece("netns", why, network.HOW_TO_ENABLE))
        alone = ()
    if why := forgetful.why_not():
        skipped.append(missing_piece("fuse", why, forgetful.HOW_TO_ENABLE))
    try:
        zookeeper.find()
    except zookeeper.NoZooKeeper as error:
        skipped.append(missing_piece("zk", str(error), zookeeper.HOW_TO_ENABLE))
    with tempfile.TemporaryDirectory(prefix="rollbook-chaos-") as folder, family() as children:
        conductor = children.start(
            *alone,
            sys.executable,
            "-m",
            "tests.chaos.conductor",
            Path(folder),
            str(seconds),
            str(seed),
            str(closed_within_s),
            flaw,
            "cut" if alone else "whole",
        )
        bars: dict[str, Callable[[int, int], None]] = {}
        while True:
            word, _, rest = conductor.line(_SILENCE_S_MAX).partition(" ")
            if word == "result":
                return Outcome(**json.loads(rest), skipped=skipped)
            if word != "progress":
                raise ChildFailed(f"the conductor says {word} {rest}")
            done, total, what = rest.split(maxsplit=2)
            if what not in bars:
                bars[what] = progress(what)
            bars[what](int(done), int(total))


def chaos(
    seconds: float,
    seed: int,
    progress: Progress,
    say: Callable[[str], None],
    closed_within_s: float = CLOSED_WITHIN_S,
) -> Tally:
    """Runs with a report of everything to people."""
    outcome = run(seconds, seed, progress, closed_within_s=closed_within_s)
    for line in outcome.lines:
        say(line)
    for violation in outcome.violations[:_SHOWN_MAX]:
        say(f"BROKEN: {violation}")
    return Tally(
        "ledgers",
        passed=max(0, outcome.ledgers - len(outcome.violations)),
        failed=len(outcome.violations),
        skipped=outcome.skipped,
    )
