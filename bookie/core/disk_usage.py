"""Decides when a bookie stops accepting entries for lack of space, and when it accepts them again.

A directory becomes full when the share `full` of its disk is used, and stays full until usage is
down to the share `low_water`, so that its state does not flap. The bookie refuses entries while its
journal's disk is full, or while all ledger directories are full: new logs are placed where there is
room. A disk that is fuller is checked again sooner.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from rollbook.proto.ports import DiskSpace

_FILL_BYTES_PER_S: Final = 1024**3  # Disks are assumed to fill no faster than this.
_LOOK_S_MIN: Final = 0.2


class Level(Enum):
    ROOMY = "roomy"
    WARNING = "warning"  # The disk is nearly full: an operator should make room.
    FULL = "full"


@dataclass(frozen=True, slots=True)
class DirectoryUsage:
    path: str
    total_bytes: int
    free_bytes: int
    level: Level

    @property
    def used_share(self) -> float:
        return 1.0 - self.free_bytes / self.total_bytes if self.total_bytes else 1.0


class DiskUsage:
    def __init__(
        self,
        journal_dir: str,
        ledger_dirs: Sequence[str],
        *,
        full: float,
        warning: float,
        low_water: float,
    ) -> None:
        self.directories: dict[str, DirectoryUsage] = {}
        self._journal_dir = journal_dir
        self._ledger_dirs = tuple(ledger_dirs)
        self._full = full
        self._warning = warning
        self._low_water = low_water

    def on_look(self, spaces: Mapping[str, DiskSpace]) -> list[DirectoryUsage]:
        """Takes the sizes of all directories; returns those whose level has changed."""
        changed: list[DirectoryUsage] = []
        for path, space in spaces.items():
            before = self.directories.get(path)
            now = self._judge(
                path, space, was_full=before is not None and before.level is Level.FULL
            )
            self.directories[path] = now
            if now.level is not (before.level if before else Level.ROOMY):
                changed.append(now)
        return changed

    def _judge(self, path: str, space: DiskSpace, *, was_full: bool) -> DirectoryUsage:
        seen = DirectoryUsage(path, space.total_bytes, space.free_bytes, Level.ROOMY)
        used = seen.used_share
        level = Level.WARNING if used >= self._warning else Level.ROOMY
        if used >= self._full or (was_full and used > self._low_water):
            level = Level.FULL
        return DirectoryUsage(path, space.total_bytes, space.free_bytes, level)

    def is_full(self, path: str) -> bool:
        seen = self.directories.get(path)
        return seen is not None and seen.level is Level.FULL

    @property
    def full_directories(self) -> list[str]:
        return [path for path in self.directories if self.is_full(path)]

    @property
    def is_short(self) -> bool:
        """Returns whether entries have to be refused for lack of space."""
        return self.is_full(self._journal_dir) or all(map(self.is_full, self._ledger_dirs))

    def next_look_s(self, interval_s: float) -> float:
        room = [
            each.free_bytes - (1.0 - self._full) * each.total_bytes
            for each in self.directories.values()
            if each.level is not Level.FULL
        ]
        soonest = min(room, default=0.0) / _FILL_BYTES_PER_S
        return min(interval_s, max(_LOOK_S_MIN, soonest)) if room else min(interval_s, 1.0)


def pick_directory(spaces: Sequence[DiskSpace], full: Sequence[bool], number: int) -> int:
    """Returns the directory for log `number`: directories take turns, except those that are short
    of space while others are not."""
    open_ = [at for at in range(len(spaces)) if not full[at]] or list(range(len(spaces)))
    most = max(spaces[at].free_bytes for at in open_)
    roomy = [at for at in open_ if 2 * spaces[at].free_bytes >= most]
    return roomy[number % len(roomy)]
