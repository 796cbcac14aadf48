"""How errors are shown in Spark: as text, which is all that Spark passes on of them."""

from collections.abc import Iterator
from contextlib import contextmanager

from rollbook.proto.errors import RollbookError


class RollbookFailure(Exception):
    """Begins with the reason of what happened, in capitals; ends with what to do."""


@contextmanager
def shown_in_spark() -> Iterator[None]:
    try:
        yield
    except RollbookError as error:
        raise RollbookFailure(f"{error.code.reason}: {error}") from error
