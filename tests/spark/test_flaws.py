"""Each planted bug makes a story fail."""

from collections.abc import Callable

import pytest

from rollbook.api.client.sync import SyncClient
from rollbook.api.spark.failures import RollbookFailure
from tests.regressions.lone_server import Site
from tests.spark.drive import Query, forget_process
from tests.spark.flaws import (
    no_comparison,
    no_look_behind_the_mark,
    numbers_by_partition,
    start_from_initial_offset,
)
from tests.spark.test_sink import SMALL, expected, rows, sink_of, values

Story = Callable[[Site, SyncClient, str], None]


def killed_in_the_first_batch(site: Site, client: SyncClient, name: str) -> None:
    log = client.open(name, create=True)
    query = Query(endpoint=site.url, log=name, pollWait="2s")
    assert query.plan()
    log.append_many(expected((0, 50)))
    query.restart()
    found = query.rows()
    assert [row["value"] for row in found] == expected((0, 50))


def written_again_with_other_partitions(site: Site, client: SyncClient, name: str) -> None:
    log = client.open(name, create=SMALL)
    sink = sink_of(site, name)
    sink.run(0, rows(0, 30), rows(30, 60))
    forget_process()
    sink.run(0, rows(0, 7), rows(7, 21), rows(21, 60))
    assert values(log) == expected((0, 60))


def written_again_with_other_rows(site: Site, client: SyncClient, name: str) -> None:
    client.open(name, create=SMALL)
    sink = sink_of(site, name)
    sink.run(0, rows(0, 60))
    forget_process()
    with pytest.raises(RollbookFailure, match="SINK_REPLAY_DIVERGED"):
        sink.run(0, rows(1, 61))


STORIES: tuple[Story, ...] = (
    killed_in_the_first_batch,
    written_again_with_other_partitions,
    written_again_with_other_rows,
)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_stories_pass_without_a_flaw(
    story: Story, site: Site, client: SyncClient, name: str
) -> None:
    """SK1, SK5, SK6"""
    forget_process()
    story(site, client, name)


@pytest.mark.parametrize(
    ("flaw", "story"),
    [
        (start_from_initial_offset, killed_in_the_first_batch),
        (no_look_behind_the_mark, written_again_with_other_partitions),
        (numbers_by_partition, written_again_with_other_partitions),
        (no_comparison, written_again_with_other_rows),
    ],
)
def test_stories_fail_with_a_planted_flaw(
    flaw: Callable[[pytest.MonkeyPatch], None],
    story: Story,
    site: Site,
    client: SyncClient,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forget_process()
    flaw(monkeypatch)
    with pytest.raises((AssertionError, RollbookFailure, pytest.fail.Exception)):
        story(site, client, name)
