"""Ranges of entries are merged and intersected."""

from rollbook.recovery.core.entry_spans import WHOLE, EntrySpan, intersection, ranges_of


def test_range_helpers_merge_and_intersect() -> None:
    assert ranges_of([]) == []
    assert ranges_of([1, 2, 3, 5]) == [(1, 3), (5, 5)]
    assert ranges_of([1, 3, 5, 8], gap=2) == [(1, 5), (8, 8)]
    assert intersection([EntrySpan(0, 5), EntrySpan(7, 9)], [EntrySpan(4, 7)]) == [
        (4, 5),
        (7, 7),
    ]
    assert intersection([WHOLE], [EntrySpan(4, 7)]) == [(4, 7)]
