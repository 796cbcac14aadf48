"""A token file or access file that is read again when it changes, and loaded when it is complete (AF1, G3)."""

import os

from rollbook.api.access.core.file_stability import FileStability, ReadFile, Wait
from rollbook.proto.errors import BadConfig
from rollbook.proto.runtime.file_stamp import FileStamp, file_stamp
from rollbook.proto.runtime.system_error_text import describe_error


class WatchedFile:
    def __init__(self, path: str, *, is_token: bool = False) -> None:
        """Loads the file unconditionally. Raises `BadConfig`."""
        self.path = path
        self._stamp = file_stamp(path)
        self._kind = "token file" if is_token else "access file"
        self._stability = FileStability(_read(path, self._kind), is_token=is_token)
        self._wait: Wait | None = None

    @property
    def data(self) -> bytes:
        """The contents that are in force."""
        return self._stability.in_force.data

    def look(self, now_ns: int, wall_ns: int) -> bool:
        """Checks the file. Returns True if it was loaded, or if there is a new reason why it is not loaded."""
        stamp = file_stamp(self.path)
        again_ns = self._wait.again_ns if self._wait else None
        if stamp == self._stamp and (again_ns is None or now_ns < again_ns):
            return False
        before, self._stamp = self._wait, stamp
        self._wait = self._stability.on_seen(
            _read_twice(self.path, self._kind, stamp), now_ns, wall_ns
        )
        return self._wait is None or before is None or self._wait.reason != before.reason

    @property
    def waits_for(self) -> str:
        """Why the file's present contents are not loaded; empty if they are."""
        return self._wait.reason if self._wait else ""


def _read(path: str, kind: str) -> ReadFile:
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            return ReadFile(found.st_ino, found.st_mtime_ns, file.read())
    except OSError as error:
        makes = (
            f"openssl rand -hex 32 > {path}"
            if kind == "token file"
            else f"rollbook access add NAME --file {path}"
        )
        raise BadConfig(
            f"the {kind} {path} cannot be read: {describe_error(error)}",
            next_step=f"make it ({makes}), or let this user read it",
        ) from error


def _read_twice(path: str, kind: str, stamp: FileStamp) -> ReadFile | None:
    """Returns None if the file cannot be read, or is being written."""
    try:
        first, again = _read(path, kind), _read(path, kind)
    except BadConfig:
        return None
    return first if stamp == file_stamp(path) and first == again else None
