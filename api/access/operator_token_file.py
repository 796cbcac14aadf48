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
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


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
