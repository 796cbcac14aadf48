"""Loop errors: full file tables are logged at a limited rate, other errors by the default handler."""

import asyncio
import errno
from typing import Any

import pytest
from structlog.testing import capture_logs

from rollbook.proto.runtime.accept_errors import survive_full_file_table


class Loop(asyncio.SelectorEventLoop):
    """The test sets its time, and it records what reaches the default handler."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.told: list[dict[str, Any]] = []
        survive_full_file_table(self)

    def time(self) -> float:
        return self.now

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.told.append(context)

    def refuse(self, number: int = errno.EMFILE) -> None:
        """The message is that of asyncio."""
        message = "socket.accept() out of system resource"
        self.call_exception_handler({"message": message, "exception": OSError(number, "full")})


def test_full_file_tables_are_logged_at_a_limited_rate() -> None:
    loop = Loop()
    with capture_logs() as events:
        for number in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
            loop.refuse(number)
        loop.now = 9.9
        loop.refuse()
        assert [each["times"] for each in events] == [1]
        loop.now = 10.0
        loop.refuse()
        loop.refuse()
    loop.close()
    assert [each["times"] for each in events] == [1, 5]
    assert {each["event"] for each in events} == {"connections_not_accepted"}
    assert not loop.told


@pytest.mark.parametrize(
    "context",
    [
        {"message": "Exception in callback", "exception": ValueError()},
        {"message": "no accept", "exception": OSError(errno.EPERM, "not allowed")},
        {"message": "Exception in callback", "exception": OSError(errno.EMFILE, "full")},
        {"exception": OSError(errno.EMFILE, "full")},
        {"message": "accept"},
    ],
)
def test_other_loop_errors_reach_the_default_handler(context: dict[str, Any]) -> None:
    loop = Loop()
    with capture_logs() as events:
        loop.call_exception_handler(context)
    loop.close()
    assert loop.told == [context]
    assert not events
