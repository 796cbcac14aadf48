"""Figures of these runs are nobody's: no turn waits until a machine that does other things is still, and nothing runs
that could be put to sleep."""

import pytest

from tests.bench import ledger, stillness


@pytest.fixture(autouse=True)
def _never_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stillness, "until_still", lambda: None)
    monkeypatch.setattr(ledger.Side, "pids", lambda _: [])
    monkeypatch.setattr(ledger.Side, "ailment", lambda _: None)
