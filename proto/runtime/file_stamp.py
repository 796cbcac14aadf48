"""A stamp that shows that a file has changed since it was read."""

import os

FileStamp = tuple[int, int, int, int] | None


def file_stamp(path: str) -> FileStamp:
    """Returns a file's stamp; None: it cannot be read. A change of mode counts, since it may have
    become readable.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode
