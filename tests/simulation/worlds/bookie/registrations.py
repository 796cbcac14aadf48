"""How bookies are registered, judged commit by commit.

RG1: a registered bookie stays so while it changes between writable and read-only. RG2: nobody takes
away the node of a process that lives. So the last node of a process that lives goes only with its
session.
"""

from collections.abc import Callable
from typing import Final

from rollbook.proto.formats.paths import AVAILABLE, READ_ONLY
from tests.simulation.kernel.metadata import Commit

REGISTERED: Final = "registered"


class RegistrationChecker:
    def __init__(
        self,
        root: str,
        lives: Callable[[int], bool],
        on_broken: Callable[[str, str], None],
    ) -> None:
        """`lives` tells of a session whether the process that opened it lives."""
        self._root = root
        self._lives = lives
        self._on_broken = on_broken
        self._owners: dict[str, dict[str, int]] = {}  # By bookie and path: which session made it.

    def watch(self, bookie: str) -> None:
        self._owners[bookie] = {}

    def on_commit(self, commit: Commit) -> None:
        for bookie, owners in self._owners.items():
            before = dict(owners)
            for path in (f"{self._root}/{folder}/{bookie}" for folder in (AVAILABLE, READ_ONLY)):
                if path in commit.rows:
                    row = commit.rows[path]
                    if row is None:
                        owners.pop(path, None)
                    else:
                        owners[path] = row.owner
            for path, session in before.items():
                is_over = session in commit.ended or not self._lives(session)
                if session not in owners.values() and not is_over:
                    text = f"{bookie} lives, and {path} goes at {commit.at_s:.4f} s"
                    self._on_broken(REGISTERED, text)
