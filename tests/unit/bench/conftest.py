"""The figures of these runs are not used: no run waits for an idle machine or pauses other
processes.
"""

import pytest

from tests.bench import ledger, stillness


@pytest.fixture(autouse=True)
def _never_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stillness, "until_still", lambda: None)
    monkeypatch.setattr(ledger.Side, "pids", lambda _: [])
    monkeypatch.setattr(ledger.Side, "ailment", lambda _: None)
