"""The permissions that an access file must have: nobody but its owner may write it."""

import os
import stat
from typing import Final

from rollbook.proto.errors import BadConfig
from rollbook.proto.runtime.system_error_text import describe_error

_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def require_own(path: str) -> None:
    """Raises `BadConfig` unless the file belongs to this user or root, and only its owner may write it. A user who
    can write the file can get every right."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise BadConfig(
            f"the access file {path} cannot be read: {describe_error(error)}",
            next_step=f"make it (rollbook access add NAME --file {path}), or let this user read it",
        ) from error
    if found.st_mode & _OTHERS_WRITE:
        raise BadConfig("others may write it", path=path, next_step=f"chmod go-w {path}")
    if found.st_uid not in (0, os.geteuid()):
        raise BadConfig(
            "the file belongs to another user", path=path, next_step=f"chown {os.geteuid()} {path}"
        )
