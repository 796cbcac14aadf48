"""Callbacks with ten kills; `python -m tests crash --of callbacks --kills 100` makes more."""

from tests.crash.callbacks import crash_it


def test_every_event_arrives_despite_killed_servers_and_receiver() -> None:
    """CL1, CL2, CL4, CL5."""
    said: list[str] = []
    result = crash_it(10, 0, 7, said.append)
    assert (result.passed, result.failed) == (10, 0), said
