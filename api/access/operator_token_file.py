"""A server's single token: the first line of a file that only its owner may read (G7).

A file that belongs to root may also be readable by its group: Kubernetes and Compose pass secrets in such files to a
container that does not run as root.
"""

import os
import stat
from typing import Final

from rollbook.api.access.watched_file import WatchedFile
from rollbook.proto.errors import BadConfig
from rollbook.proto.runtime.system_error_text import describe_error

_TOKEN_BYTES: Final = (16, 4096)
_OTHERS_READ: Final = stat.S_IRWXG | stat.S_IRWXO
_ROOT: Final = 0


def token_of(file: WatchedFile) -> str:
    """Returns the token in a watched file. Raises `BadConfig`, for example if other users may read the file."""
    path = file.path
    try:
        found = os.stat(path)
        token = file.data.partition(b"\n")[0].decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"cannot read the token: {describe_error(error)}", path=path) from error
    if found.st_mode & _OTHERS_READ & ~_allowed(found.st_uid):
        raise BadConfig("others may read the token", path=path, next_step=f"chmod 600 {path}")
    if not _TOKEN_BYTES[0] <= len(token) <= _TOKEN_BYTES[1]:
        raise BadConfig(
            f"a token has to have {_TOKEN_BYTES[0]} to {_TOKEN_BYTES[1]} characters",
            path=path,
            next_step=f"openssl rand -hex 32 > {path}",
        )
    return token


def _allowed(owner: int) -> int:
    return stat.S_IRGRP if owner == _ROOT else 0
