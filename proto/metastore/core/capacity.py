"""Decides which changes a store still accepts when its disk is nearly full (MS8).

Sessions, registrations, deletions, and changes that take no more room than the old value are
accepted: with these a cluster stays alive and can be emptied. Writes that grow are refused until
there is room again. The two bounds differ, so that a disk near one of them does not make the
store alternate with every write.
"""

from collections.abc import Callable, Sequence
from typing import Final

from rollbook.proto.errors import MetadataFull
from rollbook.proto.ports import Create, Node, Op, Set

FULL_BYTES: Final = 32 * 1024 * 1024  # With less free space, growing writes are refused.
ROOMY_BYTES: Final = 48 * 1024 * 1024  # With this free space, they are accepted again.
# A value may still grow by this much, so that a ledger can be closed or a log change its owner.
_GROWTH_BYTES_MAX: Final = 256


class FreeSpace:
    def __init__(self) -> None:
        self.is_full = False

    def on_free(self, free_bytes: int) -> bool:
        """Reports the free space. Returns whether the store is full now and was not before, or the reverse."""
        before = self.is_full
        self.is_full = free_bytes < (ROOMY_BYTES if before else FULL_BYTES)
        return self.is_full != before

    def check(self, ops: Sequence[Op], get: Callable[[str], Node | None]) -> None:
        """Raises `MetadataFull` if the disk is nearly full and these operations need more of it."""
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
