"""The token that clients show: the first line of a file that only its owner may read.

It is read again when the file has changed, so a new token needs no restart; what cannot be used leaves
the one before in force.
"""

import hmac
import os
import stat
from typing import Final

import structlog

from rollbook.proto.errors import BadConfig
from rollbook.proto.runtime.system_errors import told

logger = structlog.get_logger()

_TOKEN_BYTES: Final = (16, 4096)


class Token:
    def __init__(self, path: str) -> None:
        """Raises `BadConfig`."""
        self._path = path
        self._seen = _stamp(path)
        self._token = read_token(path)

    def is_it(self, shown: str) -> bool:
        if (seen := _stamp(self._path)) != self._seen:
            self._seen = seen
            try:
                self._token = read_token(self._path)
                logger.info("token_reloaded", path=self._path)
            except BadConfig as error:
                logger.warning("token_not_reloaded", reason=str(error))
        return hmac.compare_digest(shown.encode(), self._token.encode())


def _stamp(path: str) -> tuple[int, int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode


def read_token(path: str) -> str:
    """Raises `BadConfig`, too if others than its owner may read the file."""
    try:
        with open(path, encoding="ascii") as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.readline(_TOKEN_BYTES[1] + 1).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"cannot read the token: {told(error)}", path=path) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise BadConfig("others may read the token", path=path, next_step=f"chmod 600 {path}")
    if not _TOKEN_BYTES[0] <= len(token) <= _TOKEN_BYTES[1]:
        raise BadConfig(
            f"a token has {_TOKEN_BYTES[0]} to {_TOKEN_BYTES[1]} characters",
            path=path,
            next_step=f"openssl rand -hex 32 > {path}",
        )
    return token
