"""AF1: a file that says who may come in is not taken half-written."""

from dataclasses import replace

from rollbook.api.access.core.file_stability import (
    IN_PLACE_NS,
    REPLACED_NS,
    FileStability,
    ReadFile,
)

WALL_NS = 1_800_000_000_000_000_000
BEFORE = ReadFile(1, WALL_NS - IN_PLACE_NS, b"[principals.a]\nread = ['*']\n")
MARKED = replace(BEFORE, data=BEFORE.data + b"# end\n")


def changed(data: bytes, inode: int = 1) -> ReadFile:
    return ReadFile(inode, WALL_NS, data)


HALF = changed(b"[principals.b]\nread = ['*']\n")
WHOLE = changed(b"[principals.b]\nread = ['*']\ndeny = ['ns/*']\n")


def test_half_written_file_is_not_taken_before_the_rest_comes() -> None:
    """AF1, G3"""
    stability = FileStability(BEFORE)
    assert stability.on_seen(changed(b""), 0, WALL_NS)
    assert stability.on_seen(HALF, 1, WALL_NS)
    assert stability.on_seen(WHOLE, IN_PLACE_NS, WALL_NS)  # It changed just now.
    assert stability.in_force == BEFORE
    assert stability.on_seen(WHOLE, 2 * IN_PLACE_NS - 1, WALL_NS)
    assert stability.on_seen(WHOLE, 2 * IN_PLACE_NS, WALL_NS) is None
    assert stability.in_force == WHOLE


def test_wait_ends_when_it_says() -> None:
    stability = FileStability(BEFORE)
    wait = stability.on_seen(WHOLE, 7, WALL_NS)
    assert wait is not None
    assert wait.again_ns == 7 + IN_PLACE_NS
    assert stability.on_seen(WHOLE, wait.again_ns, WALL_NS) is None


def test_file_that_says_it_is_complete_is_taken_at_once() -> None:
    """AF1"""
    stability = FileStability(BEFORE)
    complete = changed(WHOLE.data + b"# end\n\n")
    assert stability.on_seen(complete, 0, WALL_NS) is None
    assert stability.in_force == complete


def test_file_that_had_an_end_waits_for_it_however_long() -> None:
    """AF1"""
    stability = FileStability(MARKED)
    for now_ns in (0, IN_PLACE_NS, 100 * IN_PLACE_NS):
        wait = stability.on_seen(HALF, now_ns, WALL_NS + 100 * IN_PLACE_NS)
        assert wait is not None
        assert "# end" in wait.reason
    assert stability.in_force == MARKED
    assert stability.on_seen(changed(HALF.data + b"# end"), 0, WALL_NS) is None


def test_empty_file_is_never_taken() -> None:
    """AF1"""
    stability = FileStability(BEFORE)
    assert stability.on_seen(changed(b" \n"), 0, WALL_NS)
    assert stability.on_seen(changed(b" \n"), 100 * IN_PLACE_NS, WALL_NS + 100 * IN_PLACE_NS)
    assert stability.on_seen(changed(b"# end\n"), 0, WALL_NS) is None  # Nobody may come in.


def test_file_that_was_moved_here_settles_sooner() -> None:
    stability = FileStability(BEFORE)
    moved = changed(WHOLE.data, inode=2)
    assert stability.on_seen(moved, 0, WALL_NS)
    assert stability.on_seen(moved, REPLACED_NS, WALL_NS) is None


def test_change_while_nobody_asked_is_taken_at_once() -> None:
    """What was taken away an hour ago opens nothing now."""
    stability = FileStability(BEFORE)
    assert stability.on_seen(WHOLE, 0, WALL_NS + IN_PLACE_NS) is None


def test_file_that_cannot_be_read_starts_the_wait_again() -> None:
    stability = FileStability(BEFORE)
    assert stability.on_seen(HALF, 0, WALL_NS)
    assert stability.on_seen(None, 1, WALL_NS)
    assert stability.on_seen(HALF, IN_PLACE_NS, WALL_NS)
    assert stability.on_seen(HALF, 2 * IN_PLACE_NS, WALL_NS) is None


def test_same_content_is_no_change() -> None:
    stability = FileStability(BEFORE)
    assert stability.on_seen(changed(BEFORE.data), 0, WALL_NS) is None


def test_token_is_taken_at_once_and_an_empty_file_never() -> None:
    """AF1"""
    stability = FileStability(replace(BEFORE, data=b"the-old-token\n"), is_token=True)
    assert stability.on_seen(changed(b""), 0, WALL_NS)
    assert stability.on_seen(changed(b"the-new-token"), 0, WALL_NS) is None
