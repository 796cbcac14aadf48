"""Next steps that name what the shell has, as HTTP management has it: the same refusals come out of both doors."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rollbook.proto.errors import RollbookError

_FOR_HTTP: Final = (
    (r"say --force to copy", "send it with force=true to copy"),
    (r"type the number: --give-up ", "send it with give_up="),
    (r"rollbook bookie readonly on", "PUT /api/v1/bookies/{id}/pages/readonly"),
    (r"rollbook bookie drain( \S+)?", "POST /api/v1/bookies:drain"),
    (r"rollbook recovery status", "GET /api/v1/recovery"),
    (r"rollbook cluster info lists", "GET /api/v1/bookies lists"),
)


@contextmanager
def steps_for_http() -> Iterator[None]:
    try:
        yield
    except RollbookError as error:
        for shell, http in _FOR_HTTP:
            error.next_step = re.sub(shell, http, error.next_step)
        raise
