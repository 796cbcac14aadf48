"""What tells that a file is no longer what it was when it was looked at."""

import os

FileStamp = tuple[int, int, int, int] | None


def file_stamp(path: str) -> FileStamp:
    """None: nobody can look at it. A change of its mode counts, too: it may be readable only now."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode
