"""How bookies are registered, judged commit by commit.

RG1: whoever is registered stays so while it changes between writable and read-only. RG2: nobody takes
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
        process_of: Callable[[str], int],
        on_broken: Callable[[str, str], None],
    ) -> None:
        self._root = root
        self._process_of = process_of  # The number of the one that runs; -1 for none.
        self._on_broken = on_broken
        self._owners: dict[str, dict[str, tuple[int, int]]] = {}
        """By bookie and path: which session of which process made it."""

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
                        owners[path] = (row.owner, self._process_of(bookie))
            for path, (session, process) in before.items():
                is_left_with_none = (session, process) not in owners.values()
                lives = session not in commit.ended and process == self._process_of(bookie) >= 0
                if is_left_with_none and lives:
                    text = f"{bookie} lives, and {path} goes at {commit.at_s:.4f} s"
                    self._on_broken(REGISTERED, text)
