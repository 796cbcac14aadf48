"""Replays whose ranges are read from all servers."""

import random

import pytest

from rollbook.api.client.owner_cache import OwnerCache
from rollbook.api.client.replay_load_balancing import AnyServer, ReplayRange, runs_of
from rollbook.logservice.ids import LogName, Offset, SegmentId
from rollbook.logservice.messages import SegmentState, SegmentView
from rollbook.proto.errors import ServerUnreachable
from rollbook.proto.ids import LedgerId

LOG = LogName("ns", "log")


def segments_of(
    *ends: int, first: int = 0, state: SegmentState = SegmentState.CLOSED
) -> list[SegmentView]:
    """Closed segments with 10 bytes per record, and an open segment at the end."""
    found: list[SegmentView] = []
    for number, end in enumerate(ends):
        base = found[-1].next_offset if found else Offset(first)
        assert base is not None
        found.append(
            SegmentView(
                SegmentId(number),
                LedgerId(number),
                state,
                base,
                Offset(end),
                0,
                0,
                10 * (end - base),
                end - base,
                "",
            )
        )
    behind = found[-1].next_offset if found else Offset(first)
    found.append(
        SegmentView(
            SegmentId(len(ends)),
            LedgerId(len(ends)),
            SegmentState.OPEN,
            behind,
            None,
            0,
            0,
            0,
            0,
            "",
        )
    )
    return found


def runs(segments: list[SegmentView], start: int, end: int, run_bytes: int) -> list[ReplayRange]:
    return list(runs_of(segments, Offset(start), Offset(end), run_bytes))


def test_closed_segments_are_split_and_the_open_one_left_to_the_owner() -> None:
    segments = segments_of(10, 20, 30)
    assert runs(segments, 5, 35, 150) == [
        ReplayRange(Offset(5), Offset(20), SegmentId(0)),
        ReplayRange(Offset(20), Offset(30), SegmentId(2)),
        ReplayRange(Offset(30), Offset(35), None),
    ]
    assert runs(segments, 12, 18, 1) == [ReplayRange(Offset(12), Offset(18), SegmentId(1))]
    assert runs(segments, 30, 31, 1) == [ReplayRange(Offset(30), Offset(31), None)]
    assert runs(segments, 7, 7, 1) == []


def test_lost_segment_is_read_from_the_owner() -> None:
    segments = segments_of(10, 20)
    lost = segments_of(10, 20, state=SegmentState.LOST)[1]
    assert runs([segments[0], lost, segments[2]], 0, 20, 1) == [
        ReplayRange(Offset(0), Offset(10), SegmentId(0)),
        ReplayRange(Offset(10), Offset(20), None),
    ]


@pytest.mark.parametrize("seed", range(50))
def test_replay_ranges_cover_the_range_exactly(seed: int) -> None:
    chance = random.Random(seed)
    ends = sorted(chance.sample(range(1, 200), chance.randrange(8)))
    segments = segments_of(*ends)[chance.randrange(2) :]
    start = chance.randrange(200)
    end = start + chance.randrange(100)
    found = runs(segments, start, end, chance.choice([1, 300, 10_000]))
    assert [offset for run in found for offset in range(run.start, run.end)] == [*range(start, end)]
    assert all(run.segment is not None for run in found[:-1])


def test_replays_are_spread_and_retried_on_the_next_server() -> None:
    servers = ["a:1", "b:1", "c:1"]
    owners = OwnerCache(servers)
    asked = [AnyServer(owners, LOG, SegmentId(number)).address_of(LOG) for number in range(300)]
    assert all(60 < asked.count(server) < 140 for server in servers)
    whom = AnyServer(owners, LOG, SegmentId(0))
    tried = [whom.address_of(LOG)]
    assert tried == [asked[0]]
    for is_next in (True, True, False):
        assert whom.on_error(LOG, tried[-1], ServerUnreachable()) is is_next
        tried.append(whom.address_of(LOG))
    assert sorted(tried[:3]) == servers
    assert tried[3] == tried[0]
