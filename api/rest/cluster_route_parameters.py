"""The path prefix and the parameters that the management routes share. Importing this file registers the path converters
`part` and `ledger`.
"""

from typing import Annotated, Final

from fastapi import Header, Path, Query
from starlette.convertors import Convertor, register_url_convertor

from rollbook.proto.ids import LEDGER_ID_MAX
from rollbook.recovery.core.operations import KEY_CHARS_MAX

PREFIX: Final = "/api/v1"
PAGE: Final = 100


class _PathPart(Convertor[str]):
    """A path parameter without a colon: the verb after a colon is not a part of it, so a path with a verb has only the
    verb's methods.
    """

    regex = "[^/:]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


class _LedgerPathPart(_PathPart):
    """A ledger in a path. `bad` is excluded, since `/ledgers/bad` is another route."""

    regex = "(?!bad$)[^/:]+"


register_url_convertor("part", _PathPart())
register_url_convertor("ledger", _LedgerPathPart())

BookieName = Annotated[str, Path(min_length=1, max_length=255)]
LedgerNumber = Annotated[int, Path(ge=0, le=LEDGER_ID_MAX)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="idempotency-key",
        min_length=1,
        max_length=KEY_CHARS_MAX,
        description="A repeated request with the same key returns the same operation.",
    ),
]
Limit = Annotated[int, Query(ge=1, le=1000)]
