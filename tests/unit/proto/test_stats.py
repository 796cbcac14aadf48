"""Histograms count exactly, and their quantiles are right to within a bucket."""

import random
from bisect import bisect_left
from itertools import pairwise
from statistics import quantiles

import pytest

from rollbook.proto.stats import (
    LATENCY_BOUNDS_NS,
    SIZE_BOUNDS,
    Histogram,
    new_latency,
)


def test_value_equal_to_a_bound_is_counted_below_it() -> None:
    histogram = Histogram((10, 20))
    for value in (0, 10, 11, 20, 21, 1_000):
        histogram.observe(value)
    histogram.observe(15, times=4)
    assert histogram.counts == [2, 6, 2]
    assert (histogram.count, histogram.total) == (10, 1_062 + 60)


def test_bounds_ascend_and_span_latencies_and_sizes_of_a_bookie() -> None:
    for bounds in (LATENCY_BOUNDS_NS, SIZE_BOUNDS):
        assert list(bounds) == sorted(set(bounds))
    assert LATENCY_BOUNDS_NS[0] == 10_000
    assert LATENCY_BOUNDS_NS[-1] == 10_000_000_000
    assert all(b <= 2.5 * a for a, b in pairwise(LATENCY_BOUNDS_NS))
    assert (SIZE_BOUNDS[0], SIZE_BOUNDS[-1]) == (1, 64 * 1024 * 1024)


def test_quantile_of_empty_histogram_is_none() -> None:
    assert new_latency().quantile(0.99) is None


@pytest.mark.parametrize("seed", range(20))
def test_quantiles_are_exact_to_within_their_bucket(seed: int) -> None:
    chance = random.Random(seed)
    values = [round(10 ** chance.uniform(3, 11)) for _ in range(1_000)]
    histogram = new_latency()
    for value in values:
        histogram.observe(value)
    exact = quantiles(values, n=100, method="inclusive")
    edges = [0, *LATENCY_BOUNDS_NS]
    for percent in (1, 50, 90, 99):
        found = histogram.quantile(percent / 100)
        assert found is not None
        bucket = bisect_left(edges, exact[percent - 1])
        nearby = [edges[min(max(at, 0), len(edges) - 1)] for at in (bucket - 2, bucket + 1)]
        assert nearby[0] <= found * 1e9 <= nearby[1]


def test_quantile_above_all_bounds_is_the_highest_bound() -> None:
    histogram = Histogram((10, 20))
    histogram.observe(10**9)
    assert histogram.quantile(0.5) == 20
