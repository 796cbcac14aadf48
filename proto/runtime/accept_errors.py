"""Lets a server go on accepting connections after it ran out of open files, and logs this state
regularly.

asyncio tries again every second, but logs a traceback for each connection that its listeners could
have accepted at once. Within seconds these are hundreds of thousands of lines.
"""

import asyncio
import errno
from collections.abc import Mapping
from typing import Any, Final

import structlog

from rollbook.proto.runtime.system_error_text import describe_error

logger = structlog.get_logger()

_TELL_S: Final = 10.0  # The shortest time between two log events.
_SHORT_OF: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


def survive_full_file_table(loop: asyncio.AbstractEventLoop) -> None:
    """Call this once in a server's loop, before the server listens."""
    loop.set_exception_handler(_Refusals())


class _Refusals:
    def __init__(self) -> None:
        self._unreported = 0
        self._next_tell = float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        error = context.get("exception")
        is_short = isinstance(error, OSError) and error.errno in _SHORT_OF
        if not is_short or "accept" not in context.get("message", ""):
            loop.default_exception_handler(dict(context))
            return
        assert error is not None
        self._unreported += 1
        if loop.time() >= self._next_tell:
            logger.error(
                "connections_not_accepted", reason=describe_error(error), times=self._unreported
            )
            self._unreported, self._next_tell = 0, loop.time() + _TELL_S
