"""What a run of any kind of test comes to, and the one way in which it is said."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

REQUIRE_VARIABLE: Final = "ROLLBOOK_TEST_REQUIRE"


@dataclass
class Tally:
    """Counted as what they are: tests, seeds, images, runs."""

    unit: str
    passed: int = 0
    failed: int = 0
    skipped: list[str] = field(default_factory=list)  # Why, and what would enable each.

    @property
    def holds(self) -> bool:
        """A kind that checked nothing has shown nothing."""
        return self.failed == 0 and self.passed > 0

    def last_line(self) -> str:
        skipped = f", {len(self.skipped)} skipped" if self.skipped else ""
        return f"{self.unit}: {self.passed} passed, {self.failed} failed{skipped}"


def is_required(piece: str) -> bool:
    """Pieces of the system (zk, fuse, …) that must be there: a skip for want of one is a failure."""
    return piece in os.environ.get(REQUIRE_VARIABLE, "").split(",")


def missing_piece(piece: str, why: str, how_to_enable: str) -> str:
    """The text of a skip. Raises instead where the piece is required."""
    text = f"{piece}: {why}; to enable: {how_to_enable}"
    if is_required(piece):
        raise RuntimeError(f"{REQUIRE_VARIABLE} demands {text}")
    return text


def progress_line(done: int, total: int, what: str, width: int = 32) -> str:
    filled = width * done // max(total, 1)
    return f"\r{what} [{'#' * filled}{'.' * (width - filled)}] {done:,}/{total:,}"


def clean(lines: Sequence[str]) -> list[str]:
    """Each reason once, in order of appearance."""
    return list(dict.fromkeys(lines))
