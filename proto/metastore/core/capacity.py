"""Decides which changes a store still accepts when its disk is nearly full (MS8).

Sessions, registrations and deletions go on, and changes that take no more room than the old
value: with these a cluster stays alive and can be emptied. Writes that grow are refused until
there is room again. The two bounds differ, so that a disk at one of them does not make the store
change its mind with every write.
"""

from collections.abc import Callable, Sequence
from typing import Final

from rollbook.proto.errors import MetadataFull
from rollbook.proto.ports import Create, Node, Op, Set

FULL_BYTES: Final = 32 * 1024 * 1024  # With less free space than this, growing writes are refused,
ROOMY_BYTES: Final = 48 * 1024 * 1024  # until there is as much as this.
# The growth of one value that still passes: a ledger is closed, or a log changes its owner.
_GROWTH_BYTES_MAX: Final = 256


class FreeSpace:
    def __init__(self) -> None:
        self.is_full = False

    def on_free(self, free_bytes: int) -> bool:
        """Whether that changed anything."""
        before = self.is_full
        self.is_full = free_bytes < (ROOMY_BYTES if before else FULL_BYTES)
        return self.is_full != before

    def check(self, ops: Sequence[Op], get: Callable[[str], Node | None]) -> None:
        """Raises `MetadataFull`."""
        if not self.is_full:
            return
        for op in ops:
            if isinstance(op, Create) and not op.mode.is_ephemeral:
                raise _full(op.path)
            if isinstance(op, Set):
                node = get(op.path)
                if node and len(op.value) > len(node.value) + _GROWTH_BYTES_MAX:
                    raise _full(op.path)


def _full(path: str) -> MetadataFull:
    mib = FULL_BYTES // (1024 * 1024)
    return MetadataFull(
        f"less than {mib} MiB are free on the disk of the metadata store: it takes nothing that grows; "
        "make room there, and it goes on by itself",
        path=path,
    )
