"""SV8: which dependencies are unavailable, since when, and the texts that say so."""

from rollbook.logservice.core.dependency_outages import KnownOutages, advice_on, cause_in_words
from rollbook.logservice.messages import Obstacle, ObstacleKind


def names(obstacles: KnownOutages) -> list[tuple[str, int, str]]:
    return [(each.name, each.since_us, each.why) for each in obstacles.found]


def test_bookie_is_unavailable_since_it_left() -> None:
    """SV8."""
    known = KnownOutages()
    known.on_left(5, ["bk-2"])
    known.on_bookies(7, writable=["bk-1", "bk-3"])
    assert names(known) == [("bk-2", 5, "is not registered")]
    known.on_bookies(9, writable=["bk-1", "bk-2", "bk-3"])
    assert names(known) == []


def test_silent_bookie_is_an_obstacle_although_registered() -> None:
    """SV8."""
    known = KnownOutages()
    known.on_bookies(5, writable=["bk-1", "bk-2"], silent=["bk-2"], away=["bk-3"])
    assert names(known) == [("bk-2", 5, "does not answer"), ("bk-3", 5, "is not registered")]
    known.on_bookies(8, writable=["bk-1"], read_only=["bk-2"])
    assert names(known) == [("bk-2", 5, "is read-only"), ("bk-3", 5, "is not registered")]


def test_metadata_store_is_unavailable_since_it_was_first_silent() -> None:
    """SV8."""
    known = KnownOutages()
    for now_us, answers in ((1, True), (2, False), (3, False)):
        known.on_store(now_us, answers=answers)
    assert names(known) == [("metadata store", 2, "does not answer")]
    known.on_store(4, answers=True)
    assert not known.found


def test_cause_and_advice_name_all_obstacles() -> None:
    """SV8."""
    found = (
        Obstacle(ObstacleKind.METADATA, "metadata store", 7, "does not answer"),
        Obstacle(ObstacleKind.BOOKIE, "bk-2", 5, "is not registered"),
        Obstacle(ObstacleKind.BOOKIE, "bk-3", 4, "is not registered"),
        Obstacle(ObstacleKind.BOOKIE, "bk-4", 9, "is read-only"),
    )
    assert cause_in_words(found, str) == (
        "the metadata store does not answer (since 7); "
        "bookies bk-2, bk-3 are not registered (since 4); bookie bk-4 is read-only (since 9)"
    )
    assert advice_on(found) == (
        "bring the metadata store back; start bookies bk-2, bk-3, or find out why the network does not "
        "reach them; make room on bookie bk-4"
    )
    assert (cause_in_words((), str), advice_on(())) == ("", "")
