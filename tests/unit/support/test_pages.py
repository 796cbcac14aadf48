"""Running the blocks of pages."""

from pathlib import Path

import pytest

from tests.support import pages


def test_failing_block_raises_at_once_with_its_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes that a block leaves in the background do not delay the result."""
    monkeypatch.setattr(pages, "PATIENCE_S", 30.0)
    with pytest.raises(AssertionError, match="for a reason"):
        pages.run(["sh", "-euc", "sleep 60 & echo for a reason >&2; false"], tmp_path)
    assert pages.run(["sh", "-euc", "sleep 60 & echo all is well"], tmp_path) == "all is well\n"
