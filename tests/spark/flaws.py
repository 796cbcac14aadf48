"""Bugs to plant in the source and the sink: stories and runs of kills must find them."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest

from rollbook.api.spark import exactly_once_append, stream
from rollbook.api.spark.core.stream_offsets import Beginning, Point
from rollbook.logservice.ids import ProducerRef


def start_from_initial_offset(patch: pytest.MonkeyPatch) -> None:
    """The start is looked up again when the batch is planned."""
    first_end = stream._Live._first_end

    def resolved_again(self: Any, is_limited: bool) -> Any:
        self._starts = None
        end = first_end(self, is_limited)
        return {**end, "logs": {}, "from": {}}

    patch.setattr(stream._Live, "_first_end", resolved_again)
    patch.setattr(
        stream,
        "begin",
        lambda known, tails: Beginning(
            {name: Point(tail.uid, tail.tail) for name, tail in tails.items()}, []
        ),
    )


def no_look_behind_the_mark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(exactly_once_append.LogSink, "_written", lambda *_: ([], -1))


def numbers_by_partition(patch: pytest.MonkeyPatch) -> None:
    """Producer numbers depend on the partition, so a replay does not find written blocks."""
    patch.setattr(exactly_once_append.LogSink, "_written", lambda *_: ([], -1))
    patch.setattr(
        exactly_once_append.MicroBatch,
        "ref",
        lambda self, seq: ProducerRef(self.producer + b"/p%d" % id(self), self.number, seq),
    )


def no_comparison(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(exactly_once_append.LogSink, "_is_same", lambda *_: True)


FLAWS: Final[Mapping[str, Callable[[pytest.MonkeyPatch], None]]] = {
    flaw.__name__: flaw
    for flaw in (
        start_from_initial_offset,
        no_look_behind_the_mark,
        numbers_by_partition,
        no_comparison,
    )
}


def plant(name: str) -> None:
    """Plants the bug in this process until it ends."""
    FLAWS[name](pytest.MonkeyPatch())
