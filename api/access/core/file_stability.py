"""Decides when a changed file may be loaded: not while it is half-written (AF1).

A file that is rewritten in place (`cp`, an editor) is empty for a moment, then half-written. Half an access
file may grant a right and lack the `deny` that limits it. Until a change is loaded, the earlier contents stay in
force. A change is loaded

    immediately     if the file's last line is `# end`, which marks it as complete, or if it is a token file, since a
                    token is too short to be written in parts
    after a while   otherwise: `IN_PLACE_NS` after the last change if the file was rewritten in place, `REPLACED_NS` if
                    another file was moved to its name, which replaces the contents as a whole
    not             while the file is empty, or two reads of it differ, or it lacks the line `# end` that the earlier
                    contents had
"""

from dataclasses import dataclass
from typing import Final

END: Final = b"# end"
IN_PLACE_NS: Final = 5_000_000_000
REPLACED_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file's contents, with its inode and the time of its last change."""

    inode: int
    changed_wall_ns: int  # The file system's time of the last change.
    data: bytes


@dataclass(frozen=True, slots=True)
class Wait:
    """The reason why a file is not loaded yet, and when to check again (ns; None: when the file changes)."""

    reason: str
    again_ns: int | None = None


class FileStability:
    """Decides when one file is loaded. `in_force` has the contents that were loaded last."""

    def __init__(self, in_force: ReadFile, *, is_token: bool = False) -> None:
        self.in_force = in_force
        self._is_token = is_token
        self._changed: ReadFile | None = None
        self._since_ns = 0  # When the file was first seen in its present state.

    def on_seen(self, seen: ReadFile | None, now_ns: int, wall_ns: int) -> Wait | None:
        """Returns why the file is not loaded yet; None: it is loaded and in force. `seen`: None if the file could
        not be read, or two reads differed."""
        if seen is None:
            self._changed = None
            return Wait("it cannot be read, or was being written", now_ns)
        if seen != self._changed:
            self._changed, self._since_ns = seen, now_ns
        if seen.data != self.in_force.data and (wait := self._wait(seen, now_ns, wall_ns)):
            return wait
        self.in_force, self._changed = seen, None
        return None

    def _wait(self, seen: ReadFile, now_ns: int, wall_ns: int) -> Wait | None:
        if not seen.data.strip():
            return Wait("it is empty")
        if self._is_token or self._is_complete(seen.data):
            return None
        if self._is_complete(self.in_force.data):
            return Wait(f"its last line is no longer `{END.decode()}`, so it is half-written")
        is_in_place = seen.inode == self.in_force.inode
        stable_ns = IN_PLACE_NS if is_in_place else REPLACED_NS
        # By the file system's clock, the last write is old enough.
        if wall_ns - seen.changed_wall_ns >= stable_ns:
            return None
        due_ns = self._since_ns + stable_ns
        if now_ns >= due_ns:
            return None
        seconds = stable_ns // 1_000_000_000
        return Wait(
            f"it may be half-written: it is loaded after {seconds} s without a change, "
            f"or immediately if its last line is `{END.decode()}`",
            due_ns,
        )

    @staticmethod
    def _is_complete(data: bytes) -> bool:
        return data.rstrip().rpartition(b"\n")[2].strip() == END
