"""The offsets that Spark keeps of a stream, and how a stream resumes from them."""

import json
import random

import pytest

from rollbook.api.spark.core.lag import Lag, lag_of
from rollbook.api.spark.core.stream_offsets import (
    BatchEnd,
    Point,
    TailPoint,
    begin,
    ends_of,
    idle_wait_s,
    initial,
    moved,
    unpack,
)
from rollbook.proto.errors import (
    InvalidRequest,
    LogDataLoss,
    LogDeleted,
    LogReplaced,
    UnsupportedVersion,
)


def test_batch_end_survives_the_checkpoint() -> None:
    end = BatchEnd({"ns/b": Point("u", 3)}, {"ns/b": Point("u", 9), "ns/a": Point("v", 0)})
    text = json.dumps(end.packed())
    assert text == (
        '{"v": 1, "from": {"ns/b": ["u", 3]}, "logs": {"ns/a": ["v", 0], "ns/b": ["u", 9]}}'
    )
    assert unpack(json.loads(text)) == end


def test_initial_offset_is_constant_and_has_no_positions() -> None:
    """SK1: Spark asks for it twice, and again after a crash."""
    assert unpack(initial("latest")) is None
    assert initial("latest") == initial("latest")


def test_a_checkpoint_of_a_newer_release_is_refused() -> None:
    with pytest.raises(UnsupportedVersion, match="newer release: version 2"):
        unpack({"v": 2, "from": {}, "logs": {}, "more": 1})


@pytest.mark.parametrize("offset", [{}, {"v": 1}, {"v": 1, "from": 3, "logs": {}}, {"v": "1"}])
def test_offset_of_another_source_is_refused(offset: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="is not an offset of this source"):
        unpack(offset)


def test_a_new_log_starts_at_its_head() -> None:
    """SK3"""
    found = begin(
        {"ns/a": Point("u", 5)}, {"ns/a": TailPoint("u", 0, 9), "ns/b": TailPoint("v", 3, 8)}
    )
    assert found.starts == {"ns/a": Point("u", 5), "ns/b": Point("v", 3)}
    assert found.losses == []


@pytest.mark.parametrize(
    ("tail", "start", "loss"),
    [
        (None, None, LogDeleted),
        (TailPoint("other", 2, 99), Point("other", 2), LogReplaced),
        (TailPoint("u", 7, 9), Point("u", 7), LogDataLoss),
    ],
)
def test_each_kind_of_loss_is_named(
    tail: TailPoint | None, start: Point | None, loss: type[Exception]
) -> None:
    """SK2: a log that was deleted and created again has another uid, for any tail."""
    found = begin({"ns/a": Point("u", 5)}, {"ns/a": tail} if tail else {})
    assert [type(each) for each in found.losses] == [loss]
    assert "ns/a" in str(found.losses[0])
    assert "failOnDataLoss=false" in found.losses[0].next_step
    assert found.starts == ({"ns/a": start} if start else {})


def test_only_changed_logs_are_examined() -> None:
    """Idle logs cost a trigger nothing."""
    known = {f"ns/{name}": Point("u", 5) for name in "abcdefg"}
    tails = {
        "ns/a": TailPoint("u", 0, 5),
        "ns/b": TailPoint("u", 0, 6),
        "ns/c": TailPoint("other", 0, 5),
        "ns/d": TailPoint("", 0, 5),  # Its server reports no uid.
        "ns/e": TailPoint("u", 0, 3),  # An outdated tail.
        "ns/f": TailPoint("u", 5, 5),
        "ns/new": TailPoint("v", 0, 0),
    }
    assert moved(known, tails) == ["ns/b", "ns/c", "ns/g", "ns/new"]
    assert moved({"ns/a": Point("u", 5)}, {}) == ["ns/a"]


def test_outdated_tail_is_not_a_loss() -> None:
    found = begin({"ns/a": Point("u", 5)}, {"ns/a": TailPoint("u", 0, 3)})
    assert (found.starts, found.losses) == ({"ns/a": Point("u", 5)}, [])


@pytest.mark.parametrize("seed", range(50))
def test_batches_have_no_holes_while_logs_are_added_and_grow(seed: int) -> None:
    chance = random.Random(seed)
    tails: dict[str, TailPoint] = {}
    known: dict[str, Point] = {}
    read: dict[str, int] = {}
    for _ in range(40):
        if chance.random() < 0.3:
            tails[f"ns/{len(tails)}"] = TailPoint(f"u{len(tails)}", 0, 0)
        for log, tail in tails.items():
            tails[log] = tail._replace(tail=tail.tail + chance.randrange(5))
        starts, losses = begin(known, tails)
        assert not losses
        ends = ends_of(
            starts, {log: chance.randint(p.next, tails[log].tail) for log, p in starts.items()}
        )
        for log, point in starts.items():
            assert point.next == read.get(log, 0)
            read[log] = ends[log].next
        end = unpack(json.loads(json.dumps(BatchEnd.of(starts, ends).packed())))
        assert end == BatchEnd.of(starts, ends)
        assert end.starts.keys() == {log for log in starts if starts[log] != ends[log]}
        known = dict(end.ends)
        assert moved(known, tails) == sorted(
            log for log in tails if known[log].next < tails[log].tail
        )


def test_lag_counts_unread_records_of_each_log() -> None:
    latest = json.dumps({"v": 1, "from": {}, "logs": {"ns/a": ["u", 10], "ns/b": ["w", 4]}})
    end = json.dumps({"v": 1, "from": {}, "logs": {"ns/a": ["u", 7], "ns/b": ["v", 3]}})
    kafkas = ('{"topic":{"0":5}}', '{"topic":{"0":2}}')
    found = lag_of([(latest, end), kafkas, (None, None), ("3", "2")])
    assert found == Lag(7, {"ns/a": 3, "ns/b": 4})  # No record of the replaced ns/b was read.
    news = json.dumps(
        {"v": 1, "from": {}, "logs": {"ns/b": ["v", 4]}}
    )  # Only ns/b has grown beyond the end.
    assert lag_of([(news, end)]) == Lag(1, {"ns/a": 0, "ns/b": 1})
    slower = json.dumps({"v": 1, "from": {}, "logs": {"ns/a": ["u", 1], "ns/b": ["w", 4]}})
    assert lag_of([(latest, end), (latest, slower)]).logs["ns/a"] == 9


def test_an_idle_query_waits_longer_for_more_logs() -> None:
    assert idle_wait_s(1) == pytest.approx(0.95, abs=0.01)
    assert idle_wait_s(10_000) == pytest.approx(4.95)
