"""AF1: a half-written access file is not taken."""

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


def test_half_written_file_is_not_taken() -> None:
    """AF1, G3"""
    stability = FileStability(BEFORE)
    assert stability.on_seen(changed(b""), 0, WALL_NS)
    assert stability.on_seen(HALF, 1, WALL_NS)
    assert stability.on_seen(WHOLE, IN_PLACE_NS, WALL_NS)  # The content changed just now.
    assert stability.in_force == BEFORE
    assert stability.on_seen(WHOLE, 2 * IN_PLACE_NS - 1, WALL_NS)
    assert stability.on_seen(WHOLE, 2 * IN_PLACE_NS, WALL_NS) is None
    assert stability.in_force == WHOLE


def test_wait_ends_at_its_reported_time() -> None:
    stability = FileStability(BEFORE)
    wait = stability.on_seen(WHOLE, 7, WALL_NS)
    assert wait is not None
    assert wait.again_ns == 7 + IN_PLACE_NS
    assert stability.on_seen(WHOLE, wait.again_ns, WALL_NS) is None


def test_file_with_end_mark_is_taken_at_once() -> None:
    """AF1"""
    stability = FileStability(BEFORE)
    complete = changed(WHOLE.data + b"# end\n\n")
    assert stability.on_seen(complete, 0, WALL_NS) is None
    assert stability.in_force == complete


def test_file_that_lost_its_end_mark_is_never_taken() -> None:
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
    assert stability.on_seen(changed(b"# end\n"), 0, WALL_NS) is None  # It admits nobody.


def test_file_replaced_by_rename_is_taken_sooner() -> None:
    stability = FileStability(BEFORE)
    moved = changed(WHOLE.data, inode=2)
    assert stability.on_seen(moved, 0, WALL_NS)
    assert stability.on_seen(moved, REPLACED_NS, WALL_NS) is None


def test_old_change_is_taken_at_once() -> None:
    """A right that was removed long ago admits nobody now."""
    stability = FileStability(BEFORE)
    assert stability.on_seen(WHOLE, 0, WALL_NS + IN_PLACE_NS) is None


def test_unreadable_file_restarts_the_wait() -> None:
    stability = FileStability(BEFORE)
    assert stability.on_seen(HALF, 0, WALL_NS)
    assert stability.on_seen(None, 1, WALL_NS)
    assert stability.on_seen(HALF, IN_PLACE_NS, WALL_NS)
    assert stability.on_seen(HALF, 2 * IN_PLACE_NS, WALL_NS) is None


def test_same_content_is_no_change() -> None:
    stability = FileStability(BEFORE)
    assert stability.on_seen(changed(BEFORE.data), 0, WALL_NS) is None


def test_token_file_is_taken_at_once_unless_empty() -> None:
    """AF1"""
    stability = FileStability(replace(BEFORE, data=b"the-old-token\n"), is_token=True)
    assert stability.on_seen(changed(b""), 0, WALL_NS)
    assert stability.on_seen(changed(b"the-new-token"), 0, WALL_NS) is None
