"""Turns errors into text, because Spark passes on only the text of an error."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rollbook.proto.errors import RollbookError, error_of_reason

_SHOWN: Final = re.compile(r"RollbookFailure: ([A-Z][A-Z_]+): ([^\n]+)")


class RollbookFailure(Exception):
    """An error as text, which begins with the reason in capitals and ends with the next step."""


@contextmanager
def shown_in_spark() -> Iterator[None]:
    try:
        yield
    except RollbookError as error:
        raise RollbookFailure(f"{error.code.reason}: {error}") from error


@contextmanager
def original_from_spark() -> Iterator[None]:
    """Raises the original error of a failed task. This runs on the driver."""
    try:
        yield
    except Exception as error:
        found = _SHOWN.search(str(error))
        if found is None:
            raise
        what, _, next_step = found[2].partition(" · ")
        raise error_of_reason(found[1])(what, next_step=next_step) from None
