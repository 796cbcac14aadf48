"""The result of a run of any kind of test, and the format in which it is printed."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

REQUIRE_VARIABLE: Final = "ROLLBOOK_TEST_REQUIRE"


@dataclass
class Tally:
    """Counts of passed, failed and skipped tests, seeds, images or runs."""

    unit: str
    passed: int = 0
    failed: int = 0
    skipped: list[str] = field(default_factory=list)  # Reasons, with what would enable each.

    @property
    def holds(self) -> bool:
        """True if something was checked and nothing failed."""
        return self.failed == 0 and self.passed > 0

    def last_line(self) -> str:
        skipped = f", {len(self.skipped)} skipped" if self.skipped else ""
        return f"{self.unit}: {self.passed} passed, {self.failed} failed{skipped}"


def is_required(piece: str) -> bool:
    """Whether a piece of the system (zk, fuse, …) is required, so that skipping without it fails."""
    return piece in os.environ.get(REQUIRE_VARIABLE, "").split(",")


def missing_piece(piece: str, why: str, how_to_enable: str) -> str:
    """The text of a skip. Raises an error instead if the piece is required."""
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
