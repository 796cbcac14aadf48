"""Reads the token of a client from a file."""

from typing import Final

from rollbook.api.client.channels import checked_token
from rollbook.proto.errors import BadConfig

_TOKEN_BYTES_MAX: Final = 4096


def token_of_file(path: str) -> str:
    """Returns the token in a file's first line, read as servers read it; empty without a path.
    Raises `BadConfig`."""
    if not path:
        return ""
    try:
        with open(path, encoding="utf-8") as file:
            line = file.readline(_TOKEN_BYTES_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"cannot read the token: {error}") from error
    try:
        token = checked_token(line)
    except BadConfig:
        raise BadConfig(f"the token in {path} is not one line of printable ASCII") from None
    if not token:
        raise BadConfig(f"the token file {path} is empty", next_step="rollbook access token")
    return token
