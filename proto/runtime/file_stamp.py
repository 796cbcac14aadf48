"""Makes stamps of files, which show whether a file has changed since it was read."""

import os

FileStamp = tuple[int, int, int, int] | None


def file_stamp(path: str) -> FileStamp:
    """Returns a file's stamp, or None if the file cannot be examined. The mode is part of the
    stamp, since a change of it may make the file readable.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode
