"""A lone writer is a client that adds many times in a row; one add of another client ends that."""

from rollbook.bookie.core.lone_writer import LoneWriter


def chunks_until_alone(solo: LoneWriter, source: object) -> int:
    for chunks in range(1, 100):
        solo.on_adds(source)
        if solo.is_alone:
            return chunks
    raise AssertionError("never")


def test_no_client_is_a_lone_writer_at_first() -> None:
    assert not LoneWriter(8).is_alone


def test_repeated_adds_make_a_lone_writer_until_another_client_adds() -> None:
    solo = LoneWriter(8)
    assert chunks_until_alone(solo, "first") == 8
    solo.on_adds("first")
    assert solo.is_alone
    solo.on_adds("second")
    assert not solo.is_alone
    assert chunks_until_alone(solo, "first") == 8


def test_two_alternating_clients_are_not_lone_writers() -> None:
    solo = LoneWriter(8)
    for _ in range(100):
        for source in ("first", "second"):
            solo.on_adds(source)
            assert not solo.is_alone


def test_only_disconnect_of_the_lone_writer_ends_its_status() -> None:
    solo = LoneWriter(8)
    chunks_until_alone(solo, "first")
    solo.on_gone("second")
    assert solo.is_alone
    solo.on_gone("first")
    assert not solo.is_alone
