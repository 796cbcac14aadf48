"""The range that a trigger reads, and its division into tasks."""

import random
from itertools import pairwise

import pytest

from rollbook.api.spark.core.options import SplitLimits
from rollbook.api.spark.core.plan import (
    PIECE_BYTES_MIN,
    TASK_BYTES,
    TASK_RECORDS,
    MeasuredSegment,
    Span,
    divide,
    next_ends,
    record_bytes_of,
    split,
)

MIB = 1024 * 1024


def some_backlogs(chance: random.Random) -> dict[str, int]:
    return {
        f"ns/{n}": chance.choice((0, 1, 7, chance.randrange(10**6)))
        for n in range(chance.randrange(1, 30))
    }


@pytest.mark.parametrize("seed", range(60))
def test_limit_is_divided_fairly_and_completely(seed: int) -> None:
    chance = random.Random(seed)
    backlogs = some_backlogs(chance)
    limit = chance.choice((1, 3, 1000, 10**6))
    found = divide(limit, backlogs, chance.randrange(1000))
    assert sum(found.values()) == min(limit, sum(backlogs.values()))
    assert all(0 <= found[name] <= backlogs[name] for name in found)
    # No log gets less than another one unless it gets all that it needs.
    most = max(found.values(), default=0)
    assert all(found[name] >= most - 1 or found[name] == backlogs[name] for name in found)


@pytest.mark.parametrize("seed", range(30))
def test_no_log_starves_if_the_limit_is_below_one_record_each(seed: int) -> None:
    """SK3: if the limit is smaller than the number of logs, the logs take turns."""
    chance = random.Random(seed)
    starts = {f"ns/{n}": chance.randrange(100) for n in range(chance.randrange(2, 20))}
    first = dict(starts)
    tails = {name: at + 10**6 for name, at in starts.items()}
    limit = chance.randrange(1, 4)
    for _ in range(3 * len(starts)):
        starts = next_ends(starts, tails, rows_max=limit)
    assert all(starts[name] > first[name] for name in starts)


@pytest.mark.parametrize("seed", range(60))
def test_triggers_stay_within_limits_and_reach_all_tails(seed: int) -> None:
    chance = random.Random(seed)
    tails = {name: chance.randrange(50) for name in some_backlogs(chance)}
    sizes = {name: chance.choice((1, 100, 5000)) for name in tails}
    starts = dict.fromkeys(tails, 0)
    rows_max, bytes_max = chance.choice((0, 7, 20)), chance.choice((0, 512, 4096))
    for _ in range(20_000):
        ends = next_ends(starts, tails, rows_max=rows_max, bytes_max=bytes_max, record_bytes=sizes)
        assert ends == next_ends(
            starts, tails, rows_max=rows_max, bytes_max=bytes_max, record_bytes=sizes
        )
        got = {name: ends[name] - starts[name] for name in ends}
        assert all(0 <= got[name] <= tails[name] - starts[name] for name in got)
        assert not rows_max or sum(got.values()) <= rows_max
        if bytes_max:
            over = sum((got[name] - 1) * sizes[name] for name in got if got[name])
            assert over <= bytes_max
        if ends == starts:
            break
        starts = ends
    assert starts == tails


def some_table(chance: random.Random) -> list[MeasuredSegment]:
    found, at = [], chance.randrange(1000)
    for _ in range(chance.randrange(1, 8)):
        records = chance.randrange(1, 400_000)
        found.append(
            MeasuredSegment(at, at + records, records, records * chance.choice((20, 100, 2000)))
        )
        at += records
    return [*found[:-1], found[-1]._replace(end=None)]


@pytest.mark.parametrize("seed", range(100))
def test_tasks_read_every_record_once_in_order_within_their_limits(seed: int) -> None:
    chance = random.Random(seed)
    segments, spans = {}, []
    for n in range(chance.randrange(1, 12)):
        name = f"ns/{n:02}"
        table = some_table(chance)
        start, end = table[0].start, table[-1].start + table[-1].records
        a, b = sorted((chance.randrange(start, end + 1), chance.randrange(start, end + 1)))
        spans.append(Span(name, f"uid{n}", a, b))
        if chance.random() < 0.8:
            segments[name] = table
    limits = SplitLimits(
        chance.choice((0, 0, 3, 40)),
        chance.choice((0, 1000, 77_777)),
        chance.choice((1, 16, 128)) * MIB,
    )
    tasks = split(spans, segments, limits)
    assert tasks == split(
        reversed(spans), segments, limits
    )  # The result depends on the set of spans only.
    flat = [span for task in tasks for span in task]
    assert flat == sorted(flat)
    assert all(span.start < span.end for span in flat)
    joined: dict[str, list[Span]] = {}
    for span in flat:
        joined.setdefault(span.log, []).append(span)
    for wanted in spans:
        parts = joined.get(wanted.log, [])
        assert all(part.uid == wanted.uid for part in parts)
        assert [part.end for part in parts[:-1]] == [part.start for part in parts[1:]]
        assert sum(part.end - part.start for part in parts) == wanted.end - wanted.start
        assert not parts or (parts[0].start, parts[-1].end) == (wanted.start, wanted.end)
    records = [sum(span.end - span.start for span in task) for task in tasks]
    if limits.records_max:
        assert all(each <= limits.records_max for each in records)
    assert len(tasks) >= min(limits.partitions_min, sum(records))


def test_small_logs_share_a_task() -> None:
    spans = [Span(f"ns/{n:04}", "", 0, 10) for n in range(5000)]
    tasks = split(spans, {}, SplitLimits())
    assert len(tasks) == 1
    records = TASK_RECORDS // 10
    assert len(split([Span(f"ns/{n}", "", 0, records) for n in range(30)], {}, SplitLimits())) == 3


def test_large_ranges_are_cut_at_the_ends_of_segments() -> None:
    table = [MeasuredSegment(n * 1000, (n + 1) * 1000, 1000, 50 * MIB) for n in range(4)]
    tasks = split([Span("ns/a", "", 0, 4000)], {"ns/a": table}, SplitLimits(bytes_max=TASK_BYTES))
    assert [(task[0].start, task[0].end) for task in tasks] == [
        (a, b) for a, b in pairwise(range(0, 5000, 1000))
    ]
    small = [each._replace(bytes=PIECE_BYTES_MIN // 2) for each in table]
    assert len(split([Span("ns/a", "", 0, 4000)], {"ns/a": small}, SplitLimits())) == 1


def test_tasks_can_be_cut_at_any_record() -> None:
    tasks = split([Span("ns/a", "", 5, 8)], {}, SplitLimits(partitions_min=9))
    assert [task[0][2:] for task in tasks] == [(5, 6), (6, 7), (7, 8)]
    assert split([Span("ns/a", "", 5, 5)], {}, SplitLimits(partitions_min=9)) == []


def test_record_size_is_the_mean_of_the_last_segments() -> None:
    assert record_bytes_of([]) == 100
    old, new = MeasuredSegment(0, 10, 10, 10**6), MeasuredSegment(10, 20, 10, 2000)
    assert (
        record_bytes_of([old, new, new._replace(end=None), MeasuredSegment(30, None, 0, 0)]) == 200
    )
