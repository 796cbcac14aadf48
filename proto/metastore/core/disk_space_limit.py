"""Decides which changes a store still accepts when its disk is nearly full (MS8).

Sessions, registrations, deletions, and changes that take no more space than the old value are
accepted, so that a cluster stays alive and can be emptied. Writes that need more space are refused
until there is room again. The two bounds differ, so that the store does not alternate with every
write while the free space is near one of them.
"""

from collections.abc import Callable, Sequence
from typing import Final

from rollbook.proto.errors import MetadataFull
from rollbook.proto.ports import Create, Node, Op, Set

# With less free space, writes that need more space are refused.
FULL_BYTES: Final = 32 * 1024 * 1024
ROOMY_BYTES: Final = 48 * 1024 * 1024  # With this free space, all writes are accepted again.
# Even then a value may grow by this much, so that a ledger can be closed and a log can change its owner.
_GROWTH_BYTES_MAX: Final = 256


class FreeSpace:
    def __init__(self) -> None:
        self.is_full = False

    def on_free(self, free_bytes: int) -> bool:
        """Takes note of the free space. Returns whether this changed the store from full to not
        full or back.
        """
        before = self.is_full
        self.is_full = free_bytes < (ROOMY_BYTES if before else FULL_BYTES)
        return self.is_full != before

    def check(self, ops: Sequence[Op], get: Callable[[str], Node | None]) -> None:
        """Raises `MetadataFull` if the disk is nearly full and these operations need more space."""
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
        f"less than {mib} MiB are free on the disk of the metadata store: it refuses writes that need space; "
        "make room there, and it accepts them again",
        path=path,
    )
