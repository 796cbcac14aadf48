"""How pages are run."""

from pathlib import Path

import pytest

from tests.support import pages


def test_a_block_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, whatever it has left in the background."""
    monkeypatch.setattr(pages, "PATIENCE_S", 30.0)
    with pytest.raises(AssertionError, match="for a reason"):
        pages.run(["sh", "-euc", "sleep 60 & echo for a reason >&2; false"], tmp_path)
    assert pages.run(["sh", "-euc", "sleep 60 & echo all is well"], tmp_path) == "all is well\n"
