"""Record counts and outcome in the error of a `log append --producer` that ends early."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from rollbook.api.cli.ledger.connection import custom_of
from rollbook.api.cli.log.append import append_numbered
from rollbook.api.cli.log.record_input import InputRecord
from rollbook.proto.errors import InvalidRequest, Outcome, QuorumTimeout, RollbookError
from tests.messages import raises_message

_COUNTS = ("acknowledged", "in_doubt", "not_appended")


class Input:
    """Yields this many records, then calls `end`."""

    def __init__(self, count: int, end: Callable[[], Any]) -> None:
        self._count, self._end = count, end

    async def records(self, _: object) -> AsyncIterator[list[InputRecord]]:
        yield [InputRecord(b"%d" % number) for number in range(self._count)]
        await self._end()

    def bar(self, _: str) -> AbstractContextManager[None]:
        return nullcontext()


class Target:
    """A log that acknowledges this many batches and then calls `end`."""

    def __init__(self, acks: int, end: Callable[[], Any]) -> None:
        self._acks, self._end = acks, end

    async def append_many(self, values: list[bytes], **_: object) -> Any:
        if not self._acks:
            await self._end()
        self._acks -= 1
        return SimpleNamespace(first_offset=0, next_offset=len(values), is_duplicate=False)


async def interrupt() -> None:
    """Cancel the current task, as a signal does while the command waits."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.Event().wait()


async def fail() -> None:
    raise QuorumTimeout("nobody answered")


async def find_nonsense() -> None:
    raise InvalidRequest("line 701 is no record")


async def go_on() -> None:
    pass


@pytest.mark.parametrize(
    ("source", "target", "counts", "outcome"),
    [
        (Input(2, interrupt), Target(0, go_on), (0, 0, 2), Outcome.NOT_APPLIED),
        (Input(700, interrupt), Target(1, go_on), (500, 0, 200), Outcome.NOT_APPLIED),
        (Input(500, interrupt), Target(1, go_on), (500, 0, 0), Outcome.APPLIED),
        (Input(2, go_on), Target(0, interrupt), (0, 2, 0), Outcome.UNKNOWN),
        (Input(700, go_on), Target(1, interrupt), (500, 200, 0), Outcome.UNKNOWN),
        (Input(700, go_on), Target(1, fail), (500, 200, 0), Outcome.UNKNOWN),
        (Input(700, find_nonsense), Target(1, go_on), (500, 0, 200), Outcome.NOT_APPLIED),
        (Input(700, go_on), Target(1, find_nonsense), (500, 0, 200), Outcome.NOT_APPLIED),
    ],
)
async def test_only_sent_records_are_in_doubt(
    source: Any, target: Any, counts: tuple[int, ...], outcome: Outcome
) -> None:
    with pytest.raises(RollbookError) as caught:
        await asyncio.create_task(append_numbered(target, source, "log", "january", None, None))
    assert tuple(caught.value.ids[each] for each in _COUNTS) == counts
    assert caught.value.outcome is outcome


def test_duplicate_custom_metadata_key_is_refused() -> None:
    assert custom_of(("a=1", "b=2")) == {"a": b"1", "b": b"2"}
    with raises_message(InvalidRequest):
        custom_of(("a=1", "a=2"))
